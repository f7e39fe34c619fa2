"""Which pairs are asked about."""

import contextlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from appo_jax.types import InputError
from experiments.labelling.records import Segment, Segments, unordered
from experiments.labelling.strategies import (
    Changing,
    FromFile,
    Random,
    Ranked,
    Segmented,
    Waiting,
)
from tests.helpers.labelling import LENGTH, walks


def test_random_pairs_follow_from_the_seed_and_cover_the_segments() -> None:
    segmented = Segmented(walks(), LENGTH)
    asked: list[Segments] = []
    for _ in range(200):
        asked.append(Random(segmented, 3).propose(asked, {}))
    assert Random(segmented, 3).propose(asked[:50], {}) == asked[50]
    assert Random(segmented, 4).propose(asked[:50], {}) != asked[50]
    assert len({unordered(pair) for pair in asked}) == 200
    found = {segment for pair in asked for segment in pair}
    assert {segment.episode for segment in found} == set(range(6))
    assert (min(s.start for s in found), max(s.start for s in found)) == (0, 35)
    assert [segmented.row(segment) for segment in asked[0]] == [
        41 * segment.episode + segment.start for segment in asked[0]
    ]


def test_changing_takes_the_pair_of_ten_that_changes_most() -> None:
    data = walks()
    data.observations[:, 0] = 7.0  # a column that never changes counts nothing
    segmented = Segmented(data, LENGTH)
    strategy = Changing(segmented, 0)
    first, second = strategy.propose([], {})
    draw = np.random.default_rng([0, 0])
    pairs = [segmented.draw(draw) for _ in range(10)]
    rows = data.transition_rows()
    scale = [np.inf, *data.observations[rows, 1:].std(axis=0).tolist()]
    spreads = [
        sum((np.ptp(data.observations[r : r + LENGTH + 1], axis=0) / scale).sum() for r in pair)
        for pair in pairs
    ]
    assert segmented.pair(pairs[int(np.argmax(spreads))]) == (first, second)


def test_ranked_lists_sort_and_imply_what_was_not_asked() -> None:
    segmented = Segmented(walks(), LENGTH)
    strategy = Ranked(segmented, 0)

    def worth(segment: Segment) -> int:
        return (segment.episode * 7 + segment.start) // 4  # some are equal

    asked: list[Segments] = []
    answers: dict[Segments, float | None] = {}
    for number in range(150):
        asked.append(strategy.propose(asked, answers))
        first, second = unordered(asked[-1])
        difference = worth(second) - worth(first)
        # One is skipped now and then.
        answers[first, second] = None if number % 40 == 39 else (np.sign(difference) + 1) / 2
    assert len({unordered(pair) for pair in asked}) == 150
    implied = strategy.implied(answers)
    assert len(implied) > 300
    for (first, second), label in implied.items():
        assert first < second
        assert label == (np.sign(worth(second) - worth(first)) + 1) / 2
    assert {0.0, 0.5, 1.0} == set(implied.values())


def test_ranked_waits_only_where_all_lists_do() -> None:
    strategy = Ranked(Segmented(walks(), LENGTH), 0)
    asked: list[Segments] = []
    for _ in range(2):
        asked.append(strategy.propose(asked, {}))
    assert asked[0] != asked[1]
    with pytest.raises(Waiting):
        strategy.propose(asked, {})
    assert strategy.propose(asked, {unordered(asked[1]): 1.0}) not in asked


@pytest.mark.parametrize("skipped", [False, True])
def test_ranked_lists_end_with_the_segments(skipped: bool) -> None:
    segmented = Segmented(walks(episodes=1, steps=LENGTH + 3), LENGTH)
    assert len(segmented.rows) == 4
    strategy = Ranked(segmented, 0)
    asked: list[Segments] = []
    answers: dict[Segments, float | None] = {}
    while strategy.left(asked, answers) is None:
        with contextlib.suppress(Waiting):
            asked.append(strategy.propose(asked, answers))
        pair = unordered(asked[-1])
        answers[pair] = None if skipped and len(asked) == 2 else float(pair[1] > pair[0])
        assert len(asked) <= 6  # pairs of four
    assert strategy.left(asked, answers) == 0
    with pytest.raises(Waiting):
        strategy.propose(asked, answers)
    if not skipped:
        assert len(strategy.implied(answers)) == 6


def test_pairs_of_a_file(tmp_path: Path) -> None:
    path, data = tmp_path / "pairs.jsonl", walks()
    header = {"format": "appo-preferences", "version": 1, "dataset": data.id, "seed": None}
    fields = ("episode_0", "start_0", "episode_1", "start_1")
    wanted = [(0, 1, 2, 3), (5, 35, 0, 0)]
    lines = [header, *(dict(zip(fields, one, strict=True)) for one in wanted)]
    path.write_text("\n".join(map(json.dumps, lines)))
    strategy = FromFile(path, data, LENGTH)
    first, second = strategy.pairs
    assert [tuple(itertools.chain(*pair)) for pair in (first, second)] == wanted
    foreign = (Segment(0, 0), Segment(1, 0))  # of another strategy, before
    for asked, expected in (([], first), ([foreign, foreign], first), ([first], second)):
        assert strategy.propose(asked, {}) == expected
    assert strategy.propose([second[::-1], foreign], {}) == first
    assert [strategy.left(asked, {}) for asked in ([], [foreign], [first, second])] == [2, 2, 0]
    path.write_text(json.dumps({**lines[1], "start_1": 36}))
    with pytest.raises(InputError, match=r"pairs.jsonl: .* start_1 36 .* leaves episode 2"):
        FromFile(path, data, LENGTH)
    path.write_text(json.dumps({"episode_0": 1}))
    with pytest.raises(InputError, match=r'pairs.jsonl: \{"episode_0": 1\}, expected episode_0'):
        FromFile(path, data, LENGTH)
    for others in ({"length_0": LENGTH, "length_1": LENGTH + 1}, {"length": [LENGTH]}):
        path.write_text(json.dumps({**lines[1], **others}))
        with pytest.raises(InputError, match=f"pairs.jsonl: .* and length {LENGTH}$"):
            FromFile(path, data, LENGTH)
    path.write_text(json.dumps(header))
    with pytest.raises(InputError, match="no pairs, expected lines"):
        FromFile(path, data, LENGTH)
