"""Collect a data set and save it: `python -m experiments.collect --task=sweep --seed=0`."""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from absl import app, flags
from tqdm import tqdm

from appo_jax.collect import scripted
from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.envs import meta_world
from appo_jax.types import InputError
from experiments.cli import available_cores, parse_flags

_Value = TypeVar("_Value")
_Result = TypeVar("_Result")

RECIPES = (scripted.RECIPE,)


def define_flags() -> None:
    """Define the flags; only an entry point does, so that another can import this module."""
    flags.DEFINE_string("task", None, "Meta-World task, e.g. sweep (sweep-v2, sweep-v3)")
    flags.DEFINE_string("dataset", scripted.RECIPE, "recipe: medium-expert")
    flags.DEFINE_integer("size", None, "transitions, a multiple of 500; default: the paper's size")
    flags.DEFINE_integer("seed", 0, "data seed, 0 or more")
    flags.DEFINE_string("data_dir", None, "folder of the data sets; default: Minari's")
    flags.DEFINE_integer("num_workers", available_cores(), "processes, at least 1")


def check_flags(
    task: str | None, recipe: str, size: int | None, seed: int, num_workers: int
) -> tuple[str, int]:
    """The task's name and the size to collect; raises InputError with the name of the bad flag."""
    if task is None:
        raise InputError("flag --task is missing, expected a Meta-World task like --task=sweep")
    name = _check("--task", meta_world.canonical_name, task)
    _check("--dataset", check_recipe, recipe)
    if size is None:
        size = meta_world.paper_size(name)
    if size is None:
        raise InputError(f"flag --size is missing, expected a number: {name} is not in the paper")
    _check("--size", scripted.check_size, size)
    if seed < 0:
        raise InputError(f"flag --seed: {seed}, expected 0 or more")
    if num_workers < 1:
        raise InputError(f"flag --num_workers: {num_workers}, expected at least 1")
    return name, size


def check_recipe(recipe: str) -> None:
    """Raise InputError for a recipe that can't be collected."""
    if recipe not in RECIPES:
        raise InputError(f"recipe {recipe!r} can't be collected, expected {' or '.join(RECIPES)}")


def collect_and_save(
    task: str, recipe: str, size: int, seed: int, data_dir: str | None, num_workers: int
) -> Dataset:
    """Load the data set, or collect it with a progress bar on stderr and save it.

    Raises InputError for bad arguments and for a folder that can't be written to, before any work.
    """
    check_recipe(recipe)
    scripted.check_size(size)
    id = meta_world.dataset_id(task, recipe, size, seed)
    if minari_io.exists(id, data_dir):
        return minari_io.load(id, data_dir)
    minari_io.check_writable(id, data_dir)
    with _Progress(f"{task} {recipe}", size) as progress:
        dataset = scripted.collect(task, size, seed, num_workers, progress)
    if minari_io.exists(id, data_dir):  # another process was faster: same seed, same data
        return minari_io.load(id, data_dir)
    minari_io.save(dataset, data_dir, f"{recipe} data of {task}, {size} transitions, seed {seed}")
    return dataset


class _Progress:
    """A bar with rate and time left; ten lines in all where nobody watches."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._start = time.monotonic()
        self._tenths = 0
        self._bar = tqdm(
            total=total, desc=name, unit=" steps", disable=not sys.stderr.isatty(), smoothing=0.1
        )

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(done - self._bar.n)
        tenths = 10 * done // total
        if self._bar.disable and tenths > self._tenths:
            self._tenths = tenths
            rate = done / (time.monotonic() - self._start)
            left = (total - done) / rate
            line = f"{done:,} of {total:,} steps, {rate:,.0f} steps/s, {left:.0f} s left"
            print(f"{self._name}: {line}", file=sys.stderr, flush=True)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def report(dataset: Dataset, data_dir: str | None) -> str:
    """What a person wants to know about a set collected here: id, place, success by source."""
    lines = [
        f"id       {dataset.id}",
        f"folder   {minari_io.folder(dataset.id, data_dir)}",
        f"digest   {dataset.digest()}",
        f"steps    {dataset.num_transitions:,} in {dataset.num_episodes} episodes",
        "",
        f"{'source':<24}{'episodes':>9}{'success':>9}",
    ]
    for source, row in dataset.metadata["sources"].items():
        rate = "-" if row["success_rate"] is None else f"{100 * row['success_rate']:.1f} %"
        lines.append(f"{source:<24}{row['episodes']:>9}{rate:>9}")
    lines.append(
        f"{'all':<24}{dataset.num_episodes:>9}{100 * (dataset.success_rate() or 0):>7.1f} %"
    )
    return "\n".join(lines)


def _check(flag: str, check: Callable[[_Value], _Result], value: _Value) -> _Result:
    try:
        return check(value)
    except InputError as error:
        raise InputError(f"flag {flag}: {error}") from error


def main(_: Sequence[str]) -> None:
    """Collect what the flags say."""
    values = flags.FLAGS
    try:
        task, size = check_flags(
            values.task, values.dataset, values.size, values.seed, values.num_workers
        )
        id = meta_world.dataset_id(task, values.dataset, size, values.seed)
        if minari_io.exists(id, values.data_dir):
            print(f"exists already: {id} in {minari_io.folder(id, values.data_dir)}")
            return
        if values.task != task:
            print(f"{values.task} runs as {task}", file=sys.stderr)
        dataset = collect_and_save(
            task, values.dataset, size, values.seed, values.data_dir, values.num_workers
        )
    except InputError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        print("interrupted: nothing was saved", file=sys.stderr)
        sys.exit(130)
    except BrokenProcessPool:
        sys.exit("a worker process died (killed, or out of memory): nothing was saved")
    print(report(dataset, values.data_dir))


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=parse_flags)
