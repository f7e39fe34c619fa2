"""Pairs about which an ensemble disagrees."""

import time

import numpy as np

from experiments.labelling.disagreement import Disagreement
from experiments.labelling.records import Segments
from experiments.labelling.strategies import Random, Segmented
from tests.helpers.labelling import LENGTH, walks

SEGMENTED = Segmented(walks(), LENGTH)


def difference(pair: Segments) -> float:
    """Of the returns of a pair's segments."""
    first, second = (SEGMENTED.row(segment) + np.arange(LENGTH) for segment in pair)
    return float(np.sum(SEGMENTED.dataset.rewards[second] - SEGMENTED.dataset.rewards[first]))


def disagreement(waits: bool = True) -> Disagreement:
    return Disagreement(SEGMENTED, 0, Random(SEGMENTED, 0), waits)


def random_pairs(count: int) -> list[Segments]:
    asked: list[Segments] = []
    for _ in range(count):
        asked.append(Random(SEGMENTED, 0).propose(asked, {}))
    return asked


def answered(asked: list[Segments]) -> dict[Segments, float | None]:
    return {pair: float(difference(pair) > 0) for pair in asked}


def test_it_asks_about_what_the_answers_leave_open() -> None:
    asked = random_pairs(30)
    answers = answered(asked)
    strategy = disagreement()
    for _ in range(9):
        asked.append(strategy.propose(asked, answers))
    assert len(set(asked)) == 39
    # Nearer to a tie than what is drawn at random.
    chosen, drawn = ([abs(difference(pair)) for pair in asked[at]] for at in np.s_[30:, :30])
    assert np.median(chosen) < 0.5 * np.median(drawn)
    # A session that is begun again with these answers goes on in the same way.
    assert disagreement().propose(asked[:30], answers) == asked[30]


def test_before_there_are_enough_answers_another_strategy_finds_pairs() -> None:
    asked = random_pairs(21)
    answers = answered(asked)
    few = {**answers, asked[3]: None, asked[7]: None}  # skipped: 19 labels
    expected = Random(SEGMENTED, 0).propose(asked, few)
    assert disagreement().propose(asked, few) == expected
    assert disagreement().propose(asked, answers) != expected


def test_it_is_fitted_anew_after_ten_more_answers() -> None:
    asked = random_pairs(30)
    strategy = disagreement()
    after_20 = strategy.propose(asked, answered(asked[:20]))
    others: dict[Segments, float | None] = {pair: number % 2 for number, pair in enumerate(asked)}
    assert strategy.propose(asked, dict(list(others.items())[:29])) == after_20
    assert strategy.propose(asked, others) != after_20


def test_nobody_waits_for_a_fit() -> None:
    asked = random_pairs(20)
    answers = answered(asked)
    strategy = disagreement(waits=False)
    assert strategy.propose(asked, answers) == Random(SEGMENTED, 0).propose(asked, answers)
    fitted = disagreement().propose(asked, answers)
    until = time.monotonic() + 60
    while strategy.propose(asked, answers) != fitted:
        assert time.monotonic() < until
        time.sleep(0.05)
