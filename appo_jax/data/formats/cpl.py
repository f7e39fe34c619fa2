"""Contrastive Preference Learning's files: scored segments that carry themselves.

`obs`, `action [rows, length, dim]`, `reward [rows, length]` and scores `[rows]` (`rl_sum`,
`rl_dir`, `rl_dis_sum`, `rl_dis_dir`), a larger one for the better segment. As in CPL's comparisons,
row i is paired with row i + rows / 2.
"""

import numpy as np

from appo_jax.data import plain_npz
from appo_jax.data.array_checks import as_float32
from appo_jax.data.formats.format import (
    Imported,
    Request,
    check_names,
    check_shapes,
    of_segments,
)
from appo_jax.types import InputError


def read(request: Request) -> Imported:
    """Labelled pairs of segments, with their rewards."""
    path, score = request.source, request.score
    raw = plain_npz.load(path)
    check_names(raw, ("obs", "action", "reward", score), str(path))
    arrays = {name: as_float32(raw[name], name, str(path)) for name in ("obs", "action", "reward")}
    # As they are: two scores may be equal in float32 alone.
    arrays[score] = raw[score]
    as_float32(raw[score], score, str(path))
    shapes = {
        "obs": ("rows", "length", "obs dim"),
        "action": ("rows", "length", "action dim"),
        "reward": ("rows", "length"),
        score: ("rows",),
    }
    rows = check_shapes(arrays, shapes, str(path))["rows"]
    half, rest = divmod(rows, 2)
    if rest or not half:
        raise InputError(f"{path}: {rows} segments, expected an even number, two halves to compare")
    segments = [
        {
            "observations": arrays["obs"][side],
            "actions": arrays["action"][side],
            "rewards": arrays["reward"][side],
        }
        for side in (slice(0, half), slice(half, rows))
    ]
    first, second = arrays[score][:half], arrays[score][half:]
    labels = np.where(first == second, 0.5, first < second)
    metadata = {"format": "CPL", "file": path.name, "score": score}
    return of_segments(request, segments, labels.tolist(), metadata)
