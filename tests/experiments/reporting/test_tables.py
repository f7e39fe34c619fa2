"""Tables: ranks, comparisons, and their three forms."""

import csv
import dataclasses
import io
from pathlib import Path

import pytest

from experiments.reporting import cells, comparisons, published, tables
from experiments.runs import results
from experiments.runs.results import RunResult
from experiments.sweeps.definition import Narrowing
from tests.helpers import sweeps


@pytest.fixture(scope="module")
def printed() -> list[RunResult]:
    """Runs whose scores are the paper's means, a seed each."""
    like = sweeps.wanted("panel", Narrowing(num_seeds=1))[0].run
    row = results.not_begun(Path(), like.resolved(), "")
    found = [
        dataclasses.replace(
            row,
            state="finished",
            algorithm=one.algorithm,
            env_name=one.env_name,
            dataset=f"lire/{one.env_name}/n1",
            recipe=one.recipe,
            settings={
                **row.settings,
                "algorithm": one.algorithm,
                "env_name": one.env_name,
                "num_feedback": one.num_feedback,
                "reward": "true" if one.algorithm == "oracle" else "learned",
            },
            success_rate=one.mean,
            num_evaluations_averaged=5,
        )
        for one in published.load()
        if one.table == 1
    ]
    return cells.without_doubles(found)[0]


def test_published_numbers_give_the_paper_s_ranks(printed: list[RunResult]) -> None:
    blocks = cells.arrange(printed)
    ranks, rows = tables.ranks_of(blocks)
    assert len(rows) == 16
    # The paper prints 2.316 for MR; the others are as printed.
    assert ranks == {"appo": 2.125, "mr": 2.3125, "dppo": 4.375, "ipl": 3.0625, "pt": 3.125}
    assert [block.title for block in blocks] == [
        "medium-replay, 500 labels",
        "medium-replay, 1,000 labels",
    ]
    assert blocks[0].tasks == blocks[1].tasks
    assert blocks[0].tasks[0] == "button-press-topdown-v3"


def test_published_file_has_a_source_for_each_number() -> None:
    found = published.load()
    assert (len(found), {one.table for one in found}) == (104, {1, 2})
    assert {one.source for one in found} == {"paper", "paper, copied from LiRE"}
    one = published.find("medium-replay", "sweep-v3", 500, "mr")
    assert one is not None
    assert (one.mean, one.std) == (86.96, 6.93)
    assert published.find("medium-expert", "sweep-v3", 500, "mr") is None


def arranged(tmp_path: Path, score: sweeps.Score, **flags: object) -> list[cells.Block]:
    common = {"dataset": "medium-replay", "task": "dial-turn", "num_feedback": 500}
    wanted = sweeps.of_flags(**common | flags)
    sweeps.write(wanted, tmp_path, score)
    return cells.arrange(results.read_all([tmp_path])[0])


def test_beside_the_published_numbers(tmp_path: Path) -> None:
    scores = [76.0, 81.0, 83.0]  # 80.0 +- 3.606; the paper's: 80.96 +- 4.49
    blocks = arranged(tmp_path, lambda run: scores[run.seed], algorithm="appo", num_seeds=3)
    (one,) = tables.compare(blocks)
    assert one.difference == pytest.approx(-0.96)
    assert (one.is_within, one.differs) == (True, "")
    (table,) = tables.comparison_tables([one])
    assert table.header[2:4] == ("ours (%)", "paper (%)")
    assert table.rows == (("dial-turn", "appo", "80.0 ± 3.6", "81.0 ± 4.5", "-1.0", "yes"),)
    (row,) = csv.DictReader(io.StringIO(tables.comparison_csv([one])))
    assert (row["ours_mean"], row["paper_mean"]) == ("80.0000", "80.96")


def test_two_seeds_of_one_task_carry_no_interval(tmp_path: Path) -> None:
    def compared(name: str, **flags: object) -> comparisons.Statistics | None:
        place, algorithms = tmp_path / name, ["appo", "mr"]
        (block,) = arranged(place, lambda run: 40.0 + run.seed, algorithm=algorithms, **flags)
        return comparisons.of_block(block)

    assert compared("two", num_seeds=2) is None
    three = compared("three", num_seeds=3)
    assert three is not None
    assert len(three.notes) == 1
    of_two_tasks = compared("tasks", num_seeds=2, task=["dial-turn", "sweep"])
    assert of_two_tasks is not None
    assert of_two_tasks.notes[-1] == "Intervals over so few seeds are too narrow to rely on."


def test_within_both_spreads_means_the_smaller(tmp_path: Path) -> None:
    scores = [82.9, 83.0, 83.1]  # within the paper's deviation, not within our own
    blocks = arranged(tmp_path, lambda run: scores[run.seed], algorithm="appo", num_seeds=3)
    assert [one.is_within for one in tables.compare(blocks)] == [False]


def test_what_differs_from_the_paper_s_runs_is_said(tmp_path: Path) -> None:
    blocks = arranged(
        tmp_path,
        lambda _: 50.0,
        algorithm="appo",
        num_updates=30_000,
        lam=0.1,
        dataset_size=90_000,
        hidden_dim=64,
    )
    (one,) = tables.compare(blocks)
    assert one.is_within is None  # of one seed
    assert one.differs == (
        "num_updates 30000, not 250000; lam 0.1, not 0.03; hidden_dim 64, not 256; "
        "0.1 of the paper's data"
    )


def test_other_labels_than_the_paper_s_are_said(tmp_path: Path) -> None:
    blocks = arranged(tmp_path / "ties", lambda _: 50.0, algorithm="appo", tie_threshold=0)
    assert [one.differs for one in tables.compare(blocks)] == ["tie_threshold 0, not 12.5"]
    (own,) = sweeps.of_flags(
        dataset="medium-replay", task="dial-turn", num_feedback=500, algorithm="appo"
    )
    run = dataclasses.replace(own.run, preferences_digest="0" * 64)
    sweeps.write([dataclasses.replace(own, run=run)], tmp_path / "file", lambda _: 50.0)
    blocks = cells.arrange(results.read_all([tmp_path / "file"])[0])
    (table,) = tables.comparison_tables(tables.compare(blocks))
    assert table.notes == ("appo: our runs have labels of a file, not the scripted teacher's.",)


def test_what_differs_is_said_of_each_task(tmp_path: Path) -> None:
    flags = {"dataset": "medium-expert", "num_feedback": 500, "algorithm": "appo"}
    for number, (tasks, size) in enumerate(
        [(["dial-turn", "sweep-into"], 100_000), (["sweep-into"], 300_000)]
    ):
        wanted = sweeps.of_flags(**flags, task=tasks, dataset_size=size)
        sweeps.write(wanted, tmp_path / str(number), lambda _: 50.0)

    def notes(place: Path) -> tuple[str, ...]:
        blocks = cells.arrange(results.read_all([place])[0])
        return tables.comparison_tables(tables.compare(blocks))[0].notes

    assert notes(tmp_path / "0") == (
        "appo on dial-turn: our runs have 0.111 of the paper's data.",
        "appo on sweep-into: our runs have 0.333 of the paper's data.",
    )
    assert notes(tmp_path / "1") == ("appo: the paper's settings.",)


def test_a_control_is_not_the_paper_s_algorithm(tmp_path: Path) -> None:
    blocks = arranged(tmp_path, lambda _: 50.0, algorithm="appo", reward=["learned", "shuffled"])
    assert [one.variant for one in tables.compare(blocks)] == ["appo, reward learned"]


def test_fewer_seeds_are_said(tmp_path: Path) -> None:
    blocks = arranged(
        tmp_path,
        lambda run: None if (run.algorithm, run.seed) == ("mr", 1) else 40.0 + run.seed,
        algorithm=["appo", "mr"],
        num_seeds=2,
    )
    (table,) = map(tables.result_table, blocks)
    assert table.rows == (("dial-turn", "40.5 ± 0.7", "40.0 (1 of 2 seeds)"),)  # and no rank
    assert any(note.startswith("Incomplete") for note in table.notes)
    rows = list(csv.DictReader(io.StringIO(tables.results_csv(blocks))))
    assert [(row["seeds_finished"], row["seeds_missing"]) for row in rows] == [
        ("2", ""),
        ("1", "1"),
    ]


def test_markdown_and_latex_escape() -> None:
    table = tables.Table("a_b", ("x", "y|z"), (("50 %", "1.0 ± 2.0"),), ("a & b",))
    assert "| x | y\\|z |\n| --- | --- |\n| 50 % | 1.0 ± 2.0 |" in tables.markdown([table])
    text = tables.latex([table])
    assert r"50 \% & 1.0 $\pm$ 2.0 \\" in text
    assert r"\caption{a\_b. a \& b}" in text
