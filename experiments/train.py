"""Train from preferences: `python -m experiments.train --task=sweep --lam=0.03`."""

import contextlib
import functools
import io
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

from appo_jax import appo, reward_model
from appo_jax.data import minari_io
from appo_jax.data.preferences import count_labels
from appo_jax.envs import environment, meta_world
from appo_jax.types import InputError
from experiments import controls, runner, signals
from experiments.cli import available_cores, parse_flags, use_compilation_cache
from experiments.config import (
    COLLECTED_SIZE,
    Experiment,
    Local,
    digest,
    file_digest,
    resolve_dataset,
)
from experiments.summary import table

TIE_THRESHOLD = 12.5  # Meta-World's true rewards go to 10 a step

_PAPER_SIZES = ", ".join(
    f"{task.removesuffix('-v3')} {meta_world.paper_size(task):,}" for task in meta_world.PAPER_TASKS
)
# The networks' and optimisers' settings: a flag for each field, its default as in the config.
_POLICY_FLAGS = {
    "hidden_layers": "hidden layers of APPO's critics, value and actor",
    "hidden_dim": "units of each hidden layer of APPO's networks",
    "negative_slope": "slope of the LeakyReLU below zero in APPO's networks",
    "batch_size": "transitions of one update",
    "num_pairs": "pairs of segments of one update",
    "critic_learning_rate": "Adam's, of the critics",
    "value_learning_rate": "Adam's, of the value network",
    "actor_learning_rate": "Adam's, of the actor",
    "temperature_learning_rate": "Adam's, of the entropy temperature alpha",
    "initial_temperature": "alpha at the start",
}
_REWARD_FLAGS = {
    "hidden_layers": "hidden layers of a member of the reward ensemble",
    "hidden_dim": "units of each hidden layer of a member",
    "negative_slope": "slope of the LeakyReLU below zero in a member",
    "ensemble_size": "members of the reward ensemble",
    "learning_rate": "Adam's, of the reward ensemble",
    "decay_rate": "factor on that rate at each decay",
    "decay_epochs": "epochs between decays",
    "num_epochs": "passes over the labels",
    "batch_size": "labelled pairs of one update of the reward ensemble",
}
_LARGEST = float(np.finfo(np.float32).max)  # beyond it, a number is infinite on the device
# What a number must be: from the first to the second, ends included; the rest from 1 to what int32
# holds (whole numbers) or above 0.
_BOUNDS: dict[str, tuple[float, float]] = {
    "lam": (0, _LARGEST),
    "discount": (0, 1),
    "tau": (math.ulp(0), 1),
    "negative_slope": (0, 1),
    "reward_negative_slope": (0, 1),
    "reward_decay_rate": (math.ulp(0), 1),
    "tie_threshold": (0, _LARGEST),
    "label_noise": (0, 1),
    "seed": (0, 2**31 - 1),
    "data_seed": (0, 2**31 - 1),
    "runs_per_batch": (0, 2**31 - 1),
}


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Define the flags; only an entry point does, so that workers can import this module."""
    string, integer, number = (
        functools.partial(define, flag_values=values)
        for define in (flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float)
    )
    words = functools.partial(_define_list, flags.ArgumentParser(), values)
    integers = functools.partial(_define_list, flags.IntegerParser(), values)
    numbers = functools.partial(_define_list, flags.FloatParser(), values)
    words("task", None, "Meta-World task, e.g. sweep (sweep-v2, sweep-v3), or several: a,b")
    string("env", None, "instead of a task: an id of Gymnasium, e.g. Hopper-v5, with --dataset")
    numbers("lam", (0.03,), "lambda, the weight of conservatism, or several: 0.01,0.03")
    number("discount", 0.99, "gamma")
    number("tau", 0.001, "Polyak rate of the target critics")
    string(
        "dataset",
        "auto",
        "auto (a local medium-replay set, else medium-expert, collected now), medium-replay, "
        "medium-expert, or the id of a Minari data set",
    )
    string("data_dir", None, "folder of the data sets; default: Minari's")
    integer(
        "dataset_size",
        None,
        f"transitions; default: {COLLECTED_SIZE:,} for what is collected on the spot, the paper's "
        f"size for medium-replay (of three buffers: {_PAPER_SIZES})",
    )
    integer("data_seed", 0, "seed of the data that are collected")
    integers(
        "num_feedback",
        (1000,),
        "labelled pairs, or several: 500,1000; all of --preferences by default",
    )
    string("preferences", None, "JSON Lines file of labels to learn from")
    integer("segment_length", 25, "steps of a segment")
    number(
        "tie_threshold",
        None,
        f"returns that differ by no more than this are a tie; default: {TIE_THRESHOLD:g} on "
        "Meta-World, 0 elsewhere",
    )
    number("label_noise", 0.0, "probability that a label is replaced by another one")
    integers("seed", (0,), "of labels, initialisation, batches and evaluation, or several: 0,1,2")
    integer("num_seeds", None, "so many seeds, from --seed on")
    kinds = "; ".join(f"{kind}: {text}" for kind, text in controls.REWARDS.items())
    string("reward", "learned", f"what trains the policy, to see what the labels give ({kinds})")
    string("reward_scale", "minmax", "of the learned reward: minmax ([0, 1]) or raw")
    integer("num_updates", 250_000, "updates of the policy; more of them extend a run")
    integer("eval_interval", 5_000, "updates between evaluations")
    integer("eval_episodes", 50, "episodes of one evaluation")
    boolean = functools.partial(flags.DEFINE_boolean, flag_values=values)
    boolean(
        "pairwise_error",
        None,
        "critics compare segments in pairs, as in the paper, not each with r_hat itself; default: "
        "with --task, whose episodes have one length",
    )
    boolean("eval_stop_at_success", False, "end an episode at its first success: no true return")
    integer("chunk_updates", 500, "updates between two looks at the host")
    string("batch_runs", "auto", "runs of a grid together (vmap), in turn (map), or what suits")
    integer("runs_per_batch", 0, "runs of a grid in one program; 0: as many as fit into memory")
    boolean("compilation_cache", True, "keep compiled programs in the user's cache folder")
    string(
        "workdir",
        None,
        "folder of the run; default: runs/<task>/appo/<digest>, of a grid runs/grid/appo/<digest>",
    )
    integer("num_workers", available_cores(), "simulator processes")
    for prefix, config, helps in (
        ("", appo.Config(), _POLICY_FLAGS),
        ("reward_", reward_model.Config(), _REWARD_FLAGS),
    ):
        for field, help in helps.items():
            default = getattr(config, field)
            define = integer if isinstance(default, int) else number
            define(prefix + field, default, help)


class _ListParser(flags.ArgumentParser):
    """One value or several, with commas between them."""

    def __init__(self, parser: flags.ArgumentParser):
        self._parser = parser
        self.syntactic_help = f"{parser.syntactic_help}, or several with commas between them"

    def parse(self, argument: Any) -> tuple[Any, ...]:
        words = argument.split(",") if isinstance(argument, str) else argument
        found = tuple(self._parser.parse(word) for word in words)
        if len(set(found)) < len(found):
            raise ValueError("holds a value twice, expected each once")
        return found


def _define_list(
    parser: flags.ArgumentParser, values: flags.FlagValues, name: str, default: Any, help: str
) -> None:
    serializer = flags.CsvListSerializer(",")
    flags.DEFINE(_ListParser(parser), name, default, help, values, serializer)


def experiments_from_flags(values: flags.FlagValues) -> tuple[list[Experiment], Local]:
    """The runs that the command line asks for. Raises InputError naming the first wrong flag."""
    tasks = _env_names(values)
    _check_numbers(values.flag_values_dict())
    _check_choice("reward", values.reward, tuple(controls.REWARDS))
    _check_choice("reward_scale", values.reward_scale, ("minmax", "raw"))
    _check_choice("batch_runs", values.batch_runs, ("auto", "map", "vmap"))
    data_dir = minari_io.root(values.data_dir)
    specs = {
        task: resolve_dataset(values.dataset, task, values.dataset_size, values.data_seed, data_dir)
        for task in tasks
    }
    if len(specs) < len(tasks):
        raise InputError(f"--task={','.join(values.task)}: one task twice, expected each once")
    if values.segment_length > meta_world.HORIZON and any(
        spec.recipe != "minari" for spec in specs.values()
    ):
        raise InputError(
            f"--segment_length={values.segment_length}: expected a number from 1 to "
            f"{meta_world.HORIZON}, the steps of an episode"
        )
    preferences = Path(values.preferences) if values.preferences else None
    if preferences and len(tasks) > 1:
        raise InputError(
            f"--preferences={preferences}: labels of one data set, expected one task and not "
            f"{len(tasks)}"
        )
    counts = _label_counts(values, preferences)
    pairwise = values.env is None if values.pairwise_error is None else values.pairwise_error
    runs = [
        Experiment(
            algorithm="appo",
            task=task,
            dataset=specs[task],
            reward=values.reward,
            num_feedback=count,
            segment_length=values.segment_length,
            tie_threshold=_tie_threshold(values),
            label_noise=values.label_noise,
            preferences_digest=file_digest(preferences) if preferences else None,
            seed=seed,
            lam=lam,
            discount=values.discount,
            tau=values.tau,
            policy=appo.Config(
                segment_length=values.segment_length,
                pairwise_error=pairwise,
                **_fields(values, "", _POLICY_FLAGS),
            ),
            reward_model=reward_model.Config(
                reward_scale=values.reward_scale, **_fields(values, "reward_", _REWARD_FLAGS)
            ),
            eval_interval=values.eval_interval,
            eval_episodes=values.eval_episodes,
            eval_stop_at_success=values.eval_stop_at_success,
            num_updates=values.num_updates,
        )
        for task, count, lam, seed in itertools.product(tasks, counts, values.lam, _seeds(values))
    ]
    kind = tasks[0].removesuffix("-v3") if len(runs) == 1 else "grid"
    if values.env is not None and len(runs) == 1:
        kind = environment.folder_name(values.env)
    default = Path("runs") / kind / runs[0].algorithm / digest(runs)
    local = Local(
        workdir=Path(values.workdir) if values.workdir else default,
        data_dir=data_dir,
        preferences=preferences,
        num_workers=values.num_workers,
        chunk_updates=values.chunk_updates,
        batch_runs=values.batch_runs,
        runs_per_batch=values.runs_per_batch,
    )
    return runs, local


def _env_names(values: flags.FlagValues) -> list[str]:
    if values.env is None and values.task is None:
        raise InputError(
            "--task is missing, expected a Meta-World task like --task=sweep, or --env=<an id of "
            "Gymnasium>"
        )
    if values.env is None:
        with _naming("task"):
            return [meta_world.canonical_name(task) for task in values.task]
    if values.task is not None:
        raise InputError(
            f"--env={values.env}: found with --task={','.join(values.task)}, expected one of the "
            "two"
        )
    with _naming("env"):
        return [environment.check_name(values.env)]


def _tie_threshold(values: flags.FlagValues) -> float:
    if values.tie_threshold is not None:
        return values.tie_threshold
    return TIE_THRESHOLD if values.env is None else 0.0


def _seeds(values: flags.FlagValues) -> tuple[int, ...]:
    if values.num_seeds is None:
        return values.seed
    if len(values.seed) > 1:
        raise InputError(
            f"--num_seeds={values.num_seeds}: --seed names {len(values.seed)} already, expected "
            "one of the two flags"
        )
    return tuple(range(values.seed[0], values.seed[0] + values.num_seeds))


def _label_counts(values: flags.FlagValues, preferences: Path | None) -> tuple[int, ...]:
    if preferences is None:
        return values.num_feedback
    with _naming("preferences"):
        available = count_labels(preferences)
    if not available:
        raise InputError(f"--preferences={preferences}: no labels, expected at least one")
    if not values["num_feedback"].present:
        return (available,)
    if max(values.num_feedback) > available:
        raise InputError(
            f"--num_feedback={max(values.num_feedback)}: {preferences} holds {available} labels, "
            "expected at most as many"
        )
    return values.num_feedback


@contextlib.contextmanager
def _naming(flag: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"--{flag}: {error}") from error


def _fields(values: flags.FlagValues, prefix: str, helps: Mapping[str, str]) -> dict[str, Any]:
    return {field: values[prefix + field].value for field in helps}


def _check_numbers(values: dict[str, Any]) -> None:
    own = [*_POLICY_FLAGS, *(f"reward_{field}" for field in _REWARD_FLAGS), *_BOUNDS]
    own += ["num_feedback", "segment_length", "num_updates", "eval_interval", "eval_episodes"]
    own += ["chunk_updates", "num_workers", "dataset_size", "num_seeds", "runs_per_batch"]
    given = {name: values[name] for name in own if values[name] is not None}
    for name, value in (
        (name, one)
        for name, several in given.items()
        for one in (several if isinstance(several, tuple) else (several,))
    ):
        whole = isinstance(value, int)
        low, high = _BOUNDS.get(name, (1, 2**31 - 1) if whole else (math.ulp(0), _LARGEST))
        if not low <= value <= high:
            above = "above 0" if low == math.ulp(0) else f"from {low:g}"
            to = ", not infinite in float32" if high == _LARGEST else f" to {high:.10g}"
            raise InputError(f"--{name}={value}: expected a number {above}{to}")


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError(f"--{name}={value}: expected {', '.join(allowed[:-1])} or {allowed[-1]}")


def describe(runs: Sequence[Experiment], local: Local) -> str:
    """What is about to happen, for a person to read before it does."""
    first = runs[0]
    policy, reward = first.policy, first.reward_model
    teacher = local.preferences or (
        f"scripted teacher, ties within {first.tie_threshold:g}, noise {first.label_noise:g}"
    )
    tasks, counts, lams, seeds = (
        ", ".join(dict.fromkeys(values))
        for values in (
            [run.task for run in runs],
            [f"{run.num_feedback:,}" for run in runs],
            [f"{run.lam:g}" for run in runs],
            [str(run.seed) for run in runs],
        )
    )
    grid = f"{len(runs)} runs: " if len(runs) > 1 else ""
    lines = {
        "task": f"{grid}{tasks}, lambda {lams}, seed {seeds}",
        "data set": f"\n{'':<15}".join(_origins(runs, local)),
        "labels": f"{counts} pairs of segments of {first.segment_length} steps; {teacher}",
        "reward": f"{first.reward}: {controls.REWARDS[first.reward]}"
        if first.reward in controls.UNLEARNED
        else f"{first.reward}; {reward.ensemble_size} networks of {reward.hidden_layers} x "
        f"{reward.hidden_dim}, {reward.num_epochs} epochs, scale {reward.reward_scale}",
        "policy": f"{first.algorithm}; networks of {policy.hidden_layers} x "
        f"{policy.hidden_dim}, {first.num_updates:,} updates, "
        f"error of {'pairs of segments' if policy.pairwise_error else 'each segment'}",
        "evaluation": f"{first.eval_episodes} episodes every {first.eval_interval:,} "
        f"updates, {local.num_workers} workers",
        "device": _device(),
        "results": f"{local.workdir}",
    }
    return "\n".join(f"{title:<15}{text}" for title, text in lines.items())


def _origins(runs: Sequence[Experiment], local: Local) -> Iterator[str]:
    origins = {
        "lire": f"LiRE replay buffers in {local.data_dir}",
        "minari": f"Minari data set in {local.data_dir}",
        "collect": f"to be kept in {local.data_dir}, collected by {local.num_workers} workers",
    }
    for spec in dict.fromkeys(run.dataset for run in runs):
        yield spec.id
        yield origins[spec.source]
        yield f"({spec.reason})"


def _device() -> str:
    device = jax.devices()[0]
    if device.platform == "cpu":
        return f"CPU, {available_cores()} cores"
    return f"{device.device_kind} ({device.platform})"


def main(_: Sequence[str]) -> None:
    """Run what the flags say."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # Orbax tells of every file it touches
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a pipe or a file shows each line at once, too
    try:
        runs, local = experiments_from_flags(flags.FLAGS)
        print(describe(runs, local))
        if flags.FLAGS.compilation_cache:
            use_compilation_cache()
        summary = runner.run(runs, local)
    except InputError as error:
        sys.exit(f"error: {error}")
    except runner.Diverged as diverged:
        sys.exit(f"error: {diverged}")
    except OSError as error:  # a full disk, above all
        sys.exit(f"error: {error}; the same command goes on from what is on disk")
    except signals.Stopped as stopped:
        print(stopped)
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from what is on disk", file=sys.stderr)
        sys.exit(130)
    except BrokenProcessPool:
        sys.exit(
            "error: a worker process died (killed, or out of memory); the same command goes on "
            "from the last checkpoint"
        )
    if len(runs) > 1:
        print(table(summary["runs"]))
        return
    entry = summary["runs"][0]
    averaged = entry["num_evaluations_averaged"]
    of = "the last evaluation" if averaged == 1 else f"the mean of the last {averaged} evaluations"
    if entry["success_rate"] is None:
        print(f"return {entry['return']:.1f} ({of}; {runs[0].task} knows no success)")
    else:
        print(f"success rate {entry['success_rate']:.1f} % ({of})")


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=parse_flags)
