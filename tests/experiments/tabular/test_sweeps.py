"""The finite classes that FREEHAND searches."""

import numpy as np

from experiments.tabular import sweeps
from tests.helpers.tabular import x64


def test_finite_classes_are_whole() -> None:
    with x64():
        rewards, transitions = sweeps.finite_classes()
        assert len(np.unique(np.asarray(rewards).reshape(-1, 8), axis=0)) == 3**8
        assert set(np.unique(rewards)) == {0.0, 0.25, 0.5}
        assert len(np.unique(np.asarray(transitions).reshape(16, -1), axis=0)) == 16
        np.testing.assert_allclose(transitions.sum(-1), 1)
