"""The scripted teacher, the file of preferences, and the accuracy over them."""

import collections
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.data.preferences import Preferences
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import InputError

Make = Callable[..., Dataset]


def with_returns(*step_rewards: np.ndarray) -> Dataset:
    """One episode for each array of rewards."""
    episodes = [
        Episode(
            observations=np.zeros((len(rewards) + 1, 1)),
            actions=np.zeros((len(rewards), 1)),
            rewards=rewards,
            terminations=np.zeros(len(rewards), bool),
        )
        for rewards in step_rewards
    ]
    return from_episodes(episodes, "tiny/returns-v0")


def assert_same(found: Preferences, expected: Preferences) -> None:
    for field in dataclasses.fields(Preferences):
        left, right = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(right, np.ndarray):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right


def test_a_shorter_list_is_the_beginning_of_a_longer_one(numbered: Make) -> None:
    dataset = numbered((40, 60))
    long = preferences.scripted(dataset, 3, 1000, 5, 12.5, label_noise=0.2)
    short = preferences.scripted(dataset, 3, 500, 5, 12.5, label_noise=0.2)
    assert len(long) == 1000
    assert_same(long.first(500), short)


def test_the_seed_and_the_purpose_decide(numbered: Make) -> None:
    dataset = numbered((40, 60))

    def rows(seed: int, purpose: Purpose = Purpose.LABELS) -> np.ndarray:
        return preferences.scripted(dataset, seed, 500, 5, 12.5, purpose=purpose).rows(dataset)

    np.testing.assert_array_equal(rows(0), rows(0))
    for other in (rows(1), rows(0, Purpose.FRESH_LABELS)):
        assert np.mean(rows(0) == other) < 0.1


def test_keys_of_purposes_are_apart_and_numbered_for_good() -> None:
    assert [purpose.value for purpose in Purpose] == list(range(len(Purpose)))
    assert Purpose(0) is Purpose.LABELS
    assert Purpose(5) is Purpose.BATCHES
    keys = [
        tuple(jax.random.key_data(purpose_key(seed, purpose)).tolist())
        for seed in (0, 1)
        for purpose in Purpose
    ]
    assert len(set(keys)) == len(keys)


def test_segments_are_inside_their_episodes_and_labels_follow_from_returns(numbered: Make) -> None:
    dataset = numbered()  # episodes of 3, 1, 7 and 4 steps; the reward of row i is i + 1/2
    drawn = preferences.scripted(dataset, 0, 1000, 3, 9.0)
    assert np.all(drawn.starts >= 0)
    assert np.all(drawn.starts + 3 <= dataset.lengths[drawn.episodes])
    rows = drawn.rows(dataset)
    assert rows.dtype == np.int32
    assert set(np.unique(rows)) == set(dataset.segment_rows(3))
    # Returns are 3 * (row + 1) + 1.5, so rows 3 apart or closer tie.
    apart = rows[:, 1] - rows[:, 0]
    expected = np.where(np.abs(apart) <= 3, 0.5, apart > 0)
    np.testing.assert_array_equal(drawn.labels, expected)
    assert set(drawn.labels) == {0, 0.5, 1}
    assert drawn.num_ties == np.sum(expected == 0.5)
    assert drawn.labels.dtype == np.float32
    assert (drawn.dataset_id, drawn.seed, drawn.length) == (dataset.id, 0, 3)
    on_device = drawn.to_device(dataset)
    np.testing.assert_array_equal(on_device.rows, rows)
    np.testing.assert_array_equal(on_device.labels, drawn.labels)
    assert on_device.length == 3


def test_pairs_are_uniform_over_different_segments(numbered: Make) -> None:
    dataset = numbered((4,))  # three segments of length 2, so six ordered pairs
    drawn = preferences.scripted(dataset, 0, 6000, 2, 0.0)
    counts = collections.Counter(map(tuple, drawn.starts.tolist()))
    assert set(counts) == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}
    assert max(abs(count - 1000) for count in counts.values()) < 5 * np.sqrt(6000 / 6 * 5 / 6)


def test_of_two_segments_each_pair_has_both(numbered: Make) -> None:
    drawn = preferences.scripted(numbered((3,)), 0, 500, 2, 0.0)
    assert {tuple(pair) for pair in drawn.starts.tolist()} == {(0, 1), (1, 0)}


def test_one_segment_gives_no_pair(numbered: Make) -> None:
    with pytest.raises(InputError, match="1 segment of length 3, expected at least two"):
        preferences.scripted(numbered((3,)), 0, 10, 3, 0.0)
    with pytest.raises(InputError, match="expected at least the segment length 4"):
        preferences.scripted(numbered((3,)), 0, 10, 4, 0.0)


def test_the_boundary_of_a_tie() -> None:
    # Returns over 25 steps of 100, 112.5 and 112.51: a tie is a difference of up to 12.5.
    slightly_more = np.full(25, 4.5)
    slightly_more[-1] = 4.51
    dataset = with_returns(np.full(25, 4.0), np.full(25, 4.5), slightly_more)
    drawn = preferences.scripted(dataset, 0, 500, 25, 12.5)
    found = {
        (*episodes, label)
        for episodes, label in zip(drawn.episodes.tolist(), drawn.labels.tolist(), strict=True)
    }
    assert found == {
        (0, 1, 0.5),
        (1, 0, 0.5),
        (0, 2, 1.0),
        (2, 0, 0.0),
        (1, 2, 0.5),
        (2, 1, 0.5),
    }


def test_noise_moves_a_label_to_one_of_the_two_others(numbered: Make) -> None:
    dataset = numbered((12,))
    clean = preferences.scripted(dataset, 0, 6000, 2, 6.0)
    noisy = preferences.scripted(dataset, 0, 6000, 2, 6.0, label_noise=0.3)
    np.testing.assert_array_equal(noisy.rows(dataset), clean.rows(dataset))
    assert set(noisy.labels) == {0, 0.5, 1}
    moved = noisy.labels != clean.labels
    assert abs(moved.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 6000)
    for label in (0, 0.5, 1):
        became = collections.Counter(noisy.labels[moved & (clean.labels == label)].tolist())
        total = sum(became.values())
        assert len(became) == 2
        assert label not in became
        assert max(abs(count / total - 0.5) for count in became.values()) < 2.5 / np.sqrt(total)
    all_moved = preferences.scripted(dataset, 0, 6000, 2, 6.0, label_noise=1.0)
    assert np.all(all_moved.labels != clean.labels)


def hand_made(numbered: Make, labels: list[float]) -> tuple[Dataset, Preferences]:
    dataset = numbered((10, 10))
    pairs = len(labels)
    made = Preferences(
        episodes=np.tile([[0, 1]], (pairs, 1)),
        starts=np.stack([np.arange(pairs), 8 - np.arange(pairs)], axis=1),
        labels=np.float32(labels),
        labellers=tuple(f"person {index}" for index in range(pairs)),
        length=2,
        dataset_id=dataset.id,
        seed=None,
    )
    return dataset, made


def test_accuracy_leaves_ties_out() -> None:
    # The scores prefer the second of each pair: right on 1.0 and 0.7, wrong on 0.0 and 0.3.
    labels = np.float32([1.0, 0.5, 0.0, 0.7, 0.5, 1.0])
    scores = np.tile([1.0, 2.0], (6, 1))
    assert preferences.accuracy(labels, scores) == (0.75, 4)
    assert preferences.accuracy(labels, -scores) == (0.25, 4)
    assert preferences.accuracy(np.float32([0.5, 0.5]), scores[:2]) == (None, 0)


def test_equal_scores_order_no_pair() -> None:
    assert preferences.accuracy(np.float32([1.0, 0.0, 0.0, 0.0]), np.ones((4, 2))) == (0.0, 4)


def test_saved_and_loaded(numbered: Make, tmp_path: Path) -> None:
    dataset = numbered((40, 60))
    drawn = preferences.scripted(dataset, 3, 500, 5, 12.5)
    path = tmp_path / "preferences.jsonl"
    preferences.save(drawn, path)
    assert_same(preferences.load(path, dataset, 5), drawn)
    assert preferences.count_labels(path) == 500


def test_any_label_and_any_name_survive(numbered: Make, tmp_path: Path) -> None:
    dataset, made = hand_made(numbered, [0.1, 1 / 3, 0.5, 1.0])
    made = dataclasses.replace(made, labellers=("Zoë", "a\u2028b\x85c", 'say "no"', ""))
    path = tmp_path / "preferences.jsonl"
    preferences.save(made, path)
    assert_same(preferences.load(path, dataset, 2), made)
    lines = [json.dumps(json.loads(line), ensure_ascii=False) for line in path.open()]
    path.write_bytes("\r\n".join([*lines, "", ""]).encode())  # as another editor writes it
    assert_same(preferences.load(path, dataset, 2), made)
    assert preferences.count_labels(path) == 4


HEADER = {"format": "appo-preferences", "version": 1, "dataset": "tiny/numbered-v0", "seed": 0}
PAIR = {
    "episode_0": 0,
    "start_0": 1,
    "episode_1": 2,
    "start_1": 5,
    "length": 2,
    "label": 1,
    "labeller": "me",
}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return path


def test_a_file_as_a_person_writes_it(numbered: Make, tmp_path: Path) -> None:
    header = {field: HEADER[field] for field in ("format", "version", "dataset")}
    nameless = {field: value for field, value in PAIR.items() if field != "labeller"}
    path = write(tmp_path / "hand.jsonl", header, PAIR, "", nameless | {"label": 0.5, "note": "?"})
    found = preferences.load(path, numbered(), 2)
    np.testing.assert_array_equal(found.episodes, [[0, 2], [0, 2]])
    np.testing.assert_array_equal(found.starts, [[1, 5], [1, 5]])
    np.testing.assert_array_equal(found.rows(numbered()), [[1, 11], [1, 11]])
    np.testing.assert_array_equal(found.labels, [1, 0.5])
    assert found.labellers == ("me", "unknown")
    assert found.seed is None
    assert preferences.count_labels(path) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": float("nan")}, r"label nan, expected a number in \[0, 1\]"),
        ({"label": float("inf")}, "label inf, expected a number"),
        ({"label": 2}, "label 2, expected a number"),
        ({"label": -0.1}, "label -0.1, expected a number"),
        ({"label": "x"}, "label 'x', expected a number"),
        ({"label": "a\nb" * 50}, r"label 'a\\nba\\nb[^\n]{0,60}, expected a number"),
        ({"label": True}, "label True, expected a number"),
        ({"label": None}, "label None, expected a number"),
        ({"label": ...}, "label None, expected a number"),
        ({"label": [1]}, r"label \[1\], expected a number"),
        ({"episode_0": -1}, "episode_0 -1, expected a whole number from 0"),
        ({"episode_1": 1.0}, "episode_1 1.0, expected a whole number from 0"),
        ({"start_0": True}, "start_0 True, expected a whole number from 0"),
        ({"start_1": ...}, "start_1 None, expected a whole number from 0"),
        ({"length": "2"}, "length '2', expected a whole number from 0"),
        ({"length": 3}, "length 3, expected the segment length 2"),
        ({"episode_1": 4}, "episode_1 4, expected 0 to 3"),
        ({"start_0": 2}, "start_0 2 with length 2 leaves episode 0, which has 3 steps"),
        ({"start_1": 10**30}, "start_1 10{30} with length 2 leaves episode 2, which has 7 steps"),
        ({"episode_1": 0, "start_1": 1}, "a segment is paired with itself, expected two different"),
    ],
)
def test_errors_in_a_pair_name_file_and_line(
    numbered: Make, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    bad = {field: value for field, value in (PAIR | change).items() if value is not ...}
    path = write(tmp_path / "hand.jsonl", HEADER, PAIR, "", bad, PAIR)
    with pytest.raises(InputError, match=f"hand.jsonl line 4: {message}"):
        preferences.load(path, numbered(), 2)


def test_a_pair_of_one_segment_is_left_out_where_that_is_asked_for(
    numbered: Make, tmp_path: Path
) -> None:
    itself = PAIR | {"episode_1": 0, "start_1": 1}
    path = write(tmp_path / "hand.jsonl", HEADER, PAIR, itself, PAIR | {"label": 0}, itself)
    with pytest.raises(InputError, match="line 3: a segment is paired with itself, expected two"):
        preferences.load(path, numbered(), 2)
    assert preferences.count_labels(path) == 4
    found = preferences.load(path, numbered(), 2, on_bad_label="drop")
    assert (found.labels.tolist(), found.num_left_out) == ([1, 0], 2)
    assert preferences.count_labels(path, "drop") == 2
    assert preferences.load(write(path, HEADER, PAIR), numbered(), 2, "drop").num_left_out == 0
    with pytest.raises(InputError, match="no labelled pairs, expected at least one"):
        preferences.load(write(path, HEADER, itself), numbered(), 2, on_bad_label="drop")
    # What is wrong in another way isn't left out.
    path = write(path, HEADER, PAIR, itself | {"label": 2})
    with pytest.raises(InputError, match="line 3: label 2, expected a number"):
        preferences.load(path, numbered(), 2, on_bad_label="drop")


def test_labels_in_memory_are_checked_as_those_of_a_file(numbered: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "hand.jsonl", HEADER | {"seed": None}, PAIR, PAIR | {"label": 0.5})
    arrays = {"episodes": [[0, 2], [0, 2]], "starts": [[1, 5], [1, 5]], "labels": [1, 0.5]}
    found = preferences.from_arrays(numbered(), **arrays, segment_length=2)
    expected = preferences.load(path, numbered(), 2)
    assert_same(dataclasses.replace(found, labellers=("me", "me")), expected)
    for change, message in (
        ({"labels": [1, 2]}, "labelled pair 1: label 2.*, expected a number in"),
        ({"episodes": np.array([[0, 2], [0, 4]])}, "labelled pair 1: episode_1 4, expected 0 to 3"),
        ({"starts": [[1, 5.0], [1, 5]]}, "labelled pair 0: start_0 1.0, expected a whole number"),
        ({"starts": [[1, 5], [2, 5]]}, "labelled pair 1: start_0 2 with length 2 leaves episode 0"),
        ({"labels": [1]}, r"episodes of labels have shape \(2, 2\), expected \(1, 2\)"),
        ({"starts": [1, 5]}, r"starts of labels have shape \(2,\), expected \(2, 2\)"),
    ):
        with pytest.raises(InputError, match=message):
            preferences.from_arrays(numbered(), **(arrays | change), segment_length=2)
    arrays["episodes"], arrays["starts"] = [[0, 2], [1, 1]], [[1, 5], [0, 0]]
    with pytest.raises(InputError, match="labelled pair 1: a segment is paired with itself"):
        preferences.from_arrays(numbered((3, 3, 7)), **arrays, segment_length=2)
    dropped = preferences.from_arrays(
        numbered((3, 3, 7)), **arrays, segment_length=2, on_bad_label="drop"
    )
    assert (len(dropped), dropped.num_left_out) == (1, 1)


def test_the_last_start_of_an_episode_is_allowed(numbered: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "hand.jsonl", HEADER, PAIR | {"start_0": 1, "label": 0})
    assert preferences.load(path, numbered(), 2).starts[0, 0] == numbered().lengths[0] - 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([HEADER, PAIR, "{'label': 1}"], r"line 3: \"{'label': 1}\", expected a JSON object"),
        (
            [HEADER, '{"label": 0, "label": 1}'],
            'line 2: .*"label": 1}\', expected a JSON object, each field once',
        ),
        ([HEADER, "[1, 2]"], r"line 2: '\[1, 2\]', expected a JSON object"),
        ([HEADER, '{"label": ' + "9" * 5000 + "}"], "line 2: .*, expected a JSON object"),
        ([HEADER, "[" * 100_000], "line 2: .*, expected a JSON object"),
        (["label,episode"], "line 1: 'label,episode', expected a JSON object"),
        ([PAIR], "line 1: header field 'format' is None, expected 'appo-preferences'"),
        ([HEADER | {"version": 2}, PAIR], "line 1: header field 'version' is 2, expected 1"),
        (
            [HEADER | {"dataset": "other"}, PAIR],
            "line 1: header field 'dataset' is 'other', expected 'tiny/numbered-v0'",
        ),
        (
            [HEADER | {"seed": "x"}, PAIR],
            "line 1: header field 'seed' is 'x', expected a whole number or null",
        ),
        ([HEADER], "hand.jsonl: no labelled pairs, expected at least one"),
        ([HEADER, "", "  "], "no labelled pairs, expected"),
        ([], "line 1: '', expected a JSON object"),
    ],
)
def test_errors_in_a_file(numbered: Make, tmp_path: Path, lines: list[Any], message: str) -> None:
    path = write(tmp_path / "hand.jsonl", *lines)
    with pytest.raises(InputError, match=message) as raised:
        preferences.load(path, numbered(), 2)
    assert str(path) in str(raised.value)
    assert len(str(raised.value)) < len(str(path)) + 200


def test_a_byte_order_mark_is_no_part_of_the_text(numbered: Make, tmp_path: Path) -> None:
    dataset = numbered((40, 60))
    drawn = preferences.scripted(dataset, 3, 5, 5, 12.5)
    path = tmp_path / "preferences.jsonl"
    preferences.save(drawn, path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert_same(preferences.load(path, dataset, 5), drawn)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    with pytest.raises(InputError, match="pipe: a pipe, expected a file of labels"):
        preferences.count_labels(tmp_path / "pipe")


def test_files_that_are_no_text(numbered: Make, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("absent", "binary", "."):
        with pytest.raises(InputError, match="can't be read as text"):
            preferences.load(tmp_path / name, numbered(), 2)
        with pytest.raises(InputError, match="can't be read as text"):
            preferences.count_labels(tmp_path / name)


def test_segments_of_different_lengths(numbered: Make, tmp_path: Path) -> None:
    dataset = numbered((40, 60))
    header = {"format": "appo-preferences", "version": 1, "dataset": dataset.id, "seed": None}
    place = {"episode_0": 0, "start_0": 3, "episode_1": 1, "start_1": 20, "label": 1.0}
    ways = [place | {"length": 5}, place | {"length_0": 7, "length_1": 40}]
    ways.append(place | {"episode_1": 0, "start_1": 3, "length_0": 2, "length_1": 3})
    path = write(tmp_path / "any.jsonl", header | {"lengths": "any"}, *ways)
    found = preferences.load(path, dataset, 25)
    assert found.lengths is not None
    np.testing.assert_array_equal(found.lengths, [[5, 5], [7, 40], [2, 3]])
    assert (found.length, found.any_length, found.num_ties) == (40, True, 0)
    preferences.save(found, tmp_path / "again.jsonl")
    assert_same(preferences.load(tmp_path / "again.jsonl", dataset, 25), found)
    in_memory = preferences.from_arrays(
        dataset, found.episodes, found.starts, found.labels, found.lengths
    )
    assert_same(in_memory, found)
    pairs = found.first(2).to_device(dataset)
    assert pairs.lengths is not None
    np.testing.assert_array_equal(pairs.lengths, [[5, 5], [7, 40]])

    equal = write(tmp_path / "equal.jsonl", header | {"lengths": "any"}, ways[0])
    found = preferences.load(equal, dataset, 25)
    assert (found.lengths, found.length, found.any_length) == (None, 5, True)
    for lines, message in (
        ([header, ways[1]], "line 2: length None, expected a whole number from 0"),
        ([header | {"lengths": "some"}, ways[0]], "line 1: header field 'lengths' is 'some', exp"),
        (
            [header | {"lengths": "any"}, place | {"length_0": 38, "length_1": 5}],
            "line 2: start_0 3 with length 38 leaves episode 0, which has 40 steps",
        ),
        (
            [header | {"lengths": "any"}, place | {"length_0": 5}],
            "line 2: length_1 None, expected a whole number",
        ),
        (
            [header | {"lengths": "any"}, place | {"length": 5, "length_1": 5}],
            "line 2: length and length_0 or length_1, expected one or the others",
        ),
        ([header | {"lengths": "any"}, place | {"length": 0}], "a segment of 0 steps, expected 1"),
    ):
        with pytest.raises(InputError, match=message):
            preferences.load(write(tmp_path / "bad.jsonl", *lines), dataset, 25)


def test_a_label_may_reach_a_last_action(tmp_path: Path) -> None:
    cut = Episode(np.zeros((6, 1)), np.zeros((5, 1)), None, np.zeros(5), last_action=np.ones(1))
    dataset = from_episodes([cut, cut], "tiny/cut-v0")
    labels = preferences.from_arrays(dataset, [[0, 1]], [[0, 0]], [1], 6)
    np.testing.assert_array_equal(labels.rows(dataset), [[0, 6]])
    with pytest.raises(InputError, match="start_0 1 with length 6 leaves episode 0, which has 6"):
        preferences.from_arrays(dataset, [[0, 1]], [[1, 0]], [1], 6)


def test_a_scripted_teacher_needs_rewards(numbered: Make) -> None:
    unknown = dataclasses.replace(numbered(), rewards=None)
    with pytest.raises(InputError, match="numbered-v0: has no rewards, expected them for a script"):
        preferences.scripted(unknown, 0, 5, 2, 0.0)


def test_about_a_file_of_any_length(numbered: Make, tmp_path: Path) -> None:
    data, path = numbered((8, 8)), tmp_path / "labels.jsonl"
    labels = preferences.from_arrays(data, [[0, 1]], [[0, 1]], [1.0], [[3, 5]])
    preferences.save(labels, path)
    assert preferences.about(path) == (data.id, 5)
    path.write_text(path.read_text().replace('"length_1": 5', '"length_1": 0'))
    with pytest.raises(
        InputError, match=r"line 2: length 0, expected a whole number of steps from"
    ):
        preferences.about(path)
