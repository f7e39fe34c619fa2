"""One picture of a data set: lengths, returns, rewards, actions."""

from pathlib import Path

import numpy as np

from appo_jax.data.dataset import Dataset

_BINS = 40


def plot(path: Path, dataset: Dataset) -> None:
    """Draw it and write a PNG."""
    from matplotlib.figure import Figure  # no pyplot: it would look for a display

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 2).flat
    rows = dataset.transition_rows()
    panels: list[tuple[str, np.ndarray | None]] = [
        ("steps of an episode", dataset.lengths),
        ("return of an episode", dataset.returns()),
        ("reward of a step", None if dataset.rewards is None else dataset.rewards[rows]),
    ]
    for (title, values), panel in zip(panels, axes, strict=False):
        panel.set_title(title)
        if values is None:
            panel.text(0.5, 0.5, "unknown", ha="center", transform=panel.transAxes)
        else:
            panel.hist(values, _BINS)
    panel = axes[3]
    panel.set_title("actions, by column")
    for column, values in enumerate(dataset.actions[rows].T[:8]):
        panel.hist(values, _BINS, histtype="step", label=str(column))
    panel.legend()
    figure.savefig(path, dpi=120)
