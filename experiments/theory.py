"""Look at the theorems: `python -m experiments.theory --workdir=runs/theory`.

A figure is a list of settings; each is run on the same random MDPs, and every quantity is given as
the mean over the MDPs with its standard error. In `experiments/tabular/`, `grids.py` lists the
settings, `sweeps.py` measures one of them, and `figures.py` turns the numbers into slopes, claims
and pictures.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from appo_jax.types import InputError
from experiments.tabular.figures import claims, table, write
from experiments.tabular.grids import FIGURES, PRESETS, measure_all
from experiments.terminal.cli import run
from experiments.terminal.flags import define


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags, in the order in which they matter."""
    group: dict[str, Any] = {"flag_values": values, "module_name": "theory"}
    define(values, "workdir", Path, "folder for the figures and the table", "theory")
    flags.DEFINE_enum("preset", "full", list(PRESETS), "sizes of the grids", **group)
    text = f"some only, with commas: {', '.join(FIGURES)} (default: all)"
    define(values, "figures", str, text, "theory", several=True)
    flags.DEFINE_integer(
        "num_mdps", 100, "random MDPs of each setting, at least 2", lower_bound=2, **group
    )
    flags.DEFINE_integer(
        "seed", 0, "seed of the MDPs and the data, 0 or more", lower_bound=0, **group
    )


def make_folder(workdir: str | None) -> Path:
    """The folder, made if need be. Raises InputError if there is none or it can't be written to."""
    if not workdir:
        raise InputError("--workdir is missing, expected a folder like --workdir=runs/theory")
    folder = Path(workdir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--workdir={folder}: can't be made ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"--workdir={folder}: can't be written to")
    return folder


def check_figures(names: Sequence[str] | None) -> list[str]:
    """The figures to make. Raises InputError for one that there isn't."""
    for name in names or ():
        if name not in FIGURES:
            raise InputError(f"--figures: {name!r}, expected some of {', '.join(FIGURES)}")
    return list(names or FIGURES)


def main(values: flags.FlagValues) -> None:
    """Measure, print and write."""
    names = check_figures(values.figures)
    folder = make_folder(values.workdir)
    jax.config.update("jax_enable_x64", True)
    keys = jax.random.split(jax.random.key(values.seed), values.num_mdps)
    print(f"{values.num_mdps} MDPs of each setting, to {folder}")
    begin = time.time()
    figures = measure_all(names, PRESETS[values.preset], keys, print)
    lines = claims(figures)
    write(folder, figures, lines)
    print(table(figures))
    print("\n".join(lines))
    print(f"{time.time() - begin:.0f} s; figures, theory.csv and claims.txt are in {folder}")


if __name__ == "__main__":
    run(main, define_flags, kept="figures are written at the end alone")
