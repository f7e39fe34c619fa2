"""A trained policy, and how to get one out of a checkpoint and nothing else."""

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import checkpoint, registry, training
from appo_jax.data.dataset import ActionScale, Normaliser
from appo_jax.keys import key
from appo_jax.trainable import snapshot
from appo_jax.types import InputError

_T = TypeVar("_T")


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
    """What a checkpoint says of one run: its policy, the update, and the run's whole config.

    state: all that its policy learner carried on.
    """

    policy: Policy
    update: int
    config: Mapping[str, Any]
    state: Any


def load_policy(path: str | Path, run: int = 0) -> Policy:
    """The policy of a checkpoint; neither data set nor environment are needed.

    Its actions are in the environment's units. path: a run's folder or a folder of its policy
    checkpoints (the last one is taken), or one checkpoint in it (`checkpoints/policy/5000`).
    run: its number in a grid. Where a training beside it deletes the checkpoint meanwhile, the one
    that is the last then is taken. Raises InputError for a folder that holds none, for a run that
    isn't there, and for a checkpoint that is damaged or of another format, OSError for files that
    can't be opened.
    """
    return load(Path(path), run).policy.on_device()


def load(path: Path, run: int = 0) -> Saved:
    """As `load_policy`, with what else is known."""
    return load_all(path, [run])[0]


def load_all(path: Path, runs: Sequence[int]) -> list[Saved]:
    """As `load`, of several runs; each checkpoint is read once."""
    return _of_the_latest(path, lambda found: _load(path, found, runs))


def runs(path: Path) -> list[int]:
    """The numbers of the runs that `path` of `load_policy` stands for, in ascending order."""
    return _of_the_latest(path, lambda found: _runs(_with_metadata(path, found)))


def _of_the_latest(path: Path, read: Callable[[list[tuple[Path, int]]], _T]) -> _T:
    """What is read of the latest checkpoints; again, where others have become so meanwhile."""
    while True:
        found = _latest(path)
        try:
            return read(found)
        except (InputError, OSError):
            if _latest(path) == found:
                raise


def _load(path: Path, places: list[tuple[Path, int]], runs: Sequence[int]) -> list[Saved]:
    found = _with_metadata(path, places)
    there = _runs(found)
    for run in runs:
        if run not in there:
            raise InputError(f"{path}: run {run}, expected {there[0]} to {there[-1]}")
    saved: dict[int, Saved] = {}
    for folder, update, metadata in found:
        wanted = [run for run in _runs_of(metadata) if run in runs and run not in saved]
        if wanted:
            saved |= _of_checkpoint(folder, update, metadata, wanted)
    return [saved[run] for run in runs]


def _of_checkpoint(
    folder: Path, update: int, metadata: Mapping[str, Any], runs: Sequence[int]
) -> dict[int, Saved]:
    configs = {run: metadata["runs"][run - metadata["first_run"]] for run in runs}
    first = configs[runs[0]]  # what shapes the program is the same in all
    learner = registry.algorithm(first["algorithm"]).policy_learner
    try:
        config = learner.Config(**first["policy"])
    except TypeError as error:
        raise InputError(
            f"{folder}/{update}: settings of another release of {first['algorithm']} ({error}), "
            "expected those of this one"
        ) from error
    dims = metadata["observation_dim"], metadata["action_dim"]
    restored, _ = checkpoint.restore(
        folder, update, template(first["algorithm"], config, dims, metadata["rows"])
    )
    found = {}
    for run in runs:
        own = jax.device_get(training.take_runs(restored, run - metadata["first_run"]))
        policy = Policy(
            first["algorithm"],
            config,
            snapshot(own["states"]),
            Normaliser(**own["normaliser"]),
            ActionScale(**own["actions"]),
        )
        found[run] = Saved(policy, update, configs[run], own["states"])
    return found


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
        state = learner.init(config, key(0), *dims)
        columns: Any = jnp.zeros(dims[0], jnp.float32)
        bounds: Any = jnp.zeros(dims[1], jnp.float32)
        return arrays(
            jax.tree.map(lambda leaf: jnp.stack([leaf] * rows), state),
            [Normaliser(columns, columns)] * rows,
            [ActionScale(bounds, bounds)] * rows,
        )

    return jax.eval_shape(of_zeros)


def _latest(path: Path) -> list[tuple[Path, int]]:
    """Folder and update of each checkpoint that `path` of `load_policy` stands for."""
    if path.name.isdecimal() and (path / "metadata").is_dir():
        return [(path.parent, int(path.name))]
    # A grid that was too large for one group of runs has a folder for each.
    inside = [*path.glob("checkpoints/policy*"), *path.glob("policy*"), path]
    saved = {f: checkpoint.updates(f) for f in inside if not f.name.endswith("-damaged")}
    return [
        (folder, updates[-1])
        for folder, updates in saved.items()
        if any((folder / str(update) / "metadata").is_dir() for update in updates)
    ]


def _with_metadata(
    path: Path, places: list[tuple[Path, int]]
) -> list[tuple[Path, int, dict[str, Any]]]:
    """The same, each with its metadata."""
    if not places:
        raise InputError(
            f"{path}: no policy checkpoint, expected a run's folder or a checkpoint in it"
        )
    found = [(*place, checkpoint.read_metadata(*place)) for place in places]
    for folder, update, metadata in found:
        if "first_run" not in metadata:
            raise InputError(
                f"{folder}/{update}: a checkpoint of something else, expected one of a policy, in "
                "the folder checkpoints/policy of a run"
            )
    return found


def _runs(found: list[tuple[Path, int, dict[str, Any]]]) -> list[int]:
    return sorted(run for _, _, metadata in found for run in _runs_of(metadata))


def _runs_of(metadata: Mapping[str, Any]) -> range:
    return range(metadata["first_run"], metadata["first_run"] + len(metadata["runs"]))
