"""Schemes that turn few comparisons into many labelled pairs: ranked lists (LiRE's section 4.1).

A ranked list is a sequence of groups of segments, the worst first; segments of one group are
equally good. Any two segments of a list make a labelled pair, also those that nobody compared.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import jax
import numpy as np

from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.keys import Purpose, purpose_key

Groups: TypeAlias = list[list[int]]
Feedback: TypeAlias = Literal["independent", "seqrank", "ranked"]
# The label of a pair: the probability that the second is better.
Compare: TypeAlias = Callable[[int, int], float]

QUERIES_OF_A_LIST = 100  # of LiRE: a ranked list gets no new segment after so many


def pairs_of(lists: Sequence[Groups]) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of each list: segments `[pairs, 2]`, labels `[pairs]`.

    The segment of the lower group comes first, so that labels are 1, or 0.5 within a group. A list
    of n segments gives n (n - 1) / 2.
    """
    pairs, labels = [], []
    for groups in lists:
        ranked = [(rank, segment) for rank, group in enumerate(groups) for segment in group]
        for index, (rank, segment) in enumerate(ranked):
            for other_rank, other in ranked[index + 1 :]:
                pairs.append((segment, other))
                labels.append(1.0 if rank < other_rank else 0.5)
    return np.array(pairs, np.int64).reshape(-1, 2), np.array(labels, np.float32)


def chain_lists(chain: Sequence[tuple[int, int, float]]) -> list[Groups]:
    """The ranked lists of a chain of comparisons (SeqRank): each begins with the one before's end.

    chain: first and second segment, and the label that says which is better. A list goes on as
    long as the direction stays; a tie joins the group at its current end, and where the direction
    changes a new list begins with that comparison.
    """
    lists: list[Groups] = []
    rising: bool | None = None
    for first, second, label in chain:
        if label == 0.5:
            group = _end(lists[-1], rising) if lists else None
            if group is None or first not in group:
                lists.append([[first]])
                rising, group = None, lists[-1][0]
            group.append(second)
            continue
        up = label > 0.5
        if not lists or first not in _end(lists[-1], rising) or rising not in (None, up):
            lists.append([[first]])
        rising = up
        lists[-1].insert(len(lists[-1]) if up else 0, [second])
    return lists


def _end(groups: Groups, rising: bool | None) -> list[int]:
    return groups[0] if rising is False else groups[-1]


def ranked_lists(
    compare: Compare,
    num_segments: int,
    num_queries: int,
    draw: np.random.Generator,
    of_a_list: int = QUERIES_OF_A_LIST,
) -> list[Groups]:
    """Ranked lists of random segments, each put in its place by binary search (LiRE's RLT).

    compare: the answer to a query about two of the segments 0 to `num_segments` - 1. Each probe
    asks about a random member of the middle group; a tie joins it. A list is closed once it took
    `of_a_list` queries, and an insertion that `num_queries` don't suffice for is given up.
    """
    lists: list[Groups] = []
    used = 0
    while used < num_queries:
        first, second = draw.choice(num_segments, 2, replace=False).tolist()
        label = compare(first, second)
        groups = [[first, second]] if label == 0.5 else [[first], [second]]
        lists.append(groups if label >= 0.5 else groups[::-1])
        seen, of_this = {first, second}, 1
        used += 1
        while of_this < of_a_list and used < num_queries and len(seen) < num_segments:
            new = _unseen(draw, num_segments, seen)
            queries = _insert(lists[-1], new, compare, draw, num_queries - used)
            seen.add(new)
            used, of_this = used + queries, of_this + queries
    return lists


def _unseen(draw: np.random.Generator, num_segments: int, seen: set[int]) -> int:
    while (new := int(draw.integers(num_segments))) in seen:
        pass
    return new


def _insert(
    groups: Groups, new: int, compare: Compare, draw: np.random.Generator, num_left: int
) -> int:
    """Put a segment in its place; the queries that it took, `num_left` where they don't suffice."""
    low, high, queries = 0, len(groups), 0
    while low < high:
        if queries == num_left:
            return queries
        middle = (low + high) // 2
        member = int(draw.choice(groups[middle]))
        label = compare(member, new)
        queries += 1
        if label == 0.5:
            groups[middle].append(new)
            return queries
        low, high = (middle + 1, high) if label > 0.5 else (low, middle)
    groups.insert(low, [new])
    return queries


def scripted(
    feedback: Feedback,
    dataset: Dataset,
    seed: int,
    num_queries: int,
    segment_length: int,
    tie_threshold: float,
    label_noise: float = 0.0,
) -> Preferences:
    """Labels of the scripted teacher, from `num_queries` comparisons in one of the schemes.

    independent: as many pairs (`preferences.scripted`, whose rule of ties and noise holds for the
    others too). seqrank: all pairs of the lists of one chain, whose next segment is compared with
    the one before. ranked: all pairs of `ranked_lists`. Raises InputError as the first does.
    """
    if feedback == "independent":
        return preferences.scripted(
            dataset, seed, num_queries, segment_length, tie_threshold, label_noise
        )
    rewards, segment_rows = preferences.comparable(dataset, segment_length)
    words = np.asarray(jax.random.key_data(purpose_key(seed, Purpose.LABELS)))
    draw, noise = (np.random.default_rng([*words.tolist(), kind]) for kind in (0, 1))

    @functools.cache
    def total(segment: int) -> float:
        start = segment_rows[segment]
        return float(rewards[start : start + segment_length].sum(dtype=np.float64))

    def compare(first: int, second: int) -> float:
        difference = total(second) - total(first)
        flip, shift = noise.random(), int(noise.integers(1, 3))
        return float(preferences.answers(difference, tie_threshold, label_noise, flip, shift))

    if feedback == "ranked":
        lists = ranked_lists(compare, len(segment_rows), num_queries, draw)
    else:
        lists = chain_lists(_chain(compare, len(segment_rows), num_queries, draw))
    pairs, labels = pairs_of(lists)
    labeller = f"scripted, {feedback}"
    return preferences.of_rows(dataset, segment_rows[pairs], labels, labeller, segment_length, seed)


def _chain(
    compare: Compare, num_segments: int, num_queries: int, draw: np.random.Generator
) -> list[tuple[int, int, float]]:
    chain = []
    last = int(draw.integers(num_segments))
    for _ in range(num_queries):
        new = _unseen(draw, num_segments, {last})
        chain.append((last, new, compare(last, new)))
        last = new
    return chain
