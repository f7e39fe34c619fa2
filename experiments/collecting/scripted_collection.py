"""Medium-expert data from start to end: what can be collected, and the set on disk."""

from appo_jax.collect import scripted
from appo_jax.collect.scripted import RECIPE, Progress
from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.envs import environment
from appo_jax.types import InputError

_STEP_BYTES = 220  # of one transition on the disk
RECIPES = (RECIPE,)  # that training collects on the spot; medium-replay takes hours


def check_recipe(recipe: str) -> None:
    """Raise InputError for a recipe that can't be collected on the spot."""
    if recipe not in RECIPES:
        raise InputError(f"recipe {recipe!r} can't be collected, expected {' or '.join(RECIPES)}")


def find(task: str, size: int, seed: int, data_dir: str | None) -> Dataset | None:
    """The set, if it was collected before."""
    id = environment.dataset_id(task, RECIPE, size, seed)
    return minari_io.load(id, data_dir) if minari_io.exists(id, data_dir) else None


def collect_and_save(
    task: str,
    recipe: str,
    size: int,
    seed: int,
    data_dir: str | None,
    num_workers: int,
    report: Progress | None = None,
) -> Dataset:
    """Load the data set, or collect it and save it.

    report(done, total) is called with numbers of transitions: before the first episode, and after
    each. Raises InputError for bad arguments and for a folder that can't be written to, before any
    work.
    """
    check_recipe(recipe)
    scripted.check_size(size)
    dataset = find(task, size, seed, data_dir)
    if dataset is not None:
        return dataset
    id = environment.dataset_id(task, recipe, size, seed)
    minari_io.check_writable(id, data_dir, size * _STEP_BYTES)
    if report is not None:
        report(0, size)
    dataset = scripted.collect(task, size, seed, num_workers, report)
    faster = find(task, size, seed, data_dir)
    if faster is not None:  # another process was: same seed, same data
        return faster
    minari_io.save(dataset, data_dir, f"{recipe} data of {task}, {size} transitions, seed {seed}")
    return dataset
