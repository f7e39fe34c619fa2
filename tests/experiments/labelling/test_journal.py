"""A journal loses and doubles nothing."""

import errno
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from appo_jax.types import InputError
from experiments.labelling.journal import Journal, Lines, read, standing
from experiments.labelling.records import Answer, Segment, Undo, record_from, to_json


def answer(number: int, choice: str = "left", **changed: Any) -> Answer:
    fields: dict[str, Any] = {
        "id": f"answer-{number:08d}",
        "pair": number,
        "segments": (Segment(number, 3), Segment(number + 1, 0)),
        "length": 5,
        "left": number % 2,
        "answer": choice,
        "seconds": 1.5,
        "loops": 2,
        "at": f"2026-01-01T00:00:{number % 60:02d}.000Z",
        "labeller": "ann",
        "repeat_of": None,
        "clip": ("lines", "lines"),
        "session": "0123456789abcdef",
    }
    return Answer(**{**fields, **changed})


def undo(number: int, **changed: Any) -> Undo:
    fields: dict[str, Any] = {
        "id": f"undo-{number:08d}",
        "cancels": f"answer-{number:08d}",
        "at": "2026-01-01T00:01:00.000Z",
        "labeller": "ann",
        "session": "0123456789abcdef",
    }
    return Undo(**{**fields, **changed})


@pytest.mark.parametrize(
    ("choice", "left", "label"),
    [
        *(("left", 0, 0.0), ("left", 1, 1.0), ("right", 0, 1.0), ("right", 1, 0.0)),
        *(("equal", 0, 0.5), ("equal", 1, 0.5), ("skip", 0, None), ("skip", 1, None)),
    ],
)
def test_labels_speak_of_segments_not_of_sides(choice: str, left: int, label: float | None) -> None:
    assert answer(0, choice, left=left).label == label


def test_records_come_back_and_a_repeated_id_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "answers-ann.jsonl"
    journal = Journal(path)
    written = [answer(0), answer(1, "skip"), undo(0), answer(2, repeat_of=0)]
    for record in [*written, answer(0)]:
        journal.append(record)
    journal.close()
    assert read(path) == written == Journal(path).records
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("a") as file:  # by hand
        file.write(json.dumps(to_json(answer(1, "left"))) + "\n\n")
    assert read(path) == written


def test_an_undo_cancels_an_answer_of_its_own_labeller() -> None:
    other = answer(1, labeller="bob")
    found = standing([answer(0), answer(1), other, undo(1), answer(1, id="again-0000001")])
    assert [(one.labeller, one.id) for one in found] == [
        ("ann", "answer-00000000"),
        ("bob", "answer-00000001"),
        ("ann", "again-0000001"),
    ]


@pytest.mark.parametrize("left", range(1, 40, 7))
def test_a_torn_tail_is_cut_and_told(tmp_path: Path, left: int) -> None:
    path = tmp_path / "answers-ann.jsonl"
    journal = Journal(path)
    journal.append(answer(0))
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:left])
    again = Journal(path)
    assert again.records == [answer(0)]
    assert f"{left} bytes of an answer that was never acknowledged" in again.notes[0]
    again.append(answer(1))
    assert read(path) == [answer(0), answer(1)]


def test_a_whole_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "answers-ann.jsonl"
    path.write_text(json.dumps(to_json(answer(0))))  # as an editor may leave it
    journal = Journal(path)
    journal.append(answer(1))
    assert read(path) == [answer(0), answer(1)]
    assert not journal.notes


def test_where_nothing_can_be_written_nothing_is_there(tmp_path: Path) -> None:
    path = tmp_path / "answers-ann.jsonl"
    journal = Journal(path)
    journal.append(answer(0))
    before = path.read_bytes()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):  # noqa: PT011, after 100 bytes of it
            journal.append(answer(1))
        assert path.read_bytes() == before
        assert answer(1).id not in journal
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.append(answer(1))
    assert read(path) == [answer(0), answer(1)]


def test_where_the_disk_does_not_take_it_nothing_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    lines.append({"n": 0})

    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output"):
        lines.append({"n": 1})
    monkeypatch.undo()
    lines.append({"n": 2})
    assert lines.path.read_text() == '{"n": 0}\n{"n": 2}\n'


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "vote"}, "kind is 'vote', expected answer or undo"),
        ({"answer": "both"}, "answer 'both', expected left, right, equal, skip"),
        ({"label": 1.0}, "label 1.0, expected 0.0: left with segment 0 on the left"),
        ({"episode_0": -1}, "episode_0 is -1, expected a whole number"),
        ({"start_1": 0.5}, "start_1 is 0.5, expected a whole number"),
        ({"left": True}, "left is True, expected 0 or 1"),
        ({"labeller": "../ann"}, "labeller is '../ann', expected text"),
        ({"seconds": float("nan")}, "seconds nan, expected a number"),
        ({"clip": "lines"}, "clip is 'lines', expected the sources"),
        ({"id": "x"}, "id is 'x', expected text"),
    ],
)
def test_a_line_that_can_not_be_right_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^place: {message}"):
        record_from({**to_json(answer(0)), **changed}, "place")


def test_a_line_in_the_middle_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers-ann.jsonl"
    path.write_text(json.dumps(to_json(answer(0))) + "\n{half\n")
    with pytest.raises(InputError, match=r"jsonl line 2: '\{half', expected a JSON object"):
        Journal(path)
