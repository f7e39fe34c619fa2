"""How fast data are collected and policies evaluated, next to loops of nothing but `env.step`.

`python -m experiments.benchmark_environments --task=sweep --num_workers=2`.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from absl import flags

from appo_jax import workers
from appo_jax.collect import scripted
from appo_jax.envs import meta_world
from appo_jax.types import InputError
from experiments.benchmarks.environment_rates import Rates, measure_rates
from experiments.terminal.cli import naming, run


def table(rates: Sequence[Rates]) -> str:
    """Median, least and greatest of each rate, and of its ratio to the bare loops of its round."""
    lines = [f"{'steps/s':<14}{'median':>9}{'min':>9}{'max':>9}{'/ bare':>9}{'min':>7}{'max':>7}"]
    for field in dataclasses.fields(Rates):
        values = [getattr(row, field.name) for row in rates]
        bare = "bare_evaluated" if field.name.endswith("evaluated") else "bare"
        ratios = [getattr(row, field.name) / getattr(row, bare) for row in rates]
        lines.append(
            f"{field.name:<14}{statistics.median(values):>9.0f}{min(values):>9.0f}"
            f"{max(values):>9.0f}{statistics.median(ratios):>9.2f}{min(ratios):>7.2f}"
            f"{max(ratios):>7.2f}"
        )
    return "\n".join(lines)


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags, in the order in which they matter."""
    group: dict[str, Any] = {"flag_values": values, "module_name": "benchmark_environments"}
    flags.DEFINE_string("task", None, "Meta-World task, e.g. sweep", **group)
    flags.DEFINE_integer(
        "num_workers", workers.available_cores(), "processes, at least 1", lower_bound=1, **group
    )
    flags.DEFINE_integer("size", 12_000, "transitions of a round, a multiple of 500", **group)
    flags.DEFINE_integer("rounds", 3, "rounds, at least 1", lower_bound=1, **group)


def main(values: flags.FlagValues) -> None:
    """Measure and print the table."""
    if values.task is None:
        raise InputError("--task is missing, expected a Meta-World task like --task=sweep")
    with naming("task"):
        task = meta_world.canonical_name(values.task)
    with naming("size"):
        scripted.check_size(values.size)
    rates = measure_rates(task, values.num_workers, values.size, values.rounds)
    print(
        f"{task}, {values.num_workers} workers, {values.rounds} rounds of "
        f"{values.size:,} transitions"
    )
    print(table(rates))


if __name__ == "__main__":
    run(main, define_flags, kept="nothing was saved")
