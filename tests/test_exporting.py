"""Policies as files that NumPy reads, for every learner that is registered."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import appo_jax
from appo_jax import checkpoint, exporting, numpy_policy, policy, registry
from appo_jax.types import InputError
from experiments import export
from tests.helpers.commands import call
from tests.test_learners import POLICY_LEARNERS, small_config

pytest.importorskip("safetensors", reason="the extra `export` isn't installed")
DIMS = (5, 2)
ROOT = Path(__file__).parents[1]
ALGORITHMS = {found.policy_learner.__name__: name for name, found in registry.ALGORITHMS.items()}


def save(folder: Path, algorithm: str, num_runs: int = 1) -> None:
    """A checkpoint of runs whose every number is drawn, those to divide by above 0."""
    draw = np.random.default_rng(7)
    config = small_config(registry.algorithm(algorithm).policy_learner)

    def drawn(path: Any, leaf: Any) -> jax.Array:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.stack([jax.random.key(0)] * num_runs)
        size = draw.normal(size=leaf.shape)
        return jnp.asarray(0.1 + abs(size) if path[0].key != "states" else size, leaf.dtype)

    arrays = jax.tree.map_with_path(drawn, policy.template(algorithm, config, DIMS, num_runs))
    run = {"algorithm": algorithm, "policy": vars(config), "env_name": "none"}
    described = {"runs": [run] * num_runs, "first_run": 0, "rows": num_runs}
    dims = {"observation_dim": DIMS[0], "action_dim": DIMS[1]}
    checkpoint.save(folder / "checkpoints" / "policy", 10, arrays, described | dims)


main = functools.partial(call, export)


@pytest.mark.parametrize("learner", POLICY_LEARNERS)
def test_numpy_gives_the_actions_of_the_checkpoint(learner: str, tmp_path: Path) -> None:
    save(tmp_path, ALGORITHMS[f"appo_jax.{learner}"])
    main(f"--checkpoint={tmp_path}", f"--output={tmp_path / 'out'}")
    observations = 9 * np.random.default_rng(1).standard_normal((10, 100, 5))
    expected = appo_jax.load_policy(tmp_path)(observations)
    found = numpy_policy.load(tmp_path / "out")(observations)
    assert (found.shape, found.dtype) == ((10, 100, 2), np.float32)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)  # half a range is about 1
    assert np.ptp(found, axis=(0, 1)).min() > 0.01


def test_the_files_say_what_they_hold(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    save(tmp_path, "appo", num_runs=2)
    main(f"--checkpoint={tmp_path}", f"--output={tmp_path / 'out'}")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run-0", "run-1"]
    folder = tmp_path / "out" / "run-1"
    told = json.loads((folder / "policy.json").read_text())
    arrays = load_file(folder / "policy.safetensors")
    assert {name: list(array.shape) for name, array in arrays.items()} == told["shapes"]
    assert told["shapes"]["layers.1.weight"] == [8, 4]  # mean and log std of two actions
    assert [layer["activation"] for layer in told["layers"]] == ["leaky_relu", "none"]
    assert told["layers"][0]["negative_slope"] == 0.01
    saved = policy.load(tmp_path, 1)
    assert (told["config"], told["update"]) == (saved.config, 10)
    np.testing.assert_array_equal(
        np.float32(told["normaliser"]["std"]), saved.policy.normaliser.std
    )
    zero, one = (numpy_policy.load(tmp_path / "out" / f"run-{run}")(np.ones(5)) for run in (0, 1))
    assert np.any(zero != one)
    with pytest.raises(InputError, match=r"^--output=.*out: .*run-0 is there already, expected"):
        main(f"--checkpoint={tmp_path}", f"--output={tmp_path / 'out'}")


def test_an_actor_that_is_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from appo_jax import bc

    save(tmp_path, "bc")
    act = bc.act
    monkeypatch.setattr(bc, "act", lambda *given: act(*given) / 2)
    with pytest.raises(
        InputError, match="read back, the actions differ by up to 0.[45].* expected"
    ):
        main(f"--checkpoint={tmp_path}", f"--output={tmp_path / 'out'}")
    monkeypatch.setattr(bc, "act", lambda config, state, observations: observations[..., :2])
    with pytest.raises(InputError, match="appo_jax.bc.act applies 0 networks.MLP, expected one"):
        main(f"--checkpoint={tmp_path}", f"--output={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_the_document_holds_the_reader() -> None:
    page = (ROOT / "docs" / "export.md").read_text()
    (reader, _) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert reader == (ROOT / "appo_jax" / "numpy_policy.py").read_text()
    assert set(re.findall(r"^ *(?:from|import) (\w+)", reader, re.M)) == {
        *("json", "collections", "pathlib", "typing", "numpy")
    }


def test_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text('{"format": "appo-policy", "version": 2}')
    with pytest.raises(ValueError, match="appo-policy 2, expected appo-policy 1"):
        numpy_policy.load(tmp_path)


def test_what_is_missing(tmp_path: Path) -> None:
    for arguments, expected in {
        (): "--checkpoint is missing",
        ("--checkpoint=nowhere",): "--output is missing, expected a folder",
        ("--checkpoint=nowhere", f"--output={tmp_path / 'out'}"): "nowhere: no policy checkpoint",
    }.items():
        with pytest.raises(InputError, match=expected):
            main(*arguments)


def test_the_check_counts(tmp_path: Path) -> None:
    """A weight that is off shows in the comparison that every export makes."""
    save(tmp_path, "mr")
    saved = policy.load(tmp_path)
    assert exporting.write(saved, tmp_path / "out") < exporting.TOLERANCE
    path = tmp_path / "out" / "policy.json"
    told = json.loads(path.read_text())
    told["normaliser"]["mean"][0] += 0.01
    path.write_text(json.dumps(told))
    assert exporting.difference(saved.policy, tmp_path / "out") > 10 * exporting.TOLERANCE
