"""One face for every simulator: Meta-World's tasks, and any Gymnasium environment of Box spaces.

Whoever simulates (collectors, evaluators) sees float32 vectors, actions in [-1, 1] whatever the
environment's bounds, a seed for each episode, and success where the environment knows it.
"""

import functools
import re
from typing import Any, NamedTuple

import numpy as np

from appo_jax.data.dataset import ActionScale
from appo_jax.envs import meta_world, registered
from appo_jax.envs.family import Family
from appo_jax.types import InputError

# The first that claims a name has it. A new family is a file beside this one, and a line here.
FAMILIES = (meta_world.FAMILY, registered.FAMILY)


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


class Environment:
    """A simulator by name: a Meta-World task like `sweep-v3`, else an id of Gymnasium.

    An episode follows from the seed that its reset got, and from its actions.
    """

    def __init__(self, name: str):
        """Build it. Raises InputError for an unknown name and for spaces other than Box."""
        self._family = family(name)
        self._env = self._family.make(name)
        observation_space, action_space = self._env.observation_space, self._env.action_space
        self.observation_dim = int(np.prod(observation_space.shape or ()))
        self.action_dim = int(np.prod(action_space.shape or ()))
        self._action_shape = action_space.shape
        self.actions = _declared_scale(self._family) or _scale_of(action_space)

    def reset(self, seed: int) -> np.ndarray:
        """The first observation of an episode, `[observation_dim]` float32."""
        return _vector(self._family.reset(self._env, seed))

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


class Spaces(NamedTuple):
    """Numbers in an observation and in an action, and the scale of actions."""

    observation_dim: int
    action_dim: int
    actions: ActionScale


@functools.cache  # each run of a grid asks
def spaces(name: str) -> Spaces:
    """An environment's spaces; builds it only where its family doesn't say."""
    known, scale = family(name).dims, _declared_scale(family(name))
    if known is not None and scale is not None:
        return Spaces(*known, scale)
    simulator = Environment(name)
    return Spaces(simulator.observation_dim, simulator.action_dim, simulator.actions)


def family(name: str) -> Family:
    """The family that an environment of this name belongs to."""
    return next(family for family in FAMILIES if family.claims(name))


def canonical_name(name: str, flag: str) -> str:
    """The full name of the environment that `--<flag>=<name>` means.

    Raises InputError, naming the flag, for a name that its family doesn't know, and for one of
    another family's.
    """
    wanted = next(family for family in FAMILIES if family.flag == flag)
    owner = family(name)
    if owner is not wanted and owner.names:
        raise InputError(
            f"--{flag}={name}: environment {name!r} is another kind's, expected "
            f"--{owner.flag}={name}"
        )
    try:
        return wanted.canonical(name)
    except InputError as error:
        raise InputError(f"--{flag}: {error}") from error


def dataset_id(name: str, recipe: str, size: int, seed: int) -> str:
    """The id of a set collected here: `metaworld/sweep-v3/medium-expert-n500-seed0-v0`."""
    own = family(name)
    return f"{own.owner}/{folder_name(own.canonical(name))}/{recipe}-n{size}-seed{seed}-v0"


def folder_name(name: str) -> str:
    """An environment's id as one part of a path: `module:Name-v0` has a colon, others a slash."""
    return re.sub(r"[^\w.-]", "-", name)


def _declared_scale(family: Family) -> ActionScale | None:
    if family.dims is None or family.bounds is None:
        return None
    low, high = (np.full(family.dims[1], bound, np.float32) for bound in family.bounds)
    return ActionScale.between(low, high)


def _scale_of(space: Any) -> ActionScale:
    return ActionScale.between(_vector(space.low), _vector(space.high))


def _vector(array: Any) -> np.ndarray:
    return np.asarray(array, np.float32).reshape(-1)
