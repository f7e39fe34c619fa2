"""Train from preferences: `python -m experiments.train --task=sweep --lam=0.03`.

Flags of the policy learner and of its numbers are those of `--algorithm`; `--algorithm=mr --help`
shows that one's. Where a flag takes several values (0.01,0.03), each combination is a run.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from appo_jax import registry, settings, workers
from appo_jax.data import minari_io
from appo_jax.data.preferences import count_labels
from appo_jax.envs import environment
from appo_jax.settings import MAX_INT, Settings, setting
from appo_jax.types import InputError
from experiments.runs import compiled, hosts, reward_controls, runner
from experiments.runs.experiment import (
    DatasetSpec,
    Execution,
    Experiment,
    digest,
    file_digest,
)
from experiments.runs.results import RunResult, table
from experiments.runs.sources import resolve
from experiments.terminal import cli, joining
from experiments.terminal.announcement import describe
from experiments.terminal.flags import (
    decimal_commas,
    define,
    define_settings,
    given,
    with_flag,
)
from experiments.terminal.progress import Terminal
from experiments.tracking import tracker

_LISTS = ("num_feedback", "seed")  # of an Experiment's settings, those that span a grid
_EVALUATION = ("eval_interval", "eval_episodes", "eval_stop_at_success")
_LABELS = ("segment_length", "feedback", "tie_threshold", "label_noise", "reward", "ending")


@dataclasses.dataclass(frozen=True)
class _Request(Settings):
    """What the command line says of data and seeds."""

    dataset: str = setting(
        "auto",
        "auto (a local medium-replay set, else medium-expert, collected now), medium-replay, "
        "medium-expert, or the id of a Minari data set",
    )
    dataset_size: int | None = setting(
        None,
        "transitions; 100,000 where data are collected now, the paper's size for medium-replay",
    )
    data_seed: int = setting(0, "seed of the data that are collected", low=0, high=MAX_INT)
    num_seeds: int | None = setting(None, "so many seeds, from --seed on")


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Define the flags of the algorithm that the command line names.

    Raises InputError for an unknown algorithm, and for a flag that only others have.
    """
    name = _algorithm_name(argv)
    algorithm = registry.algorithm(name)
    learner, reward_learner = algorithm.policy_learner, algorithm.reward_learner
    _refuse_flags_of_others(name, argv)
    whats = "; ".join(f"{one}: {found.help}" for one, found in registry.ALGORITHMS.items())
    main = "What to train (--task, --num_feedback and --seed take several: 0,1)"
    define(values, "task", str, "Meta-World task, e.g. sweep, or several: a,b", main, several=True)
    define(values, "env", str, "instead of a task: an id of Gymnasium, e.g. Hopper-v5", main)
    define(values, "algorithm", str, f"{whats}; or module:name of your own", main, name)
    define_settings(values, _Request, main, names=("dataset",))
    define(values, "preferences", Path, "JSON Lines file of labels to learn from", main)
    names = ("num_feedback", "seed", "num_updates")
    define_settings(values, Experiment, main, several=_LISTS, names=names)
    define_settings(values, _Request, main, names=("num_seeds",))
    where = "folder of the run (default: runs/<task>/<algorithm>/<digest of its settings>; of a "
    where += "grid: runs/grid/...)"
    define(values, "workdir", Path, where, main)
    swept = [field.name for field in settings.fields(learner.Swept)]
    define_settings(values, learner.Swept, f"Numbers of {name} (several: 0.01,0.03)", "", swept)
    data = "Data"
    define(values, "data_dir", Path, "folder of the data sets (default: Minari's)", data)
    define_settings(values, _Request, data, names=("dataset_size", "data_seed"))
    define_settings(values, Experiment, data, names=("normalise_observations",))
    own_defaults = {
        "reward": reward_controls.own_kind(name),
        "tie_threshold": ", ".join(
            f"{family.tie_threshold:g} with --{family.flag}" for family in environment.FAMILIES
        ),
    }
    define_settings(values, Experiment, "Labels and rewards", names=_LABELS, defaults=own_defaults)
    define_settings(values, Experiment, "Evaluation", names=_EVALUATION)
    define_settings(values, learner.Config, f"Policy learner of {name}")
    if reward_learner is not None:
        define_settings(values, reward_learner.Config, f"Reward learner of {name}", "reward_")
    group = "Execution (changes no number)"
    define_settings(values, Execution, group, defaults={"num_workers": cli.ALL_CORES})
    cache = "keep compiled programs in the user's cache folder (default: true)"
    define(values, "compilation_cache", bool, cache, group, True)
    joining.define_flags(values)


def _algorithm_name(argv: Sequence[str]) -> str:
    early = flags.FlagValues()
    define(early, "algorithm", str, "", "", "appo")
    try:
        early(list(argv), known_only=True)
    except flags.Error as error:
        raise InputError(str(error)) from error
    return str(early.algorithm)


def _refuse_flags_of_others(name: str, argv: Sequence[str]) -> None:
    algorithm = registry.algorithm(name)
    for word in argv[1:]:
        named = re.match(r"--?(?:no)?(\w+)", word)
        if named is None or named.group(1) in _own_flags(algorithm):
            continue
        others = [
            f"--algorithm={other}"
            for other, found in registry.ALGORITHMS.items()
            if named.group(1) in _own_flags(found)
        ]
        if others:
            numbers = [
                f"--{field.name}" for field in settings.fields(algorithm.policy_learner.Swept)
            ]
            raise InputError(
                f"--{named.group(1)}: a setting of {', '.join(others)}, not of "
                f"--algorithm={name}, which has {', '.join(numbers)} and what --help shows with it"
            )


def _own_flags(algorithm: registry.Algorithm) -> list[str]:
    classes = [("", algorithm.policy_learner.Swept), ("", algorithm.policy_learner.Config)]
    if algorithm.reward_learner is not None:
        classes.append(("reward_", algorithm.reward_learner.Config))
    return [
        prefix + field.name
        for prefix, cls in classes
        for field in settings.fields(cls)
        if not field.setting.of_run
    ]


def experiments_from_flags(
    values: flags.FlagValues, find_dataset: Callable[..., DatasetSpec] = resolve
) -> tuple[list[Experiment], Execution]:
    """The runs that the command line asks for. Raises InputError naming the first wrong flag.

    find_dataset: takes what `sources.resolve` takes.
    """
    algorithm = registry.algorithm(values.algorithm)
    learner = algorithm.policy_learner
    env_names = _env_names(values)
    family = environment.family(env_names[0])
    request = _Request(**given(values, _Request))
    of_run = given(values, Experiment)
    swept = given(values, learner.Swept)
    execution = _execution(values)
    tracker.find_all(execution.track)
    specs = _datasets(
        request, env_names, of_run.get("segment_length", 0), execution.data_dir, find_dataset
    )
    feedback = of_run.get("feedback", Experiment.feedback)
    counts = _label_counts(of_run.pop("num_feedback", None), feedback, execution, env_names)
    seeds = _seeds(of_run.pop("seed", (Experiment.seed,)), request.num_seeds)
    of_run.setdefault("tie_threshold", family.tie_threshold)
    of_run.setdefault("reward", reward_controls.own_kind(values.algorithm))
    with_flag("", reward_controls.check_kind, values.algorithm, of_run["reward"])
    ending = of_run.get("ending", Experiment.ending)
    with_flag("", reward_controls.check_ending, values.algorithm, of_run["reward"], ending)
    common = {
        "algorithm": values.algorithm,
        "preferences_digest": execution.preferences and file_digest(execution.preferences),
        **_configs(values, algorithm, of_run, family.terminates),
        **of_run,
    }
    runs = [
        Experiment(
            env_name=env_name,
            dataset=specs[env_name],
            num_feedback=count,
            swept=learner.Swept(**dict(zip(swept, numbers, strict=True))),
            seed=seed,
            **common,
        )
        for env_name, count, *numbers, seed in itertools.product(
            env_names, counts, *swept.values(), seeds
        )
    ]
    if values.workdir is None:
        execution = dataclasses.replace(execution, workdir=_default_folder(runs))
    return runs, execution


def _configs(
    values: flags.FlagValues,
    algorithm: registry.Algorithm,
    of_run: Mapping[str, Any],
    terminates: bool,
) -> dict[str, Any]:
    """The configs of the policy learner and, if there is one, of the reward learner.

    of_run: the settings that are given for the run.
    """
    shared = {
        name: of_run.get(name, getattr(Experiment, name))
        for name in ("segment_length", "num_updates")
    }

    def config(learner: Any, prefix: str) -> Any:
        named = given(values, learner.Config, prefix)
        return with_flag(prefix, settings.build, learner.Config, named, shared, terminates)

    reward_learner = algorithm.reward_learner
    return {
        "policy": config(algorithm.policy_learner, ""),
        "reward_model": config(reward_learner, "reward_") if reward_learner else None,
    }


def _env_names(values: flags.FlagValues) -> list[str]:
    if values.env is None and values.task is None:
        raise InputError(
            "--task is missing, expected a Meta-World task like --task=sweep, or --env=<an id of "
            "Gymnasium>"
        )
    if values.env is not None and values.task is not None:
        raise InputError(
            f"--env={values.env}: found with --task={','.join(values.task)}, expected one of the "
            "two"
        )
    if values.env is not None:
        return [environment.canonical_name(values.env, "env")]
    names = [environment.canonical_name(task, "task") for task in values.task]
    if len(set(names)) < len(names):
        raise InputError(f"--task={','.join(values.task)}: one task twice, expected each once")
    return names


def _execution(values: flags.FlagValues) -> Execution:
    of_execution = {"num_workers": workers.available_cores(), **given(values, Execution)}
    return Execution(
        workdir=Path(values.workdir or "."),
        data_dir=minari_io.root(values.data_dir),
        preferences=Path(values.preferences) if values.preferences else None,
        **of_execution,
    )


def _datasets(
    request: _Request,
    env_names: Sequence[str],
    segment_length: int,
    data_dir: Path,
    find_dataset: Callable[..., DatasetSpec],
) -> dict[str, DatasetSpec]:
    specs = {
        name: find_dataset(request.dataset, name, request.dataset_size, request.data_seed, data_dir)
        for name in env_names
    }
    horizon = environment.family(env_names[0]).horizon
    if horizon and segment_length > horizon and any(s.recipe != "minari" for s in specs.values()):
        raise InputError(
            f"--segment_length={segment_length}: expected a number from 1 to {horizon}, the steps "
            "of an episode"
        )
    return specs


def _seeds(given_seeds: tuple[int, ...], num_seeds: int | None) -> tuple[int, ...]:
    if num_seeds is None:
        return given_seeds
    if len(given_seeds) > 1:
        raise InputError(
            f"--num_seeds={num_seeds}: --seed names {len(given_seeds)} already, expected one of "
            "the two flags"
        )
    last = given_seeds[0] + num_seeds - 1
    if last > MAX_INT:
        raise InputError(
            f"--num_seeds={num_seeds}: from --seed={given_seeds[0]} on the last one is {last}, "
            f"expected at most {MAX_INT}"
        )
    return tuple(range(given_seeds[0], last + 1))


def _label_counts(
    given_counts: tuple[int, ...] | None,
    feedback: str,
    execution: Execution,
    env_names: Sequence[str],
) -> tuple[int, ...]:
    preferences = execution.preferences
    if preferences is not None and feedback != Experiment.feedback:
        raise InputError(
            f"--feedback={feedback}: a scheme of the scripted teacher, found with "
            f"--preferences={preferences}, expected one of the two"
        )
    if preferences is None:
        return given_counts or (Experiment.num_feedback,)
    if len(env_names) > 1:
        raise InputError(
            f"--preferences={preferences}: labels of one data set, expected one task and not "
            f"{len(env_names)}"
        )
    with cli.naming("preferences"):
        available = count_labels(preferences, execution.on_bad_label)
    if not available:
        raise InputError(f"--preferences={preferences}: no labels, expected at least one")
    if given_counts and max(given_counts) > available:
        raise InputError(
            f"--num_feedback={max(given_counts)}: {preferences} holds {available} labels, "
            "expected at most as many"
        )
    return given_counts or (available,)


def _default_folder(runs: Sequence[Experiment]) -> Path:
    folder = "grid"
    if len(runs) == 1:
        folder = environment.folder_name(runs[0].env_name).removesuffix("-v3")
    return Path("runs") / folder / runs[0].algorithm.replace(":", ".") / digest(runs)


def summary(results: Sequence[RunResult]) -> str:
    """The result of one run in a sentence, of several in a table."""
    if len(results) > 1:
        return table(results)
    (one,) = results
    averaged = one.num_evaluations_averaged
    of = "the last evaluation" if averaged == 1 else f"the mean of the last {averaged} evaluations"
    if one.success_rate is not None:
        return f"success rate {one.success_rate:.1f} % ({of}; success at any step of an episode)"
    if one.total_return is not None:
        return f"return {one.total_return:.1f} ({of}; {one.env_name} knows no success)"
    if one.state == "finished":
        return "no result: the last evaluations lost episodes"
    return f"no result: the run is {one.state}"


def main(values: flags.FlagValues) -> None:
    """Run what the flags say."""
    runs, execution = experiments_from_flags(values)
    with joining.with_others(values, len(runs)):
        if values.compilation_cache:
            compiled.use_compilation_cache()
        if hosts.is_first():
            _train(values, runs, execution)
        else:
            number, count = values.process_id, values.num_processes
            print(f"process {number} of {count}; process 0 tells the rest")
            runner.run(runs, execution)


def _train(values: flags.FlagValues, runs: Sequence[Experiment], execution: Execution) -> None:
    """Train, and tell the user of it."""
    print(describe(runs, execution))
    for warning in decimal_commas(values):
        print(f"warning: {warning}")
    terminal = Terminal()
    try:
        results = runner.run(runs, execution, terminal)
    finally:
        terminal.close()
    print(summary(results))


if __name__ == "__main__":
    cli.run(main, define_flags)
