"""Where transitions start in a view's data set, and how many an episode has up to each."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import relabelling
from appo_jax.data.dataset import to_device_together


def test_steps_are_counted_from_an_episodes_first(numbered: Any) -> None:
    others, own = numbered((5,), "tiny/others-v0"), numbered((3, 1, 2), "tiny/own-v0")
    store, (_, view) = to_device_together([others, own], 1)
    counts = relabelling.steps_into_episode(store, view, len(own.actions))
    assert counts.tolist() == [1, 2, 3, 0, 1, 0, 1, 2, 0]


@pytest.mark.parametrize("rows_at_once", [1, 4, 9, 20])
def test_rewards_by_rows(numbered: Any, rows_at_once: int) -> None:
    own = numbered((3, 1, 2))
    store, (_, view) = to_device_together([numbered((5,), "tiny/others-v0"), own], 1)
    found = {
        scale: relabelling.rewards_of_rows(
            lambda rows: jnp.float32(rows + 2), store, view, 9, rows_at_once, scale
        )
        for scale in ("raw", "minmax", "returns")
    }
    mask = np.isin(np.arange(9), own.transition_rows())
    raw = mask * (np.arange(9) + 2.0)
    np.testing.assert_allclose(found["raw"], raw)
    # Transitions start at rows 0 to 7.
    np.testing.assert_allclose(found["minmax"], mask * np.arange(9) / 7, rtol=1e-6)
    # Returns: 2 + 3 + 4 = 9 of 3 steps, 6, and 8 + 9 = 17.
    np.testing.assert_allclose(found["returns"], raw * 3 / (17 - 6), rtol=1e-6)
