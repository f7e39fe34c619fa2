"""Run a named experiment: `python -m experiments.sweep --experiment=table1 --data_dir=<folder>`.

The same command goes on where it was: a finished run is never run again. It ends with the page of
`experiments.report`.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from appo_jax import workers
from appo_jax.types import InputError
from experiments import train
from experiments.reporting import report
from experiments.runs import compiled, files
from experiments.runs.experiment import DatasetSpec, Execution, Experiment
from experiments.sweeps import cost, definition, launch, plan
from experiments.sweeps.clusters import cluster as clusters
from experiments.sweeps.clusters.cluster import Resources
from experiments.sweeps.definition import Definition, Missing, Narrowing, Wanted
from experiments.terminal import cli
from experiments.terminal.flags import define, define_settings, given
from experiments.terminal.progress import duration
from experiments.terminal.sweep_progress import Progress
from experiments.tracking import tracker

LAUNCHERS = ("local", "submitit", "ray")
# Settings of `Resources` that only some launchers read.
_READERS = {"grid_hours": ("submitit",), "slurm": ("submitit",), "ray_address": ("ray",)}


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags, in the order in which they matter."""
    main = "What to run"
    known = ", ".join(definition.names())
    define(values, "experiment", Path, f"{known}, or the path of a TOML file of your own", main)
    define(values, "data_dir", Path, "folder of the data sets (default: Minari's)", main)
    where = "folder of the runs (default: runs/sweeps/<experiment>)"
    define(values, "workdir", Path, where, main)
    define(values, "output", Path, "folder of the page (default: <workdir>/report)", main)
    define(values, "dry_run", bool, "say what would run and what it costs, and end", main, False)
    less = "Less of it"
    define(values, "only_algorithm", str, "this algorithm alone", less)
    define(values, "only_task", str, "this task alone", less)
    define(values, "num_seeds", int, "so many seeds instead of the experiment's", less)
    define(values, "num_updates", int, "so many updates instead of the experiment's", less)
    elsewhere = "Where (see docs/machines.md)"
    where = "local (here, one grid after another), submitit (Slurm) or ray"
    define(values, "launcher", str, where, elsewhere, "local")
    define_settings(values, Resources, elsewhere)
    group = "Execution (changes no number)"
    cores = f"{cli.ALL_CORES}; with submitit or ray: --grid_cpus"
    define_settings(values, Execution, group, defaults={"num_workers": cores})
    cache = "keep compiled programs in the user's cache folder (default: true)"
    define(values, "compilation_cache", bool, cache, group, True)


def main(values: flags.FlagValues) -> None:
    """Run what the flags say."""
    found, wanted, missing = _asked(values)
    workdir = Path(values.workdir or Path("runs", "sweeps", found.name))
    if values.dry_run:
        _dry_run(found, wanted, missing, workdir)
        return
    if missing:
        _tell_of_missing(missing)
        place = values.data_dir or "Minari's folder"
        lacking = "1 data set isn't" if len(missing) == 1 else f"{len(missing)} data sets aren't"
        raise InputError(
            f"--data_dir={place}: {lacking} there, expected LiRE's buffers in a folder <task>-v2, "
            "or what the commands above make, in hours"
        )
    output = Path(values.output or workdir / "report")
    with files.locked(workdir):
        print(f"{found.name}: {found.about}\n{len(wanted)} runs, in {workdir}")
        plan.write(workdir, found.name, found.about, wanted)
        with contextlib.ExitStack() as stack:
            launcher = _launcher(values, workdir, stack)
            progress = Progress(sum(one.run.num_updates for one in wanted))
            stack.callback(progress.close)
            failed = launch.launch_all(wanted, workdir, progress, launcher)
        page = report.build([workdir], output, {one.key for one in wanted})
        done = len(plan.make(wanted, workdir).finished)
    print(f"{done} of {len(wanted)} runs are finished; the page is {page}")
    if failed:
        raise InputError(f"{len(failed)} runs failed; the same command tries them again")


def read_runs(
    arguments: list[str], find_dataset: Callable[..., DatasetSpec]
) -> tuple[list[Experiment], Execution]:
    """The runs that a command line of `experiments.train` asks for."""
    values = flags.FlagValues()
    line = ["", *arguments]
    train.define_flags(values, line)
    cli.parse_flags(values, line)
    return train.experiments_from_flags(values, find_dataset)


def machine() -> tuple[int, bool]:
    """The cores of this machine, and whether runs train on them."""
    return workers.available_cores(), jax.default_backend() == "cpu"


def _launcher(
    values: flags.FlagValues, workdir: Path, stack: contextlib.ExitStack
) -> launch.Launcher:
    """Where grids train; a cluster is left at the end of the stack."""
    if values.launcher == "local":
        if values.compilation_cache:
            compiled.use_compilation_cache()
        return launch.in_turn()
    resources = Resources(**given(values, Resources))
    cluster = clusters.connect(values.launcher, workdir, resources, values.compilation_cache)
    stack.callback(cluster.close)
    return launch.on(cluster, resources.grids_at_once)


def _asked(values: flags.FlagValues) -> tuple[Definition, list[Wanted], list[Missing]]:
    if values.experiment is None:
        known = ", ".join(definition.names())
        raise InputError(f"--experiment is missing, expected {known} or a file of your own")
    if values.launcher not in LAUNCHERS:
        known = ", ".join(LAUNCHERS)
        raise InputError(f"--launcher={values.launcher}: expected {known}")
    _refuse_flags_of_other_launchers(values)
    for name in ("num_seeds", "num_updates"):
        number: Any = values[name].value
        if number is not None and number < 1:
            raise InputError(f"--{name}={number}: expected a number from 1")
    tracker.find_all(values.track or "")
    found = definition.read(values.experiment)
    narrowing = Narrowing(
        values.only_algorithm, values.only_task, values.num_seeds, values.num_updates
    )
    data_dir = Path(values.data_dir) if values.data_dir else None
    wanted, missing = definition.expand(found, narrowing, data_dir, read_runs)
    execution: dict[str, Any] = given(values, Execution)
    if values.launcher != "local":
        execution.setdefault("num_workers", Resources(**given(values, Resources)).grid_cpus)
    return found, [one.carried_out(**execution) for one in wanted], missing


def _refuse_flags_of_other_launchers(values: flags.FlagValues) -> None:
    found = values.launcher + ", which trains here" * (values.launcher == "local")
    for name, value in given(values, Resources).items():
        readers = _READERS.get(name, LAUNCHERS[1:])
        if values.launcher not in readers:
            raise InputError(
                f"--{name}={value}: given with --launcher={found}, expected with "
                f"--launcher={' or '.join(readers)} only"
            )


def _tell_of_missing(missing: Sequence[Missing]) -> None:
    print(f"missing: {len(missing)} data set{'s' * (len(missing) > 1)}, to be made by:")
    print("\n".join(f"  {one.what}: {one.command}" for one in missing))


def _dry_run(
    found: Definition, wanted: Sequence[Wanted], missing: Sequence[Missing], workdir: Path
) -> None:
    print(f"{found.name}: {found.about}")
    left = plan.make(wanted, workdir)
    for note in left.notes:
        print(note)
    print(f"{len(wanted)} runs in {workdir}, {len(left.finished)} of them finished\n")
    meter, total = cost.Meter(lambda text: print(f"  {text}")), cost.Cost(0.0, 0)
    for number, grid in enumerate(left.grids, 1):
        print(f"grid {number} of {len(left.grids)}: {grid.title}")
        print("\n".join(f"  {line}" for line in plan.describe(grid)))
        try:
            own = cost.of_grid(grid, meter.rates(grid), *machine())
        except InputError as error:
            print(f"  not counted: {error}")
            continue
        print(f"  about {duration(own.seconds)}, {_room(own.bytes)}")
        total = cost.Cost(total.seconds + own.seconds, total.bytes + own.bytes)
    print(
        f"\nall of it: about {duration(total.seconds)} on this machine, {_room(total.bytes)} on "
        "the disk"
    )
    if missing:
        _tell_of_missing(missing)


def _room(bytes: int) -> str:
    return f"{bytes / 2**30:.1f} GiB" if bytes >= 2**30 else f"{bytes / 2**20:.0f} MiB"


if __name__ == "__main__":
    cli.run(main, define_flags)
