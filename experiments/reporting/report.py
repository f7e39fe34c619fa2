"""A report from run folders: tables, figures, and the page, built from what is there now."""

import csv
import dataclasses
import datetime
import io
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from appo_jax.data import atomic
from appo_jax.types import InputError
from experiments.reporting import cells, comparisons, figures, page, tables, videos
from experiments.reporting.cells import Block
from experiments.reporting.figures import Drawing
from experiments.reporting.page import Section, Warned
from experiments.runs import files, results
from experiments.runs.experiment import shown
from experiments.runs.results import RunResult
from experiments.sweeps.plan import JOBS, PLAN_FILE

PAGE = "index.html"


@dataclasses.dataclass
class _Found:
    """What lies in some folders. failed: why runs, by digest, failed. problems: of folders."""

    runs: list[RunResult] = dataclasses.field(default_factory=list)
    titles: list[str] = dataclasses.field(default_factory=list)
    about: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    doubles: list[str] = dataclasses.field(default_factory=list)


def build(
    places: Sequence[Path], output: Path, only: Collection[tuple[str, int]] | None = None
) -> Path:
    """Write the report of all runs in and below `places`, and return the page's path.

    only: of the runs, by digest and number of updates, those to show. Raises InputError for a place
    that isn't there, and where no run can be read, not even one that is to come.
    """
    found = _look(places, only)
    blocks = cells.arrange(found.runs)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output={output}: can't be made ({error.strerror})") from error
    sections = _sections(found, blocks)
    for drawing in (one for section in sections for one in section.drawings):
        drawing.save(output / "figures")
    all_tables = [table for section in sections for table in section.tables]
    compared = tables.compare(blocks)
    html = page.render(
        title=" and ".join(dict.fromkeys(found.titles)) or "Results",
        about=list(dict.fromkeys(found.about)),
        counts=_counts(found.runs),
        built=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        warnings=_warnings(found, blocks),
        sections=sections,
    )
    for name, text in {
        "tables.md": tables.markdown(all_tables),
        "tables.tex": tables.latex(all_tables),
        "results.csv": tables.results_csv(blocks),
        "published.csv": tables.comparison_csv(compared),
        "runs.csv": _runs_csv(found),
        PAGE: html,
    }.items():
        with atomic.replacing(output / name) as partial:
            partial.write_text(text)
    return output / PAGE


def _look(places: Sequence[Path], only: Collection[tuple[str, int]] | None) -> _Found:
    found = _Found()
    for place in places:
        if not place.is_dir():
            raise InputError(f"--runs={place}: no folder, expected one that holds runs")
    runs, unreadable = results.read_all(places)
    holding = {Path(one.folder) for one in runs} | {Path(one.folder) for one in unreadable}
    found.problems += [one.problem for one in unreadable]
    for place in places:
        for file in sorted(place.rglob(PLAN_FILE)):
            runs += _planned(file, found)
    if only is not None:
        runs = [run for run in runs if (run.digest, run.num_updates) in only]
    if not runs:
        why = f" ({found.problems[0]})" if found.problems else ""
        raise InputError(
            f"--runs={','.join(map(str, places))}: no run can be read{why}, expected folders of "
            "runs"
        )
    for place in places:
        found.problems += [f"{folder}: holds no run" for folder in _empty(place, holding)]
    found.runs, found.doubles = cells.without_doubles(runs)
    return found


def _planned(file: Path, found: _Found) -> list[RunResult]:
    """The runs that a sweep is to make, as rows that are not begun."""
    try:
        content: Any = files.read_json(file)
        planned = [
            results.not_begun(file.parent, run["resolved"], run["digest"])
            for run in content["runs"]
        ]
        found.failed |= {str(run): str(why) for run, why in content["failed"].items()}
        found.titles.append(str(content["experiment"]))
        found.about.append(str(content["about"]))
    except (InputError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        problem = str(error) if isinstance(error, InputError) else f"{type(error).__name__} {error}"
        found.problems.append(f"{file}: not the plan of a sweep ({problem})")
        return []
    return planned


def _empty(place: Path, holding: Collection[Path]) -> list[Path]:
    """The folders directly in a place with no run in, below or above them."""
    inside = [path for path in sorted(place.iterdir()) if path.is_dir()]
    if place in holding or not inside:
        return [] if place in holding else [place]
    return [
        path
        for path in inside
        if not path.name.startswith(".")
        and not (path.name == JOBS and (place / PLAN_FILE).exists())
        and not (path / PAGE).exists()
        and not any(path == one or path in one.parents for one in holding)
    ]


def _counts(runs: Sequence[RunResult]) -> str:
    states = {"finished": 0, "under way": 0, "not begun": 0, "diverged": 0}
    for run in runs:
        states[_state(run)] += 1
    told = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    return f"{len(runs)} run{'s' * (len(runs) != 1)}: {told}."


def _state(run: RunResult) -> str:
    if run.state != "unfinished":
        return run.state
    return "under way" if run.updates_done else "not begun"


def _warnings(found: _Found, blocks: Sequence[Block]) -> list[Warned]:
    missing = [
        f"{cells.name(run)}{_variant(run, found)}: {_state(run)}"
        + (f", {run.updates_done:,} of {run.num_updates:,} updates" if run.updates_done else "")
        + (f"; failed: {found.failed[run.digest]}" if run.digest in found.failed else "")
        for run in found.runs
        if run.state == "unfinished"
    ]
    diverged = [
        f"{cells.name(run)}: stopped at update {run.stopped_at:,} for numbers that aren't finite "
        f"({run.folder})"
        for run in found.runs
        if run.state == "diverged"
    ]
    unlike = [
        f"{block.title}: {variant} on {tables.task_name(task)}, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        for block in blocks
        for (task, variant), cell in block.cells.items()
        if (seeds := [seed for seed in cell.seeds if seed not in cell.runs])
    ] + [
        f"{block.title}: {variant} on {tables.task_name(task)}, no run"
        for block in blocks
        for task in block.tasks
        for variant in block.variants
        if (task, variant) not in block.cells
    ]
    without = [
        cells.name(run) for run in found.runs if run.state == "finished" and run.score is None
    ]
    return [
        Warned(f"{len(missing)} runs are missing: not finished yet", missing),
        Warned(f"{len(diverged)} runs diverged and have no result", diverged),
        Warned(f"{len(without)} runs are finished but have no result", without),
        Warned(f"{len(unlike)} cells have fewer runs than others of their table", unlike),
        Warned(f"{len(found.problems)} folders or files can't be read as runs", found.problems),
        Warned(f"{len(found.doubles)} runs are there twice", found.doubles),
    ]


def _variant(run: RunResult, found: _Found) -> str:
    name = cells.variant_names(found.runs)(run)
    return name.removeprefix(run.algorithm)


def _sections(found: _Found, blocks: Sequence[Block]) -> list[Section]:
    by_data: dict[tuple[str, bool], list[Block]] = {}
    for block in blocks:
        by_data.setdefault((block.data, block.knows_success), []).append(block)
    over_all = [table for own in by_data.values() if (table := tables.rank_table(own))]
    rank_drawings = []
    for (data, _), own in by_data.items():
        ranks, rows = tables.ranks_of(own)
        if ranks:
            rank_drawings.append(figures.ranks(data, ranks, len(rows)))
    compared = tables.compare(blocks)
    known = [one for block in blocks if (one := comparisons.of_block(block))]
    shown_videos, too_large = videos.of_runs(found.runs)
    sections = [
        Section("Results", [*map(tables.result_table, blocks), *over_all]),
        Section(
            "Published numbers",
            tables.comparison_tables(compared),
            notes=[tables.ABOUT_PUBLISHED] * bool(compared),
        ),
        Section(
            "Over tasks and seeds",
            [one.table() for one in known],
            [*rank_drawings, *(drawing for one in known for drawing in figures.statistics(one))],
            notes=[comparisons.ABOUT_LEFT_OUT] * (len(known) < len(blocks)),
        ),
        Section("What results depend on", drawings=figures.dependences(found.runs)),
        Section("Learning curves", drawings=figures.learning_curves(blocks)),
        Section("Videos", videos=shown_videos, notes=too_large),
        Section("Settings", [_settings_table(found.runs)]),
    ]
    return _apart(sections)


def _apart(sections: Sequence[Section]) -> list[Section]:
    """The same with a name of its own for each drawing."""
    taken: dict[str, int] = {}
    kept = []
    for section in sections:
        drawings: list[Drawing] = []
        for one in section.drawings:
            number = taken[one.name] = taken.get(one.name, 0) + 1
            name = one.name if number == 1 else f"{one.name}-{number}"
            drawings.append(dataclasses.replace(one, name=name))
        kept.append(dataclasses.replace(section, drawings=drawings))
    return kept


def _settings_table(runs: Sequence[RunResult]) -> tables.Table:
    """Every setting of each algorithm, all its values."""
    algorithms = list(dict.fromkeys(run.algorithm for run in runs))
    names = [
        name
        for name in dict.fromkeys(name for run in runs for name in run.settings)
        if name not in ("algorithm", "env_name", "dataset")
    ]

    def values(name: str, algorithm: str) -> str:
        own = (r.settings[name] for r in runs if r.algorithm == algorithm and name in r.settings)
        return ", ".join(dict.fromkeys(map(shown, own))) or tables.NOTHING

    rows = tuple((name, *(values(name, one) for one in algorithms)) for name in names)
    return tables.Table("Every setting", ("setting", *algorithms), rows)


def _runs_csv(found: _Found) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("algorithm", "env_name", "dataset", "num_feedback", "seed", "state", "score"),
            *("success_rate", "return", "evaluations_averaged", "updates_done", "num_updates"),
            *("reward_accuracy", "wall_seconds", "failed", "folder", "settings"),
        ]
    )
    for run in found.runs:
        writer.writerow(
            [
                *(run.algorithm, run.env_name, run.dataset, run.settings["num_feedback"]),
                *(run.seed, _state(run), _empty_none(run.score), _empty_none(run.success_rate)),
                *(_empty_none(run.total_return), run.num_evaluations_averaged, run.updates_done),
                *(run.num_updates, _empty_none(run.reward_accuracy)),
                *(_empty_none(run.wall_seconds), found.failed.get(run.digest, ""), run.folder),
                json.dumps(dict(run.settings), sort_keys=True),
            ]
        )
    return text.getvalue()


def _empty_none(value: float | None) -> object:
    return "" if value is None else value
