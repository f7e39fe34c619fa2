"""An experiment as a file: which runs it asks for.

A definition is TOML: `about`, a sentence or two, and tables `grids` whose keys are flags of
`experiments.train` with one value or a list of them, beside those of a table `common` that a grid
doesn't have itself. Every combination is a run. Two things beside the flags: `algorithm = "all"` is
every algorithm of the registry, and `dataset_share` is the size of the data set in shares of the
paper's.
"""

import dataclasses
import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from appo_jax import registry, settings
from appo_jax.data import lire
from appo_jax.envs import environment, meta_world
from appo_jax.types import InputError
from experiments.runs import results, reward_controls
from experiments.runs.experiment import DatasetSpec, Execution, Experiment
from experiments.runs.sources import resolve

FOLDER = Path(__file__).parent / "definitions"
ALL = "all"
_SHARE = "dataset_share"
# Flags of `experiments.train` that a definition can't hold: they belong to a start of the sweep.
_OF_A_START = ("workdir", "data_dir", "compilation_cache") + tuple(
    field.name for field in settings.fields(Execution)
)

Table = Mapping[str, Sequence[Any]]  # of a definition: flags and their values
# A command line of `experiments.train`, and what finds its data sets, to the runs it asks for.
ReadRuns = Callable[[list[str], Callable[..., DatasetSpec]], tuple[list[Experiment], Execution]]


@dataclasses.dataclass(frozen=True)
class Definition:
    """name: how it is called. about: for a person. grids: flags and their values."""

    name: str
    about: str
    grids: tuple[Table, ...]


@dataclasses.dataclass(frozen=True)
class Narrowing:
    """What the command line leaves of a definition; None leaves all."""

    algorithm: str | None = None
    task: str | None = None
    num_seeds: int | None = None
    num_updates: int | None = None


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A run, and how it would be carried out alone."""

    run: Experiment
    execution: Execution

    @property
    def key(self) -> tuple[str, int]:
        """What makes it the run it is, its length included."""
        return self.run.digest(), self.run.num_updates

    def carried_out(self, **settings: Any) -> "Wanted":
        """The same with other settings of its execution."""
        return dataclasses.replace(self, execution=dataclasses.replace(self.execution, **settings))


@dataclasses.dataclass(frozen=True)
class Missing:
    """A data set that has to be made first, and the command that makes it."""

    what: str
    command: str


def names() -> list[str]:
    """The definitions of the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name: str) -> Definition:
    """A definition by its name, or by the path of its file. Raises InputError if it isn't one."""
    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(
            f"--experiment={name}: {error.strerror}, expected {', '.join(names())} or the path of "
            "a TOML file"
        ) from error
    except ValueError as error:  # also bytes that are no text
        raise InputError(f"{path}: not TOML ({error})") from error
    unknown = set(content) - {"about", "common", "grids"}
    common: Any = content.get("common", {})
    grids: Any = content.get("grids")
    is_list = isinstance(grids, list) and bool(grids)
    if unknown or not is_list or not all(isinstance(table, dict) for table in [common, *grids]):
        raise InputError(
            f"{path}: holds {', '.join(content) or 'nothing'}, expected about, one or more tables "
            "[[grids]], and perhaps a table [common]"
        )
    tables = tuple(_values(path, number, common | grid) for number, grid in enumerate(grids, 1))
    return Definition(path.stem, str(content.get("about", "")), tables)


def _values(path: Path, number: int, grid: Mapping[str, Any]) -> Table:
    found = {}
    for name, value in grid.items():
        values = value if isinstance(value, list) else [value]
        if name in _OF_A_START:
            raise InputError(
                f"{path}: grid {number} has {name}, expected it on the command line, or left out"
            )
        if not values or not all(isinstance(one, str | int | float) for one in values):
            raise InputError(
                f"{path}: grid {number} has {name} = {value!r}, expected a text, a number, true or "
                "false, or a list of them"
            )
        found[name] = values
    if "algorithm" not in found:
        raise InputError(f"{path}: grid {number} has no algorithm, expected one or {ALL!r}")
    if found["algorithm"] == [ALL]:
        found["algorithm"] = list(registry.ALGORITHMS)
    return found


def expand(
    definition: Definition, narrowing: Narrowing, data_dir: Path | None, read_runs: ReadRuns
) -> tuple[list[Wanted], list[Missing]]:
    """The runs that a definition asks for, each once, and the data sets that aren't there.

    Runs whose data are missing are among the runs. Raises InputError for a flag that can't be, and
    where nothing is left.
    """
    missing: dict[str, Missing] = {}

    def find(*asked: Any) -> DatasetSpec:
        try:
            return resolve(*asked)
        except InputError:
            requested, env_name, *_, folder = asked
            if requested != "medium-replay" or lire.folder_of(folder, env_name):
                raise  # it is there, but not as it is asked for
            found, lacking = _to_be_made(*asked)
            missing[found.id] = lacking
            return found

    wanted: dict[tuple[str, int], Wanted] = {}
    for grid in definition.grids:
        for request in _requests(_narrowed(grid, narrowing)):
            for one in _runs(definition.name, request, data_dir, find, read_runs):
                wanted.setdefault(one.key, one)
    if not wanted:
        algorithms, tasks = (
            ", ".join(dict.fromkeys(str(v) for grid in definition.grids for v in grid.get(key, [])))
            for key in ("algorithm", "task")
        )
        raise InputError(
            f"--experiment={definition.name}: no run is left, expected --only_algorithm among "
            f"{algorithms} and --only_task among {tasks or 'none'}"
        )
    return list(wanted.values()), list(missing.values())


def _narrowed(grid: Table, narrowing: Narrowing) -> dict[str, Sequence[Any]]:
    own = dict(grid)
    if narrowing.algorithm is not None:
        own["algorithm"] = [one for one in own["algorithm"] if one == narrowing.algorithm]
    if narrowing.task is not None:
        try:
            task = meta_world.canonical_name(narrowing.task)
        except InputError as error:
            raise InputError(f"--only_task: {error}") from error
        own["task"] = [one for one in own.get("task", []) if _canonical(one) == task]
    if narrowing.num_updates is not None:
        own["num_updates"] = [narrowing.num_updates]
    if narrowing.num_seeds is not None and all(own.values()):  # else nothing is left of it
        seeds = own.get("seed", [])
        if len(seeds) <= 1:
            own["num_seeds"] = [narrowing.num_seeds]
        elif narrowing.num_seeds <= len(seeds):
            own["seed"] = seeds[: narrowing.num_seeds]
        else:
            raise InputError(
                f"--num_seeds={narrowing.num_seeds}: a grid of the experiment has the seeds "
                f"{', '.join(map(str, seeds))}, expected at most {len(seeds)}"
            )
    return own


def _canonical(task: Any) -> str:
    return environment.canonical_name(str(task), "task")


def _requests(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Sequence[Any]]]:
    """The command lines of `experiments.train` that make up a grid.

    Flags that take lists there keep them; all others are multiplied out here.
    """
    for name in grid["algorithm"]:
        algorithm = registry.algorithm(str(name))
        own = {**grid, "algorithm": [name]}
        swept = [field.name for field in settings.fields(algorithm.policy_learner.Swept)]
        lists = {"num_feedback", "seed", *swept}
        if _SHARE not in own:
            lists.add("task")
        apart = [flag for flag in own if flag not in lists]
        for values in itertools.product(*(own[flag] for flag in apart)):
            request = {**own, **{flag: [one] for flag, one in zip(apart, values, strict=True)}}
            if all(request.values()):
                if "num_feedback" in request and not _reads_labels(request):
                    request["num_feedback"] = request["num_feedback"][:1]
                yield request


def _reads_labels(request: Mapping[str, Sequence[Any]]) -> bool:
    settings = {flag: values[0] for flag, values in request.items()}
    own_kind = reward_controls.own_kind(str(settings["algorithm"]))
    return own_kind != "true" and results.reads_labels({"reward": own_kind, **settings})


def _runs(
    name: str,
    request: Mapping[str, Sequence[Any]],
    data_dir: Path | None,
    find: Callable[..., DatasetSpec],
    read_runs: ReadRuns,
) -> list[Wanted]:
    own = dict(request)
    if _SHARE in own:
        own["dataset_size"] = [_size_of_share(own.pop(_SHARE)[0], own.get("task", [""])[0])]
    arguments = [f"--{flag}={','.join(map(_word, values))}" for flag, values in own.items()]
    arguments += ["--workdir=."] + ([f"--data_dir={data_dir}"] if data_dir else [])
    try:
        runs, execution = read_runs(arguments, find)
    except InputError as error:
        raise InputError(f"--experiment={name}: {error}") from error
    return [Wanted(run, execution) for run in runs]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _size_of_share(share: Any, task: Any) -> int:
    whole = meta_world.paper_size(str(task))
    if whole is None or not isinstance(share, int | float) or not share > 0:
        raise InputError(
            f"{_SHARE} = {share!r} of {task}: expected a number above 0, of one of the paper's "
            f"tasks ({', '.join(name.removesuffix('-v3') for name in meta_world.PAPER_TASKS)})"
        )
    return round(whole * share)


def _to_be_made(
    requested: str, env_name: str, size: int | None, data_seed: int, data_dir: Path
) -> tuple[DatasetSpec, Missing]:
    whole = size or (meta_world.paper_size(env_name) if meta_world.is_task(env_name) else None)
    if whole is None:
        raise InputError(
            f"--dataset=medium-replay: no size for {env_name}, expected dataset_size with it"
        )
    id = environment.dataset_id(env_name, "medium-replay", whole, data_seed)
    flag = environment.family(env_name).flag
    name = env_name.removesuffix("-v3") if flag == "task" else env_name
    seed = f" --seed={data_seed}" if data_seed else ""
    command = (
        f"python -m experiments.collect --{flag}={name} --dataset=medium-replay --size={whole}"
        f"{seed} --data_dir={data_dir}"
    )
    spec = DatasetSpec(requested, "missing", "medium-replay", "minari", id, size, data_seed)
    return spec, Missing(f"{env_name}, {whole:,} transitions", command)
