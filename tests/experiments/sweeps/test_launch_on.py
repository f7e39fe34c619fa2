"""Grids together on a cluster: whose jobs end well, fail, or are lost."""

import contextlib
import functools
import io
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from absl import flags

from appo_jax.types import InputError
from experiments import sweep
from experiments.runs import files
from experiments.runs.signals import Stopped
from experiments.sweeps import launch, plan
from experiments.sweeps.clusters import cluster as clusters
from experiments.sweeps.clusters.cluster import Failed, Lost, Resources
from experiments.sweeps.definition import Wanted
from experiments.sweeps.plan import Grid
from experiments.terminal.sweep_progress import Progress
from tests.helpers import sweeps
from tests.helpers.commands import call


def runs(**own: object) -> list[Wanted]:
    common = {"dataset": "medium-replay", "task": "sweep", "num_seeds": 1}
    return sweeps.of_flags(**{**common, "algorithm": ["appo", "mr", "bc"], **own})


class Cluster:
    """Its jobs end in the order given: with None well, else with what `problems` hold in turn."""

    def __init__(self, *problems: Failed | Lost | None, looks: int = 1):
        self.problems, self.looks = list(problems), looks
        self.jobs: list[Job] = []
        self.most = 0

    def submit(self, grid: Grid) -> "Job":
        self.jobs.append(Job(self, grid))
        self.most = max(self.most, sum(not job.is_over for job in self.jobs))
        return self.jobs[-1]

    def close(self) -> None:
        pass


class Job:
    def __init__(self, cluster: Cluster, grid: Grid):
        self.grid, self._cluster, self._looks = grid, cluster, cluster.looks
        self.is_over = self.is_cancelled = False

    def done(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def result(self) -> Failed | None:
        self.is_over = True
        problem = self._cluster.problems.pop(0) if self._cluster.problems else None
        if isinstance(problem, Lost):
            raise problem
        if problem is None:
            sweeps.train(self.grid, lambda _: 50.0)
        return problem

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_POLL", 0.0)


def launched(
    wanted: Sequence[Wanted], workdir: Path, cluster: Cluster, at_once: int = 0
) -> tuple[dict[str, str], str]:
    workdir.mkdir(exist_ok=True)
    plan.write(workdir, "made", "", wanted)
    lines = io.StringIO()
    progress = Progress(sum(one.run.num_updates for one in wanted), lines)
    launcher = launch.on(cluster, at_once)
    return launch.launch_all(wanted, workdir, progress, launcher), lines.getvalue()


def test_grids_train_together(tmp_path: Path) -> None:
    cluster = Cluster()
    failed, lines = launched(runs(), tmp_path / "sweep", cluster)
    assert not failed
    assert (len(cluster.jobs), cluster.most) == (3, 3)
    assert "sweep 100 %: grid " in lines
    fewer = Cluster()
    launched(runs(), tmp_path / "other", fewer, at_once=2)
    assert (len(fewer.jobs), fewer.most) == (3, 2)


def test_a_lost_worker_is_replaced_at_once(tmp_path: Path) -> None:
    cluster = Cluster(Lost("node 7"))
    failed, lines = launched(runs(), tmp_path / "sweep", cluster)
    assert not failed
    names = [job.grid.name for job in cluster.jobs]
    assert names[3:] == names[:1]
    expected = f"{names[0]}: its worker was lost (node 7); another one goes on from the last check"
    assert expected in lines
    assert "once more" not in lines


def test_one_that_loses_every_worker_fails(tmp_path: Path) -> None:
    cluster = Cluster(*[Lost("out of memory") for _ in range(6)])
    failed, lines = launched(runs(algorithm="appo"), tmp_path / "sweep", cluster)
    assert len(cluster.jobs) == 6  # three times, and once more three
    assert "once more, what isn't finished:" in lines
    (why,) = failed.values()
    assert why.startswith("its worker was lost 3 times (all of it in ")


def test_a_failure_is_told_with_its_traceback(tmp_path: Path) -> None:
    workdir = tmp_path / "sweep"
    cluster = Cluster(Failed("full", "Traceback\nOSError: full"), looks=2)
    failed, lines = launched(runs(algorithm="appo"), workdir, cluster)
    assert not failed
    assert len(cluster.jobs) == 2
    name = cluster.jobs[0].grid.name
    assert f"failed: {name}: full (all of it in {workdir / name / 'error.txt'})" in lines
    assert files.read_json(workdir / "sweep.json")["failed"] == {}
    assert not (workdir / name / "error.txt").exists()  # the second attempt went well


def test_a_signal_cancels_all(tmp_path: Path) -> None:
    class Signalled(Cluster):
        def submit(self, grid: Grid) -> Job:
            if len(self.jobs) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().submit(grid)

    cluster = Signalled(looks=100)
    with pytest.raises(Stopped, match="stopped by SIGTERM at 3 grids under way; the same comma"):
        launched(runs(), tmp_path / "sweep", cluster)
    assert [job.is_cancelled for job in cluster.jobs] == [True] * 3


def test_workers_that_end_with_the_command_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler signals all processes at once: the worker is over before the command looks."""

    def done(job: Job) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    monkeypatch.setattr(Job, "done", done)
    cluster = Cluster(Lost("stopped by SIGTERM"))
    with pytest.raises(Stopped, match="stopped by SIGTERM at 1 grids under way"):
        launched(runs(algorithm="appo"), tmp_path / "sweep", cluster)
    assert len(cluster.jobs) == 1


def test_no_two_grids_collect_one_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    monkeypatch.setattr(launch.minari_io, "exists", lambda id, _: id in there)
    cluster = Cluster(looks=3)
    submit = cluster.submit

    def submitting(grid: Grid) -> Job:
        names = {job.grid.runs[0].env_name for job in cluster.jobs if not job.is_over}
        assert grid.runs[0].env_name not in names or there
        if cluster.jobs:
            there.add(grid.runs[0].dataset.id)
        return submit(grid)

    monkeypatch.setattr(cluster, "submit", submitting)
    wanted = runs(dataset="medium-expert", dataset_size=1000, task=["sweep", "dial-turn"])
    assert wanted[0].run.dataset.source == "collected"
    failed, _ = launched(wanted, tmp_path / "sweep", cluster)
    assert not failed


def test_an_error_comes_back_from_the_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = runs(algorithm="bc")
    (grid,) = plan.make([one.carried_out(track="nobody")], tmp_path).grids
    failure = clusters.carry_out(clusters.placed(grid), compilation_cache=False)
    assert failure is not None
    assert failure.sentence.startswith("tracker 'nobody': expected tensorboard")
    assert "InputError" in failure.traceback


def carried_out(tmp_path: Path, **own: object) -> Failed | None:
    (grid,) = plan.make(runs(algorithm="bc", **own), tmp_path).grids
    return clusters.carry_out(clusters.placed(grid), compilation_cache=True)


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    monkeypatch.setattr(clusters.compiled, "use_compilation_cache", lambda: asked.append("cache"))
    return asked


def test_a_worker_that_is_told_to_go_is_lost(
    tmp_path: Path, cached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(runs: object, execution: object, report: object) -> None:
        raise Stopped(signal.SIGTERM, "update 500")

    monkeypatch.setattr(clusters.runner, "run", run)
    with pytest.raises(Lost, match="^stopped by SIGTERM at update 500"):
        carried_out(tmp_path)


def test_a_worker_uses_its_own_machine(
    tmp_path: Path, cached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its compiled programs, and its device: in turn on a CPU, together on an accelerator."""
    trained: list[int] = []
    monkeypatch.setattr(
        clusters.runner, "run", lambda _, own, report: trained.append(own.runs_per_group)
    )
    assert carried_out(tmp_path, num_seeds=3) is None
    monkeypatch.setattr(plan.training, "choose_runs_axis", lambda wanted: "vmap")
    assert carried_out(tmp_path, num_seeds=3) is None
    assert trained == [3, 0]
    assert cached == ["cache", "cache"]


def test_the_command_says_whether_workers_keep_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found(Exception):
        pass

    def connect(name: str, workdir: Path, resources: Resources, compilation_cache: bool) -> None:
        raise Found(f"{name} {compilation_cache}")

    monkeypatch.setattr(clusters, "connect", connect)
    for flag, expected in {"--compilation_cache": True, "--nocompilation_cache": False}.items():
        values = flags.FlagValues()
        sweep.define_flags(values, [])
        values(["", "--launcher=ray", flag])
        with contextlib.ExitStack() as stack, pytest.raises(Found, match=f"^ray {expected}$"):
            sweep._launcher(values, Path("nowhere"), stack)


def test_launchers_that_there_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    main = functools.partial(call, sweep, "--experiment=panel", "--only_algorithm=bc")
    with pytest.raises(InputError, match="^--launcher=slrum: expected local, submitit, ray$"):
        main("--launcher=slrum")
    with pytest.raises(InputError, match="^--grid_cpus=0: expected a whole number from 1"):
        main("--launcher=ray", "--grid_cpus=0")
    for name in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, name, None)
        expected = rf"^--launcher={name}: .*, expected what `pip install 'appo-jax\[{name}\]'`"
        with pytest.raises(InputError, match=expected):
            clusters.connect(name, tmp_path, Resources(), True)


def test_flags_of_another_launcher() -> None:
    main = functools.partial(call, sweep, "--experiment=panel", "--only_algorithm=bc", "--dry_run")
    for flag, readers in {
        "--grid_cpus=4": "submitit or ray",
        "--grid_gpus=1": "submitit or ray",
        "--grid_memory_gb=8": "submitit or ray",
        "--grids_at_once=2": "submitit or ray",
        "--grid_hours=2": "submitit",
        "--slurm=partition=gpu": "submitit",
        "--ray_address=auto": "ray",
    }.items():
        expected = f"^{flag}: given with --launcher=local, which trains here, expected with "
        with pytest.raises(InputError, match=f"{expected}--launcher={readers} only$"):
            main(flag)
    with pytest.raises(InputError, match="^--slurm=gpu: given with --launcher=ray, expected with"):
        main("--launcher=ray", "--slurm=gpu")
    with pytest.raises(InputError, match="^--grid_cpus=0: expected a whole number from 1"):
        main("--grid_cpus=0")


def test_more_for_slurm(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="the extra `submitit` isn't installed")
    from experiments.sweeps.clusters import slurm

    assert slurm._parameters("partition=gpu, cpu-bind=none") == {
        "partition": "gpu",
        "cpu_bind": "none",
    }
    with pytest.raises(InputError, match="^--slurm=gpu: found 'gpu', expected name=value, with"):
        clusters.connect("submitit", tmp_path, Resources(slurm="gpu"), True)


def test_a_job_that_slurm_may_queue_again_is_cancelled() -> None:
    submitit = pytest.importorskip("submitit", reason="the extra `submitit` isn't installed")
    from experiments.sweeps.clusters import slurm

    cancelled: list[bool] = []

    class Job:
        job_id, paths = "12", SimpleNamespace(stderr="12.err")

        def result(self) -> None:
            raise submitit.core.utils.FailedJobError("stopped by SIGTERM")

        def cancel(self, check: bool) -> None:
            cancelled.append(check)

    with pytest.raises(Lost, match="^job 12, log 12.err$"):
        slurm._Job(Job()).result()  # type: ignore[arg-type]
    assert cancelled == [False]
