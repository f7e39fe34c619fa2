"""Inverse Preference Learning's files: preferences that carry their segments, and transitions.

Preferences: `obs_1, obs_2 [pairs, length, dim]`, `action_1, action_2`, `label [pairs]` (1: the
second is better, 0.5: a tie). Transitions: a folder of episodes `<time>_<number>_<length>.npz`, in
which row t holds the observation that action t led to; the first row is the reset's. There `done`
ends an episode, also by a time limit or after enough successes; a terminal state has `discount` 0.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from appo_jax.data import plain_npz
from appo_jax.data.array_checks import as_bool, as_float32
from appo_jax.data.dataset import Episode, from_episodes
from appo_jax.data.formats.format import (
    Imported,
    Request,
    check_names,
    check_shapes,
    of_segments,
)
from appo_jax.types import InputError

_SHAPES = {
    "obs_1": ("pairs", "length", "obs dim"),
    "obs_2": ("pairs", "length", "obs dim"),
    "action_1": ("pairs", "length", "action dim"),
    "action_2": ("pairs", "length", "action dim"),
    "label": ("pairs",),
}
_EPISODE = ("obs", "action", "reward", "done", "discount")
_EPISODE_NAME = re.compile(r"[^_]+_(\d+)_(\d+)\.npz")


def preferences(request: Request) -> Imported:
    """Labelled pairs of segments."""
    arrays = _pairs(request.source)
    segments = [
        {"observations": arrays[f"obs_{side}"], "actions": arrays[f"action_{side}"]}
        for side in (1, 2)
    ]
    metadata = {"format": "IPL", "file": request.source.name}
    found = of_segments(request, segments, arrays["label"].tolist(), metadata)
    warnings = (*found.warnings, *_about_twin(request.source, arrays))
    return Imported(found.dataset, found.labels, warnings)


def _pairs(path: Path) -> dict[str, np.ndarray]:
    arrays = plain_npz.load(path)
    if any(name.startswith(("obs_1.", "obs_2.")) for name in arrays):
        raise InputError(
            f"{path}: observations are several arrays ({', '.join(arrays)[:100]}), expected one"
        )
    check_names(arrays, list(_SHAPES), str(path))
    found = {name: as_float32(arrays[name], name, str(path)) for name in _SHAPES}
    sizes = check_shapes(found, _SHAPES, str(path))
    if not sizes["pairs"]:
        raise InputError(f"{path}: no labelled pairs, expected at least one")
    return found


def _about_twin(path: Path, arrays: dict[str, np.ndarray]) -> list[str]:
    """IPL's `_eval` files hold pairs that its `_train` files hold too."""
    for own, others in (("_train", "_eval"), ("_eval", "_train")):
        twin = path.with_name(path.name.replace(own, others))
        if own not in path.name or not twin.is_file():
            continue
        other = _pairs(twin)
        seen = {_key(other, pair) for pair in range(len(other["label"]))}
        again = [_key(arrays, pair) in seen for pair in range(len(arrays["label"]))]
        if any(again):
            first, count = int(np.argmax(again)), sum(again)
            return [
                f"{count:,} of {len(again):,} labelled pairs are also in {twin.name} (the first is "
                f"pair {first}, the last pair {len(again) - 1 - int(np.argmax(again[::-1]))}): "
                "what is fitted to one file can't be judged by the other"
            ]
    return []


def _key(arrays: dict[str, np.ndarray], pair: int) -> bytes:
    return b"".join(arrays[name][pair].tobytes() for name in _SHAPES)


def transitions(request: Request) -> Imported:
    """Episodes, in the order of their numbers."""
    folder = request.source
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in names if not _EPISODE_NAME.fullmatch(name)]
    if not names or others:
        found = ", ".join(others[:5]) or ("nothing" if folder.is_dir() else "no folder")
        raise InputError(
            f"{folder}: holds {found}, expected a folder of episodes <time>_<number>_<length>.npz "
            "and nothing else"
        )
    names.sort(key=lambda name: int(_EPISODE_NAME.sub(r"\1", name)))
    metadata = {"format": "IPL"}
    dataset = from_episodes(
        (episode for name in names for episode in _episodes(folder / name)), request.id, metadata
    )
    return Imported(dataset)


def _episodes(path: Path) -> Iterable[Episode]:
    arrays = plain_npz.load(path)
    check_names(arrays, _EPISODE, str(path))
    arrays = {name: as_float32(arrays[name], name, str(path)) for name in _EPISODE}
    shapes: dict[str, tuple[str, ...]] = {
        "obs": ("rows", "obs dim"),
        "action": ("rows", "action dim"),
    }
    shapes |= dict.fromkeys(_EPISODE[2:], ("rows",))
    rows = check_shapes(arrays, shapes, str(path))
    length = int(_EPISODE_NAME.sub(r"\2", path.name))
    if rows["rows"] not in (length, length + 1) or rows["rows"] < 2:
        raise InputError(
            f"{path}: {rows['rows']} rows, expected the {length} of its name, or one more"
        )
    done = arrays["done"]
    if done[0] or arrays["reward"][0]:
        raise InputError(f"{path}: a reward or an end in row 0, expected that of a reset")
    if done[:-1].any():
        raise InputError(
            f"{path}: done holds 1 in row {int(done.argmax())} of {len(done)}, expected an episode "
            "to end in its last row alone"
        )
    is_terminal = ~as_bool(arrays["discount"], "discount", str(path))
    if is_terminal[:-1].any():
        raise InputError(
            f"{path}: discount holds 0 in row {int(is_terminal.argmax())} of {len(done)}, expected "
            "a terminal state in the last row alone"
        )
    yield Episode(arrays["obs"], arrays["action"][1:], arrays["reward"][1:], is_terminal[1:])
