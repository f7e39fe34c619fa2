"""One face for every simulator: Meta-World's tasks, and any Gymnasium environment of Box spaces.

Whoever simulates (collectors, evaluators) sees float32 vectors, actions in [-1, 1] whatever the
environment's bounds, a seed for each episode, and success where the environment knows it.
"""

import importlib.metadata
import re
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from appo_jax.envs import meta_world
from appo_jax.types import InputError

_ROUNDING = 1e-5


class Outcome(NamedTuple):
    """What one step leads to.

    observation: `[observation_dim]` float32. reward: the true one. terminated: a terminal state.
    truncated: the episode is cut, as by a time limit; the state is no terminal one. success: at
    this step, None where the environment doesn't say (no `success` or `is_success` in its info).
    """

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None


class ActionScale(NamedTuple):
    """Between [-1, 1] and an environment's actions, in `centre` +- `half_range`, `[action_dim]`."""

    centre: np.ndarray
    half_range: np.ndarray

    @classmethod
    def between(cls, low: np.ndarray, high: np.ndarray) -> "ActionScale":
        """That of the environment's lowest and highest actions."""
        return cls((high + low) / 2, (high - low) / 2)

    def to_raw(self, actions: np.ndarray) -> np.ndarray:
        """The environment's actions, `[..., action_dim]`, of ones in [-1, 1]."""
        return self.centre + self.half_range * actions

    def to_unit(self, actions: np.ndarray) -> np.ndarray:
        """The environment's actions, `[..., action_dim]`, in [-1, 1]; beyond it where they were.

        What rounding alone puts beyond is put back.
        """
        unit = (actions - self.centre) / self.half_range
        inside = np.abs(unit) <= 1 + _ROUNDING
        return np.where(inside, np.clip(unit, -1, 1), unit).astype(np.float32)


class Environment:
    """A simulator by name: a Meta-World task like `sweep-v3`, else an id of Gymnasium.

    An episode follows from the seed that its reset got, and from its actions.
    """

    def __init__(self, name: str):
        """Build it. Raises InputError for an unknown name and for spaces other than Box."""
        self._is_meta_world = is_meta_world(name)
        self._env = meta_world.make(name, seed=0) if self._is_meta_world else _make(name)
        observation_space, action_space = self._env.observation_space, self._env.action_space
        one = np.ones(action_space.shape or (), np.float32).reshape(-1)
        self.observation_dim = int(np.prod(observation_space.shape or ()))
        self.action_dim = int(np.prod(action_space.shape or ()))
        self._action_shape = action_space.shape
        limits = (-one, one) if self._is_meta_world else bounds(self._env)
        self.actions = ActionScale.between(*limits)

    def reset(self, seed: int) -> np.ndarray:
        """The first observation of an episode, `[observation_dim]` float32."""
        if self._is_meta_world:
            meta_world.reseed(self._env, seed)
            observation = self._env.reset()[0]
        else:
            observation = self._env.reset(seed=seed)[0]
        return _vector(observation)

    def step(self, action: np.ndarray) -> Outcome:
        """Act, `[action_dim]` in [-1, 1]."""
        raw = self.actions.to_raw(action).reshape(self._action_shape)
        observation, reward, terminated, truncated, info = self._env.step(raw)
        success = info.get("success", info.get("is_success"))
        return Outcome(
            _vector(observation),
            float(reward),
            bool(terminated),
            bool(truncated),
            None if success is None else bool(success),
        )


def is_meta_world(name: str) -> bool:
    """Whether a name is one of Meta-World's tasks, in any of its forms."""
    try:
        meta_world.canonical_name(name)
    except InputError:
        return False
    return True


def check_name(name: str) -> str:
    """The name of a Gymnasium environment, as it is. Raises InputError for one of Meta-World's."""
    if is_meta_world(name):
        raise InputError(f"environment {name!r} is a Meta-World task, expected --task={name}")
    if not name:
        raise InputError("environment '', expected an id of Gymnasium like Hopper-v5")
    return name


def dataset_id(name: str, recipe: str, size: int, seed: int) -> str:
    """The id of a set collected here: `gymnasium/Hopper-v5/medium-replay-n3000-seed0-v0`.

    Of a Meta-World task as `meta_world.dataset_id` says.
    """
    if name in meta_world.TASKS:
        return meta_world.dataset_id(name, recipe, size, seed)
    return f"gymnasium/{folder_name(name)}/{recipe}-n{size}-seed{seed}-v0"


def folder_name(name: str) -> str:
    """An environment's id as one part of a path: `module:Name-v0` has a colon, others a slash."""
    return re.sub(r"[^\w.-]", "-", name)


def package_versions(name: str) -> dict[str, str]:
    """Versions of the packages that decide what a simulation gives, by name."""
    if name in meta_world.TASKS:
        return meta_world.package_versions()
    return {name: importlib.metadata.version(name) for name in ("gymnasium", "mujoco", "numpy")}


def bounds(env: gymnasium.Env) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest action, `[action_dim]` float32 each."""
    space: Any = env.action_space
    return _vector(space.low), _vector(space.high)


def _make(name: str) -> gymnasium.Env:
    try:
        env = gymnasium.make(name, disable_env_checker=True)  # the checker costs time at each step
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        raise InputError(
            f"environment {name!r} is no Meta-World task and can't be made by Gymnasium ({error}), "
            "expected an id for gymnasium.make"
        ) from error
    for kind in ("observation", "action"):
        space = getattr(env, f"{kind}_space")
        if not isinstance(space, gymnasium.spaces.Box):
            raise InputError(f"environment {name!r}: {kind} space is {space}, expected a Box")
    low, high = bounds(env)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise InputError(
            f"environment {name!r}: actions from {low} to {high}, expected finite bounds"
        )
    return env


def _vector(array: Any) -> np.ndarray:
    return np.asarray(array, np.float32).reshape(-1)
