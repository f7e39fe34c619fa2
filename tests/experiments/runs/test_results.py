"""Results as typed rows, and their table."""

from pathlib import Path

import pytest

from appo_jax.types import InputError
from experiments.runs import files, results, runner
from tests.helpers.runs import TINY, parse, print_told

pytestmark = pytest.mark.usefixtures("fake_evaluations")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    workdir = tmp_path_factory.mktemp("finished") / "run"
    flags = (*TINY, f"--data_dir={data_dir}", f"--workdir={workdir}", "--lam=0.03,0.1")
    runner.run(*parse(*flags, "--num_updates=40"), print_told)
    return workdir


def test_a_finished_folder(finished: Path) -> None:
    first, second = results.read(finished)
    assert (first.state, first.updates_done, first.num_updates) == ("finished", 40, 40)
    assert [one.update for one in first.evaluations] == [0, 20, 40]
    assert (first.settings["lam"], second.settings["lam"]) == (0.03, 0.1)
    assert first.updates_per_second > 0
    assert 0 < first.reward_accuracy < 1
    entries = files.read_json(finished / "summary.json")["runs"]
    assert [entry["score"] for entry in entries] == [first.score, second.score]


def copied(finished: Path, target: Path, keep: str) -> Path:
    """The folder with only the lines of metrics.csv that say less than `keep` of a run."""
    target.mkdir()
    (target / "config.json").write_bytes((finished / "config.json").read_bytes())
    lines = (finished / "metrics.csv").read_text().splitlines(keepends=True)
    (target / "metrics.csv").write_text("".join(line for line in lines if keep not in line))
    return target


def test_folders_in_every_state(finished: Path, tmp_path: Path) -> None:
    copied(finished, tmp_path / "going", ",40,eval,")
    stopped = copied(finished, tmp_path / "stopped", ",40,eval,")
    with (stopped / "metrics.csv").open("a") as file:
        file.write("0,40,train,stopped,30.0,0\n")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text('{"runs": [{}]}')
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_bytes((finished / "config.json").read_bytes())
    found, unreadable = results.read_all([tmp_path])
    states = {(Path(one.folder).name, one.run): one for one in found}
    going, diverged, begun = states["going", 0], states["stopped", 0], states["begun", 1]
    assert (going.state, going.num_evaluations_averaged) == ("unfinished", 1)
    assert going.score == going.evaluations[1].success_rate
    assert (diverged.state, diverged.stopped_at, diverged.score) == ("diverged", 30, None)
    assert (begun.state, begun.updates_done, begun.score, begun.evaluations) == (
        *("unfinished", 0, None),
        (),
    )
    (damaged,) = unreadable
    expected = f"{tmp_path / 'damaged'}: its config.json is not from a run, expected a run's folder"
    assert damaged.problem == expected
    with pytest.raises(InputError, match="no config.json, expected a run's folder"):
        results.read(tmp_path)
    assert "(1 diverged)" in results.table([one for one in found if "stopped" in one.folder])


@pytest.mark.parametrize("content", ["", "{}", '{"runs": []}'])
def test_a_summary_that_is_not_the_runs_is_written_again(
    finished: Path, data_dir: Path, content: str
) -> None:
    summary = finished / "summary.json"
    whole = summary.read_text()
    summary.write_text(content)
    flags = (*TINY, f"--data_dir={data_dir}", f"--workdir={finished}", "--lam=0.03,0.1")
    runner.run(*parse(*flags, "--num_updates=40"))
    assert summary.read_text() == whole
