"""The labels of runs: from a file, or of the scripted teacher."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo_jax import registry
from appo_jax.data import checks, preferences, schemes
from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.envs import environment
from appo_jax.types import InputError
from experiments.runs.datasets import warn
from experiments.runs.events import Report, Told
from experiments.runs.experiment import Execution, Experiment


class LabelKey(NamedTuple):
    """What decides the labels, and with them the reward model, of a run."""

    dataset: str
    seed: int
    num_labels: int


def key_of(run: Experiment) -> LabelKey:
    """Runs that differ in their policies alone share it."""
    return LabelKey(run.dataset.id, run.seed, run.num_feedback)


def obtain_all(
    runs: Sequence[Experiment], execution: Execution, data: Mapping[str, Dataset], report: Report
) -> dict[LabelKey, Preferences]:
    """The labels of all runs; copies go to the folder."""
    found: dict[LabelKey, Preferences] = {}
    alone = len({key_of(run) for run in runs}) == 1
    for run in runs:
        key = key_of(run)
        if key not in found:
            copy = execution.workdir / "preferences.jsonl"
            if not alone:
                name = environment.folder_name(run.env_name)
                file = f"{name}-seed{run.seed}-n{key.num_labels}.jsonl"
                copy = execution.workdir / "preferences" / file
                copy.parent.mkdir(exist_ok=True)
            name = "labels" if alone else f"labels of {key.dataset}, seed {key.seed}"
            found[key] = obtain(run, execution, data[run.dataset.id], copy, report, name)
    return found


def obtain(
    run: Experiment,
    execution: Execution,
    dataset: Dataset,
    copy: Path,
    report: Report,
    name: str = "labels",
) -> Preferences:
    """A run's labels; a copy is left, and there is a line for all that is odd about them.

    name: what they are called where they are counted. Raises InputError for segments of other
    lengths than the run's, where its algorithm, or its policy, can't compare such.
    """
    file = execution.preferences
    if file:
        found = preferences.load(file, dataset, run.segment_length, execution.on_bad_label)
        labels = found.first(run.num_feedback)
        _check_lengths(labels, run, file)
    else:
        labels = schemes.scripted(
            run.feedback,
            dataset,
            run.seed,
            run.num_feedback,
            run.segment_length,
            run.tie_threshold,
            run.label_noise,
        )
    # A person may keep the labels in the run's folder, under this very name.
    if not (file and copy.exists() and copy.samefile(file)):
        preferences.save(labels, copy)
    ties = f"{labels.num_ties} of them ties ({100 * labels.num_ties / len(labels):.0f} %)"
    report(Told(f"{name}: {len(labels)} pairs, {ties}"))
    source = file or f"of the scripted teacher, seed {run.seed}"
    warn(f"labels {source}", checks.about_labels(labels), report)
    return labels


def has_other_lengths(labels: Preferences, segment_length: int) -> bool:
    """Whether some segments have other lengths than those that policies are trained on."""
    return labels.lengths is not None or labels.length != segment_length


def _check_lengths(labels: Preferences, run: Experiment, file: Path) -> None:
    if not has_other_lengths(labels, run.segment_length):
        return
    if getattr(run.policy, "labelled_pairs", False):
        raise InputError(
            f"--labelled_pairs: found with --preferences={file}, which compares segments of up to "
            f"{labels.length} steps, expected --segment_length={run.segment_length} of all, or the "
            "flag left out"
        )
    learner = registry.algorithm(run.algorithm).reward_learner
    if not _sums_steps(learner):
        able = [n for n, each in registry.ALGORITHMS.items() if _sums_steps(each.reward_learner)]
        raise InputError(
            f"--preferences={file}: compares segments of up to {labels.length} steps, which "
            f"{run.algorithm} can't, expected --segment_length={run.segment_length} of all, or an "
            f"algorithm that sums the rewards of steps (--algorithm={', '.join(able)})"
        )


def _sums_steps(learner: Any) -> bool:
    """Whether a reward learner's score of a segment is the sum over as many steps as it has."""
    return getattr(learner, "LABELS_OF_ANY_LENGTH", False)
