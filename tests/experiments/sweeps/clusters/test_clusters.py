"""A sweep on a Ray cluster and on submitit's processes, with a worker ended meanwhile."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.runs import files
from tests.helpers.processes import wait_until
from tests.helpers.runs import TINY, Command, result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LONGER = {"num_updates": 3000, "eval_interval": 500, "num_seeds": 2}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Callable[..., Command]:
    """`quick` with everything smaller: APPO on learned and on shuffled rewards, two seeds each."""
    folder = tmp_path_factory.mktemp("clusters")
    settings = dict(flag.removeprefix("--").split("=") for flag in TINY) | LONGER
    names = [name for name in settings if name not in ("num_workers", "chunk_updates")]
    lines = [f"{name} = {str(settings[name])!r}" for name in names if name == "task"]
    lines += [f"{name} = {settings[name]}" for name in names if name != "task"]
    lines += ["algorithm = 'appo'", "reward = ['learned', 'shuffled']"]
    (folder / "own.toml").write_text("\n".join(["[[grids]]", *lines]))

    def start(name: str, *arguments: str) -> Command:
        common = (f"--experiment={folder / 'own.toml'}", f"--data_dir={data_dir}")
        return Command(folder, *common, f"--workdir={folder / name}", *arguments, name="sweep")

    start.folder = folder  # type: ignore[attr-defined]
    return start


@pytest.fixture(scope="module")
def local(sweep: Any) -> Path:
    status, _, stderr = sweep("local", "--num_workers=1").finish(300)
    assert (status, stderr) == (0, "")
    return sweep.folder / "local"


def grids(workdir: Path) -> dict[str, Path]:
    """The folder of each grid, by what its rewards are."""
    found = {}
    for path in workdir.glob("appo-*/config.json"):
        (reward,) = {run["reward"] for run in files.read_json(path)["runs"]}
        found[reward] = path.parent
    return found


def holders(folder: Path) -> Iterator[int]:
    """The processes that hold a run's folder."""
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(path) == str(folder / ".lock"):
                yield int(path.parts[2])
        except OSError:
            continue


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("launcher", ["submitit", "ray"])
def test_a_lost_worker_changes_nothing(
    launcher: str, ending: signal.Signals, sweep: Any, local: Path
) -> None:
    pytest.importorskip(launcher, reason=f"the extra `{launcher}` isn't installed")
    workdir = sweep.folder / f"{launcher}-{ending.name}"
    command = sweep(workdir.name, f"--launcher={launcher}", "--grid_cpus=1", "--grids_at_once=2")

    def is_half_way() -> bool:
        return all((folder / "checkpoints/policy/1000").exists() for folder in begun()) and (
            len(begun()) == 2
        )

    def begun() -> list[Path]:
        return list(grids(workdir).values())

    wait_until(is_half_way, 200)  # both are under way
    killed = grids(workdir)["learned"]
    (holder,) = holders(killed)
    os.kill(holder, ending)
    status, lines, stderr = command.finish(400)
    assert (status, stderr) == (0, "")
    (lost,) = [line for line in lines if "its worker was lost" in line]
    assert lost.startswith(killed.name)
    assert lost.endswith("another one goes on from the last checkpoint")
    assert sum(bool(re.match(r"grid \d of 2 .*: over$", line)) for line in lines) == 2
    table = (workdir / "report" / "tables.md").read_text()
    assert table == (local / "report" / "tables.md").read_text()
    for reward, folder in grids(workdir).items():
        assert result(folder) == result(grids(local)[reward])


@pytest.mark.parametrize("launcher", ["submitit", "ray"])
def test_stopped_it_leaves_no_worker(launcher: str, sweep: Any) -> None:
    pytest.importorskip(launcher, reason=f"the extra `{launcher}` isn't installed")
    workdir = sweep.folder / f"{launcher}-stopped"
    command = sweep(workdir.name, f"--launcher={launcher}", "--grid_cpus=1")
    wait_until(lambda: bool(grids(workdir)), 100)
    folders = list(grids(workdir).values())
    command.signal(signal.SIGTERM, whole_session=False)
    status, _, stderr = command.finish(60)
    assert status == 128 + signal.SIGTERM
    assert stderr.startswith("stopped by SIGTERM at 2 grids under way; the same command goes on")
    wait_until(lambda: not any(list(holders(folder)) for folder in folders), 30)
