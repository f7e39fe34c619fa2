"""Collect a data set and save it: `python -m experiments.collect --task=sweep --seed=0`."""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from absl import app, flags, logging
from tqdm import tqdm

from appo_jax.collect import scripted
from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.envs import meta_world
from appo_jax.types import InputError
from experiments import medium_replay, signals
from experiments.cli import available_cores, parse_flags

_Value = TypeVar("_Value")
_Result = TypeVar("_Result")

RECIPES = (scripted.RECIPE,)  # that training collects on the spot; medium-replay takes hours


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Define the flags; only an entry point does, so that another can import this module."""
    string, integer = (
        functools.partial(define, flag_values=values)
        for define in (flags.DEFINE_string, flags.DEFINE_integer)
    )
    string("task", None, "Meta-World task, e.g. sweep (sweep-v2, sweep-v3)")
    string("dataset", scripted.RECIPE, "recipe: medium-expert or medium-replay")
    integer(
        "size", None, "transitions in all, on Meta-World whole episodes; default: the paper's size"
    )
    integer("seed", 0, "data seed, 0 or more")
    string("data_dir", None, "folder of the data sets; default: Minari's")
    integer("num_workers", available_cores(), "processes, at least 1")
    medium_replay.define_flags(values)


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
        self._first = 0
        self._bar = tqdm(
            total=total, desc=name, unit=" steps", disable=not sys.stderr.isatty(), smoothing=0.1
        )

    def begin(self, done: int) -> None:
        """Leave what an earlier process did out of the rate."""
        self._first = self._bar.n = self._bar.initial = done
        self._start = time.monotonic()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)
        tenths = 10 * done // total
        if self._bar.disable and tenths > self._tenths:
            self._tenths = tenths
            rate = (done - self._first) / (time.monotonic() - self._start)
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
        f"{'source':<24}{'episodes':>9}{'success':>9}{'return':>12}",
    ]
    for source, row in dataset.metadata["sources"].items():
        lines.append(_line(source, row["episodes"], row["success_rate"], row.get("mean_return")))
    returns = dataset.returns()
    lines.append(_line("all", dataset.num_episodes, dataset.success_rate(), returns.mean()))
    lines.append(f"{'best episode':<42}{returns.max():>12,.1f}")
    return "\n".join(lines)


def _line(name: str, episodes: int, success: float | None, mean_return: float | None) -> str:
    rate = "-" if success is None else f"{100 * success:.1f} %"
    value = "-" if mean_return is None else f"{mean_return:,.1f}"
    return f"{name:<24}{episodes:>9}{rate:>9}{value:>12}"


def _check(flag: str, check: Callable[[_Value], _Result], value: _Value) -> _Result:
    try:
        return check(value)
    except InputError as error:
        raise InputError(f"flag {flag}: {error}") from error


def main(_: Sequence[str]) -> None:
    """Collect what the flags say."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # Orbax tells of every file it touches
    values = flags.FLAGS
    is_replay = values.dataset == medium_replay.RECIPE
    kept = "the same command goes on from the last checkpoint" if is_replay else "nothing was saved"
    try:
        dataset, is_new = (_medium_replay if is_replay else _medium_expert)(values)
    except InputError as error:
        sys.exit(str(error))
    except OSError as error:  # a full disk, above all
        sys.exit(f"{error}: {kept}")
    except signals.Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:
        print(f"interrupted: {kept}", file=sys.stderr)
        sys.exit(130)
    except BrokenProcessPool:
        sys.exit(f"a worker process died (killed, or out of memory): {kept}")
    if is_new:
        print(report(dataset, values.data_dir))
    else:
        folder = minari_io.folder(dataset.id, values.data_dir)
        print(f"exists already: {dataset.id} in {folder}")


def _medium_expert(values: flags.FlagValues) -> tuple[Dataset, bool]:
    medium_replay.refuse_flags(values)
    task, size = check_flags(
        values.task, values.dataset, values.size, values.seed, values.num_workers
    )
    id = meta_world.dataset_id(task, values.dataset, size, values.seed)
    if minari_io.exists(id, values.data_dir):
        return minari_io.load(id, values.data_dir), False
    _tell_name(values.task, task)
    dataset = collect_and_save(
        task, values.dataset, size, values.seed, values.data_dir, values.num_workers
    )
    return dataset, True


def _medium_replay(values: flags.FlagValues) -> tuple[Dataset, bool]:
    recipe = medium_replay.recipe_from_flags(values)
    found = medium_replay.find(recipe, values.data_dir)
    if found is not None:
        return found, False
    _tell_name(values.task or values.env, recipe.env_name)
    print(medium_replay.describe(recipe), file=sys.stderr)
    name = f"{recipe.env_name} {values.dataset}"
    with _Progress(name, recipe.num_transitions) as progress:
        return medium_replay.collect_and_save(recipe, values.data_dir, progress), True


def _tell_name(requested: str, name: str) -> None:
    if requested != name:
        print(f"{requested} runs as {name}", file=sys.stderr)


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=parse_flags)
