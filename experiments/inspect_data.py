"""Look at data before training on them: `python -m experiments.inspect_data --dataset=<id>`.

Prints episodes, success, returns, rewards of each source, how often actions are at their largest,
constant columns, and of labels their balance and how often the true rewards agree; draws a picture;
warns of what is odd.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from appo_jax.data import checks, minari_io, preferences
from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.envs import environment, origin
from appo_jax.types import InputError
from experiments.importing import describe
from experiments.inspecting import figure, inspection
from experiments.terminal.cli import naming, output_file, run
from experiments.terminal.flags import define

_GROUP = "What to inspect"


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags."""
    define(values, "dataset", str, "id of a Minari data set", _GROUP)
    define(values, "data_dir", Path, "folder of the data sets (default: Minari's)", _GROUP)
    define(values, "preferences", Path, "JSON Lines file of labels", _GROUP)
    define(values, "segment_length", int, "steps of a labelled segment (default: 25)", _GROUP, 25)
    text = "cut labels into so many parts, and judge on each a reward model fitted to the others"
    define(values, "folds", int, text, _GROUP)
    text = "environment that the data are for (default: the one that they say)"
    define(values, "env", str, text, _GROUP)
    define(values, "output", Path, "PNG to draw into (default: <id>.png, with dashes)", _GROUP)


def main(values: flags.FlagValues) -> None:
    """Inspect what the flags say."""
    if values.dataset is None:
        raise InputError("--dataset is missing, expected the id of a Minari data set")
    if values.folds is not None and (values.folds < 2 or values.preferences is None):
        raise InputError(
            f"--folds={values.folds}: expected a whole number from 2, and labels in --preferences"
        )
    output = output_file(values.output) or Path(f"{values.dataset.replace('/', '-')}.png")
    with naming("dataset"):
        dataset = minari_io.load(values.dataset, values.data_dir)
    labels = None
    if values.preferences is not None:
        with naming("preferences"):
            labels = preferences.load(
                Path(values.preferences), dataset, values.segment_length, on_bad_label="drop"
            )
    made_in = values.env or origin.environment_of(dataset)
    env_name = made_in and _canonical(made_in)
    print("\n".join([*describe.dataset_lines(dataset), *inspection.dataset_lines(dataset)]))
    warnings = inspection.dataset_warnings(dataset, env_name)
    if labels is not None:
        lines = [*describe.label_lines(labels), *inspection.truth_lines(dataset, labels)]
        print("\n".join(lines))
        warnings += checks.about_labels(labels)
    if labels is not None and values.folds is not None:
        print(_folds(dataset, labels, values.folds))
    figure.plot(output, dataset)
    print(f"picture       {output}")
    for warning in warnings:
        print(f"warning: {warning}")


def _canonical(name: str) -> str:
    with naming("env"):
        return environment.canonical_name(name, environment.family(name).flag)


def _folds(dataset: Dataset, labels: Preferences, folds: int) -> str:
    found = inspection.cross_validate(dataset, labels, folds)
    return (
        f"reward model  right on {100 * found.accuracy:.1f} % of {found.count:,} labels that "
        f"aren't ties, each judged by models of the other {folds - 1} of {folds} folds; the "
        f"commoner answer on {100 * found.majority:.1f} %"
    )


if __name__ == "__main__":
    run(main, define_flags, "nothing was changed")
