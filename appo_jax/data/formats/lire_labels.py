"""LiRE's labels of people: three schemes, as text files beside the data that they point into.

`_Independent.txt` and `_SeqRank.txt` have a line `i j label` for each comparison, with 1 for the
first, 3 for the second and 2 for a tie; `_RLT_<k>.txt` a line `rank [i, ...]` for each group of
equally good segments, the worst first. A number is the first transition of a segment of 25 in
`dataset.pkl`, a pickled dict of lists, in episodes of 500 steps.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from appo_jax.data import lire, schemes
from appo_jax.data.formats.format import Imported, Request, at_transitions, only_file
from appo_jax.data.schemes import Groups
from appo_jax.types import InputError

SEGMENT_LENGTH = 25
_CODES = {1: 0.0, 2: 0.5, 3: 1.0}
_GROUP = re.compile(r"(\d{1,18})\s+\[([\d,\s]*)\]")


def independent(request: Request) -> Imported:
    """A pair for each line."""
    path = only_file(request.source, "*_Independent.txt", "_Independent.txt")
    return _read(request, [path], lambda: _as_arrays(_comparisons(path)))


def seqrank(request: Request) -> Imported:
    """All pairs of the ranked lists of each chain; a chain ends where a line begins anew."""
    path = only_file(request.source, "*_SeqRank.txt", "_SeqRank.txt")

    def read() -> tuple[np.ndarray, np.ndarray]:
        return schemes.pairs_of(schemes.chain_lists(_comparisons(path)))

    return _read(request, [path], read)


def ranked(request: Request) -> Imported:
    """All pairs of each ranked list; each file is one."""
    folder = request.source
    paths = sorted(folder.glob("*_RLT_*.txt")) if folder.is_dir() else []
    if not paths:
        raise InputError(f"{folder}: holds no _RLT_<k>.txt, expected a folder with such")
    return _read(request, paths, lambda: schemes.pairs_of([_groups(path) for path in paths]))


def _read(
    request: Request, paths: list[Path], labels: Callable[[], tuple[np.ndarray, np.ndarray]]
) -> Imported:
    rows, found = labels()  # before the data, which take longer
    names = ", ".join(path.name for path in paths)
    if not len(found):
        raise InputError(f"{request.source}: {names}: no list of two segments, expected pairs")
    trajectories = request.source / "dataset.pkl"
    dataset = request.dataset
    if dataset is None:
        if not trajectories.exists():
            raise InputError(
                f"{request.source}: {len(found):,} labels of {names}, whose indices, up to "
                f"{rows.max():,}, point into a data set that isn't here, expected dataset.pkl "
                "beside them, or --dataset=<the id of that set, imported before>"
            )
        dataset = lire.load_file(trajectories, request.id)
    length = request.segment_length or SEGMENT_LENGTH
    where = f"{request.source}: {names}"
    made = at_transitions(dataset, rows, found.tolist(), length, "LiRE", where)
    return Imported(dataset if request.dataset is None else None, made)


def _as_arrays(comparisons: list[tuple[int, int, float]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(comparisons)
    return table[:, :2].astype(np.int64), table[:, 2]


def _lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a text file, each with its place."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read as text ({error})") from error
    found = [
        (f"{path} line {number}", line) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not found:
        raise InputError(f"{path}: no lines, expected labels")
    return found


def _comparisons(path: Path) -> list[tuple[int, int, float]]:
    found = []
    for where, line in _lines(path):
        words = line.split()
        if len(words) != 3 or not all(re.fullmatch(r"-?\d{1,18}", word) for word in words):
            raise InputError(f"{where}: {line[:60]!r}, expected three whole numbers: i j label")
        first, second, code = map(int, words)
        if code not in _CODES:
            raise InputError(
                f"{where}: label {code}, expected 1 (first), 2 (tie) or 3 (second); 0, 1, -1 are "
                "the codes of other files"
            )
        found.append((first, second, _CODES[code]))
    return found


def _groups(path: Path) -> Groups:
    groups: Groups = []
    seen: set[int] = set()
    for where, line in _lines(path):
        match = _GROUP.fullmatch(line.strip())
        words = match[2].replace(",", " ").split() if match else []
        is_list = words and all(re.fullmatch(r"\d{1,18}", word) for word in words)
        if match is None or int(match[1]) != len(groups) or not is_list:
            raise InputError(f"{where}: {line[:60]!r}, expected {len(groups)} [i, ...]")
        group = [int(word) for word in words]
        if seen & set(group) or len(set(group)) < len(group):
            raise InputError(f"{where}: a segment stands twice in this list, expected once")
        seen |= set(group)
        groups.append(group)
    return groups
