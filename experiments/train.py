"""Train from preferences: `python -m experiments.train --task=sweep --lam=0.03`."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import jax
from absl import app, flags, logging

from appo_jax import appo, reward_model
from appo_jax.data import minari_io
from appo_jax.data.preferences import count_labels
from appo_jax.envs import meta_world
from appo_jax.types import InputError
from experiments import runner
from experiments.collect import parse_flags
from experiments.config import COLLECTED_SIZE, Experiment, Local, file_digest, resolve_dataset

TIE_THRESHOLD = 12.5  # Meta-World's true rewards go to 10 a step
REWARDS = ("learned", "shuffled")

_PAPER_SIZES = ", ".join(
    f"{task.removesuffix('-v3')} {meta_world.paper_size(task):,}" for task in meta_world.PAPER_TASKS
)
# The networks' and optimisers' settings: a flag for each field, the paper's value as default.
_POLICY_FLAGS = {
    "hidden_layers": "hidden layers of APPO's critics, value and actor",
    "hidden_dim": "units of each of those layers",
    "negative_slope": "slope of their LeakyReLU below zero",
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
    "hidden_dim": "units of each of those layers",
    "ensemble_size": "members of the ensemble",
    "learning_rate": "Adam's, of the reward model",
    "decay_rate": "factor on that rate at each decay",
    "decay_epochs": "epochs between decays",
    "num_epochs": "passes over the labels",
    "batch_size": "labelled pairs of one update",
}
# What a number must be: from the first to the second, ends included; the rest from 1 (whole
# numbers) or from the smallest positive number on.
_BOUNDS: dict[str, tuple[float, float]] = {
    "lam": (0, math.inf),
    "discount": (0, 1),
    "tau": (math.ulp(0), 1),
    "negative_slope": (0, 1),
    "reward_decay_rate": (math.ulp(0), 1),
    "tie_threshold": (0, math.inf),
    "label_noise": (0, 1),
    "seed": (0, 2**31 - 1),
    "data_seed": (0, 2**31 - 1),
}


def define_flags() -> None:
    """Define the flags; only an entry point does, so that workers can import this module."""
    flags.DEFINE_string("task", None, "Meta-World task, e.g. sweep (sweep-v2, sweep-v3)")
    flags.DEFINE_float("lam", 0.03, "lambda, the weight of conservatism")
    flags.DEFINE_float("discount", 0.99, "gamma")
    flags.DEFINE_float("tau", 0.001, "Polyak rate of the target critics")
    flags.DEFINE_string(
        "dataset",
        "auto",
        "auto (a local medium-replay set, else medium-expert, collected now), medium-replay, "
        "medium-expert, or the id of a Minari data set",
    )
    flags.DEFINE_string("data_dir", None, "folder of the data sets; default: Minari's")
    flags.DEFINE_integer(
        "dataset_size",
        None,
        f"transitions; default: {COLLECTED_SIZE:,} for what is collected on the spot, the paper's "
        f"size for medium-replay ({_PAPER_SIZES})",
    )
    flags.DEFINE_integer("data_seed", 0, "seed of the data that are collected")
    flags.DEFINE_integer("num_feedback", 1000, "labelled pairs; all of --preferences by default")
    flags.DEFINE_string("preferences", None, "JSON Lines file of labels to learn from")
    flags.DEFINE_integer("segment_length", 25, "steps of a segment")
    flags.DEFINE_float("tie_threshold", TIE_THRESHOLD, "returns that differ by less are a tie")
    flags.DEFINE_float("label_noise", 0.0, "probability that a label is replaced by another one")
    flags.DEFINE_integer("seed", 0, "seed of labels, initialisation, batches and evaluation")
    flags.DEFINE_string("reward", "learned", "learned, or shuffled over the transitions (control)")
    flags.DEFINE_string("reward_scale", "minmax", "of the learned reward: minmax ([0, 1]) or raw")
    flags.DEFINE_integer("num_updates", 250_000, "updates of the policy")
    flags.DEFINE_integer("eval_interval", 5_000, "updates between evaluations")
    flags.DEFINE_integer("eval_episodes", 50, "episodes of one evaluation")
    flags.DEFINE_integer("chunk_updates", 500, "updates between two looks at the host")
    flags.DEFINE_string("workdir", None, "folder of the run; default: runs/<task>/appo/<digest>")
    flags.DEFINE_integer("num_workers", len(os.sched_getaffinity(0)), "simulator processes")
    for prefix, config, helps in (
        ("", appo.Config(), _POLICY_FLAGS),
        ("reward_", reward_model.Config(), _REWARD_FLAGS),
    ):
        for field, help in helps.items():
            default = getattr(config, field)
            define = flags.DEFINE_integer if isinstance(default, int) else flags.DEFINE_float
            define(prefix + field, default, help)


def experiment_from_flags() -> tuple[Experiment, Local]:
    """What the command line asks for. Raises InputError naming the first flag that is wrong."""
    values = flags.FLAGS
    if values.task is None:
        raise InputError("--task is missing, expected a Meta-World task like --task=sweep")
    try:
        task = meta_world.canonical_name(values.task)
    except InputError as error:
        raise InputError(f"--task: {error}") from error
    _check_numbers(values.flag_values_dict())
    _check_choice("reward", values.reward, REWARDS)
    _check_choice("reward_scale", values.reward_scale, ("minmax", "raw"))
    data_dir = minari_io.root(values.data_dir)
    preferences = Path(values.preferences) if values.preferences else None
    num_feedback = values.num_feedback
    if preferences and not values["num_feedback"].present:
        num_feedback = count_labels(preferences)
    experiment = Experiment(
        algorithm="appo",
        task=task,
        dataset=resolve_dataset(
            values.dataset, task, values.dataset_size, values.data_seed, data_dir
        ),
        reward=values.reward,
        num_feedback=num_feedback,
        segment_length=values.segment_length,
        tie_threshold=values.tie_threshold,
        label_noise=values.label_noise,
        preferences_digest=file_digest(preferences) if preferences else None,
        seed=values.seed,
        lam=values.lam,
        discount=values.discount,
        tau=values.tau,
        policy=appo.Config(segment_length=values.segment_length, **_fields("", _POLICY_FLAGS)),
        reward_model=reward_model.Config(
            reward_scale=values.reward_scale, **_fields("reward_", _REWARD_FLAGS)
        ),
        eval_interval=values.eval_interval,
        eval_episodes=values.eval_episodes,
        num_updates=values.num_updates,
    )
    default = Path("runs") / task.removesuffix("-v3") / experiment.algorithm / experiment.digest()
    local = Local(
        workdir=Path(values.workdir) if values.workdir else default,
        data_dir=data_dir,
        preferences=preferences,
        num_workers=values.num_workers,
        chunk_updates=values.chunk_updates,
    )
    return experiment, local


def _fields(prefix: str, helps: Mapping[str, str]) -> dict[str, Any]:
    return {field: flags.FLAGS[prefix + field].value for field in helps}


def _check_numbers(values: dict[str, Any]) -> None:
    own = [*_POLICY_FLAGS, *(f"reward_{field}" for field in _REWARD_FLAGS), *_BOUNDS]
    own += ["num_feedback", "segment_length", "num_updates", "eval_interval", "eval_episodes"]
    own += ["chunk_updates", "num_workers", "dataset_size"]
    for name in own:
        value = values[name]
        if value is None:
            continue
        low, high = _BOUNDS.get(name, (1 if isinstance(value, int) else math.ulp(0), math.inf))
        if not (low <= value <= high and math.isfinite(value)):
            above = "above 0" if low == math.ulp(0) else f"from {low:g}"
            to = "" if high == math.inf else f" to {high:g}"
            raise InputError(f"--{name}={value}: expected a number {above}{to}")


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError(f"--{name}={value}: expected {' or '.join(allowed)}")


def describe(experiment: Experiment, local: Local) -> str:
    """What is about to happen, for a person to read before it does."""
    spec, policy, reward = experiment.dataset, experiment.policy, experiment.reward_model
    asked = flags.FLAGS.task
    name = experiment.task if asked == experiment.task else f"{experiment.task} (for {asked})"
    origin = {
        "lire": f"LiRE replay buffers in {local.data_dir}",
        "minari": f"Minari data set in {local.data_dir}",
        "collect": f"not there yet: collected now by {local.num_workers} workers, then kept in "
        f"{local.data_dir}",
    }[spec.source]
    if spec.requested == "auto":
        lacking = "there is a local medium-replay set"
        if spec.recipe != "medium-replay":
            lacking = f"no local medium-replay set, so {spec.recipe} data are used"
        origin += f"\n               (--dataset=auto: {lacking})"
    teacher = local.preferences or (
        f"scripted teacher, ties within {experiment.tie_threshold:g}, noise "
        f"{experiment.label_noise:g}"
    )
    device = jax.devices()[0]
    lines = {
        "task": f"{name}, lambda {experiment.lam:g}, seed {experiment.seed}",
        "data set": f"{spec.id}\n               {origin}",
        "labels": f"{experiment.num_feedback} pairs of segments of {experiment.segment_length} "
        f"steps; {teacher}",
        "reward": f"{experiment.reward}; {reward.ensemble_size} networks of "
        f"{reward.hidden_layers} x {reward.hidden_dim}, {reward.num_epochs} epochs, scale "
        f"{reward.reward_scale}",
        "policy": f"{experiment.algorithm}; networks of {policy.hidden_layers} x "
        f"{policy.hidden_dim}, {experiment.num_updates:,} updates, {experiment.eval_episodes} "
        f"episodes every {experiment.eval_interval:,}",
        "device": f"{len(jax.devices())} x {device.device_kind} ({device.platform})",
        "results": f"{local.workdir}",
    }
    return "\n".join(f"{title:<15}{text}" for title, text in lines.items())


def main(_: Sequence[str]) -> None:
    """Run what the flags say."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # Orbax tells of every file it touches
    try:
        experiment, local = experiment_from_flags()
        print(describe(experiment, local), flush=True)
        summary = runner.run(experiment, local)
    except InputError as error:
        sys.exit(f"error: {error}")
    except runner.Stopped as stopped:
        print(stopped)
        sys.exit(130)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    except BrokenProcessPool:
        sys.exit(
            "error: a worker process died (killed, or out of memory); the same command goes on "
            "from the last checkpoint"
        )
    entry = summary["runs"][0]
    print(
        f"success rate {entry['success_rate']:.1f} % (mean of the last "
        f"{entry['num_evaluations_averaged']} evaluations)"
    )


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=parse_flags)
