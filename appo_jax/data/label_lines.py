"""The lines of a file of labels, and what each must be; the form is told in `preferences`.

A labelled pair is an object of JSON here, also one that never was in a file. `where` tells the
reader of an error the place, like `labels.jsonl line 3`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from appo_jax.data.dataset import Dataset
from appo_jax.types import InputError

FORMAT, VERSION = "appo-preferences", 1


def read(path: Path) -> list[tuple[str, str]]:
    """The header and the lines of pairs, each with its place; empty lines are left out.

    Raises InputError for a file that can't be read as text.
    """
    if path.is_fifo():  # it can be read once alone, and waits for its writer
        raise InputError(f"{path}: a pipe, expected a file of labels")
    try:
        # -sig: some editors begin a file with a byte order mark. Not splitlines: a labeller's name
        # may hold what that takes for an end of line.
        header, *lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read as text ({error})") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=2) if line.strip()]
    return [(f"{path} line {number}", line) for number, line in [(1, header), *numbered]]


def parse(line: str, where: str) -> dict[str, Any]:
    """The object that a line holds. Raises InputError for anything else."""
    problem = f"{where}: {line[:60]!r}, expected a JSON object, each field once"
    try:
        value = json.loads(line, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:  # also too long a number, too deep a list
        raise InputError(problem) from error
    if not isinstance(value, dict):
        raise InputError(problem)
    return value


def check_header(header: Mapping[str, Any], dataset: Dataset, where: str) -> None:
    """Raise InputError for a header that isn't as it must be, or names another data set."""
    expected = {"format": FORMAT, "version": VERSION, "dataset": dataset.id}
    for field, value in expected.items():
        if header.get(field) != value:
            raise InputError(
                f"{where}: header field {field!r} is {shown(header.get(field))}, expected {value!r}"
            )
    if header.get("lengths", "any") != "any":
        raise InputError(
            f"{where}: header field 'lengths' is {shown(header['lengths'])}, expected \"any\", or "
            "the field left out"
        )
    seed = header.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise InputError(
            f"{where}: header field 'seed' is {shown(seed)}, expected a whole number or null"
        )


def check_pair(
    pair: Mapping[str, Any], dataset: Dataset, segment_length: int | None, where: str
) -> None:
    """Raise InputError for a pair that isn't as it must be, or of segments that `dataset` hasn't.

    segment_length: what both must have; None where any will do.
    """
    label = pair.get("label")
    is_number = isinstance(label, int | float) and not isinstance(label, bool)
    if label is None or not is_number or not 0 <= label <= 1:
        raise InputError(f"{where}: label {shown(label)}, expected a number in [0, 1]")
    of_lengths = ("length",) if "length" in pair or segment_length else ("length_0", "length_1")
    for field in ("episode_0", "start_0", "episode_1", "start_1", *of_lengths):
        value = pair.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(f"{where}: {field} {shown(value)}, expected a whole number from 0")
    if "length" in pair and ("length_0" in pair or "length_1" in pair):
        raise InputError(f"{where}: length and length_0 or length_1, expected one or the others")
    if segment_length and pair["length"] != segment_length:
        raise InputError(
            f"{where}: length {pair['length']}, expected the segment length {segment_length}"
        )
    for side, length in enumerate(lengths(pair)):
        episode, start = pair[f"episode_{side}"], pair[f"start_{side}"]
        if not length:
            raise InputError(f"{where}: a segment of {length} steps, expected 1 or more")
        if episode >= dataset.num_episodes:
            raise InputError(
                f"{where}: episode_{side} {episode}, expected 0 to {dataset.num_episodes - 1}"
            )
        steps = int(dataset.label_lengths[episode])
        if start + length > steps:
            raise InputError(
                f"{where}: start_{side} {start} with length {length} leaves episode "
                f"{episode}, which has {steps} steps"
            )


def lengths(pair: Mapping[str, Any]) -> list[Any]:
    """Steps of the two segments; None where the pair doesn't say."""
    return [pair.get(f"length_{side}", pair.get("length")) for side in (0, 1)]


def is_of_one_segment(pair: Mapping[str, Any]) -> bool:
    """Whether a segment is paired with itself."""
    first, second = (
        (pair.get(f"episode_{side}"), pair.get(f"start_{side}"), steps)
        for side, steps in enumerate(lengths(pair))
    )
    return first == second


def length_fields(steps: Sequence[int]) -> dict[str, int]:
    """How a pair says the steps of its two segments."""
    if steps[0] == steps[1]:
        return {"length": steps[0]}
    return {"length_0": steps[0], "length_1": steps[1]}


def shown(value: Any) -> str:
    """What was found, for a message."""
    return repr(value)[:60]


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(fields)) < len(fields):
        raise ValueError("a field twice")  # Python would take the last one
    return dict(fields)
