"""How fast it is: `python -m experiments.benchmark --output=benchmark.json`.

What is compared runs in turn, block by block in the same minutes, and medians are reported: a busy
machine then slows all sides alike. `--preset=gpu` measures what matters on an accelerator and needs
no simulator: `--preset=gpu --figures=runs` alone tells how many runs fill it.
"""

import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from absl import app, flags

from experiments import measure
from experiments.cli import available_cores, cpuinfo, parse_flags
from experiments.measure import Row

# Of other processes, in the last minute. PyTorch's threads spin while they wait for each other, so
# one that has lost its core to another process stops them all.
QUIET_LOAD = 0.5
NO_TORCH = "No PyTorch here to compare with: pip install -c constraints.txt -e '.[torch]' adds it."

FIGURES: dict[str, Callable[[int, int], list[Row]]] = {
    "update": measure.update_figure,
    "runs": measure.runs_figure,
    "size": measure.size_figure,
    "compile": measure.compile_figure,
    "memory": measure.memory_figure,
}
GPU_FIGURES: dict[str, Callable[[int, int], list[Row]]] = {
    "runs": functools.partial(measure.runs_figure, counts=(1, 2, 5, 10, 20, 40, 80)),
    "precision": measure.precision_figure,
    "size": measure.size_figure,
    "compile": measure.compile_figure,
}
PRESETS = {"default": FIGURES, "gpu": GPU_FIGURES}


def machine() -> Row:
    """The processor, the cores this process may use, JAX's device, the load, and versions."""
    versions = {"python": platform.python_version()}
    for package in ("jax", "jaxlib", "numpy", "torch"):
        if importlib.util.find_spec(package):
            versions[package] = importlib.metadata.version(package)
    return {
        "cpu": cpuinfo("model name") or platform.processor() or "unknown",
        "cores": available_cores(),
        "device": jax.devices()[0].device_kind,
        "load_average": os.getloadavg()[0],
        "versions": versions,
    }


def table(rows: Sequence[Row]) -> str:
    """The rows of all figures, one line each."""
    lines = [
        f"{'figure':<10}{'':<22}{'unit':<10}{'median':>9}{'min':>9}{'max':>9}"
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
            f"{row['figure']:<10}{row['name']:<22}{row['unit']:<10}{row['median']:>9.2f}"
            f"{row['min']:>9.2f}{row['max']:>9.2f}"
        )
        for name, width, form in optional:
            line += f"{row[name]:>{width}{form}}" if name in row else " " * width
        lines.append(line.rstrip())
    return "\n".join(lines)


def main(_: Sequence[str]) -> None:
    """Measure the figures, print them and write them."""
    values = flags.FLAGS
    output = Path(values.output) if values.output else None
    if output and not output.parent.is_dir():
        sys.exit(f"flag --output: no folder {output.parent}, expected one that exists")
    figures = PRESETS[values.preset]
    wanted = values.figures or list(figures)
    for name in wanted:
        if name not in figures:
            sys.exit(f"flag --figures: {name!r}, expected some of {', '.join(figures)}")
    found = machine()
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    print(f"{found['cpu']}, {found['cores']} cores, device {found['device']}; {versions}")
    if found["load_average"] > QUIET_LOAD:
        print(f"Other processes are busy (load {found['load_average']:.1f}): figures will be off.")
    rows: list[Row] = []
    for name in wanted:
        print(f"measuring: {name} ...", file=sys.stderr, flush=True)
        rows += figures[name](values.rounds, values.num_updates)
        if output:  # what is measured is on disk, should the machine be taken away
            output.write_text(json.dumps({"machine": found, "rows": rows}, indent=2) + "\n")
    print(table(rows))
    for row in rows:
        if "largest_difference" in row:
            print(f"{row['name']}: losses differ by {row['largest_difference']:.1%} at most")
    if "runs" in wanted:
        told = measure.saturation(rows)
        print(
            f"{told['runs_that_fill_the_device']} runs fill the device; the paper's 80 runs take "
            f"{told['hours_for_the_papers_80_runs']:.1f} h at the best rate"
        )
    if "update" in wanted and "torch" not in found["versions"]:
        print(NO_TORCH)


if __name__ == "__main__":
    flags.DEFINE_integer("rounds", 9, "blocks of each side, at least 1", lower_bound=1)
    flags.DEFINE_integer("num_updates", 100, "updates of a block, at least 1", lower_bound=1)
    flags.DEFINE_enum("preset", "default", list(PRESETS), "default, or gpu")
    flags.DEFINE_list("figures", None, "which ones, default: all of the preset")
    flags.DEFINE_string("output", None, "JSON file for the figures")
    app.run(main, flags_parser=parse_flags)
