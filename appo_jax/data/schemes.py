"""Schemes that turn few comparisons into many labelled pairs: ranked lists (LiRE's section 4.1).

A ranked list is a sequence of groups of segments, the worst first; segments of one group are
equally good. Any two segments of a list make a labelled pair, also those that nobody compared.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Groups: TypeAlias = list[list[int]]


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
