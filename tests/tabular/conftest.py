"""What the tests of the tabular code share."""

from collections.abc import Iterator

import pytest

from appo_jax.tabular import appo_with_model
from tests.helpers.tabular import Runs, instance, x64


@pytest.fixture
def float64() -> Iterator[None]:
    """Float64 during a test."""
    with x64():
        yield


@pytest.fixture(scope="session")
def runs() -> Runs:
    """Four short runs of Algorithm 2 with the theorem's lambda."""
    made = {}
    with x64():
        for seed in range(4):
            found = instance(seed)
            lam = 1.5 * float(found.concentrability)
            run = appo_with_model.optimise(
                found.model, found.pairs, lam, num_iterations=40, num_steps=10
            )
            made[seed] = (found, lam, run)
    return made
