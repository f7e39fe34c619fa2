"""Collect a data set and save it: `python -m experiments.collect --task=sweep --seed=0`.

medium-expert data come from scripted policies within minutes, medium-replay data from SAC agents
that learn for hours; the latter can be stopped at any time.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from appo_jax import workers
from appo_jax.collect import replay_collection, sac, scripted
from appo_jax.collect.replay_collection import Recipe
from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.envs import environment, meta_world
from appo_jax.settings import MAX_INT, Settings, setting
from appo_jax.types import InputError
from experiments.collecting import sac_collection, scripted_collection
from experiments.collecting.summary import summary
from experiments.runs.events import Counter
from experiments.terminal.cli import ALL_CORES, naming, run
from experiments.terminal.flags import define, define_settings, given
from experiments.terminal.progress import Terminal

REPLAY_FLAGS = ("env", "num_seeds", "batch_size", "updates_per_step")
EXPERT_FLAGS = ("num_workers",)


@dataclasses.dataclass(frozen=True)
class Options(Settings):
    """What is asked of both recipes."""

    size: int | None = setting(
        None, "transitions in all, on Meta-World whole episodes (default: the paper's size)"
    )
    seed: int = setting(0, "of the data, --data_seed of experiments.train", low=0, high=MAX_INT)


@dataclasses.dataclass(frozen=True)
class Expert(Settings):
    """What medium-expert data alone read."""

    num_workers: int | None = setting(None, "simulator processes", high=1000)


@dataclasses.dataclass(frozen=True)
class Replay(Settings):
    """What medium-replay data alone read, beside the agents' config."""

    num_seeds: int = setting(Recipe.num_agents, "SAC agents, each with a seed of its own")
    updates_per_step: float = setting(
        Recipe.updates_per_step, "updates of an agent for each of its steps", above=0
    )


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags, grouped by the recipe that they are for."""
    main = "What to collect"
    define(values, "task", str, "Meta-World task, e.g. sweep (sweep-v2, sweep-v3)", main)
    recipes = (scripted.RECIPE, replay_collection.RECIPE)
    group: dict[str, Any] = {"flag_values": values, "module_name": main}
    flags.DEFINE_enum("dataset", scripted.RECIPE, recipes, "recipe of the data", **group)
    define_settings(values, Options, main)
    define(values, "data_dir", Path, "folder of the data sets (default: Minari's)", main)
    only = f"{scripted.RECIPE} only"
    define_settings(values, Expert, only, defaults={"num_workers": ALL_CORES})
    only = f"{replay_collection.RECIPE} only"
    text = "id of a Gymnasium environment, e.g. Hopper-v5, in place of --task"
    define(values, "env", str, text, only)
    define_settings(values, Replay, only)
    define_settings(values, sac.Config, only, names=("batch_size",))


def expert_from_flags(values: flags.FlagValues) -> tuple[str, int, int, int]:
    """A medium-expert set's task, size and seed, and how many processes collect it.

    Raises InputError naming the first wrong flag.
    """
    _refuse(values, REPLAY_FLAGS, replay_collection.RECIPE)
    if values.task is None:
        raise InputError("--task is missing, expected a Meta-World task like --task=sweep")
    with naming("task"):
        name = meta_world.canonical_name(values.task)
    size = _size(values, name)
    with naming("size"):
        scripted.check_size(size)
    num_workers = Expert(**given(values, Expert)).num_workers or workers.available_cores()
    return name, size, Options(**given(values, Options)).seed, num_workers


def replay_from_flags(values: flags.FlagValues) -> Recipe:
    """The medium-replay set that is asked for. Raises InputError naming the first wrong flag."""
    _refuse(values, EXPERT_FLAGS, scripted.RECIPE)
    name = _env_name(values)
    options, replay = Options(**given(values, Options)), Replay(**given(values, Replay))
    size = _size(values, name)
    with naming("size"):
        replay_collection.check_size(name, size, replay.num_seeds)
    return Recipe(
        env_name=name,
        num_transitions=size,
        seed=options.seed,
        num_agents=replay.num_seeds,
        updates_per_step=replay.updates_per_step,
        config=sac.Config(**given(values, sac.Config)),
    )


def _refuse(values: flags.FlagValues, names: Sequence[str], recipe: str) -> None:
    """Raise InputError for a flag that only another recipe reads."""
    for flag in names:
        if values[flag].value is not None:
            raise InputError(
                f"--{flag}: given with --dataset={values.dataset}, expected with "
                f"--dataset={recipe} only"
            )


def _env_name(values: flags.FlagValues) -> str:
    if (values.task is None) == (values.env is None):
        raise InputError(
            f"--task={values.task} and --env={values.env}: expected one of the two, a Meta-World "
            "task or an id of Gymnasium"
        )
    flag = "task" if values.env is None else "env"
    return environment.canonical_name(values.task or values.env or "", flag)


def _size(values: flags.FlagValues, name: str) -> int:
    size = Options(**given(values, Options)).size
    if size is None and name in meta_world.PAPER_SIZES:
        size = meta_world.paper_size(name)
    if size is None:
        raise InputError(f"--size is missing, expected a number: {name} is not in the paper")
    return size


def kept(values: flags.FlagValues) -> str:
    """What is left when a collection ends early."""
    if values.dataset == replay_collection.RECIPE:
        return "the same command goes on from the last checkpoint"
    return "nothing was saved"


def main(values: flags.FlagValues) -> None:
    """Collect what the flags say."""
    is_replay = values.dataset == replay_collection.RECIPE
    dataset, is_new = (_medium_replay if is_replay else _medium_expert)(values)
    if is_new:
        print(summary(dataset, values.data_dir))
    else:
        folder = minari_io.folder(dataset.id, values.data_dir)
        print(f"exists already: {dataset.id} in {folder}")


def _medium_expert(values: flags.FlagValues) -> tuple[Dataset, bool]:
    task, size, seed, num_workers = expert_from_flags(values)
    found = scripted_collection.find(task, size, seed, values.data_dir)
    if found is not None:
        return found, False
    _print_name(values.task, task)
    recipe, place = values.dataset, values.data_dir
    with _counter(f"{task} {recipe}") as bar:
        dataset = scripted_collection.collect_and_save(
            task, recipe, size, seed, place, num_workers, bar
        )
    return dataset, True


def _medium_replay(values: flags.FlagValues) -> tuple[Dataset, bool]:
    recipe = replay_from_flags(values)
    found = sac_collection.find(recipe, values.data_dir)
    if found is not None:
        return found, False
    _print_name(values.task or values.env, recipe.env_name)
    _print(sac_collection.describe(recipe))
    with _counter(f"{recipe.env_name} {values.dataset}") as bar:
        return sac_collection.collect_and_save(recipe, values.data_dir, bar, _print), True


@contextlib.contextmanager
def _counter(stage: str) -> Iterator[Counter]:
    """A callback that shows the steps of a collection; stdout is for what comes out of it."""
    terminal = Terminal(sys.stderr)
    try:
        yield Counter(terminal, stage, "steps")
    finally:
        terminal.close()


def _print_name(requested: str, name: str) -> None:
    if requested != name:
        _print(f"{requested} runs as {name}")


def _print(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    run(main, define_flags, kept)
