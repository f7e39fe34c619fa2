"""Evaluate a trained policy: `python -m experiments.evaluate --checkpoint=<a run's folder>`.

A checkpoint is all it needs. With the seed and the number of episodes of the training run it gives
the very numbers that training wrote down at that update. Of a grid all runs are evaluated.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from appo_jax import evaluation, policy, workers
from appo_jax.settings import MAX_INT, MAX_ROWS, Settings, setting
from appo_jax.types import InputError
from experiments.runs import files
from experiments.runs.experiment import differing, label, named_settings
from experiments.terminal import cli
from experiments.terminal.flags import define, define_settings, given

_GROUP = "What to evaluate"


@dataclasses.dataclass(frozen=True)
class Options(Settings):
    """What is asked of an evaluation."""

    run: int | None = setting(None, "one run of a grid, from 0; all if left out", low=0)
    episodes: int = setting(50, "episodes for each run", high=MAX_ROWS)
    seed: int | None = setting(
        None, "of the episodes; the training run's if left out", low=0, high=MAX_INT
    )
    num_workers: int = setting(1, "simulator processes", high=1000)


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Define the flags."""
    where = "a run's folder (its last checkpoint) or one checkpoint in it"
    define(values, "checkpoint", Path, where, _GROUP)
    define_settings(values, Options, _GROUP, defaults={"num_workers": cli.ALL_CORES})
    define(values, "output", Path, "JSON file for the results, with their intervals", _GROUP)


def evaluate(
    found: Sequence[policy.Saved], options: Options
) -> Iterator[tuple[policy.Saved, evaluation.Episodes]]:
    """The episodes of each policy, beside what its checkpoint holds."""
    with workers.pool(options.num_workers) as pool:
        try:
            pending = [
                evaluation.start(
                    pool,
                    saved.policy,
                    saved.config["env_name"],
                    saved.config["seed"] if options.seed is None else options.seed,
                    saved.update,
                    options.episodes,
                    saved.config["eval_stop_at_success"],
                )
                for saved in found
            ]
            for saved, one in zip(found, pending, strict=True):
                yield saved, one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def result(
    run: int, saved: policy.Saved, episodes: evaluation.Episodes, seed: int | None = None
) -> dict[str, Any]:
    """What `--output` gets of a run: rates in percent, None where they aren't known.

    seed: of the episodes, if it isn't that of the run's own evaluations. The intervals are of 95 %:
    Wilson's of the success rate, a bootstrap's of the mean return.
    """
    metrics, total = episodes.metrics(), len(episodes.returns)
    is_known = "eval/success_rate" in metrics
    return {
        "run": run,
        "update": saved.update,
        "settings": named_settings(saved.config),
        "episodes": total,
        "episodes_seed": saved.config["seed"] if seed is None else seed,
        "lost_episodes": episodes.num_lost,
        "success_rate": metrics.get("eval/success_rate"),
        "success_rate_wilson": (
            evaluation.wilson_interval(episodes.succeeded.sum(), total) if is_known else None
        ),
        "success_rate_at_end": metrics.get("eval/success_rate_at_end"),
        "return": metrics.get("eval/return"),
        "return_bootstrap": (
            None if episodes.num_lost else evaluation.bootstrap_interval(episodes.returns)
        ),
        "warnings": episodes.warnings(),
    }


def telling(found: Sequence[policy.Saved]) -> list[str]:
    """The names of the settings that a result is shown with: swept ones, and what differs."""
    differ = differing([named_settings(saved.config) for saved in found])
    names = dict.fromkeys([*found[0].config["swept"], *differ])
    return [name for name in names if name not in ("algorithm", "env_name", "seed")]


def lines(found: Mapping[str, Any], names: Sequence[str], is_grid: bool) -> list[str]:
    """A run's result with its settings of these names, for a person."""
    settings = found["settings"]
    numbers = label(settings, names)
    of_run = f"run {found['run']}: " if is_grid else ""
    shown_lines = [
        f"{of_run}{settings['algorithm']} on {settings['env_name']}, {numbers}, seed "
        f"{settings['seed']}, update {found['update']:,}, {found['episodes']} episodes"
        + (f" of seed {seed}" if (seed := found["episodes_seed"]) != settings["seed"] else ""),
        *(f"warning: {warning}" for warning in found["warnings"]),
    ]
    if found["lost_episodes"]:
        return shown_lines
    success = ""
    if found["success_rate"] is not None:
        low, high = found["success_rate_wilson"]
        success = (
            f"success rate {found['success_rate']:.1f} % (at any step of an episode; 95 % Wilson "
            f"interval {low:.1f} to {high:.1f}; at the last step "
            f"{found['success_rate_at_end']:.1f} %), "
        )
    low, high = found["return_bootstrap"]
    interval = f"(95 % bootstrap interval {low:.2f} to {high:.2f})"
    return [*shown_lines, f"{success}return {found['return']:.2f} {interval}"]


def main(values: flags.FlagValues) -> None:
    """Evaluate what the flags name, print the results, and write them where they are asked for."""
    if values.checkpoint is None:
        raise InputError("--checkpoint is missing, expected a run's folder or a checkpoint")
    output = cli.output_file(values.output)
    own = {"num_workers": workers.available_cores(), **given(values, Options)}
    options, path = Options(**own), Path(values.checkpoint)
    runs = policy.runs(path) if options.run is None else [options.run]
    found, results = policy.load_all(path, runs), []
    names = telling(found)
    for run, (saved, episodes) in zip(runs, evaluate(found, options), strict=True):
        results.append(result(run, saved, episodes, options.seed))
        print("\n".join(lines(results[-1], names, len(runs) > 1)))
        if output:
            files.write_json(output, {"checkpoint": str(path), "runs": results})


if __name__ == "__main__":
    cli.run(main, define_flags, kept="nothing was changed")
