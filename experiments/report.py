"""Tables, figures and one page from run folders: `python -m experiments.report --runs=runs`.

Runs may still be under way: the page shows how far they are, and can be rebuilt at any time.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from appo_jax.types import InputError
from experiments.reporting import report
from experiments.terminal.cli import run
from experiments.terminal.flags import define


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags, in the order in which they matter."""
    group = "report"
    folders = "folders of runs or of sweeps, or above such, with commas"
    define(values, "runs", Path, folders, group, several=True)
    define(values, "output", Path, "folder of the report (default: report)", group, "report")


def main(values: flags.FlagValues) -> None:
    """Build what the flags say."""
    if not values.runs:
        raise InputError("--runs is missing, expected folders like --runs=runs/sweeps/quick")
    print(report.build([Path(one) for one in values.runs], Path(values.output)))


if __name__ == "__main__":
    run(main, define_flags, kept="the same command builds it anew")
