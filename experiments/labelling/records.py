"""What is written down: segments, pairs, answers and undos, as lines of JSON.

An answer carries its own pair, so that a journal is complete by itself:

    {"id": "...", "kind": "answer", "pair": 17, "episode_0": 3, "start_0": 120, "episode_1": 9,
     "start_1": 0, "length": 25, "left": 1, "answer": "left", "label": 1.0, "seconds": 3.2,
     "loops": 1, "at": "2026-01-01T12:00:00.000Z", "labeller": "ann", "repeat_of": null,
     "clip": ["re-simulated", "re-simulated"], "session": "8f3a..."}
    {"id": "...", "kind": "undo", "cancels": "<an answer's id>", "at": "...", "labeller": "ann",
     "session": "8f3a..."}

(each on one line). `left` is the segment, 0 or 1, that was shown on the left; `label` speaks of
segments, never of sides: the probability that segment 1 is preferred, null for a skipped pair.
`session` is the beginning of the data set's digest.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from appo_jax.types import InputError

Choice: TypeAlias = Literal["left", "right", "equal", "skip"]
CHOICES: tuple[str, ...] = get_args(Choice)
LABELLER = re.compile(r"[A-Za-z0-9_-]{1,40}")
ID = re.compile(r"[A-Za-z0-9-]{8,64}")


class Segment(NamedTuple):
    """Where a segment begins: its episode and first step."""

    episode: int
    start: int


Segments: TypeAlias = tuple[Segment, Segment]


def unordered(segments: Segments) -> Segments:
    """The same two segments, the earlier first."""
    first, second = sorted(segments)
    return first, second


@dataclasses.dataclass(frozen=True)
class Pair:
    """A pair that is asked about. left: the segment shown on the left, 0 or 1.

    repeat_of: the pair that it asks about once more, sides swapped.
    """

    pair: int
    segments: Segments
    left: int
    repeat_of: int | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a person said of a pair; the fields are those of the module docstring."""

    id: str
    pair: int
    segments: Segments
    length: int
    left: int
    answer: str
    seconds: float
    loops: int
    at: str
    labeller: str
    repeat_of: int | None
    clip: tuple[str, str]
    session: str

    @property
    def label(self) -> float | None:
        """Probability that segment 1 is preferred; None where the pair was skipped."""
        if self.answer == "skip":
            return None
        if self.answer == "equal":
            return 0.5
        return float(self.left if self.answer == "left" else 1 - self.left)


@dataclasses.dataclass(frozen=True)
class Undo:
    """An answer of the same labeller's no longer counts."""

    id: str
    cancels: str
    at: str
    labeller: str
    session: str


Record: TypeAlias = Answer | Undo


def of_segments(segments: Segments) -> dict[str, int]:
    """The four fields that name a pair's segments."""
    return {
        f"{name}_{side}": getattr(segment, name)
        for side, segment in enumerate(segments)
        for name in ("episode", "start")
    }


def to_json(record: Record | Pair) -> dict[str, Any]:
    """A record, or a pair, as a line of its file holds it."""
    found: dict[str, Any] = {}
    if not isinstance(record, Pair):
        kind = "answer" if isinstance(record, Answer) else "undo"
        found |= {"id": record.id, "kind": kind}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name == "segments":
            found |= of_segments(value)
        else:
            found[field.name] = list(value) if isinstance(value, tuple) else value
        if field.name == "answer":
            found["label"] = record.label  # type: ignore[union-attr]
    return found


def record_from(value: Mapping[str, Any], where: str) -> Record:
    """The record that a line holds. Raises InputError, with the place, for anything else."""
    kind = value.get("kind")
    if kind not in ("answer", "undo"):
        raise InputError(f"{where}: kind is {kind!r:.60}, expected answer or undo")
    common = {
        "id": _text(value, "id", ID, where),
        "at": _text(value, "at", re.compile(r"[0-9TZ:.+-]{10,40}"), where),
        "labeller": _text(value, "labeller", LABELLER, where),
        "session": _text(value, "session", ID, where),
    }
    if kind == "undo":
        return Undo(cancels=_text(value, "cancels", ID, where), **common)
    pair = pair_from(value, where)
    clip = value.get("clip")
    if not (isinstance(clip, list) and len(clip) == 2 and all(isinstance(c, str) for c in clip)):
        raise InputError(f"{where}: clip is {clip!r:.60}, expected the sources of two clips")
    answer = Answer(
        pair=pair.pair,
        segments=pair.segments,
        left=pair.left,
        repeat_of=pair.repeat_of,
        length=_whole(value, "length", where),
        answer=choice_from(value, where),
        seconds=seconds_from(value, where),
        loops=_whole(value, "loops", where),
        clip=(clip[0], clip[1]),
        **common,
    )
    if value.get("label") != answer.label:
        raise InputError(
            f"{where}: label {value.get('label')!r:.60}, expected {answer.label}: {answer.answer} "
            f"with segment {answer.left} on the left"
        )
    return answer


def pair_from(value: Mapping[str, Any], where: str) -> Pair:
    """The pair that a line of either file names. Raises InputError, with the place."""
    first, second = (
        Segment(_whole(value, f"episode_{side}", where), _whole(value, f"start_{side}", where))
        for side in (0, 1)
    )
    left = value.get("left")
    if type(left) is not int or left not in (0, 1):
        raise InputError(f"{where}: left is {left!r:.60}, expected 0 or 1")
    repeat_of = None if value.get("repeat_of") is None else _whole(value, "repeat_of", where)
    return Pair(_whole(value, "pair", where), (first, second), left, repeat_of)


def choice_from(value: Mapping[str, Any], where: str) -> str:
    """The field `answer`. Raises InputError for anything but the four."""
    answer = value.get("answer")
    if not isinstance(answer, str) or answer not in CHOICES:
        raise InputError(f"{where}: answer {answer!r:.60}, expected {', '.join(CHOICES)}")
    return answer


def seconds_from(value: Mapping[str, Any], where: str) -> float:
    """The field `seconds`. Raises InputError for anything but a time."""
    seconds = value.get("seconds")
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is None or not is_number or not 0 <= seconds < 1e7:
        raise InputError(f"{where}: seconds {seconds!r:.60}, expected a number from 0")
    return float(seconds)


def id_from(value: Mapping[str, Any], field: str, where: str) -> str:
    """A field that holds a record's id. Raises InputError for anything else."""
    return _text(value, field, ID, where)


def whole_from(value: Mapping[str, Any], field: str, where: str) -> int:
    """A field that holds a whole number from 0. Raises InputError for anything else."""
    return _whole(value, field, where)


def _text(value: Mapping[str, Any], field: str, pattern: re.Pattern[str], where: str) -> str:
    found = value.get(field)
    if not isinstance(found, str) or not pattern.fullmatch(found):
        raise InputError(
            f"{where}: {field} is {found!r:.60}, expected text that matches {pattern.pattern}"
        )
    return found


def _whole(value: Mapping[str, Any], field: str, where: str) -> int:
    found = value.get(field)
    if type(found) is not int or not 0 <= found < 2**53:
        raise InputError(f"{where}: {field} is {found!r:.60}, expected a whole number from 0")
    return found
