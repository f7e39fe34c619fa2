"""What is known of a family of environments without building one of them."""

import dataclasses
from collections.abc import Callable, Mapping

import gymnasium
import numpy as np


@dataclasses.dataclass(frozen=True)
class Family:
    """Environments that are made, seeded and judged alike.

    flag: names the environment on the command line (`--task=sweep`). owner: the first part of the
    ids of data sets collected here. claims: whether a name is one of the family's. canonical: the
    full form of a name, InputError for one that it hasn't. make: builds the environment, spaces
    Box, InputError where it can't. reset: begins the episode of a seed, its first observation.
    versions: of the packages that decide what a simulation gives.
    names: those known without asking, for messages; empty where they aren't.
    dims: numbers in an observation and in an action, None where only the environment tells.
    bounds: lowest and highest action, likewise.
    goal: the columns of an observation that hold the goal. fixed_goals: the names of those with one
    goal in all episodes. terminates: whether a state can be
    terminal. tie_threshold: returns of segments that differ by no more are a tie.
    horizon: steps of every episode, None where they differ. max_reward: the most that a step can
    give, for which the tie threshold is made, None where it isn't known.
    """

    flag: str
    owner: str
    claims: Callable[[str], bool]
    canonical: Callable[[str], str]
    make: Callable[[str], gymnasium.Env]
    reset: Callable[[gymnasium.Env, int], np.ndarray]
    versions: Callable[[], Mapping[str, str]]
    names: tuple[str, ...] = ()
    dims: tuple[int, int] | None = None
    bounds: tuple[float, float] | None = None
    goal: slice | None = None
    fixed_goals: tuple[str, ...] = ()
    terminates: bool = True
    tie_threshold: float = 0.0
    horizon: int | None = None
    max_reward: float | None = None
