"""Experiments as files: the runs they ask for, and what is refused."""

from collections import Counter
from pathlib import Path

import pytest

from appo_jax import registry
from appo_jax.types import InputError
from experiments.sweep import read_runs
from experiments.sweeps import definition
from experiments.sweeps.definition import Narrowing
from tests.helpers import sweeps
from tests.helpers.runs import TASK, write_buffers

PAPER = 250_000


def test_every_algorithm_of_the_registry_is_in_table1() -> None:
    wanted = sweeps.wanted("table1")
    runs = Counter(one.run.algorithm for one in wanted)
    assert set(runs) == set(registry.ALGORITHMS)
    # Eight tasks and five seeds; two numbers of labels, but where none are read.
    assert runs["appo"] == runs["mr"] == 8 * 2 * 5
    assert runs["oracle"] == 8 * 5
    assert {one.run.num_updates for one in wanted} == {PAPER}
    assert {one.run.dataset.recipe for one in wanted} == {"medium-replay"}
    assert len({one.key for one in wanted}) == len(wanted)


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("table2", 2 * 2 * 2 * 5),
        ("lambda", 6 * 4 * 5),
        ("feedback", 5 * 2 * 4 * 5),
        ("alternatives", 2 * (3 + 1 + 5 + 5 + 6 + 1 + 1 + 6 + 5 + 2)),
    ],
)
def test_the_others(name: str, runs: int) -> None:
    assert len(sweeps.wanted(name)) == runs


def test_lambda_and_labels_are_those_that_were_asked_for() -> None:
    lams = {one.run.swept.lam for one in sweeps.wanted("lambda")}
    assert lams == {0.003, 0.01, 0.03, 0.1, 0.3, 1.0}
    counts = {one.run.num_feedback for one in sweeps.wanted("feedback")}
    assert counts == {100, 200, 500, 1000, 2000}


def test_shares_of_the_paper_s_data() -> None:
    sizes = {
        (one.run.env_name, one.run.dataset.size)
        for one in sweeps.wanted("dataset_size", Narrowing(task="dial-turn"))
    }
    assert sizes == {("dial-turn-v3", size) for size in (90_000, 225_000, 450_000, 900_000)}
    # Table 2's sets are as large as the medium-replay sets, and collected on the spot.
    specs = {one.run.dataset for one in sweeps.wanted("table2")}
    assert {(one.source, one.size) for one in specs} == {
        ("collected", 900_000),
        ("collected", 300_000),
    }


def test_panel_and_quick() -> None:
    panel = sweeps.wanted("panel")
    assert len(panel) == (len(registry.ALGORITHMS) + 2) * 3 * 2
    shuffled = [one.run.algorithm for one in panel if one.run.reward == "shuffled"]
    assert shuffled == ["appo"] * 6 + ["mr"] * 6
    assert {(one.run.num_updates, one.run.dataset.size) for one in panel} == {(30_000, 300_000)}
    quick = sweeps.wanted("quick")  # without data it makes its own
    assert {one.run.dataset.source for one in quick} == {"collected"}
    assert Counter(one.run.reward for one in quick) == {"learned": 2, "shuffled": 2}


def test_a_grid_has_what_is_common_to_all_unless_it_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        "[common]\nalgorithm = 'bc'\nseed = [1, 2]\n[[grids]]\n[[grids]]\nseed = 3\nlam = 0.1"
    )
    assert definition.read(str(path)).grids == (
        {"algorithm": ["bc"], "seed": [1, 2]},
        {"algorithm": ["bc"], "seed": [3], "lam": [0.1]},
    )


def test_narrowed() -> None:
    wanted = sweeps.wanted(
        "table1", Narrowing(algorithm="mr", task="sweep-v2", num_seeds=2, num_updates=400)
    )
    assert len(wanted) == 2 * 2
    (run,) = {(w.run.algorithm, w.run.env_name, w.run.num_updates) for w in wanted}
    assert run == ("mr", "sweep-v3", 400)
    with pytest.raises(InputError, match="no run is left, expected --only_algorithm among appo"):
        sweeps.wanted("lambda", Narrowing(algorithm="mr"))
    with pytest.raises(InputError, match="only_task"):
        sweeps.wanted("lambda", Narrowing(task="swep"))


def test_no_more_seeds_than_a_grid_names() -> None:
    grids = ({"algorithm": ["bc"], "task": ["sweep"], "seed": [3, 7]},)
    own = definition.Definition("own", "", grids)

    def seeds(narrowing: Narrowing) -> list[int]:
        found, _ = definition.expand(own, narrowing, sweeps.NOWHERE, read_runs)
        return [one.run.seed for one in found]

    assert seeds(Narrowing(num_seeds=1)) == [3]
    with pytest.raises(InputError, match="--num_seeds=5: a grid .* seeds 3, 7, expected at most 2"):
        seeds(Narrowing(num_seeds=5))
    with pytest.raises(InputError, match="no run is left"):  # of a grid that isn't asked for
        seeds(Narrowing(num_seeds=5, algorithm="mr"))


def test_what_reads_no_labels_runs_once() -> None:
    wanted = sweeps.of_flags(
        algorithm=["bc", "oracle"],
        task="sweep",
        dataset="medium-replay",
        num_feedback=[500, 1000],
    )
    assert Counter(one.run.algorithm for one in wanted) == {"bc": 2, "oracle": 1}
    of_all = sweeps.of_flags(algorithm="bc", task="sweep", data="all", num_feedback=[500, 1000])
    assert len(of_all) == 1


def test_what_is_missing_comes_with_the_command_that_makes_it(tmp_path: Path) -> None:
    found = definition.read("lambda")
    _, missing = definition.expand(found, Narrowing(), tmp_path, read_runs)
    assert [one.what for one in missing][1:2] == ["dial-turn-v3, 900,000 transitions"]
    assert missing[1].command == (
        "python -m experiments.collect --task=dial-turn --dataset=medium-replay --size=900000 "
        f"--data_dir={tmp_path}"
    )
    write_buffers(tmp_path)
    _, missing = definition.expand(found, Narrowing(), tmp_path, read_runs)
    assert len(missing) == 3
    # What is there, but not as it is asked for, isn't missing.
    table = {"algorithm": ["appo"], "task": [TASK], "dataset": ["medium-replay"]}
    wrong = definition.Definition("own", "", ({**table, "dataset_size": [700]},))
    with pytest.raises(InputError, match="--dataset_size=700: expected a multiple of 1000"):
        definition.expand(wrong, Narrowing(), tmp_path, read_runs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grids = 3", "holds grids, expected about, one or more tables"),
        ("about = 'x'", "holds about, expected about, one or more tables"),
        ("common = 3\n[[grids]]\nalgorithm = 'bc'", "holds common, grids, expected about, one or"),
        ("[[common]]\nlam = 1.0\n[[grids]]", "holds common, grids, expected about, one or more"),
        ("[common]\nworkdir = 'x'\n[[grids]]\nalgorithm = 'bc'", "grid 1 has workdir, expected"),
        ("[[grids]]\nlam = 1.0", "grid 1 has no algorithm"),
        ("[[grids]]\nalgorithm = 'appo'\nlam = {a = 1}", "grid 1 has lam = {'a': 1}, expected"),
        ("[[grids]]\nalgorithm = 'appo'\nlam = []", r"grid 1 has lam = \[\], expected"),
        ("[[grids]]\nalgorithm = 'appo'\nworkdir = 'x'", "grid 1 has workdir, expected it on"),
        ("[[grids]]\nalgorithm = 'appo'\nnum_workers = 2", "grid 1 has num_workers"),
        ("grids = [", "not TOML"),
        ("[[grids]]\nalgorithm = 'appo'\ntask = 'sweep'\nlamda = 1", "lamda"),
        ("[[grids]]\nalgorithm = 'appo'\ntask = 'sweep'\nlam = -1", "--lam=-1.0: expected"),
        ("[[grids]]\nalgorithm = 'appo'\ntask = 'push'\ndataset_share = 1", "dataset_share = 1"),
        ("[[grids]]\nalgorithm = 'bppo'\ntask = 'sweep'", "'bppo': expected appo, mr"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=expected) as caught:
        definition.expand(definition.read(str(path)), Narrowing(), tmp_path, read_runs)
    assert "own" in str(caught.value)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match="--experiment=tabel1: .*dataset_size, feedback, lambda"):
        definition.read("tabel1")
