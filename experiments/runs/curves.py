"""The learning curves of runs: a line for each setting, over seeds its mean and a band."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.runs.experiment import label
from experiments.runs.results import RunResult, by_setting


def scores_of(runs: Sequence[RunResult], known: bool) -> tuple[list[int], np.ndarray]:
    """The updates that all runs came to, and their scores there, `[runs, updates]`.

    known: whether the score is the success rate, in percent, and not the return.
    """
    curves = [
        {
            one.update: score
            for one in run.evaluations
            if (score := one.success_rate if known else one.total_return) is not None
        }
        for run in runs
    ]
    updates = sorted(set.intersection(*map(set, curves)))
    return updates, np.array([[curve[update] for update in updates] for curve in curves], float)


def plot(path: Path, results: Sequence[RunResult]) -> None:
    """Draw the success rate, or the return, against updates, and write a PNG.

    The band is from the least to the greatest seed; updates that all seeds came to have it. Dashed:
    the mean of the data.
    """
    from matplotlib.figure import Figure  # no pyplot: it would look for a display

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    known = any(one.success_rate is not None for run in results for one in run.evaluations)
    names, groups = by_setting(results)
    colours: dict[str, Any] = {}  # of each data set's first line
    for group in groups:
        updates, scores = scores_of(group, known)
        seeds = f"{len(group)} seeds" if len(group) > 1 else f"seed {group[0].seed}"
        text = ", ".join(filter(None, [label(group[0].settings, names), seeds]))
        (line,) = axes.plot(updates, scores.mean(axis=0), marker="o", markersize=3, label=text)
        if len(group) > 1:
            low, high = scores.min(axis=0), scores.max(axis=0)
            axes.fill_between(updates, low, high, alpha=0.15, color=line.get_color())
        colours.setdefault(group[0].dataset, line.get_color())
    for dataset, colour in colours.items():
        of_data = next(run for run in results if run.dataset == dataset)
        mean = of_data.dataset_success_rate if known else of_data.dataset_return
        if mean is not None:
            name = "data" if len(colours) == 1 else f"data of {of_data.env_name}"
            grey_or_own = "grey" if len(colours) == 1 else colour
            axes.axhline(mean, linestyle="--", linewidth=1, color=grey_or_own, label=name)
    algorithms, tasks = (
        ", ".join(dict.fromkeys(getattr(run, name) for run in results))
        for name in ("algorithm", "env_name")
    )
    axes.set(title=f"{algorithms} on {tasks}", xlabel="updates", ylabel="return")
    if known:
        axes.set(ylabel="success at any step (%)", ylim=(-3, 103))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
