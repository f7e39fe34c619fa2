"""Evaluate a trained policy: `python -m experiments.evaluate --checkpoint=<a run's folder>`.

A checkpoint is all it needs. With the seed and the number of episodes of the training run it gives
the very numbers that training wrote down at that update.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from appo_jax import evaluation, policy, workers
from appo_jax.settings import MAX_INT, MAX_ROWS, Settings, setting
from appo_jax.types import InputError
from experiments.runs.experiment import named_settings, shown
from experiments.terminal import cli
from experiments.terminal.flags import define, define_settings, given

_GROUP = "What to evaluate"


@dataclasses.dataclass(frozen=True)
class Options(Settings):
    """What is asked of an evaluation."""

    run: int = setting(0, "which run of a grid, from 0", low=0)
    episodes: int = setting(50, "how many", high=MAX_ROWS)
    seed: int | None = setting(
        None, "of the episodes; the training run's if left out", low=0, high=MAX_INT
    )
    num_workers: int = setting(
        1, "simulator processes; all cores of this machine if left out", high=1000
    )


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Define the flags."""
    where = "a run's folder (its last checkpoint) or one checkpoint in it"
    define(values, "checkpoint", Path, where, _GROUP)
    define_settings(values, Options, _GROUP)


def evaluate(path: Path, options: Options) -> tuple[policy.Saved, dict[str, float]]:
    """What the checkpoint holds, and the metrics of its policy.

    Raises InputError for a checkpoint that can't be used.
    """
    saved = policy.load(path, options.run)
    with workers.pool(options.num_workers) as pool:
        pending = evaluation.start(
            pool,
            saved.policy,
            saved.config["env_name"],
            saved.config["seed"] if options.seed is None else options.seed,
            saved.update,
            options.episodes,
            saved.config["eval_stop_at_success"],
        )
        try:
            return saved, pending.result().metrics()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def main(values: flags.FlagValues) -> None:
    """Evaluate what the flags name and print the result."""
    if values.checkpoint is None:
        raise InputError("--checkpoint is missing, expected a run's folder or a checkpoint")
    own = {"num_workers": cli.available_cores(), **given(values, Options)}
    options = Options(**own)
    saved, metrics = evaluate(Path(values.checkpoint), options)
    found = named_settings(saved.config)
    swept = ", ".join(f"{name} {shown(found[name])}" for name in saved.config["swept"])
    print(
        f"{found['algorithm']} on {found['env_name']}, {swept}, seed {found['seed']}, update "
        f"{saved.update:,}, {options.episodes} episodes"
    )
    success = ""
    if "eval/success_rate" in metrics:
        at_end = f"(at the last step {metrics['eval/success_rate_at_end']:.1f} %)"
        success = f"success rate {metrics['eval/success_rate']:.1f} % {at_end}, "
    print(f"{success}return {metrics['eval/return']:.2f}")


if __name__ == "__main__":
    cli.run(main, define_flags, kept="nothing was changed")
