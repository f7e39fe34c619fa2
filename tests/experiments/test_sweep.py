"""`python -m experiments.sweep` as a user types it, kills it, and starts it again."""

import csv
import functools
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from appo_jax.types import InputError
from experiments import sweep
from experiments.runs import files
from experiments.sweeps import cost, plan
from experiments.sweeps import definition as definitions
from experiments.sweeps.cost import Program, Rates
from experiments.sweeps.definition import Narrowing
from tests.helpers.commands import call
from tests.helpers.processes import wait_until
from tests.helpers.runs import SIZE, TASK, TINY, Command, contents, result
from tests.helpers.sweeps import not_drawn

OWN = tuple(f for f in TINY if "num_workers" not in f and "chunk_updates" not in f)
START = ("--experiment=own.toml", "--num_workers=2", "--chunk_updates=5")


def definition(folder: Path) -> None:
    """Two grids of TINY's runs."""
    lines = ["about = 'Tiny.'", "[[grids]]", "algorithm = 'appo'", "reward = ['true', 'zero']"]
    for flag in OWN:
        name, _, value = flag.removeprefix("--").partition("=")
        lines.append(f"{name} = {value if value.isdecimal() else repr(value)}")
    (folder / "own.toml").write_text("\n".join(lines))


def runs_of(folder: Path) -> list[Path]:
    """The folders of the grids, the first one's first."""
    found = (folder / "runs" / "sweeps" / "own").glob("appo-60-*")
    return sorted(found, key=lambda path: path.stat().st_ctime)


def by_reward(folder: Path) -> dict[str, tuple[object, object]]:
    """Each grid's final state and metrics."""
    return {
        re.findall(r'"reward": "(\w+)"', (one / "config.json").read_text())[0]: result(one)
        for one in runs_of(folder)
    }


main = functools.partial(call, sweep)


class Killed(BaseException):
    """In place of a `kill -9`: nothing that catches exceptions sees it."""


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, data_dir: Path, fake_evaluations: None
) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    definition(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        not_drawn(patch)
        main(*START, f"--data_dir={data_dir}")
    return folder


def test_the_page_of_a_sweep(finished: Path) -> None:
    report = finished / "runs" / "sweeps" / "own" / "report"
    rows = list(csv.DictReader((report / "results.csv").open()))
    assert {row["variant"] for row in rows} == {"appo, reward true", "appo, reward zero"}
    assert len(rows) == 2
    page = (report / "index.html").read_text()
    assert "<title>own</title>" in page
    assert "2 runs: 2 finished." in page
    assert "the mean of the last 3 evaluations (runs were too short for 5)" in page


def test_started_again_it_does_nothing(
    finished: Path,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = {one: contents(one) for one in runs_of(finished)}
    monkeypatch.chdir(finished)
    main(*START, f"--data_dir={data_dir}")
    assert capsys.readouterr().out.splitlines() == [
        "own: Tiny.",
        "2 runs, in runs/sweeps/own",
        "2 of 2 runs are finished; the page is runs/sweeps/own/report/index.html",
    ]
    assert {one: contents(one) for one in runs_of(finished)} == before


def test_ended_anywhere_and_started_again(
    finished: Path,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Work is lost since the last checkpoint at most, and the tables are the same."""
    definition(tmp_path)
    monkeypatch.chdir(tmp_path)
    append = files.MetricsFile.append

    def appending(file: files.MetricsFile, at: int, *args: Any) -> None:
        append(file, at, *args)
        if len(runs_of(tmp_path)) == 2 and (at, args[0]) == (55, "train"):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(files.MetricsFile, "append", appending)
        with pytest.raises(Killed):
            main(*START, f"--data_dir={data_dir}")
    done, _ = runs_of(tmp_path)
    before = contents(done)
    capsys.readouterr()
    main(*START, f"--data_dir={data_dir}")
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("grid ") for line in lines) == 1
    assert "  going on from update 40" in lines
    assert contents(done) == before
    check_the_same(tmp_path, finished)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_and_started_again(data_dir: Path, tmp_path: Path) -> None:
    """The same with `kill -9`, and with processes and evaluations as a user has them."""
    arguments = (*START, f"--data_dir={data_dir}")
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
        definition(folder)
    first = Command(killed, *arguments, name="sweep")

    def is_half_way() -> bool:
        grids = runs_of(killed)
        metrics = grids[-1] / "metrics.csv" if len(grids) == 2 else tmp_path / "none"
        return metrics.exists() and ",20,eval," in metrics.read_text()

    wait_until(is_half_way, 300)
    first.signal(signal.SIGKILL)
    assert first.finish(300)[0] == -signal.SIGKILL
    before = contents(runs_of(killed)[0])
    status, lines, stderr = Command(killed, *arguments, name="sweep").finish(300)
    assert (status, stderr) == (0, "")
    assert any(re.match(r"  going on from update [246]0", line) for line in lines)
    assert contents(runs_of(killed)[0]) == before
    assert Command(whole, *arguments, name="sweep").finish(300)[0] == 0
    check_the_same(killed, whole)


def check_the_same(one: Path, other: Path) -> None:
    assert by_reward(one) == by_reward(other)
    tables = [
        (folder / "runs" / "sweeps" / "own" / "report" / "tables.md").read_text()
        for folder in (one, other)
    ]
    assert tables[0] == tables[1]


def test_a_dry_run_tells_what_it_costs(
    tmp_path: Path,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    definition(tmp_path)
    tasks = ("button-press-topdown-v3", "drawer-open-v3", "sweep-into-v3")
    rates = Rates(Program(0.5, 10, 2**20), {}, dict.fromkeys(tasks, 0.0))
    monkeypatch.setattr(cost.Meter, "rates", lambda meter, grid: rates)
    main(*START, f"--data_dir={data_dir}", "--dry_run")
    assert capsys.readouterr().out == (
        "own: Tiny.\n"
        "2 runs in runs/sweeps/own, 0 of them finished\n\n"
        f"grid 1 of 2: appo, 1 run\n  {TASK}-v3, seed 0\n  about 40 s, 4 MiB\n"
        f"grid 2 of 2: appo, 1 run\n  {TASK}-v3, seed 0\n  about 40 s, 4 MiB\n\n"
        "all of it: about 80 s on this machine, 8 MiB on the disk\n"
    )
    main("--experiment=panel", "--only_algorithm=oracle", f"--data_dir={data_dir}", "--dry_run")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "missing: 2 data sets, to be made by:"
    assert lines[-1].startswith(
        "  sweep-into-v3, 300,000 transitions: python -m experiments.collect"
    )
    assert not (tmp_path / "runs").exists()
    # A folder that can't be gone on with costs the others nothing.
    own = definitions.read("own.toml")
    wanted, _ = definitions.expand(own, Narrowing(), data_dir, sweep.read_runs)
    folder = plan.make(wanted, Path("runs/sweeps/own")).grids[0].execution.workdir
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("of,others\n")
    main(*START, f"--data_dir={data_dir}", "--dry_run")
    printed = capsys.readouterr().out
    assert f"  not counted: --workdir={folder}: holds metrics.csv of a run but not" in printed
    assert "all of it: about 40 s" in printed


def test_missing_data_are_said_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        main("--experiment=lambda", "--only_task=sweep", f"--data_dir={tmp_path}")
    text = str(caught.value)
    assert text.startswith(f"--data_dir={tmp_path}: 1 data set isn't there, expected ")
    assert text.endswith("or what the commands above make, in hours")
    title, command = capsys.readouterr().out.splitlines()
    assert title == "missing: 1 data set, to be made by:"
    assert "python -m experiments.collect --task=sweep --dataset=medium-replay" in command
    assert not list(tmp_path.iterdir())
    for flag, expected in {
        "--num_seeds=0": "--num_seeds=0: expected a number from 1",
        "--experiment=none": "--experiment=none: No such file or directory, expected alternatives",
        "--num_workers=0": "--num_workers=0: expected",
        "--track=board": "tracker 'board': expected tensorboard, wandb, or module:name",
        "--only_task=swep": "--only_task: task 'swep' is none of",
    }.items():
        with pytest.raises(InputError, match=expected):
            main("--experiment=lambda", flag)
    with pytest.raises(InputError, match="--experiment is missing, expected alternatives, "):
        main()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dry_run_is_right_within_a_quarter(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real networks, on a machine with nothing else to do."""
    (tmp_path / "real.toml").write_text(
        f"[[grids]]\nalgorithm = 'appo'\ntask = '{TASK}'\ndataset_size = {SIZE}\n"
        "num_feedback = 500\nnum_updates = 1500\neval_interval = 500\nreward_num_epochs = 30\n"
    )
    file = f"--experiment={tmp_path / 'real.toml'}"
    common = (file, f"--data_dir={data_dir}", f"--workdir={tmp_path / 'runs'}")
    found = definitions.read(file.partition("=")[2])
    wanted, _ = definitions.expand(found, Narrowing(), data_dir, sweep.read_runs)
    (grid,) = plan.make([one.carried_out(num_workers=2) for one in wanted], tmp_path).grids
    expected = cost.of_grid(grid, cost.Meter(print).rates(grid), *sweep.machine())
    began = time.monotonic()
    main(*common, "--num_workers=2")
    took = time.monotonic() - began
    with capsys.disabled():
        print(f"expected {expected.seconds:.0f} s, took {took:.0f} s")
    assert 0.75 < expected.seconds / took < 1.25
