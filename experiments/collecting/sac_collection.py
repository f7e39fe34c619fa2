"""Medium-replay data from start to end: progress, signals, checkpoints, and the set on disk."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from appo_jax import checkpoint
from appo_jax.collect import replay_collection
from appo_jax.collect.replay_collection import RECIPE, Collection, Recipe
from appo_jax.collect.stepping import Steppers, steppers
from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.envs import environment
from experiments.runs import files, signals

CHECKPOINT_STEPS = 2500  # of each agent, between two checkpoints
REPORT_STEPS = 500  # of each agent, between two looks at how the agents do

# report(done, total, note): transitions of all agents together, and how the agents do.
Report = Callable[[int, int, str], None]


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

    What a collection of it that was killed while it cleaned up left behind is deleted. Raises
    InputError for one of the same id that another recipe made.
    """
    id = dataset_id(recipe)
    if not minari_io.exists(id, data_dir):
        return None
    dataset = minari_io.load(id, data_dir)
    place = f"data set {id} in {minari_io.folder(id, data_dir)}"
    replay_collection.check_recipe(place, dataset.metadata.get("sac", {}), recipe)
    shutil.rmtree(checkpoints_folder(id, data_dir), ignore_errors=True)
    return dataset


def collect_and_save(
    recipe: Recipe, data_dir: str | None, report: Report, warn: Callable[[str], None]
) -> Dataset:
    """Collect, or go on collecting, and save the set.

    Checkpoints lie in a hidden folder beside the set's until it is saved. The first report says how
    much is there from an earlier start; `warn` gets a sentence for each damaged checkpoint. Raises
    InputError for a folder that can't be written to or holds a collection of another recipe,
    Stopped after a signal.
    """
    id = dataset_id(recipe)
    folder = checkpoints_folder(id, data_dir)
    checkpoint.check_place(folder)
    minari_io.check_writable(id, data_dir, 0 if folder.exists() else _num_bytes(recipe))
    with files.locked(folder, "--data_dir"):
        dataset = _train(recipe, id, folder, report, warn)
        description = f"all steps of {recipe.num_agents} SAC agents in {recipe.env_name}"
        minari_io.save(dataset, data_dir, description)
        shutil.rmtree(folder, ignore_errors=True)  # `find` of another process may delete it too
    return dataset


def _num_bytes(recipe: Recipe) -> int:
    """Of the steps beside the checkpoints, which hold next observations, and of the set itself."""
    spaces = environment.spaces(recipe.env_name)
    numbers = 3 * spaces.observation_dim + 2 * spaces.action_dim + 4
    return recipe.num_transitions * numbers * np.dtype(np.float32).itemsize


def checkpoints_folder(id: str, data_dir: str | None) -> Path:
    """Where an unfinished collection keeps what it has."""
    folder = minari_io.folder(id, data_dir)
    return folder.with_name(f".{folder.name}.training")


def _train(
    recipe: Recipe, id: str, folder: Path, report: Report, warn: Callable[[str], None]
) -> Dataset:
    with steppers(recipe.env_name, recipe.num_agents) as running:
        with signals.held():
            collection = go_on(recipe, running, folder, warn)
        report(collection.step * recipe.num_agents, recipe.num_transitions, "")
        with signals.noted() as came:
            while collection.step < recipe.num_steps:
                collection.advance()
                if collection.step % REPORT_STEPS == 0:
                    done = collection.step * recipe.num_agents
                    report(done, recipe.num_transitions, _how_agents_do(collection))
                if collection.step % CHECKPOINT_STEPS == 0 or came:
                    with signals.held():
                        collection.save()
                if came:
                    raise signals.Stopped(came[0], f"step {collection.step:,} of each agent")
        return collection.dataset(id)


def go_on(
    recipe: Recipe, running: Steppers, folder: Path, warn: Callable[[str], None]
) -> Collection:
    """The collection in `folder`, from its latest checkpoint that isn't damaged, or a new one."""
    checkpoints = replay_collection.checkpoints(folder)
    while True:
        try:
            return Collection(recipe, running, folder)
        except checkpoint.Damaged as damage:
            aside = checkpoint.set_aside(checkpoints, checkpoint.updates(checkpoints)[-1])
            warn(f"{damage}; put aside ({aside}), going back")


def _how_agents_do(collection: Collection) -> str:
    """Success over each agent's last episodes, or return where success is not known."""
    found = [collection.latest(agent) for agent in range(collection.recipe.num_agents)]
    rates = [rate for rate, _ in found if rate is not None]
    returns = [mean for _, mean in found if mean is not None]
    if rates:
        return f"success {' '.join(f'{rate:.0f}' for rate in rates)} %"
    return f"return {' '.join(f'{mean:.0f}' for mean in returns)}" if returns else ""
