"""A trained policy, and how to get one out of a checkpoint and nothing else."""

import contextlib
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import checkpoint, registry
from appo_jax.data.dataset import ActionScale, Normaliser
from appo_jax.trainable import snapshot
from appo_jax.types import InputError


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy as users and evaluators get it; with NumPy leaves it can be pickled.

    algorithm: name in the registry; config, state: of its policy learner, the state a `snapshot`;
    normaliser: of the observations it was trained on; actions: the environment's scale of actions.
    """

    algorithm: str
    config: Any
    state: Any
    normaliser: Normaliser
    actions: ActionScale

    def __call__(self, observations: Any) -> np.ndarray:
        """The deterministic action in the environment's own units, as `env.step` takes it.

        observations: `[..., observation_dim]`, raw. Returns `[..., action_dim]`. Raises InputError
        for another width.
        """
        return self.actions.to_raw(self.unit_actions(observations))

    def unit_actions(self, observations: Any) -> np.ndarray:
        """The same action scaled to [-1, 1], as learners see it."""
        observations = np.asarray(observations, np.float32)
        width = len(self.normaliser.mean)
        if observations.shape[-1:] != (width,):
            raise InputError(
                f"observations have shape {observations.shape}, expected [..., {width}]"
            )
        learner = registry.algorithm(self.algorithm).policy_learner
        return np.asarray(learner.act(self.config, self.state, self.normaliser(observations)))

    def __reduce__(self) -> Any:
        # Another process may not know an algorithm that was registered in this one.
        learner = registry.algorithm(self.algorithm).policy_learner
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return _unpickled, (getattr(learner, "__name__", ""), *values)

    def on_device(self) -> "Policy":
        """The same with its arrays on the device, for many calls."""
        return dataclasses.replace(self, state=jax.device_put(self.state))


def _unpickled(learner: str, algorithm: str, *values: Any) -> Policy:
    """A policy whose algorithm is registered here as it was where it was pickled."""
    if ":" not in algorithm and algorithm not in registry.ALGORITHMS:
        with contextlib.suppress(ImportError, ValueError):  # who uses the policy is told
            module: Any = importlib.import_module(learner)
            registry.ALGORITHMS[algorithm] = registry.Algorithm("registered elsewhere", module)
    return Policy(algorithm, *values)


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a checkpoint says of one run: its policy, the update, and the run's whole config."""

    policy: Policy
    update: int
    config: Mapping[str, Any]


def load_policy(path: str | Path, run: int = 0) -> Policy:
    """The policy of a checkpoint; neither data set nor environment are needed.

    Its actions are in the environment's units. path: a run's folder or a folder of its policy
    checkpoints (the last one is taken), or one checkpoint in it (`checkpoints/policy/5000`).
    run: its number in a grid. Raises InputError for a folder that holds none, for a run that isn't
    there, and for a checkpoint that is damaged or of another format.
    """
    return load(Path(path), run).policy.on_device()


def load(path: Path, run: int = 0) -> Saved:
    """As `load_policy`, with what else is known."""
    folder, update, metadata = _find(path, run)
    row = run - metadata["first_run"]
    config = metadata["runs"][row]
    learner = registry.algorithm(config["algorithm"]).policy_learner
    policy_config = learner.Config(**config["policy"])
    dims = metadata["observation_dim"], metadata["action_dim"]
    shapes = template(config["algorithm"], policy_config, dims, metadata["rows"])
    restored, _ = checkpoint.restore(folder, update, shapes)
    state, normaliser, actions = jax.device_get(
        jax.tree.map(
            lambda leaf: leaf[row],
            (snapshot(restored["states"]), restored["normaliser"], restored["actions"]),
        )
    )
    policy = Policy(
        config["algorithm"], policy_config, state, Normaliser(**normaliser), ActionScale(**actions)
    )
    return Saved(policy, update, config)


def arrays(
    states: Any, normalisers: Sequence[Normaliser], scales: Sequence[ActionScale]
) -> dict[str, Any]:
    """What a policy checkpoint holds: states, normalisers and scales with a leading runs axis."""
    return {
        "states": states,
        "normaliser": _stacked(normalisers, ("mean", "std")),
        "actions": _stacked(scales, ("centre", "half_range")),
    }


def _stacked(values: Sequence[Any], names: tuple[str, ...]) -> dict[str, jax.Array]:
    return {name: jnp.stack([getattr(value, name) for value in values]) for name in names}


def template(algorithm: str, config: Any, dims: tuple[int, int], rows: int) -> dict[str, Any]:
    """The shapes of `arrays` for `rows` runs; dims: of an observation and of an action."""
    learner = registry.algorithm(algorithm).policy_learner

    def of_zeros() -> dict[str, Any]:
        state = learner.init(config, jax.random.key(0), *dims)
        columns: Any = jnp.zeros(dims[0])
        bounds: Any = jnp.zeros(dims[1])
        return arrays(
            jax.tree.map(lambda leaf: jnp.stack([leaf] * rows), state),
            [Normaliser(columns, columns)] * rows,
            [ActionScale(bounds, bounds)] * rows,
        )

    return jax.eval_shape(of_zeros)


def runs(path: Path) -> list[int]:
    """The numbers of the runs that `path` of `load_policy` stands for, in ascending order."""
    return sorted(run for _, _, metadata in _checkpoints(path) for run in _runs_of(metadata))


def _find(path: Path, run: int) -> tuple[Path, int, dict[str, Any]]:
    """Folder, update and metadata of the checkpoint that holds the run."""
    for found in _checkpoints(path):
        if run in _runs_of(found[-1]):
            return found
    there = runs(path)
    raise InputError(f"{path}: run {run}, expected {there[0]} to {there[-1]}")


def _runs_of(metadata: Mapping[str, Any]) -> range:
    return range(metadata["first_run"], metadata["first_run"] + len(metadata["runs"]))


def _checkpoints(path: Path) -> list[tuple[Path, int, dict[str, Any]]]:
    if path.name.isdecimal() and (path / "metadata").is_dir():
        found = [(path.parent, int(path.name))]
    else:
        # A grid that was too large for one group of runs has a folder for each.
        inside = [*path.glob("checkpoints/policy*"), *path.glob("policy*"), path]
        folders = [f for f in inside if _holds_checkpoints(f) and not f.name.endswith("-damaged")]
        found = [(folder, checkpoint.updates(folder)[-1]) for folder in folders]
    if not found:
        raise InputError(
            f"{path}: no policy checkpoint, expected a run's folder or a checkpoint in it"
        )
    return [(*place, checkpoint.read_metadata(*place)) for place in found]


def _holds_checkpoints(folder: Path) -> bool:
    return folder.is_dir() and any(
        path.name.isdecimal() and (path / "metadata").is_dir() for path in folder.iterdir()
    )
