"""Pairs, sides, answers, undos and what is derived from them."""

import json
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest

from appo_jax.data import preferences
from appo_jax.types import InputError
from experiments.labelling import export, journal
from experiments.labelling.records import Segments, unordered
from experiments.labelling.session import Conflict, Session
from experiments.labelling.strategies import FromFile
from tests.helpers.labelling import LENGTH, say, session, walks


def undo_last(found: object) -> None:
    state = found.state()
    found.undo({"id": str(uuid.uuid4()), "cancels": state["last"]["id"]})


def test_always_the_better_clip_agrees_with_the_scripted_teacher_whatever_the_sides(
    tmp_path: Path,
) -> None:
    data = walks()

    def returned(segment: object) -> float:
        row = data.episode_starts[segment.episode] + segment.start
        return float(data.rewards[row : row + LENGTH].sum(dtype=np.float64))

    with session(tmp_path, data, num_pairs=60, repeats=0.2) as found:
        sides, repeated = [], 0
        for number in range(60):
            pair = found.pair(number)
            first, second = (returned(segment) for segment in pair.segments)
            better = int(second > first)
            sides.append(pair.left)
            repeated += pair.repeat_of is not None
            if pair.repeat_of is not None:
                before = found.pair(pair.repeat_of)
                assert (before.segments, before.left) == (pair.segments, 1 - pair.left)
                assert pair.pair - before.pair >= 10
            say(found, "left" if pair.left == better else "right")
    assert 15 < sum(sides) < 45
    assert 4 <= repeated <= 20
    labels = preferences.load(tmp_path / "preferences.jsonl", data, LENGTH)
    assert len(labels) == 60 - repeated
    steps = data.rewards[labels.rows(data)[..., None] + np.arange(LENGTH)]
    returns = steps.sum(axis=-1, dtype=np.float64)
    assert np.array_equal(labels.labels, returns[:, 1] > returns[:, 0])
    report = json.loads((tmp_path / "report.json").read_text())["labellers"][0]
    assert (report["self_agreement"], report["repeats"]) == (1.0, repeated)


def test_undo_ten_times_and_through_a_restart(tmp_path: Path) -> None:
    data = walks()
    with session(tmp_path, data) as found:
        for choice in ("left", "right", "equal", "skip") * 4:
            say(found, choice)
        asked = [found.pair(n) for n in range(16)]
        for left in range(10):
            undo_last(found)
            assert found.current() == 15 - left
    with session(tmp_path, data) as found:
        assert [found.pair(n) for n in range(9)] == asked[:9]
        undo_last(found)
        assert found.current() == 5
        say(found, "right")
        assert found.current() == 6
    records = journal.read(tmp_path / "answers-ann.jsonl")
    assert len(records) == 16 + 11 + 1  # nothing is ever taken away
    replayed = export.preferences_of(journal.standing(records), data.id, LENGTH)
    export.save(replayed, tmp_path / "replayed.jsonl")
    derived = (tmp_path / "preferences.jsonl").read_bytes()
    assert derived == (tmp_path / "replayed.jsonl").read_bytes()
    assert len(derived.splitlines()) == 1 + 5  # of 6 answers one says skip


def test_an_answer_that_is_sent_again_is_kept_once(tmp_path: Path) -> None:
    with session(tmp_path) as found:
        request = say(found, "left")
        found.answer(request, ("lines", "lines"))
        undo = {"id": str(uuid.uuid4()), "cancels": request["id"]}
        for _ in range(2):
            found.undo(undo)
        assert found.current() == 0
        say(found, "right")
    with session(tmp_path) as found:
        found.answer(request, ("lines", "lines"))  # after a restart, as a page may
        assert [answer.answer for answer in found.answers] == ["right"]
        with pytest.raises(Conflict, match="no such answer"):
            found.undo({"id": str(uuid.uuid4()), "cancels": request["id"]})


def test_an_answer_to_another_pair_than_was_asked_is_refused(tmp_path: Path) -> None:
    with session(tmp_path) as found:
        request = say(found, "left")
        for changed in ({"start_0": 1000}, {"left": 1 - request["left"]}, {"pair": 9}):
            other = {**request, **changed, "id": str(uuid.uuid4())}
            with pytest.raises(InputError, match="is another one, expected one asked"):
                found.answer(other, ("lines", "lines"))
        with pytest.raises(Conflict, match="pair 0 has an answer already"):
            found.answer({**request, "id": str(uuid.uuid4())}, ("lines", "lines"))
        for number in (-1, 10, 30):
            with pytest.raises(InputError, match="expected one that is due"):
                found.pair(number)
        assert len(found.answers) == 1


def test_a_changed_data_set_and_another_length_are_refused(tmp_path: Path) -> None:
    with session(tmp_path) as found:
        say(found, "left")
    with (
        pytest.raises(InputError, match=r"session.json: digest is .* holds labels of something"),
        session(tmp_path, walks(seed=1)),
    ):
        pass
    with (
        pytest.raises(InputError, match="segment_length is 5, expected 6"),
        session(tmp_path, segment_length=6),
    ):
        pass


def test_a_second_one_in_the_folder_is_refused(tmp_path: Path) -> None:
    with (
        session(tmp_path),
        pytest.raises(InputError, match="another process is at work there"),
        session(tmp_path, labeller="bob"),
    ):
        pass


@pytest.mark.parametrize("name", ["", "../ann", "a b", "x" * 41])
def test_a_labeller_that_can_not_name_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(InputError, match=f"--labeller={name}: expected 1 to 40 letters"),
        session(tmp_path, labeller=name),
    ):
        pass


def test_journals_of_several_labellers_merge_by_copying_files(tmp_path: Path) -> None:
    data = walks()
    for name, choices in (("ann", ["left", "left", "equal"]), ("bob", ["left", "right"])):
        with session(tmp_path / name, data, name) as found:
            for number, choice in enumerate(choices):
                pair = found.pair(number)
                # Of segments: ann's side may be the other one.
                side = (
                    choice
                    if pair.left == 0 or choice == "equal"
                    else {"left": "right"}.get(choice, "left")
                )
                say(found, side)
            first = found.pair(0)
    copied = tmp_path / "bob" / "answers-bob.jsonl"
    shutil.copy(copied, tmp_path / "ann")
    with session(tmp_path / "ann", data) as found:
        assert len(found.answers) == 3
        assert "ann and bob: 2 pairs in common, the same label in 50%" in found.report()[-1]
    labels = preferences.load(tmp_path / "ann" / "preferences.jsonl", data, LENGTH)
    assert labels.labels.tolist() == [0, 0.5, 0.5]  # the second: 0 and 1
    assert labels.labellers == ("ann, bob", "ann, bob", "ann")
    assert unordered(first.segments) == tuple(
        sorted(zip(labels.episodes[0].tolist(), labels.starts[0].tolist(), strict=True))
    )
    copied.write_text(copied.read_text().replace('"length": 5', '"length": 6'))
    shutil.copy(copied, tmp_path / "ann")
    with (
        pytest.raises(InputError, match="an answer of bob .* segments of 6 steps, expected 5"),
        session(tmp_path / "ann", data),
    ):
        pass


def test_a_journal_about_other_data_is_refused(tmp_path: Path) -> None:
    with session(tmp_path / "bob", walks(seed=1), "bob") as found:
        say(found, "left")
    (tmp_path / "ann").mkdir()
    shutil.copy(tmp_path / "bob" / "answers-bob.jsonl", tmp_path / "ann")
    other, own = (walks(seed=seed).digest()[:16] for seed in (1, 0))
    with (
        pytest.raises(InputError, match=f"an answer of bob .* digest {other}, expected {own}, tin"),
        session(tmp_path / "ann"),
    ):
        pass


def answer_all(found: Session) -> list[Segments]:
    while found.current() < found.total:
        say(found, "left")
    return [pair.segments for pair in found.issued()]


def test_all_pairs_of_a_file_are_asked_about_in_spite_of_repetitions(tmp_path: Path) -> None:
    data = walks()
    with session(tmp_path / "random", data) as found:
        wanted = answer_all(found)
    path = tmp_path / "pairs.jsonl"
    fields = ("episode_0", "start_0", "episode_1", "start_1")
    lines = [dict(zip(fields, (*first, *second), strict=True)) for first, second in wanted]
    path.write_text("\n".join(map(json.dumps, lines)))
    of_file = FromFile(path, data, LENGTH)
    folder = tmp_path / "file"
    with session(folder, data, num_pairs=12, seed=1) as found:  # others, before
        before = answer_all(found)
    with session(folder, data, strategy=of_file, num_pairs=20) as found:
        assert (found.total, found.left_out) == (20, 12 + 30 - 20)
    with session(folder, data, strategy=of_file, num_pairs=4) as found:  # fewer than there were
        assert found.left_out == 30
    with session(folder, data, strategy=of_file, num_pairs=500, repeats=0.2) as found:
        assert found.left_out == 0
        assert found.total == 12 + 30
        answer_all(found)
        asked = [pair for pair in found.issued() if pair.repeat_of is None]
        assert len(found.issued()) > len(asked) + 2
        with pytest.raises(InputError, match="expected one that is due"):
            found.pair(found.total)
    assert [pair.segments for pair in asked] == [*before, *wanted]


def test_a_page_keeps_answers_for_one_folder(tmp_path: Path) -> None:
    names = []
    for folder in ("one", "two", "one"):
        with session(tmp_path / folder) as found:
            names.append(found.state()["folder"])
    assert names[0] == names[2] != names[1]
    assert tmp_path.name not in names[0]
