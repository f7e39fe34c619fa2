"""What a finished run leaves for people and for tables: summary.json and the learning curve."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appo_jax.types import InputError
from experiments import outputs
from experiments.config import Experiment, Local

LAST_EVALUATIONS = 5  # whose mean is the result, as in the paper
_NUMBER, _OR_NONE = (int, float), (int, float, type(None))
_SHOWN = {  # fields of an entry that a finished run shows again, and their types
    "task": (str,),
    "lam": _NUMBER,
    "num_feedback": (int,),
    "num_updates": (int,),
    "num_evaluations_averaged": (int,),
    "success_rate": _OR_NONE,
    "return": _OR_NONE,
}


def write(
    runs: Sequence[Experiment],
    local: Local,
    metrics: outputs.MetricsFile,
    clocks: Sequence[Mapping[str, float]],
) -> dict[str, Any]:
    """Write summary.json and learning_curve.png of finished runs; returns the former's content."""
    entries = [_entry(index, run, metrics, clocks[index]) for index, run in enumerate(runs)]
    curves = {_label(run, runs): metrics.scores(index)[1] for index, run in enumerate(runs)}
    title = ", ".join(dict.fromkeys(run.task for run in runs))
    title = f"{runs[0].algorithm} on {title}"
    outputs.plot(local.workdir / "learning_curve.png", title, curves, metrics.scores(0)[0])
    summary = {"runs": entries}
    outputs.write_json(local.workdir / "summary.json", summary)
    return summary


def read(path: Path, num_runs: int) -> dict[str, Any] | None:
    """What `write` wrote, None if there is no such file. Raises InputError if it can't be that."""
    if not path.exists():
        return None
    content = outputs.read_json(path)
    entries = content.get("runs") if isinstance(content, dict) else None
    if not isinstance(entries, list) or len(entries) != num_runs:
        found = f"a list of {len(entries)}" if isinstance(entries, list) else "none"
        raise _unreadable(path, f"a list 'runs' of {num_runs}", found)
    for index, entry in enumerate(entries):
        for field, types in _SHOWN.items():
            known = isinstance(entry, dict) and field in entry
            if not known or not isinstance(entry[field], types):
                found = repr(entry[field]) if known else "none"
                raise _unreadable(path, f"a {field} of run {index}", found)
    return content


def _unreadable(path: Path, expected: str, found: str) -> InputError:
    return InputError(
        f"{path}: found {found}, expected {expected}, as a run wrote it; without the file the same "
        "command writes it again"
    )


def _label(run: Experiment, runs: Sequence[Experiment]) -> str:
    parts = [f"seed {run.seed}", f"lambda {run.lam:g}", f"{run.num_feedback} labels"]
    if len({run.task for run in runs}) > 1:
        parts.append(run.task)
    return ", ".join(parts)


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Mean and standard deviation (n - 1) of the success rate over seeds, a line for each setting.

    Of the return where the environment knows no success. A run that was stopped for numbers that
    aren't finite is left out of them, and counted.
    """
    known = any(entry["success_rate"] is not None for entry in entries)
    score, title = ("success_rate", "success rate (%)") if known else ("return", "return")
    groups: dict[tuple[Any, ...], list[float | None]] = {}
    for entry in entries:
        setting = (entry["task"], entry["num_feedback"], entry["lam"])
        groups.setdefault(setting, []).append(entry[score])
    lines = [f"{'task':<28}{'labels':>8}{'lambda':>10}{'seeds':>7}{title:>20}"]
    for (task, labels, lam), found in groups.items():
        rates = [rate for rate in found if rate is not None]
        spread = f" +- {np.std(rates, ddof=1):.1f}" if len(rates) > 1 else ""
        shown = f"{np.mean(rates):.1f}{spread}" if rates else "-"
        stopped = f"   ({len(found) - len(rates)} stopped)" if len(rates) < len(found) else ""
        lines.append(f"{task:<28}{labels:>8,}{lam:>10g}{len(rates):>7}{shown:>20}{stopped}")
    return "\n".join(lines)


def _entry(
    index: int,
    run: Experiment,
    metrics: outputs.MetricsFile,
    clock: Mapping[str, float],
) -> dict[str, Any]:
    rates = metrics.values(index, "eval", "eval/success_rate")
    at_end = metrics.values(index, "eval", "eval/success_rate_at_end")
    returns = metrics.values(index, "eval", "eval/return")
    stopped = next(iter(metrics.values(index, "train", outputs.STOPPED).values()), None)
    last = list(returns)[-LAST_EVALUATIONS:]  # updates
    known = stopped is None and bool(rates)
    return {
        "algorithm": run.algorithm,
        "task": run.task,
        "dataset": run.dataset.id,
        "reward": run.reward,
        "seed": run.seed,
        "lam": run.lam,
        "num_feedback": run.num_feedback,
        "num_updates": run.num_updates,
        # None where the environment knows no success.
        "success_rate": float(np.mean([rates[update] for update in last])) if known else None,
        "return": float(np.mean([returns[u] for u in last])) if stopped is None else None,
        "num_evaluations_averaged": len(last),
        # The last update with finite numbers, None where they were finite to the end.
        "stopped_at": stopped,
        "success_rates": [
            {
                "update": update,
                "success_rate": rates.get(update),
                "success_rate_at_end": at_end.get(update),
                "return": total,
            }
            for update, total in returns.items()
        ],
        # None where every fresh pair was a tie, or no reward model was fitted.
        "reward_accuracy": metrics.values(index, "reward", "reward/accuracy").get(0),
        "reward_accuracy_pairs": int(
            metrics.values(index, "reward", "reward/fresh_pairs").get(0, 0)
        ),
        "updates_per_second": clock["timed_updates"] / clock["train_seconds"],
        "wall_seconds": clock["wall_seconds"],
    }
