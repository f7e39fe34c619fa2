"""Write a trained policy as files for others: `python -m experiments.export --checkpoint=<run>`.

A folder with policy.safetensors and policy.json, which NumPy alone can read: docs/export.md. Of a
grid each run gets a folder of its own inside.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from appo_jax import exporting, policy
from appo_jax.types import InputError
from experiments.terminal import cli
from experiments.terminal.flags import define

_GROUP = "What to export"


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags."""
    where = "a run's folder (its last checkpoint) or one checkpoint in it"
    define(values, "checkpoint", Path, where, _GROUP)
    define(values, "output", Path, "folder to write, which isn't there yet", _GROUP)
    define(values, "run", int, "one run of a grid, from 0; all if left out", _GROUP)


def main(values: flags.FlagValues) -> None:
    """Export what the flags name, and say what was compared."""
    if values.checkpoint is None:
        raise InputError("--checkpoint is missing, expected a run's folder or a checkpoint")
    if values.output is None:
        raise InputError("--output is missing, expected a folder that isn't there yet")
    path, output = Path(values.checkpoint), Path(values.output)
    runs = policy.runs(path) if values.run is None else [values.run]
    folders = [output] if len(runs) == 1 else [output / f"run-{run}" for run in runs]
    for folder in folders:
        if folder.exists():
            raise InputError(f"--output={output}: {folder} is there already, expected a new folder")
    for folder, saved in zip(folders, policy.load_all(path, runs), strict=True):
        off = exporting.write(saved, folder)
        print(
            f"{folder}: {saved.policy.algorithm} on {saved.config['env_name']}, update "
            f"{saved.update:,}; read back with NumPy, {exporting.NUM_CHECKED:,} actions differ by "
            f"at most {off:.1e} of half their range"
        )


if __name__ == "__main__":
    cli.run(main, define_flags, kept="nothing was changed")
