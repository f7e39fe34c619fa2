"""How fast it is: `python -m experiments.benchmark --output=benchmark.json`.

What is compared takes turns within the same minutes, and medians are reported: a busy machine then
slows all sides alike. `--preset=gpu` measures what matters on an accelerator, without a simulator:
`--preset=gpu --figures=runs` alone tells how many runs fill it.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from appo_jax import workers
from appo_jax.data import atomic
from appo_jax.types import InputError
from experiments.benchmarks.figures import BESIDE_PYTORCH, PRESETS, Row, saturation
from experiments.runs.compiled import cpuinfo
from experiments.terminal.cli import output_file, run
from experiments.terminal.flags import define

# Of other processes, in the last minute. PyTorch's threads spin while they wait for each other, so
# one that has lost its core to another process stops them all.
QUIET_LOAD = 0.5
NO_TORCH = "No PyTorch here to compare with: pip install -c constraints.txt -e '.[torch]' adds it."
_FIGURE_NAMES = "; ".join(f"{preset}: {', '.join(figures)}" for preset, figures in PRESETS.items())


def machine() -> Row:
    """The processor, the cores this process may use, JAX's device, the load, and versions."""
    versions = {"python": platform.python_version()}
    for package in ("jax", "jaxlib", "numpy", "torch"):
        if importlib.util.find_spec(package):
            versions[package] = importlib.metadata.version(package)
    return {
        "cpu": cpuinfo("model name") or platform.processor() or "unknown",
        "cores": workers.available_cores(),
        "device": jax.devices()[0].device_kind,
        "load_average": os.getloadavg()[0],
        "versions": versions,
    }


def table(rows: Sequence[Row]) -> str:
    """The rows of all figures, one line each."""
    lines = [
        f"{'figure':<12}{'':<22}{'unit':<10}{'median':>9}{'min':>9}{'max':>9}"
        f"{'first / this':>14}{'updates/s':>11}{'GFLOP/s':>9}{'of products':>13}"
    ]
    optional = (
        ("first_over_this", 14, ".2f"),
        ("updates_per_second", 11, ".1f"),
        ("gflop_per_second", 9, ".0f"),
        ("fraction_of_products", 13, ".2f"),
    )
    for row in rows:
        line = (
            f"{row['figure']:<12}{row['name']:<22}{row['unit']:<10}{row['median']:>9.2f}"
            f"{row['min']:>9.2f}{row['max']:>9.2f}"
        )
        for name, width, form in optional:
            line += f"{row[name]:>{width}{form}}" if name in row else " " * width
        lines.append(line.rstrip())
    return "\n".join(lines)


def check_figures(names: Sequence[str] | None, preset: str) -> list[str]:
    """The figures to measure. Raises InputError for one that the preset doesn't have."""
    figures = PRESETS[preset]
    for name in names or ():
        if name not in figures:
            raise InputError(f"--figures: {name!r}, expected some of {', '.join(figures)}")
    return list(names or figures)


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags, in the order in which they matter."""
    group: dict[str, Any] = {"flag_values": values, "module_name": "benchmark"}
    flags.DEFINE_enum("preset", "default", list(PRESETS), "what to measure", **group)
    flags.DEFINE_list("figures", None, f"some of the preset's only: {_FIGURE_NAMES}", **group)
    define(values, "output", Path, "JSON file for the figures", "benchmark")
    flags.DEFINE_integer(
        "rounds", 9, "times that each side is timed, at least 1", lower_bound=1, **group
    )
    flags.DEFINE_integer(
        "num_updates", 100, "updates of each side in a round, at least 1", lower_bound=1, **group
    )


def main(values: flags.FlagValues) -> None:
    """Measure the figures, print them and write them."""
    output = output_file(values.output)
    names = check_figures(values.figures, values.preset)
    found = machine()
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    print(f"{found['cpu']}, {found['cores']} cores, device {found['device']}; {versions}")
    if found["load_average"] > QUIET_LOAD:
        print(f"Other processes are busy (load {found['load_average']:.1f}): figures will be off.")
    rows: list[Row] = []
    for name in names:
        print(f"measuring: {name} ...", file=sys.stderr, flush=True)
        rows += PRESETS[values.preset][name](values.rounds, values.num_updates)
        if output:  # what is measured is on disk, should the machine be taken away
            with atomic.replacing(output) as partial:
                partial.write_text(json.dumps({"machine": found, "rows": rows}, indent=2) + "\n")
    print(table(rows))
    for row in rows:
        if "largest_difference" in row:
            print(f"{row['name']}: losses differ by {row['largest_difference']:.1%} at most")
    if "runs" in names:
        full = saturation(rows)
        print(
            f"{full['runs_that_fill_the_device']} runs fill the device; the paper's 80 runs take "
            f"{full['hours_for_the_papers_80_runs']:.1f} h at the best rate"
        )
    if BESIDE_PYTORCH & set(names) and "torch" not in found["versions"]:
        print(NO_TORCH)


if __name__ == "__main__":
    run(main, define_flags, kept="--output, if given, holds what was measured")
