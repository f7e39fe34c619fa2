"""What a finished run leaves for people and for tables: summary.json and the learning curve."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import outputs
from experiments.config import Experiment, Local

LAST_EVALUATIONS = 5  # whose mean is the result, as in the paper


def write(
    runs: Sequence[Experiment],
    local: Local,
    dataset_id: str,
    metrics: outputs.MetricsFile,
    clock: Mapping[str, float],
) -> dict[str, Any]:
    """Write summary.json and learning_curve.png of finished runs; returns the former's content."""
    entries = [_entry(index, run, dataset_id, metrics, clock) for index, run in enumerate(runs)]
    curves = {
        f"seed {run.seed}, lambda {run.lam:g}": metrics.values(index, "eval", "eval/success_rate")
        for index, run in enumerate(runs)
    }
    title = f"{runs[0].algorithm} on {runs[0].task}, {runs[0].num_feedback} labels"
    outputs.plot(local.workdir / "learning_curve.png", title, curves)
    summary = {"runs": entries}
    outputs.write_json(local.workdir / "summary.json", summary)
    return summary


def _entry(
    index: int,
    run: Experiment,
    dataset_id: str,
    metrics: outputs.MetricsFile,
    clock: Mapping[str, float],
) -> dict[str, Any]:
    rates = metrics.values(index, "eval", "eval/success_rate")
    at_end = metrics.values(index, "eval", "eval/success_rate_at_end")
    returns = metrics.values(index, "eval", "eval/return")
    stopped = next(iter(metrics.values(index, "train", "train/stopped").values()), None)
    last = list(rates.values())[-LAST_EVALUATIONS:]
    return {
        "algorithm": run.algorithm,
        "task": run.task,
        "dataset": dataset_id,
        "reward": run.reward,
        "seed": run.seed,
        "lam": run.lam,
        "num_feedback": run.num_feedback,
        "num_updates": run.num_updates,
        "success_rate": float(np.mean(last)) if stopped is None else None,
        "num_evaluations_averaged": len(last),
        # The last update with finite numbers, None where they were finite to the end.
        "stopped_at": stopped,
        "success_rates": [
            {
                "update": update,
                "success_rate": rate,
                "success_rate_at_end": at_end[update],
                "return": returns[update],
            }
            for update, rate in rates.items()
        ],
        # None where every fresh pair was a tie.
        "reward_accuracy": metrics.values(index, "reward", "reward/accuracy").get(0),
        "reward_accuracy_pairs": int(metrics.values(index, "reward", "reward/fresh_pairs")[0]),
        "updates_per_second": clock["timed_updates"] / clock["train_seconds"],
        "wall_seconds": clock["wall_seconds"],
    }
