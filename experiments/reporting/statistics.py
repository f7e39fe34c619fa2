"""Statistics over tasks and seeds, as "Deep RL at the Edge of the Statistical Precipice" proposes.

Agarwal et al., NeurIPS 2021, arXiv 2108.13264. Scores of one algorithm are a list with an array
`[seeds]` for each task; tasks may have different numbers of seeds. A bootstrap is stratified: each
task's seeds are drawn again, with replacement, apart from the other tasks'. Everything is a
function of its arguments: the bootstrap has a seed of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

Scores = Sequence[np.ndarray]
_REPLICATES, _LEVEL = 10_000, 0.95
_BATCH = 500  # replicates at once: bounds the memory


class Estimate(NamedTuple):
    """A statistic and its 95 % interval, of bootstrap percentiles."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: Scores) -> Estimate:
    """The mean of the middle half of all runs, of all tasks together.

    A quarter of the runs, rounded down, is cut off at each end.
    """
    return _bootstrap(scores, _trimmed_mean)


def _trimmed_mean(drawn: Scores) -> np.ndarray:
    return np.asarray(stats.trim_mean(np.concatenate(drawn, axis=1), 0.25, axis=1))


def performance_profile(scores: Scores, thresholds: np.ndarray) -> list[Estimate]:
    """The share of runs that score above each threshold: the mean over tasks of their shares."""
    return [
        _bootstrap(
            scores,
            lambda drawn, tau=tau: np.mean(  # type: ignore[misc]
                [(of_task > tau).mean(axis=1) for of_task in drawn], axis=0
            ),
            num_replicates=1000,
        )
        for tau in thresholds
    ]


def probability_of_improvement(scores: Scores, baseline: Scores) -> Estimate:
    """How likely a run is to score above a run of the baseline on the same, random, task.

    The mean over tasks of the Mann-Whitney statistic over the number of pairs; a tie is one half.
    Both lists hold the same tasks in the same order.
    """
    num_tasks = len(scores)
    assert num_tasks == len(baseline)

    def of_both(drawn: Scores) -> np.ndarray:
        return np.mean(
            [
                _shares_won(own, other)
                for own, other in zip(drawn[:num_tasks], drawn[num_tasks:], strict=True)
            ],
            axis=0,
        )

    return _bootstrap([*scores, *baseline], of_both)


def _shares_won(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    difference = own[:, :, None] - other[:, None, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(1, 2))


def _bootstrap(
    scores: Scores, statistic: Callable[[Scores], np.ndarray], num_replicates: int = _REPLICATES
) -> Estimate:
    """statistic: of arrays `[replicates, seeds]` to `[replicates]`."""
    draw = np.random.default_rng(0)
    rows = [np.asarray(of_task, float)[None] for of_task in scores]
    replicates = []
    for _ in range(0, num_replicates, _BATCH):
        drawn = [row[0][draw.integers(row.size, size=(_BATCH, row.size))] for row in rows]
        replicates.append(statistic(drawn))
    tail = 50 * (1 - _LEVEL)
    low, high = np.percentile(np.concatenate(replicates), [tail, 100 - tail])
    return Estimate(float(statistic(rows)[0]), float(low), float(high))


def average_ranks(means: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over rows of each algorithm's rank in the row; 1 is best, ties share their mean.

    means: in each row the score of every algorithm, the same algorithms in all.
    """
    names = list(means[0])
    ranks = [stats.rankdata([-row[name] for name in names]) for row in means]
    return dict(zip(names, np.mean(ranks, axis=0).tolist(), strict=True))
