"""Medium-replay data from start to end: progress, signals, checkpoints, and the set on disk."""

import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from absl import flags

from appo_jax import checkpoint
from appo_jax.collect import medium_replay, sac
from appo_jax.collect.medium_replay import RECIPE, Collection, Recipe
from appo_jax.collect.stepping import Steppers, steppers
from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.envs import environment, meta_world
from appo_jax.types import InputError
from experiments import outputs, signals

CHECKPOINT_STEPS = 2500  # of each agent, between two checkpoints
NOTED_STEPS = 500  # between two looks at the success rate

_OWN_FLAGS = ("env", "num_seeds", "batch_size", "updates_per_step")


class Progress(Protocol):
    """Who shows how far the collection is, in transitions."""

    def begin(self, done: int) -> None:
        """So many are there from an earlier start."""

    def __call__(self, done: int, total: int, note: str) -> None:
        """So many are there now; `note` says how the agents do."""


def define_flags(values: flags.FlagValues) -> None:
    """Define the flags that other recipes have no use for."""
    for define, name, help in (
        (flags.DEFINE_string, "env", "instead of a task: an id of Gymnasium, e.g. Hopper-v5"),
        (flags.DEFINE_integer, "num_seeds", f"agents; default: {Recipe.num_agents}"),
        (
            flags.DEFINE_integer,
            "batch_size",
            f"transitions of an update; default: {sac.Config.batch_size}",
        ),
        (
            flags.DEFINE_float,
            "updates_per_step",
            f"an agent's updates for each of its steps; default: {Recipe.updates_per_step:g}",
        ),
    ):
        define(name, None, f"{RECIPE}: {help}", flag_values=values)


def refuse_flags(values: flags.FlagValues) -> None:
    """Raise InputError for a flag that another recipe has no use for."""
    for flag in _OWN_FLAGS:
        if values[flag].value is not None:
            raise InputError(
                f"flag --{flag}: given with --dataset={values.dataset}, expected with "
                f"--dataset={RECIPE} only"
            )


def recipe_from_flags(values: flags.FlagValues) -> Recipe:
    """What the command line asks for. Raises InputError naming the first flag that is wrong."""
    name = _env_name(values)
    for flag in _OWN_FLAGS[1:]:
        value = values[flag].value
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"flag --{flag}: {value}, expected a number above 0")
    if not 0 <= values.seed < 2**31:
        raise InputError(f"flag --seed: {values.seed}, expected a number from 0 to {2**31 - 1}")
    agents = values.num_seeds or Recipe.num_agents
    size = values.size
    if size is None and name in meta_world.PAPER_SIZES:
        size = meta_world.paper_size(name)
    if size is None:
        raise InputError(f"flag --size is missing, expected a number: {name} is not in the paper")
    try:
        medium_replay.check_size(name, size, agents)
    except InputError as error:
        raise InputError(f"flag --size: {error}") from error
    return Recipe(
        name,
        size,
        values.seed,
        agents,
        values.updates_per_step or Recipe.updates_per_step,
        config=sac.Config(batch_size=values.batch_size or sac.Config.batch_size),
    )


def _env_name(values: flags.FlagValues) -> str:
    if (values.task is None) == (values.env is None):
        raise InputError(
            f"flags --task={values.task} and --env={values.env}: expected one of the two, a "
            "Meta-World task or an id of Gymnasium"
        )
    flag = "task" if values.env is None else "env"
    check: Callable[[str], str] = (
        meta_world.canonical_name if values.env is None else environment.check_name
    )
    try:
        return check(values.task or values.env or "")
    except InputError as error:
        raise InputError(f"flag --{flag}: {error}") from error


def describe(recipe: Recipe) -> str:
    """What is about to happen, for a person to read before it does."""
    updates = max(0, recipe.num_steps - recipe.random_steps) * recipe.updates_per_step
    return (
        f"{recipe.num_agents} SAC agents in {recipe.env_name}, {recipe.num_steps:,} steps each, "
        f"the first {recipe.random_steps:,} of them random; {updates:,.0f} updates of "
        f"{recipe.config.batch_size} transitions for each agent"
    )


def dataset_id(recipe: Recipe) -> str:
    """The id of the set that a recipe gives."""
    return environment.dataset_id(recipe.env_name, RECIPE, recipe.num_transitions, recipe.seed)


def find(recipe: Recipe, data_dir: str | None) -> Dataset | None:
    """The set of this recipe, if it was collected before.

    Raises InputError for one of the same id that another recipe made.
    """
    id = dataset_id(recipe)
    if not minari_io.exists(id, data_dir):
        return None
    dataset = minari_io.load(id, data_dir)
    place = f"data set {id} in {minari_io.folder(id, data_dir)}"
    medium_replay.check_recipe(place, dataset.metadata.get("sac", {}), recipe)
    return dataset


def collect_and_save(recipe: Recipe, data_dir: str | None, progress: Progress) -> Dataset:
    """Collect, or go on collecting, and save the set.

    Checkpoints lie in a hidden folder beside the set's until it is saved. Raises InputError for a
    folder that can't be written to or holds a collection of another recipe, Stopped after a signal.
    """
    id = dataset_id(recipe)
    minari_io.check_writable(id, data_dir)
    folder = checkpoints_folder(id, data_dir)
    with outputs.locked(folder, "--data_dir"):
        dataset = _train(recipe, id, folder, progress)
        description = f"all steps of {recipe.num_agents} SAC agents in {recipe.env_name}"
        minari_io.save(dataset, data_dir, description)
        shutil.rmtree(folder)
    return dataset


def checkpoints_folder(id: str, data_dir: str | None) -> Path:
    """Where an unfinished collection keeps what it has."""
    folder = minari_io.folder(id, data_dir)
    return folder.with_name(f".{folder.name}.training")


def _train(recipe: Recipe, id: str, folder: Path, progress: Progress) -> Dataset:
    with steppers(recipe.env_name, recipe.num_agents) as running:
        with signals.held():
            collection = go_on(recipe, running, folder)
        progress.begin(collection.step * recipe.num_agents)
        with signals.noted() as came:
            while collection.step < recipe.num_steps:
                collection.advance()
                if collection.step % NOTED_STEPS == 0:
                    note = _note(collection)
                    progress(collection.step * recipe.num_agents, recipe.num_transitions, note)
                if collection.step % CHECKPOINT_STEPS == 0 or came:
                    with signals.held():
                        collection.save()
                if came:
                    raise signals.Stopped(came[0], f"step {collection.step:,} of each agent")
        return collection.dataset(id)


def go_on(recipe: Recipe, running: Steppers, folder: Path) -> Collection:
    """The collection in `folder`, from its latest checkpoint that isn't damaged, or a new one."""
    checkpoints = medium_replay.checkpoints(folder)
    while True:
        try:
            return Collection(recipe, running, folder)
        except checkpoint.Damaged as damage:
            aside = checkpoint.set_aside(checkpoints, checkpoint.updates(checkpoints)[-1])
            print(f"{damage}; put aside ({aside}), going back", file=sys.stderr)


def _note(collection: Collection) -> str:
    """How the agents do: success over the last episodes, or return where success is not known."""
    found = [collection.latest(agent) for agent in range(collection.recipe.num_agents)]
    rates = [rate for rate, _ in found if rate is not None]
    returns = [mean for _, mean in found if mean is not None]
    if rates:
        return f"success {' '.join(f'{rate:.0f}' for rate in rates)} %"
    return f"return {' '.join(f'{mean:.0f}' for mean in returns)}" if returns else ""
