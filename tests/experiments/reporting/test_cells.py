"""What shares a cell, and what doesn't."""

from pathlib import Path

from experiments.reporting import cells
from experiments.reporting.cells import Block
from experiments.runs import results
from tests.helpers import sweeps


def arranged(tmp_path: Path, *tables: dict[str, object]) -> list[Block]:
    for number, flags in enumerate(tables):
        wanted = sweeps.of_flags(**{"dataset": "medium-replay", "num_feedback": 500, **flags})
        sweeps.write(wanted, tmp_path / str(number), lambda _: 50.0)
    runs, problems = results.read_all([tmp_path])
    assert not problems
    return cells.arrange(runs)


def test_other_settings_are_other_columns(tmp_path: Path) -> None:
    (block,) = arranged(
        tmp_path,
        {"algorithm": ["appo", "mr"], "task": "sweep"},
        {"algorithm": "appo", "task": "sweep", "lam": 0.1},
        {"algorithm": "appo", "task": "sweep", "reward": "shuffled"},
    )
    # MR's settings differ from APPO's by nature; APPO's own differ in two.
    assert block.variants == (
        "appo, lam 0.03, reward learned",
        "appo, lam 0.1, reward learned",
        "appo, lam 0.03, reward shuffled",
        "mr",
    )


def test_what_all_algorithms_have_is_said_of_all(tmp_path: Path) -> None:
    (block,) = arranged(
        tmp_path,
        {"algorithm": "appo", "task": "sweep", "num_updates": 400},
        {"algorithm": "mr", "task": "sweep"},
    )
    assert block.variants == ("appo, num_updates 400", "mr, num_updates 250000")


def test_other_data_are_other_tables(tmp_path: Path) -> None:
    blocks = arranged(
        tmp_path,
        {"algorithm": "appo", "task": ["sweep", "dial-turn"], "dataset_share": [0.1, 1.0]},
        {"algorithm": "appo", "task": "sweep", "dataset": "medium-expert"},
    )
    assert {block.title for block in blocks} == {
        "medium-replay, 0.1 of the paper's size, 500 labels",
        "medium-replay, 1 of the paper's size, 500 labels",
        "medium-expert, 100,000 transitions, 500 labels",
    }
    whole = next(block for block in blocks if block.title.startswith("medium-replay, 1 "))
    assert whole.tasks == ("dial-turn-v3", "sweep-v3")


def test_data_of_one_size_from_two_places(tmp_path: Path) -> None:
    blocks = arranged(
        tmp_path, {"algorithm": "appo", "task": "sweep", "data_seed": [0, 1], "dataset_share": 1.0}
    )
    assert [block.data for block in blocks] == [
        "metaworld/<task>/medium-replay-n2100000-seed0-v0",
        "metaworld/<task>/medium-replay-n2100000-seed1-v0",
    ]


def test_the_oracle_stands_in_every_number_of_labels(tmp_path: Path) -> None:
    blocks = arranged(
        tmp_path, {"algorithm": ["appo", "oracle"], "task": "sweep", "num_feedback": [500, 1000]}
    )
    assert [block.num_feedback for block in blocks] == [500, 1000]
    first, second = (block.cells["sweep-v3", "oracle"].runs[0] for block in blocks)
    assert first is second
    assert not blocks[0].ranks("oracle")


def test_controls_don_t_compete(tmp_path: Path) -> None:
    rewards = {"reward": ["learned", "shuffled"]}
    (block,) = arranged(tmp_path, {"algorithm": "appo", "task": "sweep", **rewards})
    kept = {variant: block.ranks(variant) for variant in block.variants}
    assert kept == {"appo, reward learned": True, "appo, reward shuffled": False}


def test_cloning_of_all_data_stands_in_every_number_of_labels(tmp_path: Path) -> None:
    blocks = arranged(
        tmp_path,
        {"algorithm": "appo", "task": "sweep", "num_feedback": [500, 1000]},
        {"algorithm": "bc", "task": "sweep", "data": "all"},
    )
    assert [block.variants for block in blocks] == [("appo", "bc")] * 2
    assert [block.reads_labels("bc") for block in blocks] == [False, False]


def test_a_tie_threshold_of_one_s_own_is_said(tmp_path: Path) -> None:
    (block,) = arranged(
        tmp_path, {"algorithm": "appo", "task": "sweep", "tie_threshold": [0.0, 12.5]}
    )
    assert block.variants == ("appo, tie_threshold 0", "appo, tie_threshold 12.5")


def test_the_same_run_twice_counts_once(tmp_path: Path) -> None:
    wanted = sweeps.of_flags(algorithm="appo", task="sweep", dataset="medium-replay", num_seeds=2)
    sweeps.write(wanted, tmp_path / "whole", lambda _: 50.0)
    sweeps.write(wanted[:1], tmp_path / "half", lambda _: 90.0, share=0.5)
    runs, notes = cells.without_doubles(results.read_all([tmp_path])[0])
    assert [run.state for run in runs] == ["finished", "finished"]
    (note,) = notes
    assert note.startswith("appo on sweep-v3, 1000 labels, seed 0 is there twice: ")
    assert "half" in note.split("is left out")[0]
    # A place inside another is read twice, and is the same folder.
    assert not cells.without_doubles(results.read_all([tmp_path / "whole"] * 2)[0])[1]


def test_seeds_that_a_table_has_elsewhere_are_expected(tmp_path: Path) -> None:
    (block,) = arranged(
        tmp_path,
        {"algorithm": "appo", "task": "sweep", "num_seeds": 2},
        {"algorithm": "mr", "task": "sweep"},
    )
    cell = block.cells["sweep-v3", "mr"]
    assert (cell.seeds, cell.is_complete, cell.std) == ((0, 1), False, None)
