"""One face for every simulator: Meta-World's tasks, and any Gymnasium environment of Box spaces.

Whoever simulates (collectors, evaluators) sees float32 vectors, actions in [-1, 1] whatever the
environment's bounds, a seed for each episode, and success where the environment knows it.
"""

import contextlib
import functools
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from appo_jax.data.dataset import ActionScale
from appo_jax.envs import meta_world, registered
from appo_jax.envs.family import Family
from appo_jax.types import InputError

# The first that claims a name has it. A new family is a file beside this one, and a line here.
FAMILIES = (meta_world.FAMILY, registered.FAMILY)

_FLOAT32_MAX = float(np.finfo(np.float32).max)


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

    An episode follows from the seed that its reset got, and from its actions. What the simulator
    raises comes out as an InputError, which says where; numbers that aren't finite are passed on,
    for the caller to judge by `not_finite`. time_limit: steps after which Gymnasium cuts an
    episode, None where the environment is registered without a limit.
    """

    def __init__(self, name: str):
        """Build it. Raises InputError for an unknown name and for spaces other than Box."""
        self._name = name
        self._family = family(name)
        with explained(f"environment {name!r} can't be made"):
            self._env = self._family.make(name)
            spec = self._env.spec
        self.time_limit = spec.max_episode_steps if spec else None
        observation_space, action_space = self._env.observation_space, self._env.action_space
        self.observation_dim = int(np.prod(observation_space.shape or ()))
        self.action_dim = int(np.prod(action_space.shape or ()))
        self._action_shape = action_space.shape
        self.actions = _declared_scale(self._family) or _scale_of(action_space)

    def reset(self, seed: int) -> np.ndarray:
        """The first observation of an episode, `[observation_dim]` float32."""
        self._episode, self._step = seed, 0
        with self._explained():
            return self._observation(self._family.reset(self._env, seed))

    def step(self, action: np.ndarray) -> Outcome:
        """Act, `[action_dim]` in [-1, 1]."""
        self._step += 1
        with self._explained():
            raw = self.actions.to_raw(action).reshape(self._action_shape)
            observation, reward, terminated, truncated, info = self._env.step(raw)
            success = info.get("success", info.get("is_success"))
            return Outcome(
                self._observation(observation),
                float(np.asarray(reward).item()),  # one number, also of shape (1,)
                bool(terminated),
                bool(truncated),
                None if success is None else _flag(success),
            )

    def _observation(self, found: Any) -> np.ndarray:
        observation = _vector(found)
        if len(observation) != self.observation_dim:
            raise ValueError(
                f"found {len(observation)} numbers in an observation, expected the "
                f"{self.observation_dim} of its space"
            )
        return observation

    def _explained(self) -> contextlib.AbstractContextManager[None]:
        return explained(
            f"environment {self._name!r} failed at step {self._step} of the episode of seed "
            f"{self._episode}"
        )


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn what a simulator raises in the block into an InputError that says what, why and where.

    An InputError passes as it is.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{what} ({type(error).__name__}: {error}; {Path(where.filename).name} line "
            f"{where.lineno})"
        ) from error


def not_finite(observation: np.ndarray, reward: float = 0.0) -> str | None:
    """What of a step is NaN, infinite or beyond float32, in words; None where all is finite."""
    if not abs(reward) <= _FLOAT32_MAX:  # NaN compares as False
        return f"the reward is {reward:g}"
    wrong = ~np.isfinite(observation)
    if wrong.any():
        column = int(wrong.argmax())
        return f"the observation is {observation[column]:g} in column {column}"
    return None


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


def _flag(success: Any) -> bool:
    if success not in (0, 1):  # NaN would count as true
        raise ValueError(f"success is {success}, expected true or false")
    return bool(success)


def _vector(array: Any) -> np.ndarray:
    with np.errstate(over="ignore"):  # infinite then, as `not_finite` tells
        return np.asarray(array, np.float32).reshape(-1)
