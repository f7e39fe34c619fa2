"""What the theory's command makes of its measurements: slopes, claims, a table, and figures."""

import csv
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tabular.sweeps import Measured

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Design:
    """How a figure looks: its title, its axis, and the quantities that it draws."""

    title: str
    axis: str
    curves: tuple[str, ...]


POLICIES = ("suboptimality", "last_iterate", "greedy", "reference")
DESIGNS = {
    "iterations": Design("Iterations", "iterations T", ("suboptimality", "last_iterate", "regret")),
    "labels": Design("Labels", "labelled pairs M", ("suboptimality", "greedy", "reward_error")),
    "unlabelled": Design(
        "Trajectories",
        "unlabelled pairs N",
        (
            "suboptimality",
            "transition_error",
            "optimisation_checked",
            "optimisation_bound",
            "solver_certificate",
        ),
    ),
    "concentrability": Design("Concentrability, few labels", "C_TR", (*POLICIES, "mle")),
    "lam": Design("Random MDPs, few labels", "lambda / C_TR", (*POLICIES, "distance_to_reference")),
    "lam-lure": Design("Lure, few labels", "lambda / C_TR", (*POLICIES, "distance_to_reference")),
    "families": Design(
        "Families, few labels", "family: lambda / C_TR", (*POLICIES, "distance_to_reference")
    ),
    "adapting": Design(
        "A lambda that adapts, few labels", "family: lambda / C_TR", (*POLICIES, "lam_over_c_tr")
    ),
    "rollouts": Design(
        "Algorithm 1",
        "rollouts K1 = K2",
        ("suboptimality", "pe_squared_error", "pe_regret", "pe_bound"),
    ),
    "freehand": Design(
        "Two states and steps",
        "labelled pairs M",
        (*POLICIES, "freehand", "reference_mode"),
    ),
}
DECOMPOSITION = ("mle", "optimisation", "regret", "suboptimality")  # (I), (II), (III), their sum
SHOWN = {
    "mle": "(I)",
    "optimisation": "(II)",
    "regret": "(III)",
    "reward_error": "E(Q^pi; P*, r_hat)",
    "optimisation_checked": "(II), checked",
    "optimisation_bound": "bound on (II)",
    "reference": "mu",
    "distance_to_reference": "distance to mu",
    "reference_mode": "mode of mu",
    "pe_squared_error": "PE's squared error",
    "lam_over_c_tr": "last lambda / C_TR",
    "pe_regret": "PE's effect on (III)",
    "pe_bound": "bound on the effect",
}
# Figure, quantity, exponent in the theorem (or in its lemma), and whether the quantity's value with
# the truth known (at infinity) is taken off first.
SLOPES: tuple[tuple[str, str, float, bool], ...] = (
    ("labels", "suboptimality", -0.5, False),
    ("labels", "suboptimality", -0.5, True),
    ("labels", "mle", -0.5, False),
    ("labels", "optimisation", -0.5, False),
    ("labels", "reward_error", -0.5, False),
    ("unlabelled", "suboptimality", -0.5, False),
    ("unlabelled", "suboptimality", -0.5, True),
    ("unlabelled", "optimisation_bound", -0.5, True),
    ("unlabelled", "transition_error", -0.5, False),
    ("iterations", "suboptimality", -0.5, False),
    ("iterations", "regret", -0.5, False),
    ("concentrability", "suboptimality", 1.0, False),
    ("concentrability", "mle", 0.5, False),
    ("rollouts", "pe_squared_error", -1.0, False),
    ("rollouts", "pe_regret", -0.5, False),
)


def shown(quantity: str) -> str:
    """A quantity's name for a reader."""
    return SHOWN.get(quantity, quantity.replace("_", " "))


class Figure:
    """A figure's settings and what was measured at each."""

    def __init__(self, name: str, settings: Sequence[float | str], found: Sequence[Measured]):
        self.name = name
        self.found = list(found)
        # C_TR is measured, not set.
        self.settings = list(settings)
        if name == "concentrability":
            self.settings = [float(np.mean(measured["c_tr"])) for measured in found]

    def curve(self, quantity: str) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard errors, one for each setting."""
        values = [measured[quantity] for measured in self.found]
        means = np.array([np.mean(value) for value in values])
        return means, np.array([np.std(value, ddof=1) / len(value) ** 0.5 for value in values])

    def finite(self) -> tuple[np.ndarray, list[int]]:
        """The settings that are numbers, and their places."""
        places = [
            place
            for place, setting in enumerate(self.settings)
            if not isinstance(setting, str) and np.isfinite(setting)
        ]
        return np.array([self.settings[place] for place in places], float), places

    def slope(self, quantity: str, above_truth: bool, last: int = 0) -> float:
        """Of the log of the quantity against the log of the setting, by least squares.

        Over the last settings only if their number is given. nan if the quantity isn't positive.
        """
        settings, places = self.finite()
        means = self.curve(quantity)[0]
        values = means[places] - (means[-1] if above_truth else 0)
        if np.any(values[-last:] <= 0):
            return float("nan")
        return float(np.polyfit(np.log(settings[-last:]), np.log(values[-last:]), 1)[0])

    def rows(self) -> list[Row]:
        """One for each setting and quantity."""
        return [
            {
                "figure": self.name,
                "setting": setting,
                "quantity": quantity,
                "mean": float(np.mean(values)),
                "standard_error": float(np.std(values, ddof=1) / len(values) ** 0.5),
                "greatest": float(np.max(values)),
                "num_mdps": len(values),
            }
            for quantity in self.found[0]
            for setting, values in zip(
                self.settings, (measured[quantity] for measured in self.found), strict=True
            )
        ]


def claims(figures: Mapping[str, Figure]) -> list[str]:
    """What the theorems say beside what was measured, one line each, of these figures."""
    lines = []
    for name, quantity, exponent, above_truth in SLOPES:
        if name in figures:
            kind = shown(quantity) + (" above that with the truth known" if above_truth else "")
            every, tail = (figures[name].slope(quantity, above_truth, last) for last in (0, 3))
            lines.append(
                f"slope of {kind} against {DESIGNS[name].axis}: {every:+.2f},"
                f" over the last three {tail:+.2f} (bound: {exponent:+.1f})"
            )
    if "labels" in figures:
        means = figures["labels"].curve("reward_error_over_rate")[0][:-1]
        lines.append(
            f"E(Q^pi; P*, r_hat) / (kappa sqrt(H / M)): {means.min():.2f} to {means.max():.2f}"
            " (bound: a constant times sqrt(log(|class| / delta)))"
        )
    if "iterations" in figures:
        means, errors = figures["iterations"].curve("suboptimality")
        lines.append(
            f"sub-optimality with the most data and iterations: {means[-1]:.4f} +- {errors[-1]:.4f}"
            " R (expected: below 0.05)"
        )
    for name in ("lam", "lam-lure", "families", "adapting"):
        if name in figures:
            lines += _against_others(figures[name])
    return lines + _checks(figures)


def _against_others(figure: Figure) -> Iterator[str]:
    """What pessimism gains, with the standard error of the paired difference."""
    differences = [figure.curve(f"above_{other}") for other in ("greedy", "reference")]
    for place, setting in enumerate(figure.settings):
        texts = [f"{means[place]:+.4f} +- {errors[place]:.4f}" for means, errors in differences]
        yield (
            f"{DESIGNS[figure.name].title}, {DESIGNS[figure.name].axis} = {setting}:"
            f" APPO loses {texts[0]} R more than greedy, {texts[1]} R more than mu"
        )


def _checks(figures: Mapping[str, Figure]) -> list[str]:
    """What must hold in every single run."""
    measured = [
        (figure.name, setting, found)
        for figure in figures.values()
        for setting, found in zip(figure.settings, figure.found, strict=True)
        if "c_tr" in found
    ]
    covered = [found for name, setting, found in measured if lam_is_covered(name, setting)]
    everywhere = [found for _, _, found in measured]
    checks = (
        (
            "(I) + (II) + (III) against the sub-optimality: off by at most {:.1e}",
            [found["decomposition_residual"] for found in everywhere],
        ),
        (
            "(II) - lambda E(Q^pi; P*, r_hat) - gap where lambda >= C_TR: at most {:.1e}"
            " (theory: not above 0)",
            [found["optimisation_excess"] for found in covered],
        ),
        (
            "regret / (R H sqrt(2 T log|A|)): at most {:.3f} (theory: not above 0.625; the printed"
            " bound would be 0.5)",
            [found["regret_over_bound"] for found in everywhere],
        ),
        (
            "|(III) - regret on Q-bar| - 2 sum_h sqrt(2 C_ST PE's squared error): at most {:.1e}"
            " (theory: not above 0)",
            [found["pe_excess"] for found in everywhere],
        ),
        (
            "C_ST / C_TR: at most {:.3f} (theory: not above 1)",
            [found["c_st_over_c_tr"] for found in everywhere],
        ),
    )
    return [text.format(np.max(np.concatenate(values))) for text, values in checks if values]


def lam_is_covered(name: str, setting: float | str) -> bool:
    """Whether lambda is at least C_TR at a figure's setting."""
    if name.startswith("lam") or name in ("families", "adapting"):
        factor = str(setting).split(": ")[-1]
        return factor != "adapting" and float(factor) >= 1
    return True


def table(figures: Mapping[str, Figure]) -> str:
    """Every figure's curves as numbers."""
    lines = []
    for name, figure in figures.items():
        quantities = DESIGNS[name].curves
        lines.append(
            "".join([f"{DESIGNS[name].axis:<22}", *(f"{shown(q):>20}" for q in quantities)])
        )
        curves = [figure.curve(quantity)[0] for quantity in quantities]
        for place, setting in enumerate(figure.settings):
            label = setting if isinstance(setting, str) else f"{setting:g}"
            lines.append(f"{label:<22}" + "".join(f"{curve[place]:>20.4f}" for curve in curves))
    return "\n".join(lines)


def draw(path: Path, figure: Figure, quantities: Sequence[str], title: str) -> None:
    """Means with bands of two standard errors.

    Dotted: the theorem's exponent, through the last point. Dashed: the truth known.
    """
    from matplotlib.figure import Figure as Canvas  # no pyplot: it would look for a display

    canvas = Canvas(figsize=(6.5, 4.5), layout="constrained")
    axes = canvas.add_subplot()
    settings, places = figure.finite()
    curves = {quantity: figure.curve(quantity) for quantity in quantities}
    powers = {quantity: exponent_of(figure.name, quantity) for quantity in quantities}
    logs = any(powers.values()) and all(np.all(means[places] > 0) for means, _ in curves.values())
    for quantity, (means, errors) in curves.items():
        if not places:
            axes.errorbar(
                figure.settings, means, 2 * errors, fmt="o", capsize=3, label=shown(quantity)
            )
            continue
        exponent = powers[quantity] if logs else None
        label = shown(quantity)
        if exponent is not None:
            label += f" (slope {figure.slope(quantity, False):+.2f}, bound {exponent:+.1f})"
        (line,) = axes.plot(settings, means[places], marker="o", markersize=3, label=label)
        low, high = (means + sign * 2 * errors for sign in (-1, 1))
        axes.fill_between(settings, low[places], high[places], alpha=0.2, color=line.get_color())
        if exponent is not None:
            predicted = means[places[-1]] * (settings / settings[-1]) ** exponent
            axes.plot(settings, predicted, ":", linewidth=1, color=line.get_color())
        if len(places) < len(means) and quantity == "suboptimality":
            axes.axhline(means[-1], linestyle="--", linewidth=1, color=line.get_color())
    if places:
        axes.set_xscale("log")
    else:
        axes.tick_params(axis="x", labelrotation=45)
    if logs:
        axes.set_yscale("log")
    axes.set(xlabel=DESIGNS[figure.name].axis, ylabel="mean over MDPs, with R = 1", title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    canvas.savefig(path, dpi=150)


def exponent_of(name: str, quantity: str) -> float | None:
    """The theorem's exponent of a quantity in a figure, if it has one."""
    for figure, other, exponent, above_truth in SLOPES:
        if (figure, other, above_truth) == (name, quantity, False):
            return exponent
    return None


def write(folder: Path, figures: Mapping[str, Figure], lines: Sequence[str]) -> None:
    """The table, the claims and the figures."""
    rows = [row for figure in figures.values() for row in figure.rows()]
    with (folder / "theory.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (folder / "claims.txt").write_text("\n".join(lines) + "\n")
    for name, figure in figures.items():
        design = DESIGNS[name]
        draw(folder / f"{name}.png", figure, design.curves, design.title)
        if "mle" in figure.found[0]:
            title = f"{design.title}: the three terms"
            draw(folder / f"decomposition-{name}.png", figure, DECOMPOSITION, title)
