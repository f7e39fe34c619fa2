"""Environments in processes of their own: the same as here, and what happens when one is lost."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy as np
import pytest

from appo_jax import workers
from appo_jax.collect.stepping import Steppers, _serve, steppers
from appo_jax.envs.environment import Environment
from appo_jax.types import InputError


@pytest.fixture(scope="module")
def hoppers() -> Iterator[Steppers]:
    """Two Hoppers, each in a process of its own."""
    with steppers("Hopper-v5", 2) as running:
        yield running


def test_each_steps_as_it_would_here(hoppers: Steppers) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 2, 3)).astype(np.float32)
    assert (hoppers.observation_dim, hoppers.action_dim) == (11, 3)
    here = [Environment("Hopper-v5") for _ in range(2)]
    for index, env in enumerate(here):
        np.testing.assert_array_equal(hoppers.reset(index, 7 + index), env.reset(7 + index))
    for step in actions:
        hoppers.begin(step)
        for outcome, env, action in zip(hoppers.end(), here, step, strict=True):
            expected = env.step(action)
            np.testing.assert_array_equal(outcome.observation, expected.observation)
            assert outcome[1:] == expected[1:]


def in_a_thread(serve: Callable, connection: Connection, env_name: str) -> threading.Thread:
    own = Connection(os.dup(connection.fileno()))  # as a process has one of its own
    thread = threading.Thread(target=serve, args=(own, env_name))
    thread.start()
    return thread


def test_a_bad_name_is_the_callers_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "process", in_a_thread)
    with (
        pytest.raises(InputError, match="'Nothing-v0' is no Meta-World task"),
        steppers("Nothing-v0", 2),
    ):
        pass
    assert capfd.readouterr().err == ""  # the second one finds nobody to tell


def test_a_process_ends_in_silence_with_its_parent() -> None:
    ours, theirs = Pipe()
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(_serve, theirs, "Pendulum-v1")
        assert ours.poll(60)
        ours.close()  # with something in it that nobody read: the other end is reset
        assert served.result(60) is None


def test_a_lost_process_is_told(hoppers: Steppers) -> None:
    hoppers.reset(0, 0)
    hoppers.reset(1, 0)
    lost = hoppers._processes[1].pid
    assert lost
    os.kill(lost, signal.SIGKILL)
    hoppers._processes[1].join()
    with pytest.raises(BrokenProcessPool):
        hoppers.step(1, np.zeros(3, np.float32))
    assert hoppers.step(0, np.zeros(3, np.float32)).reward > 0  # the other one is there


def test_a_failing_environment_tells_why(hoppers: Steppers) -> None:
    hoppers.reset(0, 0)
    with pytest.raises(InputError, match="'Hopper-v5' failed at step 1 .*broadcast"):
        hoppers.step(0, np.zeros(7, np.float32))
