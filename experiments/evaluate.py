"""Evaluate a trained policy: `python -m experiments.evaluate --checkpoint=<a run's folder>`.

A checkpoint is all it needs. With the seed and the number of episodes of the training run it gives
the very numbers that training wrote down at that update.
"""

import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from absl import app, flags, logging

from appo_jax import evaluation, policy, workers
from appo_jax.types import InputError
from experiments.cli import available_cores, parse_flags


def define_flags() -> None:
    """Define the flags; only an entry point does, so that workers can import this module."""
    flags.DEFINE_string(
        "checkpoint", None, "a run's folder (its last checkpoint) or one checkpoint in it"
    )
    flags.DEFINE_integer("run", 0, "which run of a grid, from 0")
    flags.DEFINE_integer("episodes", 50, "how many, at least 1")
    flags.DEFINE_integer("seed", None, "of the episodes, 0 or more; default: the training run's")
    flags.DEFINE_integer("num_workers", available_cores(), "simulator processes, at least 1")


def evaluate(
    path: Path, run: int, episodes: int, seed: int | None, num_workers: int
) -> tuple[policy.Saved, dict[str, float]]:
    """What the checkpoint holds, and the metrics of its policy.

    Raises InputError for bad arguments, naming the flag, and for a checkpoint that can't be used.
    """
    for flag, value in (("episodes", episodes), ("num_workers", num_workers)):
        if value < 1:
            raise InputError(f"--{flag}={value}: expected at least 1")
    if seed is not None and seed < 0:
        raise InputError(f"--seed={seed}: expected 0 or more")
    saved = policy.load(path, run)
    with workers.pool(num_workers) as pool:
        pending = evaluation.start(
            pool,
            saved.policy,
            saved.config["task"],
            saved.config["seed"] if seed is None else seed,
            saved.update,
            episodes,
            saved.config["eval_stop_at_success"],
        )
        try:
            return saved, pending.result().metrics()
        except BaseException:
            pending.cancel()
            raise


def main(_: Sequence[str]) -> None:
    """Evaluate what the flags name and print the result."""
    values = flags.FLAGS
    if not values["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    try:
        if values.checkpoint is None:
            raise InputError("--checkpoint is missing, expected a run's folder or a checkpoint")
        saved, metrics = evaluate(
            Path(values.checkpoint), values.run, values.episodes, values.seed, values.num_workers
        )
    except InputError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenProcessPool:
        sys.exit("error: a worker process died (killed, or out of memory)")
    config = saved.config
    print(
        f"{config['algorithm']} on {config['task']}, lambda {config['lam']:g}, seed "
        f"{config['seed']}, update {saved.update:,}, {values.episodes} episodes"
    )
    success = ""
    if "eval/success_rate" in metrics:
        at_end = f"(at the last step {metrics['eval/success_rate_at_end']:.1f} %)"
        success = f"success rate {metrics['eval/success_rate']:.1f} % {at_end}, "
    print(f"{success}return {metrics['eval/return']:.2f}")


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=parse_flags)
