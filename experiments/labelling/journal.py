"""Files that only grow: what `append` has returned from is on the disk, whatever happens next.

A killed writer can leave part of a line, which was never acknowledged: it is cut when the file is
opened again, and told. Journals of several labellers lie side by side; all are read, one's own
alone is written to.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from appo_jax.types import InputError
from experiments.labelling.records import Answer, Record, Undo, record_from, to_json


class Lines:
    """A file of JSON objects, one a line. notes: what was put right when it was opened."""

    def __init__(self, path: Path):
        """Open it, or make it, for this user alone. Raises InputError for a line that isn't one."""
        self.path, self.notes = path, _mend(path)
        is_new = not path.exists()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        if is_new:
            _sync_folder(path.parent)
        self._size = os.fstat(self._file).st_size

    def append(self, value: Mapping[str, Any]) -> None:
        """Add a line, and wait until it is on the disk.

        Raises OSError where it can't be, and the file is as it was before.
        """
        line = json.dumps(value, allow_nan=False).encode() + b"\n"
        try:
            os.ftruncate(self._file, self._size)  # what an append that failed may have left
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Nothing more is added."""
        os.close(self._file)


class Journal:
    """A labeller's own journal. records: all of it, in order, each id once."""

    def __init__(self, path: Path):
        """Open it, or begin it. Raises InputError for a line that isn't a record."""
        self._lines = Lines(path)
        self.notes = self._lines.notes
        self.records = read(path)
        self._ids = {record.id for record in self.records}

    def __contains__(self, id: str) -> bool:
        """Whether a record of this id is on the disk."""
        return id in self._ids

    def append(self, record: Record) -> None:
        """Keep a record; one that is there already, as when its sender tries again, is not doubled.

        Raises OSError where it can't be written: then it isn't there.
        """
        if record.id in self._ids:
            return
        self._lines.append(to_json(record))
        self._ids.add(record.id)
        self.records.append(record)

    def close(self) -> None:
        """Nothing more is added."""
        self._lines.close()


def read(path: Path) -> list[Record]:
    """The records of a file, each id once. Raises InputError, naming the line, for a bad one."""
    found: dict[str, Record] = {}
    for where, value in objects(path):
        record = record_from(value, where)
        found.setdefault(record.id, record)
    return list(found.values())


def standing(records: Iterable[Record]) -> list[Answer]:
    """The answers that count, in the order in which they were given."""
    records = list(records)
    undone = {(undo.labeller, undo.cancels) for undo in records if isinstance(undo, Undo)}
    return [
        answer
        for answer in records
        if isinstance(answer, Answer) and (answer.labeller, answer.id) not in undone
    ]


def objects(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with its place. Raises InputError for a line that isn't one."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read as text ({error})") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path} line {number}"
            found.append((where, _object(line, where)))
    return found


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: {line[:60]!r}, expected a JSON object") from error
    if not isinstance(value, dict):
        raise InputError(f"{where}: {line[:60]!r}, expected a JSON object")
    return value


def _mend(path: Path) -> Sequence[str]:
    """Give the file an end of line where it has none: after a whole line, or by cutting a part."""
    if not path.exists():
        return []
    content = path.read_bytes()
    if not content or content.endswith(b"\n"):
        return []
    kept, _, tail = content.rpartition(b"\n")
    kept += b"\n" if b"\n" in content else b""
    try:
        whole = isinstance(json.loads(tail), dict)
    except (ValueError, RecursionError):
        whole = False
    with path.open("r+b") as file:
        if whole:  # an editor left its end out, or a writer was killed right before it
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        else:
            file.truncate(len(kept))
        file.flush()
        os.fsync(file.fileno())
    if whole:
        return []
    return [f"{path}: {len(tail)} bytes of an answer that was never acknowledged are cut off"]


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
