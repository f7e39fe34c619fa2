"""Collect a data set and save it: `python -m experiments.collect --task=sweep --seed=0`.

medium-expert data come from scripted policies within minutes, medium-replay data from SAC agents
that learn for hours; the latter can be stopped at any time.
"""

import contextlib
import math
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
from appo_jax.types import InputError
from experiments.collecting import sac_collection, scripted_collection
from experiments.collecting.summary import summary
from experiments.runs.events import Counter
from experiments.terminal.cli import naming, run
from experiments.terminal.flags import define, with_flag
from experiments.terminal.progress import Terminal

REPLAY_FLAGS = ("env", "num_seeds", "batch_size", "updates_per_step")
EXPERT_FLAGS = ("num_workers",)


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags, grouped by the recipe that they are for."""
    main = "What to collect"
    group: dict[str, Any] = {"flag_values": values, "module_name": main}
    recipes = (scripted.RECIPE, replay_collection.RECIPE)
    text = "Meta-World task, e.g. sweep (sweep-v2, sweep-v3)"
    flags.DEFINE_string("task", None, text, **group)
    flags.DEFINE_enum("dataset", scripted.RECIPE, recipes, "recipe of the data", **group)
    text = "transitions in all, on Meta-World whole episodes; default: the paper's size"
    flags.DEFINE_integer("size", None, text, **group)
    flags.DEFINE_integer(
        "seed", 0, "of the data, --data_seed of experiments.train; 0 or more", **group
    )
    define(values, "data_dir", Path, "folder of the data sets; default: Minari's", main)

    group["module_name"] = f"{scripted.RECIPE} only"
    text = "simulator processes, 1 to 1000; default: one for each core"
    flags.DEFINE_integer("num_workers", None, text, lower_bound=1, upper_bound=1000, **group)

    group["module_name"] = f"{replay_collection.RECIPE} only"
    text = "id of a Gymnasium environment, e.g. Hopper-v5, in place of --task"
    flags.DEFINE_string("env", None, text, **group)
    text = f"SAC agents, each with a seed of its own; default: {Recipe.num_agents}"
    flags.DEFINE_integer("num_seeds", None, text, lower_bound=1, **group)
    text = f"transitions of one update; default: {sac.Config.batch_size}"
    flags.DEFINE_integer("batch_size", None, text, lower_bound=1, **group)
    text = f"updates of an agent for each of its steps; default: {Recipe.updates_per_step:g}"
    flags.DEFINE_float("updates_per_step", None, text, **group)


def expert_from_flags(values: flags.FlagValues) -> tuple[str, int]:
    """The task's name and the size of a medium-expert set. Raises InputError naming the flag."""
    _refuse(values, REPLAY_FLAGS, replay_collection.RECIPE)
    if values.task is None:
        raise InputError("--task is missing, expected a Meta-World task like --task=sweep")
    with naming("task"):
        name = meta_world.canonical_name(values.task)
    size = _size(values, name)
    with naming("size"):
        scripted.check_size(size)
    if values.seed < 0:
        raise InputError(f"--seed={values.seed}: expected 0 or more")
    return name, size


def replay_from_flags(values: flags.FlagValues) -> Recipe:
    """The medium-replay set that is asked for. Raises InputError naming the first wrong flag."""
    _refuse(values, EXPERT_FLAGS, scripted.RECIPE)
    name = _env_name(values)
    rate = values.updates_per_step
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"--updates_per_step={rate}: expected a number above 0")
    if not 0 <= values.seed < 2**31:
        raise InputError(f"--seed={values.seed}: expected a number from 0 to {2**31 - 1}")
    agents = values.num_seeds or Recipe.num_agents
    size = _size(values, name)
    with naming("size"):
        replay_collection.check_size(name, size, agents)
    return Recipe(
        name,
        size,
        values.seed,
        agents,
        rate or Recipe.updates_per_step,
        config=with_flag("", sac.Config, batch_size=values.batch_size or sac.Config.batch_size),
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
    size = values.size
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
    task, size = expert_from_flags(values)
    found = scripted_collection.find(task, size, values.seed, values.data_dir)
    if found is not None:
        return found, False
    _print_name(values.task, task)
    recipe, place = values.dataset, values.data_dir
    num_workers = values.num_workers or workers.available_cores()
    with _counter(f"{task} {recipe}") as bar:
        dataset = scripted_collection.collect_and_save(
            task, recipe, size, values.seed, place, num_workers, bar
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
