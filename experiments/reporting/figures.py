"""The figures of a report: drawn once, kept as PNG and PDF, and as SVG for the page."""

import dataclasses
import functools
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.reporting import cells
from experiments.reporting.cells import Block
from experiments.reporting.comparisons import THRESHOLDS, Statistics
from experiments.reporting.statistics import Estimate
from experiments.reporting.tables import task_name
from experiments.runs import curves
from experiments.runs.results import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that stay apart for the colour-blind, in light and in dark; lines and markers differ too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#882255", "#8a6d00", "#6b6b6b")
DARK_COLOURS = ("#5cb3e8", "#ff8a4c", "#3fc79a", "#e28acb", "#e0b23f", "#c9c9c9")
_LINES, _MARKERS = ("-", "--", ":"), "os^Dvx"
_INK = "#010203"  # replaced by the page's own colour of text
_WIDTH, _HEIGHT = 4.5, 3.3  # inches, at ten points: legible on a phone
_STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 10,
    "legend.fontsize": 9,
    "svg.fonttype": "path",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), _INK),
    "axes.facecolor": "none",
}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure with the name of its files, and a sentence on how to read it."""

    name: str
    title: str
    caption: str
    figure: "Figure"

    def save(self, folder: Path) -> None:
        """Write PNG and PDF."""
        folder.mkdir(parents=True, exist_ok=True)
        # Tight: a label longer than its axis isn't cut off.
        save = functools.partial(self.figure.savefig, facecolor="white", bbox_inches="tight")
        save(folder / f"{self.name}.png", dpi=150)
        save(folder / f"{self.name}.pdf", metadata={"CreationDate": None})

    def svg(self) -> str:
        """For a page: colours are the page's own, and no two figures share an id."""
        import matplotlib

        text = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": self.name}):
            self.figure.savefig(
                text,
                format="svg",
                transparent=True,
                bbox_inches="tight",
                metadata={"Date": None, "Creator": None},
            )
        found = text.getvalue()
        found = found[found.index("<svg") :].replace(_INK, "currentColor")
        for number, colour in enumerate(COLOURS):
            found = found.replace(colour, f"var(--series-{number})")
        found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.DOTALL)
        # Ids count from 1 in every figure; a page holds many.
        found = re.sub(r'\bid="([^"]+)"', rf'id="{self.name}-\1"', found)
        found = re.sub(r'href="#([^"]+)"', rf'href="#{self.name}-\1"', found)
        found = re.sub(r"url\(#([^)]+)\)", rf"url(#{self.name}-\1)", found)
        return re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', self._opening, found, count=1)

    def _opening(self, match: re.Match[str]) -> str:
        title = self.title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
        return (
            f'<svg viewBox="{match.group(1)}" role="img" aria-label="{title}" '
            'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        )


def file_name(*parts: object) -> str:
    """Words made into the name of a file."""
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(map(str, parts)).lower()).strip("-.")


def _axes(title: str, height: float = _HEIGHT) -> "tuple[Figure, Axes]":
    import matplotlib
    from matplotlib.figure import Figure  # no pyplot: it would look for a display

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _look(number: int) -> dict[str, Any]:
    """Colour, line and marker of the series of that number."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": _LINES[number // len(COLOURS) % len(_LINES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 4,
    }


def _legend(figure: "Figure", axes: "Axes") -> None:
    """Below the axes, where it covers no data."""
    import matplotlib

    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = max(1, min(3, 62 // (longest + 8), len(labels)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    with matplotlib.rc_context(_STYLE):
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def learning_curves(blocks: Sequence[Block]) -> list[Drawing]:
    """Of each task in each table: a line for each variant, over seeds the mean and the range."""
    found = []
    for block in blocks:
        for task in block.tasks:
            groups = {
                variant: [run for run in cell.runs.values() if run.evaluations]
                for variant in block.variants
                if (cell := block.cells.get((task, variant)))
            }
            if any(groups.values()):
                found.append(_learning_curve(block, task, groups))
    return found


def _learning_curve(block: Block, task: str, groups: dict[str, list[RunResult]]) -> Drawing:
    figure, axes = _axes(f"{task_name(task)}\n{block.title}")
    counts = {len(runs) for runs in groups.values() if runs}
    for variant, runs in groups.items():
        if not runs:
            continue
        look = _look(block.variants.index(variant))
        updates, scores = curves.scores_of(runs, block.knows_success)
        label = (
            variant if len(counts) == 1 else f"{variant} ({len(runs)} seed{'s' * (len(runs) > 1)})"
        )
        every = max(1, len(updates) // 12)
        axes.plot(updates, scores.mean(axis=0), label=label, markevery=every, **look)
        low, high = scores.min(axis=0), scores.max(axis=0)
        axes.fill_between(updates, low, high, alpha=0.15, linewidth=0, color=look["color"])
    axes.set(xlabel="updates", ylabel=block.unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    _limit(axes, block.knows_success)
    _legend(figure, axes)
    seeds = max(counts)
    return Drawing(
        file_name("curve", task_name(task), block.data, block.num_feedback),
        f"{task_name(task)}, {block.title}",
        f"Mean of {'up to ' * (len(counts) > 1)}{seeds} seeds; band: from least to greatest."
        if seeds > 1
        else "One seed.",
        figure,
    )


def _limit(axes: "Axes", knows_success: bool) -> None:
    if knows_success:
        axes.set_ylim(-3, 103)


@dataclasses.dataclass(frozen=True)
class Dependence:
    """A setting on whose values results are shown.

    of: its value in a run. settings: the names that vary with it. by_data: whether it is the data
    set's size.
    """

    name: str
    label: str
    of: Callable[[RunResult], float | None]
    settings: tuple[str, ...]
    by_data: bool = False


DEPENDENCES = (
    Dependence("lambda", "lambda", lambda run: run.settings.get("lam"), ("lam",)),
    Dependence(
        "labels",
        "labels (pairs of segments)",
        lambda run: run.settings["num_feedback"] if cells.reads_labels(run) else None,
        ("num_feedback",),
    ),
    Dependence(
        "data-size", "transitions in the data set", lambda run: run.num_transitions, (), True
    ),
)


def dependences(runs: Sequence[RunResult]) -> list[Drawing]:
    """Final results against lambda, the number of labels, and the size of the data set.

    A figure for each task of which runs differ in nothing but that; runs that aren't finished are
    left out, and a point of fewer seeds than others has a ring.
    """
    found = []
    for axis in DEPENDENCES:
        series = _series(runs, axis)
        for env_name in dict.fromkeys(env for env, _ in series):
            own = {name: points for (env, name), points in series.items() if env == env_name}
            found.append(_dependence(axis, env_name, own, runs))
    return found


_Points = dict[float, list[float]]


def _series(runs: Sequence[RunResult], axis: Dependence) -> dict[tuple[str, str], _Points]:
    """By environment and name: scores at each value, of what has at least two values."""
    variant_of = cells.variant_names(runs, without=axis.settings)
    data_of = cells.data_names(runs, of_any_size=axis.by_data)
    several_data = len({data_of(run) for run in runs}) > 1
    counts = {run.settings["num_feedback"] for run in runs}
    found: dict[tuple[str, str], _Points] = {}
    for run in runs:
        value = axis.of(run)
        if value is None or run.state != "finished" or run.score is None:
            continue
        parts = [variant_of(run)]
        if several_data:
            parts.append(data_of(run))
        if len(counts) > 1 and "num_feedback" not in axis.settings and cells.reads_labels(run):
            parts.append(f"{run.settings['num_feedback']} labels")
        points = found.setdefault((run.env_name, ", ".join(parts)), {})
        points.setdefault(float(value), []).append(run.score)
    return {key: points for key, points in found.items() if len(points) > 1}


def _dependence(
    axis: Dependence, env_name: str, series: dict[str, _Points], runs: Sequence[RunResult]
) -> Drawing:
    figure, axes = _axes(task_name(env_name))
    most = max(len(scores) for points in series.values() for scores in points.values())
    for number, (name, points) in enumerate(series.items()):
        values = sorted(points)
        means = [float(np.mean(points[value])) for value in values]
        spreads = [
            float(np.std(points[value], ddof=1)) if len(points[value]) > 1 else 0.0
            for value in values
        ]
        look = _look(number)
        axes.errorbar(values, means, yerr=spreads, label=name, capsize=3, **look)
        fewer = [v for v in values if len(points[v]) < most]
        axes.plot(
            fewer,
            [float(np.mean(points[v])) for v in fewer],
            **{**look, "linestyle": "none", "markersize": 9, "markerfacecolor": "none"},
        )
    values = sorted({value for points in series.values() for value in points})
    knows_success = any(run.success_rate is not None for run in runs if run.env_name == env_name)
    axes.set(xlabel=axis.label, ylabel="success rate (%)" if knows_success else "return")
    if 0 in values:  # as lambda may be: a place of its own, a decade to the left of the least
        axes.set_xscale("symlog", linthresh=min(abs(value) for value in values if value))
    else:
        axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:,g}" if value < 1 else f"{value:,.0f}" for value in values])
    axes.minorticks_off()
    if axis.by_data:
        axes.tick_params(axis="x", rotation=20)
    _limit(axes, knows_success)
    _legend(figure, axes)
    return Drawing(
        file_name(axis.name, task_name(env_name)),
        f"{task_name(env_name)}: {axis.label}",
        "Mean over seeds, and standard deviation."
        + " Ringed: fewer seeds than elsewhere."
        * any(len(s) < most for points in series.values() for s in points.values()),
        figure,
    )


def ranks(title: str, found: dict[str, float], num_rows: int) -> Drawing:
    """Average ranks."""
    figure, axes = _axes(title, 1.0 + 0.4 * len(found))
    names = sorted(found, key=lambda name: found[name], reverse=True)
    for place, name in enumerate(names):
        number = list(found).index(name)
        axes.plot([1, found[name]], [place, place], color=_look(number)["color"], linewidth=2)
        axes.plot([found[name]], [place], **{**_look(number), "markersize": 8})
        axes.annotate(
            *(f"{found[name]:.2f}", (found[name], place)),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=_INK,
        )
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="average rank (1 is best)", xlim=(0.9, len(found) + 0.5))
    axes.margins(y=0.2)
    return Drawing(
        file_name("ranks", title),
        f"Average rank, {title}",
        f"Over {num_rows} row{'s' * (num_rows > 1)} of the tables; those on true or wrong "
        "rewards don't compete.",
        figure,
    )


def statistics(found: Statistics) -> list[Drawing]:
    """Interquartile means, performance profiles, and the probability of improvement."""
    block = found.block
    order = list(found.means)
    drawings = [
        Drawing(
            file_name("interquartile-mean", block.title),
            f"Interquartile mean, {block.title}",
            "Middle half of all runs of all tasks, with 95 % intervals.",
            _intervals(f"interquartile mean, {block.unit}", found.means, order),
        )
    ]
    if found.improvements:
        figure = _intervals(f"P({found.subject} > it)", found.improvements, order)
        figure.axes[0].axvline(0.5, color=_INK, linewidth=1, linestyle=":")
        figure.axes[0].set_xlim(-0.03, 1.03)
        drawings.append(
            Drawing(
                file_name("improvement", block.title),
                f"Probability of improvement of {found.subject}, {block.title}",
                f"How likely {found.subject} scores above the other on a random task; right of the "
                "dotted line it is ahead.",
                figure,
            )
        )
    if found.profiles:
        figure, axes = _axes(block.title)
        for name, profile in found.profiles.items():
            look = {**_look(order.index(name)), "marker": None}
            values, low, high = np.array(profile).T
            axes.step(THRESHOLDS, values, where="post", label=name, **look)
            axes.fill_between(
                *(THRESHOLDS, low, high), step="post", alpha=0.12, linewidth=0, color=look["color"]
            )
        axes.set(xlabel="success rate (%)", ylabel="share of runs above it", ylim=(-0.03, 1.03))
        _legend(figure, axes)
        drawings.append(
            Drawing(
                file_name("profile", block.title),
                f"Performance profile, {block.title}",
                "The share of runs, averaged over tasks, that score above each rate.",
                figure,
            )
        )
    return drawings


def _intervals(label: str, found: Any, order: Sequence[str]) -> "Figure":
    figure, axes = _axes("", 1.0 + 0.4 * len(found))
    for place, (name, one) in enumerate(reversed(found.items())):
        look = _look(order.index(name))
        estimate: Estimate = one
        axes.plot([estimate.low, estimate.high], [place, place], color=look["color"], linewidth=2)
        axes.plot([estimate.value], [place], **{**look, "markersize": 8})
    axes.set_yticks(range(len(found)), list(reversed(found)))
    axes.set_xlabel(label)
    axes.margins(y=0.2)
    return figure
