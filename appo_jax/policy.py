"""A trained policy, and how to get one out of a checkpoint and nothing else."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import checkpoint, registry
from appo_jax.data.dataset import Normaliser
from appo_jax.types import InputError


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy as users and evaluators get it; with NumPy leaves it can be pickled.

    algorithm: name in the registry; config, state: of its policy learner, the state a `snapshot`;
    normaliser: of the observations it was trained on.
    """

    algorithm: str
    config: Any
    state: Any
    normaliser: Normaliser

    def __call__(self, observations: Any) -> np.ndarray:
        """The deterministic action, `[..., action_dim]` in [-1, 1].

        observations: `[..., observation_dim]`, raw. Raises InputError for another width.
        """
        observations = np.asarray(observations, np.float32)
        width = len(self.normaliser.mean)
        if observations.shape[-1:] != (width,):
            raise InputError(
                f"observations have shape {observations.shape}, expected [..., {width}]"
            )
        learner = registry.algorithm(self.algorithm).policy_learner
        return np.asarray(learner.act(self.config, self.state, self.normaliser(observations)))

    def on_device(self) -> "Policy":
        """The same with its arrays on the device, for many calls."""
        return dataclasses.replace(self, state=jax.device_put(self.state))


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a checkpoint says of one run: its policy, the update, and the run's whole config."""

    policy: Policy
    update: int
    config: Mapping[str, Any]


def load_policy(path: str | Path, run: int = 0) -> Policy:
    """The policy of a checkpoint; neither data set nor environment are needed.

    path: a run's folder or the folder of its policy checkpoints (the last one is taken), or one
    checkpoint in it (`checkpoints/policy/5000`). run: the row, in the checkpoint of a grid.
    Raises InputError for a folder that holds none, for a row that isn't there, and for a checkpoint
    that is damaged or of a newer format.
    """
    return load(Path(path), run).policy.on_device()


def load(path: Path, run: int = 0) -> Saved:
    """As `load_policy`, with what else is known."""
    folder, update = find(path)
    metadata = checkpoint.read_metadata(folder, update)
    runs = metadata["runs"]
    if not 0 <= run < len(runs):
        raise InputError(f"{path}: run {run}, expected 0 to {len(runs) - 1}")
    config = runs[run]
    learner = registry.algorithm(config["algorithm"]).policy_learner
    policy_config = learner.Config(**config["policy"])
    dims = metadata["observation_dim"], metadata["action_dim"]

    def template() -> dict[str, Any]:
        state = learner.init(policy_config, jax.random.key(0), *dims)
        columns = jnp.zeros(dims[0])
        return arrays(
            jax.tree.map(lambda leaf: jnp.stack([leaf] * len(runs)), state),
            [Normaliser(columns, columns)] * len(runs),  # type: ignore[arg-type]
        )

    restored, _ = checkpoint.restore(folder, update, jax.eval_shape(template))
    state, normaliser = jax.tree.map(
        lambda leaf: leaf[run], (learner.snapshot(restored["states"]), restored["normaliser"])
    )
    policy = Policy(
        config["algorithm"],
        policy_config,
        jax.device_get(state),
        Normaliser(np.asarray(normaliser["mean"]), np.asarray(normaliser["std"])),
    )
    return Saved(policy, update, config)


def arrays(states: Any, normalisers: list[Normaliser]) -> dict[str, Any]:
    """What a policy checkpoint holds: states and normalisers with a leading runs axis."""
    return {
        "states": states,
        "normaliser": {
            "mean": jnp.stack([normaliser.mean for normaliser in normalisers]),
            "std": jnp.stack([normaliser.std for normaliser in normalisers]),
        },
    }


def find(path: Path) -> tuple[Path, int]:
    """The folder of checkpoints and the update that `path` of `load_policy` stands for."""
    if path.name.isdecimal() and (path / "metadata").is_dir():
        return path.parent, int(path.name)
    for folder in (path / "checkpoints" / "policy", path / "policy", path):
        saved = checkpoint.updates(folder) if _holds_checkpoints(folder) else []
        if saved:
            return folder, saved[-1]
    raise InputError(f"{path}: no policy checkpoint, expected a run's folder or a checkpoint in it")


def _holds_checkpoints(folder: Path) -> bool:
    return folder.is_dir() and any(path.name.isdecimal() for path in folder.iterdir())
