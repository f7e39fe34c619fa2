"""Look at the theorems: `python -m experiments.theory --workdir=runs/theory`.

A figure is a list of settings; each is run on the same random MDPs, and every quantity is given as
the mean over the MDPs with its standard error. `theory_runs.py` measures one setting,
`theory_figures.py` turns the numbers into slopes, claims and pictures.
"""

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags

from appo_jax.types import InputError
from experiments.cli import parse_flags
from experiments.theory_figures import Figure, claims, table, write
from experiments.theory_runs import FAMILIES, Measured, Setting, run_freehand, run_setting


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The grids of the figures."""

    labels: Sequence[int] = (64, 256, 1024, 4096, 16384)
    unlabelled: Sequence[int] = (4, 16, 64, 256, 1024)
    iterations: Sequence[int] = (16, 64, 256, 1024, 4096)
    shares: Sequence[float] = (0.9, 0.6, 0.3, 0.0, -0.3)
    lam_factors: Sequence[float] = (0.03, 0.1, 0.3, 1.0, 3.0, 30.0)
    rollouts: Sequence[int] = (16, 64, 256)
    few_labels: int = 100  # where pessimism matters
    base_iterations: int = 256
    many_iterations: int = 512


PRESETS = {
    "full": Sizes(),
    "quick": Sizes(
        labels=(16, 64),
        unlabelled=(16, 64),
        iterations=(4, 16),
        shares=(0.6, 0.3),
        lam_factors=(0.3, 3.0),
        rollouts=(8, 32),
        few_labels=30,
        base_iterations=16,
        many_iterations=16,
    ),
}


Points = list[tuple[float | str, Callable[[jax.Array], Measured]]]


def _points(name: str, base: Setting, values: Sequence[Any]) -> Points:
    return [
        (number, functools.partial(run_setting, dataclasses.replace(base, **{name: number})))
        for number in values
    ]


def labels_figure(sizes: Sizes) -> Points:
    """Against M; the last point has the true reward."""
    base = Setting(num_iterations=sizes.base_iterations)
    known = dataclasses.replace(base, known="reward", num_labelled=sizes.labels[0])
    points = _points("num_labelled", base, sizes.labels)
    return [*points, (np.inf, functools.partial(run_setting, known))]


def unlabelled_figure(sizes: Sizes) -> Points:
    """Against N; the last point has the true transition."""
    base = Setting(num_iterations=sizes.base_iterations, num_labelled=sizes.labels[-1])
    known = dataclasses.replace(base, known="transition", num_unlabelled=sizes.unlabelled[-1])
    points = _points("num_unlabelled", base, sizes.unlabelled)
    return [*points, (np.inf, functools.partial(run_setting, known))]


def iterations_figure(sizes: Sizes) -> Points:
    """Against T, with the most data there is."""
    base = Setting(num_labelled=sizes.labels[-1], num_unlabelled=sizes.unlabelled[-1])
    return _points("num_iterations", base, sizes.iterations)


def concentrability_figure(sizes: Sizes) -> Points:
    """Against C_TR, with few labels."""
    base = Setting(num_labelled=sizes.few_labels, num_iterations=sizes.base_iterations)
    return _points("share", base, sizes.shares)


def lam_figure(sizes: Sizes, family: str) -> Points:
    """Against lambda / C_TR, with few labels."""
    base = Setting(family, sizes.few_labels, num_iterations=sizes.many_iterations)
    return _points("lam_factor", base, sizes.lam_factors)


def families_figure(sizes: Sizes) -> Points:
    """All families, with few labels: the theorem's lambda, and one at which APPO imitates mu."""
    base = Setting(num_labelled=sizes.few_labels, num_iterations=sizes.many_iterations)
    settings = [
        dataclasses.replace(base, family=family, lam_factor=factor)
        for family in FAMILIES
        for factor in (base.lam_factor, sizes.lam_factors[0])
    ]
    return [
        (f"{setting.family}: {setting.lam_factor:g}", functools.partial(run_setting, setting))
        for setting in settings
    ]


def rollouts_figure(sizes: Sizes) -> Points:
    """Algorithm 1 against K_1 = K_2."""
    base = Setting(num_iterations=sizes.base_iterations)
    return _points("rollouts", base, sizes.rollouts)


def freehand_figure(sizes: Sizes) -> Points:
    """APPO, greedy and FREEHAND on MDPs of two states and two steps, against M."""
    labels = [number for number in sizes.labels if number <= 1024]  # the table grows with M
    return [
        (number, functools.partial(run_freehand, number, sizes.many_iterations))
        for number in labels
    ]


FIGURES: dict[str, Callable[[Sizes], Points]] = {
    "iterations": iterations_figure,
    "labels": labels_figure,
    "unlabelled": unlabelled_figure,
    "concentrability": concentrability_figure,
    "lam": functools.partial(lam_figure, family="garnet"),
    "lam-lure": functools.partial(lam_figure, family="lure"),
    "families": families_figure,
    "rollouts": rollouts_figure,
    "freehand": freehand_figure,
}


def measure_all(
    names: Sequence[str], sizes: Sizes, keys: jax.Array, report: Callable[[str], None]
) -> dict[str, Figure]:
    """These figures, one setting after another."""
    start = time.time()
    figures = {}
    for name in names:
        points = FIGURES[name](sizes)
        found = []
        for trial in (trial for _, trial in points):
            found.append(trial(keys))
            report(f"{time.time() - start:6.0f} s  {name}, {len(found)} of {len(points)} settings")
        figures[name] = Figure(name, [setting for setting, _ in points], found)
    return figures


def define_flags() -> None:
    """Define the flags; only an entry point does."""
    flags.DEFINE_string("workdir", None, "folder for the figures and the table")
    flags.DEFINE_integer("num_mdps", 100, "random MDPs of each setting, at least 2", lower_bound=2)
    flags.DEFINE_integer("seed", 0, "seed of the MDPs and the data, 0 or more", lower_bound=0)
    flags.DEFINE_multi_enum(
        "figures", list(FIGURES), list(FIGURES), "figure to make, can be given again; default: all"
    )
    flags.DEFINE_enum("preset", "full", list(PRESETS), "sizes of the grids: full or quick")


def make_folder(workdir: str | None) -> Path:
    """The folder, made if need be. Raises InputError if there is none or it can't be written to."""
    if not workdir:
        raise InputError("flag --workdir is missing, expected a folder like --workdir=runs/theory")
    folder = Path(workdir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--workdir={folder}: can't be made ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"--workdir={folder}: can't be written to")
    return folder


def main(_: Sequence[str]) -> None:
    """Measure, print and write."""
    jax.config.update("jax_enable_x64", True)
    values = flags.FLAGS
    try:
        folder = make_folder(values.workdir)
    except InputError as error:
        sys.exit(str(error))
    keys = jax.random.split(jax.random.key(values.seed), values.num_mdps)
    print(f"{values.num_mdps} MDPs of each setting, to {folder}")
    begin = time.time()
    figures = measure_all(
        values.figures, PRESETS[values.preset], keys, lambda line: print(line, flush=True)
    )
    lines = claims(figures)
    write(folder, figures, lines)
    print(table(figures))
    print("\n".join(lines))
    print(f"{time.time() - begin:.0f} s; figures, theory.csv and claims.txt are in {folder}")


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=parse_flags)
