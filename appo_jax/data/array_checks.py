"""Arrays from outside: cast to float32 and booleans, or refused with their name and place."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from appo_jax.types import InputError

_OF_STEPS = ("rewards", "terminations", "truncations", "successes")
_OPTIONAL = ("rewards", "successes", "truncations", "last_action")


def checked_arrays(
    given: Mapping[str, Any], first: Mapping[str, Any] | None, where: str
) -> dict[str, Any]:
    """The arrays of an episode, by the names and in the form that `dataset.Episode` says.

    first: the checked arrays of the data set's first episode, which say how wide vectors are, and
    whether rewards and successes are known; None for that episode itself. Raises InputError for all
    that `dataset.from_episodes` refuses.
    """
    arrays = {}
    for name, values in given.items():
        if values is not None:
            arrays[name] = as_float32(values, name, where)
        elif name not in _OPTIONAL:
            raise InputError(f"{where}: {name} are missing, expected an array")
    for name in ("rewards", "successes"):
        if first is not None and (name in arrays) != (first[name] is not None):
            found = "there" if name in arrays else "missing"
            raise InputError(f"{where}: {name} are {found}, expected in all episodes or in none")
    steps = len(arrays["actions"]) if arrays["actions"].ndim else 0
    if not steps:
        raise InputError(f"{where}: no steps, expected at least one")
    shapes = _shapes(steps, first or arrays)
    for name, array in arrays.items():
        if name in _OF_STEPS and array.shape == (steps, 1):
            arrays[name] = array = array.reshape(steps)
        if array.shape != shapes[name]:
            raise InputError(f"{where}: {name} have shape {array.shape}, expected {shapes[name]}")
    for name in ("terminations", "truncations", "successes"):
        if name in arrays:
            # As they were given: float32 takes 1e-60 for 0.
            flags = np.asarray(given[name]).reshape(steps)
            arrays[name] = as_bool(flags, name, where)
    for name in ("terminations", "truncations"):
        if name in arrays and arrays[name][:-1].any():
            raise InputError(
                f"{where}: {name} hold 1 in row {int(arrays[name].argmax())} of {steps}, expected "
                "an episode to end in its last row alone"
            )
    return {"rewards": None, **arrays}


def as_float32(values: Any, name: str, where: str) -> np.ndarray:
    """Cast an array of any shape; `where` and `name` tell the reader of an error what it is.

    Raises InputError for what isn't real numbers, and for nan and infinity, also where a number is
    too large for float32.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:  # lists of unequal lengths
        raise InputError(f"{where}: {name} are no array ({error}), expected numbers") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where}: {name} have dtype {array.dtype}, expected numbers")
    with np.errstate(over="ignore"):
        cast = array.astype(np.float32, copy=False)
    if not np.isfinite(cast).all():
        place = tuple(np.argwhere(~np.isfinite(cast))[0])
        at = ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column"), place, strict=False))
        raise InputError(
            f"{where}: {name} hold {array[place]} in {at}, expected finite numbers (float32)"
        )
    return cast


def as_bool(flags: np.ndarray, name: str, where: str) -> np.ndarray:
    """Flags `[steps]`, as they were given, to booleans. Raises InputError for all but 0 and 1."""
    wrong = (flags != 0) & (flags != 1)
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{where}: {name} hold {flags[row]} in row {row}, expected 0 or 1")
    return flags.astype(np.bool_)


def _shapes(steps: int, reference: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Of an episode of so many steps, with vectors as wide as the reference's."""
    width, action_width = (
        max(reference[name].shape[1], 1) if reference[name].ndim > 1 else 1
        for name in ("observations", "actions")
    )
    return {
        "observations": (steps + 1, width),
        "actions": (steps, action_width),
        "last_action": (action_width,),
        **dict.fromkeys(_OF_STEPS, (steps,)),
    }
