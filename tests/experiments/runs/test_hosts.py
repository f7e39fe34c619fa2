import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.types import InputError
from experiments.runs import hosts
from tests.helpers.processes import free_port

# What one of two processes does, as `experiments.train` lets it.
TOGETHER = """
import sys
import jax, jax.numpy as jnp, numpy as np
from appo_jax import training
from experiments.runs import hosts
from experiments.terminal import joining

own = int(sys.argv[2])
with joining.joined(f"localhost:{sys.argv[1]}", 2, own, "kept"):
    assert hosts.is_first() == (own == 0)
    assert hosts.of_all(own) == [0, 1]
    assert hosts.to_first(own) == ([0, 1] if own == 0 else None)
    # Inside, the first process is by itself.
    assert hosts.from_first(lambda: (own, hosts.of_all(own), hosts.is_first())) == (0, [0], True)
    assert hosts.signals_of_all(["SIGTERM"] * own) == ["SIGTERM"]
    if own == 0:
        assert hosts.apart(abs, -2) == 2
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    whole = {"numbers": np.arange(8.0).reshape(4, 2), "keys": keys}
    spread = training.spread(training.runs_mesh(), whole)
    assert spread["numbers"].shape == (4, 2) and not spread["numbers"].is_fully_addressable
    found = hosts.slots_to_first(spread)
    assert (found is None) == (own == 1)
    if found is not None:
        np.testing.assert_array_equal(found["numbers"], whole["numbers"])
        assert (found["keys"] == keys).all()
    np.testing.assert_array_equal(hosts.slots_to_all(spread["numbers"]), whole["numbers"])
    hosts.check_same("the numbers", 1)
    try:
        hosts.check_same("the numbers", own)
    except Exception as error:
        print(error)
    try:
        if own == 0:
            raise RuntimeError("out of luck")
        hosts.from_first(lambda: None)
    except Exception as error:
        hosts.tell_of_end(error)
        print(error)
"""


def test_two_processes() -> None:
    port, environment = free_port(), {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(port), str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(2)
    ]
    found = [process.communicate(timeout=100) for process in both]
    assert [process.returncode for process in both] == [0, 0], found
    assert [stderr for _, stderr in found] == ["", ""]
    differ = (
        "--process_id=1: the numbers differ from those of process 0, expected the same command "
        "and the same files for all processes"
    )
    assert found[0][0].splitlines() == [differ, "out of luck"]
    assert found[1][0].splitlines() == [differ, "process 0 of 2 has ended (out of luck)"]


def test_one_process_has_nobody_to_wait_for() -> None:
    arrays = {"rows": jnp.arange(3), "keys": jax.random.split(jax.random.key(0), 3)}
    assert hosts.is_first()
    assert hosts.from_first(lambda: arrays) is arrays
    assert hosts.first_before_others(lambda: arrays) is arrays
    assert hosts.of_all(arrays)[0] is arrays
    assert hosts.slots_to_first(arrays) is arrays
    found = hosts.slots_to_all(arrays["rows"])
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [0, 1, 2]
    assert hosts.signals_of_all([]) == []
    hosts.check_same("anything", object())
    hosts.tell_of_end(ValueError("nobody hears it"))


def test_no_more_processes_than_runs() -> None:
    hosts.check_count(2, 2)
    with pytest.raises(InputError, match=r"^--num_processes=3: .* of which this is 2 runs, expect"):
        hosts.check_count(3, 2)
    with pytest.raises(InputError, match=r"^--num_processes=2: .* of which this is one run, expec"):
        hosts.check_count(2, 1)
