"""What was found in files that were imported, in words."""

import numpy as np

from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences


def dataset_lines(dataset: Dataset) -> list[str]:
    """Episodes, lengths, success and rewards, a line each."""
    lengths, rows = dataset.lengths, dataset.transition_rows()
    success, rewards, returns = dataset.success_rate(), dataset.rewards, dataset.returns()
    known = "unknown" if success is None else f"{100 * success:.1f} % of the episodes"
    gained = "unknown"
    if rewards is not None and returns is not None:
        gained = (
            f"{rewards[rows].min():g} to {rewards[rows].max():g} a step; returns of episodes "
            f"{returns.min():.4g} to {returns.max():.4g}, mean {returns.mean():.4g}"
        )
    return [
        f"data set      {dataset.id}",
        f"transitions   {dataset.num_transitions:,} in {dataset.num_episodes:,} episodes of "
        f"{lengths.min():,} to {lengths.max():,} steps (mean {lengths.mean():.1f})",
        f"observations  {dataset.observation_dim} numbers, actions {dataset.action_dim}, from "
        f"{dataset.actions[rows].min():.4g} to {dataset.actions[rows].max():.4g}",
        f"terminal      {int(dataset.terminations.sum()):,} episodes end in a terminal state",
        f"success       {known}",
        f"rewards       {gained}",
    ]


def label_lines(labels: Preferences) -> list[str]:
    """How many labels there are, and what they say."""
    values = labels.labels
    first, second = int(np.sum(values < 0.5)), int(np.sum(values > 0.5))
    steps = f"{labels.length}"
    if labels.lengths is not None:
        steps = f"{labels.lengths.min()} to {labels.lengths.max()}"
    return [
        f"labels        {len(labels):,} pairs of segments of {steps} steps: {first:,} say first, "
        f"{second:,} second, {labels.num_ties:,} neither",
    ]
