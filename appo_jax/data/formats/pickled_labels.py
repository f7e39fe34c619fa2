"""Labels of people as Preference Transformer, DPPO and Clean-Offline-RLHF publish them.

A folder of three pickles: the numbers of the transitions at which the first and the second segments
begin, and the labels, 0 for the first, 1 for the second, -1 for neither. The data sets that they
point into are D4RL's and robomimic's, in the order of D4RL's `qlearning_dataset`.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from appo_jax.data import plain_pickle
from appo_jax.data.formats.format import Imported, Request, at_transitions, only_file
from appo_jax.types import InputError

# Of the first segments, of the second, and of the labels.
_PT = ("indices_num*", "indices_2_num*", "label_human*")
_CROWD = ("indices_1*", "indices_2*", "human_label*")
_CODES = {0: 0.0, 1: 1.0, -1: 0.5}
_LENGTH = re.compile(r"_(?:q|len_)(\d+)(?:[_.]|$)")


def preference_transformer(request: Request) -> Imported:
    """`indices_num*`, `indices_2_num*` and `label_human`."""
    return _read(request, _PT, "PT")


def crowd(request: Request) -> Imported:
    """`indices_1*`, `indices_2*` and `human_label*`, all `..._len_<length>_...pkl`."""
    return _read(request, _CROWD, "Clean-Offline-RLHF")


def _read(request: Request, patterns: tuple[str, str, str], name: str) -> Imported:
    folder = request.source
    paths = [only_file(folder, pattern, pattern) for pattern in patterns]
    others = sorted({path.name for path in folder.iterdir()} - {path.name for path in paths})
    if others:
        raise InputError(
            f"{folder}: holds {', '.join(others)[:100]} beside {', '.join(p.name for p in paths)}, "
            "expected one set of labels in a folder"
        )
    first, second, codes = (_numbers(path) for path in paths)
    labels = _labels(paths[2], codes)
    if len(first) != len(second) or len(labels) > len(first):
        raise InputError(
            f"{folder}: {len(first)} first segments, {len(second)} second ones and {len(labels)} "
            "labels, expected a first and a second one for each label"
        )
    counts = ", ".join(
        f"{int(np.sum(codes == code)):,} {what}"
        for code, what in ((0, "say first"), (1, "say second"), (-1, "neither"))
    )
    if request.dataset is None:
        raise InputError(
            f"{folder}: {len(labels):,} labels ({counts}) whose indices, up to "
            f"{max(first.max(), second.max()):,}, point into a data set that isn't here, expected "
            "--dataset=<the id of that set, imported before>"
        )
    warnings = []
    if len(labels) < len(first):
        warnings.append(
            f"{len(first):,} pairs of segments for {len(labels):,} labels: they are those of the "
            "first pairs, as DPPO reads them (PT takes the last labels, of the last pairs)"
        )
    length = request.segment_length or _length(paths)
    rows = np.stack([first, second], axis=1)[: len(labels)]
    found = at_transitions(request.dataset, rows, labels, length, name, str(folder))
    return Imported(None, found, tuple(warnings))


def _numbers(path: Path) -> np.ndarray:
    value: Any = plain_pickle.load(path)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{path}: no array ({error}), expected whole numbers") from error
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise InputError(
            f"{path}: {type(value).__name__} {list(array.shape)} of {array.dtype}, expected a list "
            "of whole numbers"
        )
    return array


def _labels(path: Path, codes: np.ndarray) -> list[float]:
    wrong = ~np.isin(codes, list(_CODES))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"{path}: label {codes[row]} in row {row}, expected 0 (first), 1 (second) or -1 "
            "(neither); 1, 2, 3 are the codes of other files"
        )
    return [_CODES[int(code)] for code in codes]


def _length(paths: list[Path]) -> int:
    found = {int(length) for path in paths for length in _LENGTH.findall(path.name)}
    if len(found) != 1:
        raise InputError(
            f"{paths[0].parent}: the names of its files give {sorted(found) or 'no'} segment "
            "length, expected --segment_length=<steps> (100 for D4RL)"
        )
    return found.pop()
