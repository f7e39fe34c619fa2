"""The figures of the theory: on which settings each stands, and how all are measured."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.tabular.figures import Figure
from experiments.tabular.sweeps import FAMILIES, Measured, Setting, run_freehand, run_setting


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The grids of the figures."""

    labels: Sequence[int] = (64, 256, 1024, 4096, 16384)
    unlabelled: Sequence[int] = (4, 16, 64, 256, 1024)
    iterations: Sequence[int] = (16, 64, 256, 1024, 4096)
    shares: Sequence[float] = (0.9, 0.6, 0.3, 0.0, -0.3)
    lam_factors: Sequence[float] = (0.03, 0.1, 0.3, 1.0, 3.0, 30.0)
    dual_rate: float = 1.0
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
# A figure's settings, with what measures each.
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


def adapting_figure(sizes: Sizes) -> Points:
    """All families, with few labels: a lambda that adapts, from the theorem's on, beside fixed."""
    base = Setting(num_labelled=sizes.few_labels, num_iterations=sizes.many_iterations)
    named = {
        f"{one:g}": dataclasses.replace(base, lam_factor=one)
        for one in sizes.lam_factors
        if one <= 1
    }
    named["adapting"] = dataclasses.replace(base, dual_rate=sizes.dual_rate)
    return [
        (
            f"{family}: {name}",
            functools.partial(run_setting, dataclasses.replace(setting, family=family)),
        )
        for family in FAMILIES
        for name, setting in named.items()
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
    "adapting": adapting_figure,
    "rollouts": rollouts_figure,
    "freehand": freehand_figure,
}


def measure_all(
    names: Sequence[str], sizes: Sizes, keys: jax.Array, report: Callable[[str], None]
) -> dict[str, Figure]:
    """These figures, one setting after another; `report` gets a line after each setting."""
    start = time.time()
    figures = {}
    for name in names:
        points = FIGURES[name](sizes)
        found = []
        for _, measure in points:
            found.append(measure(keys))
            report(f"{time.time() - start:6.0f} s  {name}, {len(found)} of {len(points)} settings")
        figures[name] = Figure(name, [setting for setting, _ in points], found)
    return figures
