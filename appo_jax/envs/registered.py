"""Any environment that `gymnasium.make` knows by an id, with Box observations and actions."""

import importlib.metadata
from typing import Any

import gymnasium

from appo_jax import workers
from appo_jax.data.dataset import ActionScale
from appo_jax.envs.family import Family
from appo_jax.types import InputError


def make(name: str) -> gymnasium.Env:
    """Build it. Raises InputError for an unknown id, other spaces than Box, actions unbounded."""
    workers.import_mujoco()
    try:
        env = gymnasium.make(name, disable_env_checker=True)  # the checker costs time at each step
    except Exception as error:  # also whatever its constructor raises
        raise InputError(
            f"environment {name!r} is no Meta-World task and can't be made by Gymnasium "
            f"({type(error).__name__}: {error}), expected an id for gymnasium.make that needs no "
            "arguments"
        ) from error
    for kind in ("observation", "action"):
        space = getattr(env, f"{kind}_space")
        if not isinstance(space, gymnasium.spaces.Box):
            raise InputError(f"environment {name!r}: {kind} space is {space}, expected a Box")
    actions: Any = env.action_space
    try:
        ActionScale.between(actions.low, actions.high)
    except InputError as error:
        raise InputError(f"environment {name!r}: {error}") from error
    return env


def _canonical(name: str) -> str:
    if not name:
        raise InputError("environment '', expected an id of Gymnasium like Hopper-v5")
    return name


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("gymnasium", "mujoco", "numpy")}


FAMILY = Family(
    flag="env",
    owner="gymnasium",
    claims=lambda name: True,
    canonical=_canonical,
    make=make,
    reset=lambda env, seed: env.reset(seed=seed)[0],
    versions=_versions,
)
