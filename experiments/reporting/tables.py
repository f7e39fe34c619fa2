"""The tables of a report, as rows of text, and as Markdown, CSV and LaTeX."""

import csv
import dataclasses
import io
from collections.abc import Sequence

from appo_jax import registry, settings
from appo_jax.envs import meta_world
from experiments.reporting import cells, published, statistics
from experiments.reporting.cells import Block, Cell
from experiments.reporting.published import Published
from experiments.reporting.statistics import Estimate
from experiments.runs import reward_controls
from experiments.runs.experiment import Experiment, shown
from experiments.runs.results import RunResult

NOTHING = "-"
ABOUT_PUBLISHED = (
    f"The paper's numbers are those of Tables 1 and 2 of {published.PAPER}: means and standard "
    "deviations over five seeds, on Meta-World's v2; ours is v3. Within both spreads: the "
    "difference is at most the smaller of the two standard deviations."
)


@dataclasses.dataclass(frozen=True)
class Table:
    """header, rows: text. notes: what a reader has to know of it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A cell beside the paper's number. differs: in which settings, in words; empty for none."""

    block: Block
    variant: str
    cell: Cell
    paper: Published
    differs: str

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points of percent."""
        return None if self.cell.mean is None else self.cell.mean - self.paper.mean

    @property
    def is_within(self) -> bool | None:
        """Whether each mean lies within the other's deviation; None where ours has none."""
        if self.difference is None or self.cell.std is None:
            return None
        return abs(self.difference) <= min(self.cell.std, self.paper.std)


def task_name(env_name: str) -> str:
    """As the paper writes it."""
    return env_name.removesuffix("-v3")


def score(cell: Cell | None, sign: str = "±") -> str:
    """`53.5 ± 13.9`, and how many seeds, where not all have their result."""
    if cell is None:
        return NOTHING
    text = NOTHING if cell.mean is None else f"{cell.mean:.1f}"
    if cell.std is not None:
        text += f" {sign} {cell.std:.1f}"
    if not cell.is_complete:
        text += f" ({len(cell.finished)} of {len(cell.seeds)} seeds)"
    return text


def result_table(block: Block) -> Table:
    """One block: mean and standard deviation over seeds, and the average rank."""
    rows = [
        (task_name(task), *(score(block.cells.get((task, one))) for one in block.variants))
        for task in block.tasks
    ]
    runs = [run for cell in block.cells.values() for run in cell.runs.values()]
    seeds = max(len(cell.seeds) for cell in block.cells.values())
    notes = [
        f"{block.unit}: {cells.averaged(runs)}; mean "
        f"{'± standard deviation (n - 1) ' * (seeds > 1)}over {seeds} seed{'s' * (seeds > 1)}."
    ]
    free = [one for one in block.variants if not block.reads_labels(one)]
    if free:
        notes.append(f"{', '.join(free)}: reads no labels, so that its number of labels is moot.")
    ranks, tasks = ranks_of([block])
    if ranks:
        of = (
            "" if len(tasks) == len(block.tasks) else f" ({len(tasks)} of {len(block.tasks)} tasks)"
        )
        shown_ranks = [f"{ranks[one]:.3f}" if one in ranks else NOTHING for one in block.variants]
        rows.append((f"average rank{of}", *shown_ranks))
    incomplete = [cell for cell in block.cells.values() if not cell.is_complete]
    if incomplete or len(block.cells) < len(block.tasks) * len(block.variants):
        notes.append(
            "Incomplete: means over fewer seeds say so; runs.csv and the page list what is missing."
        )
    return Table(block.title, ("task", *block.variants), tuple(rows), tuple(notes))


def ranks_of(blocks: Sequence[Block]) -> tuple[dict[str, float], list[tuple[int, str]]]:
    """Average ranks of the variants that compete (`Block.ranks`), and the rows they are of.

    Only rows in which all of them are complete count. Nothing for fewer than two variants.
    """
    kept = [b.comparable([one for one in b.variants if b.ranks(one)]) for b in blocks]
    names = [one for one in kept[0][0] if all(one in own for own, _ in kept)]
    rows = [(b, task) for b, (_, tasks) in zip(blocks, kept, strict=True) for task in tasks]
    if len(names) < 2 or not rows:
        return {}, []
    means = [{one: b.cells[task, one].mean or 0.0 for one in names} for b, task in rows]
    return statistics.average_ranks(means), [(b.num_feedback, task) for b, task in rows]


def rank_table(blocks: Sequence[Block]) -> Table | None:
    """Average ranks over all numbers of labels of one kind of data, as the paper's last row."""
    ranks, rows = ranks_of(blocks)
    if not ranks or len(blocks) < 2:
        return None
    of = sum(len(block.tasks) for block in blocks)
    notes = f"Over {len(rows)} of {of} rows of the tables above; 1 is best, ties share their mean."
    numbers = tuple(f"{rank:.3f}" for rank in ranks.values())
    title = f"{blocks[0].data}, average rank over all numbers of labels"
    return Table(title, ("", *ranks), (("average rank", *numbers),), (notes,))


def compare(blocks: Sequence[Block]) -> list[Comparison]:
    """Our cells of which the paper has a number."""
    found = []
    for block in blocks:
        for (task, variant), cell in block.cells.items():
            run = next(iter(cell.runs.values()))
            paper = published.find(block.recipe, task, block.num_feedback, run.algorithm)
            known = run.algorithm in registry.ALGORITHMS
            if paper is not None and known and _is_own_reward(run):
                found.append(Comparison(block, variant, cell, paper, _differs(run)))
    return found


def _is_own_reward(run: RunResult) -> bool:
    return bool(run.settings["reward"] == reward_controls.own_kind(run.algorithm))


def _differs(run: RunResult) -> str:
    """What isn't the paper's: settings, labels, and the size of the data."""
    algorithm = registry.algorithm(run.algorithm)
    learner = algorithm.policy_learner
    classes = [("", Experiment), ("", learner.Swept), ("", learner.Config)]
    if algorithm.reward_learner is not None:
        classes.append(("reward_", algorithm.reward_learner.Config))
    found = {}
    for prefix, cls in classes:
        for field in settings.fields(cls):
            name = prefix + field.name
            default = meta_world.TIE_THRESHOLD if name == "tie_threshold" else field.default
            value = run.settings.get(name, default)
            if name in ("seed", "num_feedback", "reward") or field.setting.of_run:
                continue
            if value != default:
                found[name] = f"{name} {shown(value)}, not {shown(default)}"
    if run.settings.get("preferences_digest") is not None:
        found["preferences"] = "labels of a file, not the scripted teacher's"
    share = cells.share_of_paper(run)
    if share is not None and round(share, 4) != 1:
        found["data"] = f"{share:.3g} of the paper's data"
    return "; ".join(found.values())


def comparison_tables(found: Sequence[Comparison]) -> list[Table]:
    """Ours and the paper's, side by side, a table for each block."""
    words = {True: "yes", False: "no", None: NOTHING}
    tables = []
    for title in dict.fromkeys(one.block.title for one in found):
        own = [one for one in found if one.block.title == title]
        header = (
            *("task", "algorithm", "ours (%)", "paper (%)", "ours - paper"),
            "within both spreads",
        )
        rows = tuple(
            (
                task_name(one.paper.env_name),
                one.variant,
                score(one.cell),
                f"{one.paper.mean:.1f} ± {one.paper.std:.1f}",
                NOTHING if one.difference is None else f"{one.difference:+.1f}",
                words[one.is_within],
            )
            for one in own
        )
        copied = sorted({one.paper.algorithm for one in own if "copied" in one.paper.source})
        notes = _differences(own)
        if copied:
            notes.append(f"The paper copied its numbers of {', '.join(copied)} from LiRE.")
        tables.append(Table(f"{title}, beside the paper", header, rows, tuple(notes)))
    return tables


def _differences(found: Sequence[Comparison]) -> list[str]:
    """A sentence for each variant, or, where its tasks differ, for each kind of them."""
    notes = []
    for variant in dict.fromkeys(one.variant for one in found):
        tasks: dict[str, list[str]] = {}
        for one in found:
            if one.variant == variant:
                tasks.setdefault(one.differs, []).append(task_name(one.paper.env_name))
        for text, names in tasks.items():
            which = f"{variant} on {', '.join(names)}" if len(tasks) > 1 else variant
            found_there = f"our runs have {text}" if text else "the paper's settings"
            notes.append(f"{which}: {found_there}.")
    return notes


def estimate(found: Estimate, digits: int = 1) -> str:
    """`53.5 [40.1, 66.0]`."""
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def results_csv(blocks: Sequence[Block]) -> str:
    """A row for each cell."""
    header = [
        *("data", "num_feedback", "task", "algorithm", "variant", "unit", "mean", "std"),
        *("seeds_finished", "seeds_expected", "seeds_missing"),
    ]
    rows = [
        [
            *(block.data, block.num_feedback, task, block.algorithm(variant), variant, block.unit),
            *(_number(cell.mean), _number(cell.std), len(cell.finished), len(cell.seeds)),
            " ".join(map(str, sorted(set(cell.seeds) - {run.seed for run in cell.finished}))),
        ]
        for block in blocks
        for (task, variant), cell in block.cells.items()
    ]
    return _csv([header, *rows])


def comparison_csv(found: Sequence[Comparison]) -> str:
    """A row for each comparison."""
    header = [
        *("data", "num_feedback", "task", "variant", "ours_mean", "ours_std", "ours_seeds"),
        *("ours_seeds_expected", "paper_mean", "paper_std", "ours_minus_paper"),
        *("within_both_spreads", "our_runs_differ_in", "paper_source"),
    ]
    rows = [
        [
            *(one.block.data, one.paper.num_feedback, one.paper.env_name, one.variant),
            *(_number(one.cell.mean), _number(one.cell.std), len(one.cell.finished)),
            *(len(one.cell.seeds), one.paper.mean, one.paper.std, _number(one.difference)),
            *({True: "yes", False: "no", None: ""}[one.is_within], one.differs, one.paper.source),
        ]
        for one in found
    ]
    return _csv([header, *rows])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown(tables: Sequence[Table]) -> str:
    """All tables, one after another."""
    parts = []
    for table in tables:
        lines = [table.header, ("---",) * len(table.header), *table.rows]
        escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        body = "\n".join(f"| {' | '.join(line)} |" for line in escaped)
        parts.append("\n\n".join([f"## {table.title}", body, *table.notes]))
    return "\n\n".join(parts) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    **{one: f"\\{one}" for one in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
}


def latex(tables: Sequence[Table]) -> str:
    """All tables, for a document with the package booktabs."""
    parts = [r"% needs \usepackage{booktabs}"]
    for table in tables:
        lines = [" & ".join(map(_escaped, line)) + r" \\" for line in (table.header, *table.rows)]
        parts.append(
            "\n".join(
                [
                    r"\begin{table}",
                    r"\centering",
                    rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
                    r"\toprule",
                    lines[0],
                    r"\midrule",
                    *lines[1:],
                    r"\bottomrule",
                    r"\end{tabular}",
                    rf"\caption{{{_escaped(' '.join([table.title + '.', *table.notes]))}}}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
