"""The reset of a Meta-World episode of unknown seed, recovered from what was observed after it.

A reset draws a vector (where objects and the goal are); the observation after the first step is a
smooth function of it. Newton's method, with differences for derivatives, finds the vector. The
observation of the reset itself won't do: in some tasks it is that of the episode before.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import gymnasium
import numpy as np

from appo_jax.envs import meta_world
from appo_jax.types import InputError

# Hand, gripper, objects, and the goal; the rest repeats the observation before.
_COLUMNS = [*range(18), *range(meta_world.GOAL_COLUMNS.start, meta_world.GOAL_COLUMNS.stop)]
Off: TypeAlias = Callable[[np.ndarray], np.ndarray | None]
Found: TypeAlias = tuple[np.ndarray, float]  # a vector, and how far off it is

_GOOD, _PERFECT = 1e-5, 2e-7  # metres off, at the worst column
_STARTS, _STEPS = 4, 8
_DIFFERENCE = 1e-3  # of a number's range, for its derivative
_SHARES = (1.0, 0.5, 0.25, 0.1)  # of a Newton step, tried in turn where the task rejects a vector


def recover(env: gymnasium.Env, observation: np.ndarray, action: np.ndarray) -> np.ndarray | None:
    """The vector of the reset after which `action [4]` led to `observation [39]`, if it is found.

    None where no vector explains the observation to 1e-5. The environment is left anywhere.
    """
    low, high = meta_world.reset_space(env)
    target = observation[_COLUMNS].astype(np.float64)

    def off(vector: np.ndarray) -> np.ndarray | None:
        try:
            meta_world.reset_to(env, vector)
        except InputError:  # the task rejects it
            return None
        return target - env.step(action)[0][_COLUMNS]

    best, best_error = None, np.inf
    for start in _first_guesses(low, high):
        vector, error = _newton(start, off, low, high)
        if error < best_error:
            best, best_error = vector, error
        if best_error < _GOOD:
            break
    return best if best_error < _GOOD else None


def _first_guesses(low: np.ndarray, high: np.ndarray) -> Iterator[np.ndarray]:
    yield (low + high) / 2
    draw = np.random.default_rng(0)
    for _ in range(_STARTS - 1):
        yield draw.uniform(low, high)


def _newton(vector: np.ndarray, off: Off, low: np.ndarray, high: np.ndarray) -> Found:
    error = off(vector)
    found: Found = (vector, np.inf if error is None else float(np.abs(error).max()))
    if error is None:
        return found
    for _ in range(_STEPS):
        if found[1] < _PERFECT:
            break
        slopes = _slopes(vector, error, off, low, high)
        step = np.linalg.lstsq(slopes, error, rcond=1e-6)[0]
        for share in _SHARES:
            tried = np.clip(vector + share * step, low, high)
            tried_error = off(tried)
            if tried_error is not None:
                vector, error = tried, tried_error
                break
        else:
            break
        worst = float(np.abs(error).max())
        if worst < found[1]:
            found = (vector, worst)
    return found


def _slopes(
    vector: np.ndarray, error: np.ndarray, off: Off, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """How the observation changes with each number of the vector, `[columns, numbers]`."""
    slopes = np.zeros((len(error), len(vector)))
    for place in np.flatnonzero(high > low):
        step = _DIFFERENCE * (high[place] - low[place])
        moved = vector.copy()
        moved[place] += step if vector[place] + step <= high[place] else -step
        there = off(moved)
        if there is not None:
            slopes[:, place] = (error - there) / (moved[place] - vector[place])
    return slopes
