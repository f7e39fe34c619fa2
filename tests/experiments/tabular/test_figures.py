"""The arithmetic of the theory's figures."""

import numpy as np
import pytest

from experiments.tabular import figures


def test_slope_and_errors_by_hand() -> None:
    # 3 x^-1/2 over the truth's 0.2; the last setting is the truth.
    settings = [4.0, 16.0, 64.0, np.inf]
    found = [
        {"suboptimality": np.array([-0.1, 0.1]) + 0.2 + (3 * x**-0.5 if np.isfinite(x) else 0)}
        for x in settings
    ]
    figure = figures.Figure("labels", settings, found)
    assert figure.slope("suboptimality", above_truth=True) == pytest.approx(-0.5)
    found[0]["suboptimality"] = found[0]["suboptimality"] + 1  # does not bend the end
    assert figure.slope("suboptimality", True, last=2) == pytest.approx(-0.5)
    assert figure.slope("suboptimality", True) < -0.51
    found[0]["suboptimality"] = found[0]["suboptimality"] - 1
    assert -0.5 < figure.slope("suboptimality", above_truth=False) < -0.1
    means, errors = figure.curve("suboptimality")
    np.testing.assert_allclose(means, [1.7, 0.95, 0.575, 0.2])
    np.testing.assert_allclose(errors, 0.1)  # sqrt(0.02 / 1) / sqrt(2)
    negative = figures.Figure("labels", settings[:2], [{"mle": np.array([-1.0, -1.0])}] * 2)
    with np.errstate(invalid="raise"):  # no logarithm was taken
        assert np.isnan(negative.slope("mle", above_truth=False))
