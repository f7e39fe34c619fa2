"""What is about to be trained, told before it begins."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from appo_jax import registry, settings, workers
from experiments.runs import reward_controls
from experiments.runs.datasets import origins
from experiments.runs.experiment import Execution, Experiment, shown


def describe(runs: Sequence[Experiment], execution: Execution) -> str:
    """What is about to happen, for a person to read before it does."""
    first = runs[0]
    algorithm = registry.algorithm(first.algorithm)
    teacher = execution.preferences or (
        f"scripted teacher, ties within {first.tie_threshold:g}, noise {first.label_noise:g}"
    )
    names, counts, seeds = (
        _several(getattr(run, name) for run in runs)
        for name in ("env_name", "num_feedback", "seed")
    )
    numbers = [
        f"{field.name} {_several(getattr(run.swept, field.name) for run in runs)}"
        for field in settings.fields(first.swept.__class__)
    ]
    grid = f"{len(runs)} runs: " if len(runs) > 1 else ""
    places = origins(runs, execution)
    reasons = {run.dataset.id: run.dataset.reason for run in runs}
    data = [f"{id}\n{'':<15}{place} ({reasons[id]})" for id, place in places.items()]
    if not first.normalise_observations:
        data.append("observations as they are, not normalised")
    lines = {
        "task": f"{grid}{names}, seed {seeds}",
        "algorithm": f"{first.algorithm}, {algorithm.help}; {', '.join(numbers)}",
        "policy": _changed(first.policy),
        "data set": f"\n{'':<15}".join(data),
        "labels": f"{counts} {_compared(first)} of segments of {first.segment_length} steps; "
        f"{teacher}",
        "reward": _reward(first),
        "evaluation": f"{first.eval_episodes} episodes every {first.eval_interval:,} of "
        f"{first.num_updates:,} updates, {execution.num_workers} "
        f"worker{'s' * (execution.num_workers > 1)}",
        "device": _device(),
        "results": f"{execution.workdir}",
    }
    return "\n".join(f"{title:<15}{text}" for title, text in lines.items())


def _compared(run: Experiment) -> str:
    return "pairs" if run.feedback == Experiment.feedback else f"comparisons ({run.feedback})"


def _several(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(map(shown, values)))


def _changed(config: Any) -> str:
    """The settings of a config that aren't at their defaults."""
    changed = [
        f"{field.name} {shown(getattr(config, field.name))} ({shown(field.default)})"
        for field in settings.fields(config.__class__)
        if getattr(config, field.name) != field.default and not field.setting.of_run
    ]
    return f"{', '.join(changed)} instead of the defaults" if changed else "default settings"


def _reward(run: Experiment) -> str:
    if not reward_controls.needs_model(run.algorithm, run.reward):
        return run.reward
    ending = "" if run.ending == Experiment.ending else f", an end is a {run.ending}"
    return f"{run.reward}{ending}; model of {_changed(run.reward_model)}"


def _device() -> str:
    device = jax.devices()[0]
    if device.platform == "cpu":
        return f"CPU, {workers.available_cores()} cores"
    return f"{device.device_kind} ({device.platform})"
