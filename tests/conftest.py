"""Tiny data sets whose rows carry their own index."""

from collections.abc import Callable

import numpy as np
import pytest

from appo_jax.data.dataset import Dataset, Episode, from_episodes


def _numbered(
    lengths: tuple[int, ...] = (3, 1, 7, 4), id: str = "tiny/numbered-v0", first_row: int = 0
) -> Dataset:
    episodes = []
    for index, steps in enumerate(lengths):
        rows = np.arange(first_row, first_row + steps + 1)
        episodes.append(
            Episode(
                observations=np.stack([rows, np.full(steps + 1, index)], axis=1),
                actions=rows[:-1, None] + 0.25,
                rewards=rows[:-1] + 0.5,
                terminations=(np.arange(steps) == steps - 1) & (index % 2 == 0),
            )
        )
        first_row += steps + 1
    return from_episodes(episodes, id)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos_kills", type=int, default=20, help="kills of the slow chaos test")


@pytest.fixture
def numbered() -> Callable[..., Dataset]:
    """Make a data set whose row i holds observation (i, episode), action i + 1/4, reward i + 1/2.

    The first, third, ... episode ends in a termination. Counting rows starts at `first_row`.
    """
    return _numbered
