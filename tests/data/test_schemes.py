"""Ranked lists: of chains, of binary searches, and the pairs that they give."""

from collections.abc import Callable

import numpy as np
import pytest

from appo_jax.data import preferences, schemes
from appo_jax.data.dataset import Dataset
from appo_jax.types import InputError

Make = Callable[..., Dataset]


def test_all_pairs_of_a_list() -> None:
    pairs, labels = schemes.pairs_of([[[7], [2, 5]], [[1], [3]]])
    assert pairs.tolist() == [[7, 2], [7, 5], [2, 5], [1, 3]]
    assert labels.tolist() == [1, 1, 0.5, 1]
    assert schemes.pairs_of([])[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("chain", "lists"),
    [
        ([(1, 2, 1), (2, 3, 1)], [[[1], [2], [3]]]),
        ([(1, 2, 0), (2, 3, 0)], [[[3], [2], [1]]]),
        ([(1, 2, 1), (2, 3, 0)], [[[1], [2]], [[3], [2]]]),
        ([(1, 2, 1), (2, 3, 0.5), (3, 4, 1)], [[[1], [2, 3], [4]]]),
        ([(1, 2, 0), (2, 3, 0.5), (3, 4, 0)], [[[4], [2, 3], [1]]]),
        ([(1, 2, 0.5), (2, 3, 1)], [[[1, 2], [3]]]),
        ([(1, 2, 0.5), (2, 3, 0)], [[[3], [1, 2]]]),
        # A chain that begins anew shares no list with the one before.
        ([(1, 2, 1), (8, 9, 1)], [[[1], [2]], [[8], [9]]]),
        ([(1, 2, 1), (8, 9, 0.5)], [[[1], [2]], [[8, 9]]]),
    ],
)
def test_a_chain_is_cut_where_its_direction_changes(
    chain: list[tuple[int, int, float]], lists: list[schemes.Groups]
) -> None:
    assert schemes.chain_lists(chain) == lists


@pytest.mark.parametrize("num_queries", [1, 7, 100, 350])
def test_ranked_lists_are_sorted_within_their_budget(num_queries: int) -> None:
    asked = 0

    def compare(first: int, second: int) -> float:
        nonlocal asked
        asked += 1
        return float(second > first)

    draw = np.random.default_rng(0)
    lists = schemes.ranked_lists(compare, 1000, num_queries, draw)
    assert asked <= num_queries
    assert asked > num_queries - 10  # what an insertion that was given up took is gone
    assert len(lists) == -(-num_queries // 110) or len(lists) == -(-num_queries // 100)
    for groups in lists:
        flat = [segment for (segment,) in groups]
        assert flat == sorted(flat)
    pairs, labels = schemes.pairs_of(lists)
    assert len(pairs) == sum(n * (n - 1) // 2 for n in map(len, lists))
    assert (labels == 1).all()
    assert (pairs[:, 0] < pairs[:, 1]).all()


def test_equal_segments_share_a_group() -> None:
    lists = schemes.ranked_lists(
        lambda first, second: 0.5 if first % 5 == second % 5 else float(second % 5 > first % 5),
        200,
        90,
        np.random.default_rng(0),
    )
    for groups in lists:
        kinds = [{segment % 5 for segment in group} for group in groups]
        assert all(len(kind) == 1 for kind in kinds)
        assert kinds == sorted(kinds, key=min)
        assert len(groups) <= 5


def test_a_list_of_all_segments_is_whole() -> None:
    lists = schemes.ranked_lists(
        lambda first, second: float(second > first), 4, 50, np.random.default_rng(0)
    )
    assert [sum(map(len, groups)) for groups in lists][0] == 4


@pytest.mark.parametrize("feedback", ["seqrank", "ranked"])
def test_the_scripted_teacher_ranks_by_the_truth(
    numbered: Make, feedback: schemes.Feedback
) -> None:
    dataset = numbered((60, 80))
    found = schemes.scripted(feedback, dataset, 3, 50, 5, 12.5)
    again = schemes.scripted(feedback, dataset, 3, 50, 5, 12.5)
    np.testing.assert_array_equal(found.rows(dataset), again.rows(dataset))
    other = schemes.scripted(feedback, dataset, 4, 50, 5, 12.5)
    assert found.rows(dataset).tolist() != other.rows(dataset).tolist()
    assert len(found) > 50 if feedback == "ranked" else len(found) >= 50
    assert dataset.rewards is not None
    steps = found.rows(dataset)[..., None] + np.arange(5)
    returns = dataset.rewards[steps].sum(axis=-1)
    strict = found.labels != 0.5
    # A tie is within 12.5 of one other of its group, so that two of it may be further apart.
    assert (returns[strict, 1] > returns[strict, 0] - 25).all()
    assert np.mean(returns[strict, 1] > returns[strict, 0]) > 0.95
    noisy = schemes.scripted(feedback, dataset, 3, 50, 5, 12.5, label_noise=0.5)
    assert noisy.labels.tolist() != found.labels.tolist()


def test_independent_pairs_are_those_of_the_teacher(numbered: Make) -> None:
    dataset = numbered((60, 80))
    found = schemes.scripted("independent", dataset, 3, 20, 5, 12.5, 0.1)
    expected = preferences.scripted(dataset, 3, 20, 5, 12.5, 0.1)
    np.testing.assert_array_equal(found.rows(dataset), expected.rows(dataset))
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_one_segment_is_no_list(numbered: Make) -> None:
    with pytest.raises(InputError, match="1 segment of length 5, expected at least two"):
        schemes.scripted("ranked", numbered((5,)), 0, 5, 5, 0.0)
