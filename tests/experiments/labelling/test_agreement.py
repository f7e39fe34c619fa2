"""Numbers of agreement, by hand."""

import pytest

from experiments.labelling import agreement
from tests.experiments.labelling.test_journal import answer


def test_cohens_kappa_by_hand() -> None:
    labels = [(0.0, 0.0)] * 20 + [(0.0, 1.0)] * 5 + [(1.0, 0.0)] * 10 + [(1.0, 1.0)] * 15
    # p_o = 35/50 = 0.7; p_e = (25 * 30 + 25 * 20) / 2500 = 0.5
    assert agreement.cohens_kappa(labels) == pytest.approx(0.4)
    assert agreement.cohens_kappa([]) is None
    assert agreement.cohens_kappa([(0.5, 0.5)] * 3) is None
    assert agreement.cohens_kappa([(0.0, 1.0), (1.0, 0.0)]) == -1


def test_a_labeller_in_numbers() -> None:
    segments = answer(0).segments
    answers = [
        answer(0, "left", seconds=1.0),  # left is segment 0: label 0
        answer(1, "right", seconds=2.0),
        answer(2, "equal", seconds=9.0),
        answer(3, "skip"),
        answer(4, "right", segments=segments, left=1, repeat_of=0, seconds=4.0),  # label 0 again
        answer(5, "left", segments=answer(1).segments, left=0, repeat_of=1, seconds=4.0),
    ]
    assert answers[1].label == answers[5].label == 0
    found = agreement.of_labeller("ann", answers)
    assert (found.answers, found.skips, found.ties, found.left) == (5, 1, 0.2, 0.5)
    assert (found.repeats, found.self_agreement, found.seconds) == (2, 1.0, 4.0)
    answers[5] = answer(5, "right", segments=answer(1).segments, left=0, repeat_of=1)
    assert agreement.of_labeller("ann", answers).self_agreement == 0.5


def test_two_labellers_are_compared_over_pairs_whatever_their_order() -> None:
    ann = [answer(0, "left"), answer(1, "left"), answer(2, "equal")]
    swapped = answer(0).segments[::-1]
    bob = [
        # Segments in the other order, so segment 1 on the left is the same clip as ann's.
        answer(7, "left", segments=swapped, left=1, labeller="bob"),
        answer(1, "right", labeller="bob"),
        answer(9, labeller="bob"),
    ]
    found = agreement.between(("ann", "bob"), ann, bob)
    assert (found.pairs, found.agreement) == (2, 0.5)
    lines = agreement.lines(agreement.report([*ann, *bob]))
    assert lines[0].startswith("ann: 3 answers, 0 skipped, 33% equal, 1.5 s an answer (median)")
    assert lines[2] == "ann and bob: 2 pairs in common, the same label in 50%, Cohen's kappa 0.00"
