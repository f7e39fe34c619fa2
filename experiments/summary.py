"""What a finished run leaves for people and for tables: summary.json and the learning curve."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments import outputs
from experiments.config import Experiment, Local

LAST_EVALUATIONS = 5  # whose mean is the result, as in the paper


def write(
    experiment: Experiment,
    local: Local,
    dataset_id: str,
    metrics: outputs.MetricsFile,
    clock: Mapping[str, float],
) -> dict[str, Any]:
    """Write summary.json and learning_curve.png of a finished run; returns the former's content."""
    rates = metrics.values(0, "eval", "eval/success_rate")
    at_end = metrics.values(0, "eval", "eval/success_rate_at_end")
    returns = metrics.values(0, "eval", "eval/return")
    last = list(rates.values())[-LAST_EVALUATIONS:]
    accuracy = metrics.values(0, "reward", "reward/accuracy")
    entry = {
        "algorithm": experiment.algorithm,
        "task": experiment.task,
        "dataset": dataset_id,
        "reward": experiment.reward,
        "seed": experiment.seed,
        "lam": experiment.lam,
        "num_feedback": experiment.num_feedback,
        "num_updates": experiment.num_updates,
        "success_rate": float(np.mean(last)),
        "num_evaluations_averaged": len(last),
        "success_rates": [
            {
                "update": update,
                "success_rate": rate,
                "success_rate_at_end": at_end[update],
                "return": returns[update],
            }
            for update, rate in rates.items()
        ],
        "reward_accuracy": accuracy.get(0),
        "reward_accuracy_pairs": int(metrics.values(0, "reward", "reward/fresh_pairs")[0]),
        "updates_per_second": clock["timed_updates"] / clock["train_seconds"],
        "wall_seconds": clock["wall_seconds"],
    }
    summary = {"runs": [entry]}
    title = f"{experiment.algorithm} on {experiment.task}, {experiment.num_feedback} labels"
    label = f"seed {experiment.seed}, lambda {experiment.lam:g}"
    outputs.plot(local.workdir / "learning_curve.png", title, {label: rates})
    outputs.write_json(local.workdir / "summary.json", summary)
    return summary
