"""A policy out of its checkpoint, and `experiments.evaluate`."""

import dataclasses
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import appo_jax
from appo_jax import appo, checkpoint, policy, registry, training, workers
from appo_jax.data.dataset import ActionScale, Normaliser
from appo_jax.trainable import snapshot
from appo_jax.types import InputError
from experiments import evaluate
from experiments.runs import files
from tests.helpers import environments as odd
from tests.helpers.commands import call
from tests.helpers.compilation import xla_flags
from tests.helpers.processes import InTurn

ROOT = Path(__file__).parents[1]
jitted_init = jax.jit(appo.init, static_argnums=(0, 2, 3))


def save(
    folder: Path,
    update: int,
    num_runs: int = 2,
    dims: tuple[int, int] = (5, 2),
    settings: Mapping[str, Any] | None = None,
) -> list[policy.Policy]:
    """A checkpoint of several runs; returns their policies."""
    columns, width = dims
    config = appo.Config(hidden_layers=1, hidden_dim=8)
    draw = np.random.default_rng(update)
    states = [jitted_init(config, jax.random.key(seed), *dims) for seed in range(num_runs)]
    normalisers = [
        Normaliser(
            draw.normal(size=columns).astype(np.float32),
            draw.uniform(1, 2, columns).astype(np.float32),
        )
        for _ in range(num_runs)
    ]
    scales = [
        ActionScale(
            draw.normal(size=width).astype(np.float32), draw.uniform(1, 2, width).astype(np.float32)
        )
        for _ in range(num_runs)
    ]
    run = {"algorithm": "appo", "policy": {"hidden_layers": 1, "hidden_dim": 8}, "env_name": "none"}
    checkpoint.save(
        folder,
        update,
        policy.arrays(training.stack_runs(states), normalisers, scales),
        {
            "runs": [{**run, "seed": n, **(settings or {})} for n in range(num_runs)],
            "first_run": 0,
            "rows": num_runs,
        }
        | {"observation_dim": columns, "action_dim": width},
    )
    return [
        policy.Policy("appo", config, snapshot(state), normaliser, scale)
        for state, normaliser, scale in zip(states, normalisers, scales, strict=True)
    ]


def test_each_run_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints" / "policy"
    save(folder, 10)
    saved = save(folder, 20)
    observations = np.random.default_rng(0).normal(size=(3, 4, 5))
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints", folder, folder / "20"):
        for run, expected in enumerate(saved):
            actions = appo_jax.load_policy(path, run)(observations)
            assert actions.shape == (3, 4, 2)
            np.testing.assert_array_equal(actions, expected(observations))
    assert np.any(saved[0](observations) != saved[1](observations))
    first = appo_jax.load_policy(folder / "10")(observations)
    assert np.any(first != saved[0](observations))
    mean, std = saved[0].normaliser.mean, saved[0].normaliser.std
    by_hand = appo.act(
        saved[0].config, saved[0].state, jnp.asarray((observations - mean) / std, jnp.float32)
    )
    np.testing.assert_allclose(saved[0].unit_actions(observations), by_hand, atol=1e-6)
    scale = saved[0].actions
    in_its_units = scale.centre + scale.half_range * np.asarray(by_hand)
    np.testing.assert_allclose(saved[0](observations), in_its_units, atol=1e-5)
    assert policy.load(folder, 1).config["seed"] == 1
    assert policy.load(folder).update == 20
    assert policy.runs(tmp_path / "run") == [0, 1]
    again = pickle.loads(pickle.dumps(policy.load(folder).policy))
    np.testing.assert_array_equal(again(observations), saved[0](observations))


def test_what_can_not_be_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "policy"
    save(folder, 10)
    with pytest.raises(InputError, match="run 2, expected 0 to 1"):
        appo_jax.load_policy(tmp_path, 2)
    with pytest.raises(InputError, match="run -1, expected 0 to 1"):
        appo_jax.load_policy(tmp_path, -1)
    with pytest.raises(InputError, match="no policy checkpoint, expected a run's folder"):
        appo_jax.load_policy(tmp_path / "absent")
    with pytest.raises(InputError, match="no policy checkpoint, expected a run's folder"):
        appo_jax.load_policy(folder / "11")
    assert not (tmp_path / "absent").exists()
    with pytest.raises(InputError, match=r"shape \(3, 4\), expected \[..., 5\]"):
        appo_jax.load_policy(tmp_path)(np.zeros((3, 4)))
    metadata = folder / "10" / "metadata" / "metadata"
    metadata.write_text(metadata.read_text().replace('"seed": 1', '"seed": 7'))
    with pytest.raises(checkpoint.Damaged, match="its metadata differ"):
        appo_jax.load_policy(tmp_path)


_EIGHT_DEVICES = """
import sys
from pathlib import Path
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sys.path[:0] = [sys.argv[1]]
from appo_jax import checkpoint
from tests.test_policy import save
assert len(jax.devices()) == 8
spread = NamedSharding(Mesh(np.array(jax.devices()), "runs"), PartitionSpec("runs"))
plain = checkpoint.save
def sharded(folder, update, arrays, metadata):
    plain(folder, update, jax.device_put(arrays, spread), metadata)
checkpoint.save = sharded
save(Path(sys.argv[2]), 5, num_runs=8)
"""


@pytest.mark.slow
def test_written_on_eight_devices_read_on_one(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-c",
            _EIGHT_DEVICES,
            str(Path(__file__).parents[1]),
            str(tmp_path / "eight"),
        ],
        check=True,
        env={**os.environ, **xla_flags("--xla_force_host_platform_device_count=8")},
    )
    assert len(jax.devices()) == 1
    expected = save(tmp_path / "one", 5, num_runs=8)
    for run in range(8):
        found = appo_jax.load_policy(tmp_path / "eight", run)
        np.testing.assert_array_equal(found(np.ones(5)), expected[run](np.ones(5)))


def test_importing_the_package_brings_in_nothing_large() -> None:
    code = "import sys, appo_jax; assert 'orbax' not in str(list(sys.modules)); appo_jax.nothing"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "has no attribute 'nothing'" in found.stderr


def test_a_pickled_policy_brings_its_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (saved,) = save(tmp_path / "policy", 10, 1)
    own = dataclasses.replace(saved, algorithm="my_own")
    monkeypatch.setitem(registry.ALGORITHMS, "my_own", registry.Algorithm("mine", appo))
    pickled = pickle.dumps(own)
    monkeypatch.delitem(registry.ALGORITHMS, "my_own")  # as in another process
    observations = np.ones(5)
    np.testing.assert_array_equal(pickle.loads(pickled)(observations), saved(observations))


def test_every_run_of_a_grid_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "checkpoints" / "policy"
    run = {"env_name": odd.name(odd.Plain), "seed": 3, "dataset": {"id": "d"}}
    run |= {"swept": {"lam": 0.1}, "eval_stop_at_success": False}
    monkeypatch.setattr(workers, "pool", InTurn)
    save(folder, 10, 2, (3, 1), run)

    def evaluated(*arguments: str) -> list[str]:
        call(evaluate, f"--checkpoint={tmp_path}", *arguments)
        return capsys.readouterr().out.splitlines()

    output = tmp_path / "found.json"
    printed = evaluated("--episodes=6", f"--output={output}")
    first, _, second, result = printed
    assert first.startswith("run 0: appo on ")
    assert second.startswith("run 1: appo on ")
    zero, one = files.read_json(output)["runs"]
    assert (zero["run"], one["run"], one["update"], one["settings"]["lam"]) == (0, 1, 10, 0.1)
    assert zero["success_rate"] is zero["success_rate_wilson"] is None
    low, high = one["return_bootstrap"]
    assert low < one["return"] < high
    assert result == f"return {one['return']:.2f} (95 % bootstrap interval {low:.2f} to {high:.2f})"
    assert evaluated("--episodes=6", "--run=1") == [second.removeprefix("run 1: "), result]
    own, others = (evaluated("--episodes=6", "--run=1", f"--seed={seed}") for seed in (3, 4))
    assert own == [second.removeprefix("run 1: "), result]
    assert others[0] == own[0] + " of seed 4"
    assert others[1] != result
    with pytest.raises(InputError, match="^--output: no folder .*nowhere, expected one that exis"):
        evaluated(f"--output={tmp_path / 'nowhere' / 'found.json'}")
    with pytest.raises(InputError, match="^--output: .* is a folder, expected a file"):
        evaluated(f"--output={tmp_path}")
    monkeypatch.setattr(os, "access", lambda *_: False)  # for root all folders are open
    with pytest.raises(InputError, match="^--output: .* can't be written to, expected a folder"):
        evaluated(f"--output={output}")


def test_results_are_shown_with_the_settings_that_differ() -> None:
    both: list[Any] = [
        SimpleNamespace(config={"swept": {"lam": 0.1}, "seed": run, "num_feedback": 500 + run})
        for run in range(2)
    ]
    assert evaluate.telling(both) == ["lam", "num_feedback"]
    assert evaluate.telling(both[:1]) == ["lam"]


@pytest.mark.parametrize("stops", [False, True])
def test_episodes_end_at_their_first_success_where_they_did_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    run = {"env_name": odd.name(odd.OtherSuccess), "eval_stop_at_success": stops}
    monkeypatch.setattr(workers, "pool", InTurn)
    save(tmp_path / "checkpoints" / "policy", 10, 1, (3, 1), run)
    ((_, episodes),) = evaluate.evaluate(
        policy.load_all(tmp_path, [0]), evaluate.Options(episodes=2)
    )
    assert episodes.succeeded.all()  # in the second of four steps
    assert episodes.succeeded_at_end.tolist() == [stops, stops]


def test_bad_evaluations(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints" / "policy", 10, num_runs=1)
    for arguments, message in {
        (): "--checkpoint is missing",
        ("--checkpoint=nowhere",): "nowhere: no policy checkpoint, expected a run's folder",
        (f"--checkpoint={tmp_path}", "--episodes=0"): "--episodes=0: expected a whole number from",
        (f"--checkpoint={tmp_path}", "--run=1"): f"{tmp_path}: run 1, expected 0 to 0",
        (f"--checkpoint={tmp_path}", "--seed=-1"): "--seed=-1: expected a whole number from 0",
    }.items():
        with pytest.raises(InputError, match=f"^{re.escape(message)}"):
            call(evaluate, *arguments)


def test_a_checkpoint_of_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, whose in ((1, "an earlier"), (9, "a newer")):
        folder = tmp_path / str(version) / "checkpoints" / "policy"
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "FORMAT_VERSION", version)
            save(folder, 10)
        expected = f"format version {version} of {whose} appo-jax, expected 2; use the release"
        with pytest.raises(InputError, match=expected):
            appo_jax.load_policy(folder)


def test_a_checkpoint_that_a_training_deletes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints" / "policy"
    save(folder, 10)
    restore = checkpoint.restore

    def meanwhile(*arguments: Any) -> Any:
        if checkpoint.updates(folder) == [10]:
            save(folder, 20)
            checkpoint.delete(folder, 10)
        return restore(*arguments)

    monkeypatch.setattr(checkpoint, "restore", meanwhile)
    assert policy.load(tmp_path).update == 20
    with pytest.raises(InputError, match="no policy checkpoint"):
        policy.load(folder / "10")


def test_a_checkpoint_of_something_else(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "reward-40"
    checkpoint.save(folder, 5, {"states": jnp.zeros(3)}, {"rows": 1})
    for path in (folder, folder / "5"):
        with pytest.raises(InputError, match="reward-40/5: a checkpoint of something else, expec"):
            appo_jax.load_policy(path)


def test_jaxs_settings_change_no_policy(tmp_path: Path) -> None:
    """Where a process computes in float64, or draws other numbers."""
    (expected,) = save(tmp_path / "policy", 10, num_runs=1)
    different = {"jax_enable_x64": True, "jax_default_prng_impl": "rbg"}
    before = {name: jax.config.values[name] for name in different}
    try:
        for name, value in different.items():
            jax.config.update(name, value)
        found = appo_jax.load_policy(tmp_path)(np.ones(5))
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    np.testing.assert_array_equal(found, expected(np.ones(5)))
