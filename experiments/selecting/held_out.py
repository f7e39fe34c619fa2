"""Labelled pairs that judge runs which weren't trained on them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from appo_jax import policy
from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset, to_device
from appo_jax.data.preferences import Preferences
from appo_jax.envs.environment import Spaces
from appo_jax.keys import Purpose
from appo_jax.types import InputError, LabelledPairs, Store, View
from experiments.runs import datasets, files
from experiments.runs.events import silent
from experiments.runs.experiment import Execution, Experiment, of_resolved
from experiments.runs.results import RunResult


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Labelled pairs, and their data set on the device."""

    labels: Preferences
    pairs: LabelledPairs
    store: Store
    view: View

    @classmethod
    def of(cls, dataset: Dataset, labels: Preferences) -> "HeldOut":
        """Raises InputError where all labels are ties, or nothing is known of a segment."""
        if labels.num_ties == len(labels):
            raise InputError(
                f"all {len(labels)} labels are ties, expected some that say which segment is better"
            )
        # The last action of an episode may be labelled, but nothing is known of what follows it.
        left = dataset.lengths[labels.episodes] - labels.starts
        lengths = np.minimum(labels.length if labels.lengths is None else labels.lengths, left)
        empty = np.argwhere(lengths == 0)
        if len(empty):
            raise InputError(
                f"label {empty[0, 0]}: a segment of one step, the last of its episode, and nothing "
                "is known of what follows it; expected longer ones"
            )
        length = int(lengths.max())
        pairs = labels.to_device(dataset).replace(
            length=length,
            lengths=None if np.all(lengths == length) else jnp.asarray(lengths, jnp.int32),
        )
        return cls(labels, pairs, *to_device(dataset, length))

    @property
    def num_strict(self) -> int:
        """Of the labels that aren't ties."""
        return len(self.labels) - self.labels.num_ties


def of_runs(
    runs: Sequence[RunResult],
    saved: policy.Saved,
    execution: Execution,
    num_pairs: int,
    seed: int,
) -> HeldOut:
    """The pairs that judge runs of the same data: of `execution.preferences`, else scripted ones.

    saved: of one of the runs. num_pairs, seed: of the scripted ones. Raises InputError for data
    that aren't there or have changed, labels that don't fit them, and pairs that a run was trained
    on.
    """
    run, trained = of_resolved(saved.config), saved.policy
    dims = len(trained.normaliser.mean), len(trained.actions.centre)
    dataset = datasets.obtain(run, execution, silent, Spaces(*dims, trained.actions))
    folders = [Path(folder) for folder in dict.fromkeys(one.folder for one in runs)]
    digest = dataset.digest()
    for folder in folders:
        _check_contents(dataset.id, digest, folder, execution.data_dir)
    file = execution.preferences
    if file is None:
        fresh = Purpose.FRESH_LABELS
        steps, threshold = run.segment_length, run.tie_threshold
        labels = preferences.scripted(dataset, seed, num_pairs, steps, threshold, purpose=fresh)
        return HeldOut.of(dataset, labels)
    labels = preferences.load(file, dataset, run.segment_length)
    for folder in folders:
        _check_others(labels, file, folder, dataset, run)
    try:
        return HeldOut.of(dataset, labels)
    except InputError as error:
        raise InputError(f"--preferences={file}: {error}") from error


def _check_contents(id: str, digest: str, folder: Path, data_dir: Path) -> None:
    config = files.read_json(folder / "config.json") or {}
    if config.get("dataset_contents", {}).get(id, {}).get("digest") != digest:
        raise InputError(
            f"--data_dir={data_dir}: the contents of data set {id} aren't those that {folder} was "
            "trained on, expected the same"
        )


def _check_others(
    labels: Preferences, file: Path, folder: Path, dataset: Dataset, run: Experiment
) -> None:
    """Raise InputError for a pair that is among those that a folder's runs were trained on."""
    names = _names(labels)
    for copy in (folder / "preferences.jsonl", *sorted(folder.glob("preferences/*.jsonl"))):
        if not copy.exists() or preferences.about(copy)[0] != dataset.id:
            continue
        trained = preferences.load(copy, dataset, run.segment_length)
        known = set(_names(trained))
        found = [place for place, name in enumerate(names) if name in known]
        if found:
            raise InputError(
                f"--preferences={file}: {len(found)} of {len(labels)} pairs, the first in label "
                f"{found[0]}, are in {copy}, on which a run was trained; expected others, held out"
            )


def _names(labels: Preferences) -> list[frozenset[tuple[int, int]]]:
    """Of each pair, its two segments in any order."""
    both = np.stack([labels.episodes, labels.starts], axis=-1).tolist()
    return [frozenset(map(tuple, pair)) for pair in both]
