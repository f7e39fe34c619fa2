"""Preferences: pairs of segments with a label, drawn by a scripted teacher or read from a file.

The file is JSON Lines, made to be written and edited by hand. First a header, then a pair a line:

    {"format": "appo-preferences", "version": 1, "dataset": "metaworld/...", "seed": 0}
    {"episode_0": 3, "start_0": 120, "episode_1": 9, "start_1": 0, "length": 25, "label": 1.0,
     "labeller": "scripted"}

(each on one line). Episodes and steps count from 0; `label` is the probability that segment 1 is
preferred over segment 0: 0, 1, 0.5 for a tie, or anything between. `seed` is null for labels that
no seed made; `labeller` is free text and may be left out. With `"lengths": "any"` in the header the
segments may have other lengths than those that a policy is trained on, and differ from each other:
`length_0` and `length_1` may take the place of `length`.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax.data import label_lines
from appo_jax.data.dataset import Dataset
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import InputError, LabelledPairs

OnBadLabel: TypeAlias = Literal["refuse", "drop"]

_DRAWN = 1024  # pairs drawn at a time


@dataclasses.dataclass(frozen=True)
class Preferences:
    """Labelled pairs of segments, on the host.

    episodes, starts: `[pairs, 2]` int64, the segments' episodes and first steps.
    labels: `[pairs]` float32, probability that the second segment is preferred.
    labellers: who gave each label. length: steps of every segment, or of the longest.
    lengths: `[pairs, 2]` int64, steps of each segment, where they differ, else None.
    any_length: that they needn't be a run's `segment_length` is meant.
    dataset_id, seed: which data set the pairs point into, which seed drew them (None: no seed).
    num_left_out: pairs of a segment with itself that were left out on reading.
    """

    episodes: np.ndarray
    starts: np.ndarray
    labels: np.ndarray
    labellers: tuple[str, ...]
    length: int
    dataset_id: str
    seed: int | None
    num_left_out: int = 0
    lengths: np.ndarray | None = None
    any_length: bool = False

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.labels)

    @property
    def num_ties(self) -> int:
        """How many labels say that neither is preferred."""
        return int(np.sum(self.labels == 0.5))

    def first(self, count: int) -> "Preferences":
        """The first `count` pairs."""
        return dataclasses.replace(
            self,
            episodes=self.episodes[:count],
            starts=self.starts[:count],
            labels=self.labels[:count],
            labellers=self.labellers[:count],
            lengths=None if self.lengths is None else self.lengths[:count],
        )

    def rows(self, dataset: Dataset) -> np.ndarray:
        """The data set's rows at which the segments start, `[pairs, 2]` int32."""
        return (dataset.episode_starts[self.episodes] + self.starts).astype(np.int32)

    def to_device(self, dataset: Dataset, first_row: int = 0) -> LabelledPairs:
        """What the reward learners read; the data set begins at `first_row` of the store."""
        return LabelledPairs(
            rows=jnp.asarray(self.rows(dataset) + np.int32(first_row)),
            labels=jnp.asarray(self.labels),
            length=self.length,
            lengths=None if self.lengths is None else jnp.asarray(self.lengths, jnp.int32),
        )


def scripted(
    dataset: Dataset,
    seed: int,
    num_feedback: int,
    segment_length: int,
    tie_threshold: float,
    label_noise: float = 0.0,
    purpose: Purpose = Purpose.LABELS,
) -> Preferences:
    """Pairs of different random segments, labelled by their undiscounted true returns.

    A tie where the returns differ by at most `tie_threshold`. With probability `label_noise` a
    label becomes one of the two other values of {first, second, tie}. Pair i depends on the seed
    and on i alone, so a shorter list is the beginning of a longer one. `purpose` keeps the pairs
    on which the reward model is judged apart from those that it is fitted to.

    Raises InputError when the data set has fewer than two segments, or no rewards.
    """
    rewards, segment_rows = comparable(dataset, segment_length)
    indices = jnp.arange(-(-num_feedback // _DRAWN) * _DRAWN)  # few lengths, each a program
    segments, flips, shifts = (
        np.asarray(array)[:num_feedback]
        for array in _draw_pairs(purpose_key(seed, purpose), indices, len(segment_rows))
    )
    rows = segment_rows[segments]
    steps = rewards[rows[..., None] + np.arange(segment_length)]
    returns = steps.sum(axis=-1, dtype=np.float64)
    difference = returns[:, 1] - returns[:, 0]
    labels = answers(difference, tie_threshold, label_noise, flips, shifts)
    return of_rows(dataset, rows, labels, "scripted", segment_length, seed)


def comparable(dataset: Dataset, segment_length: int) -> tuple[np.ndarray, np.ndarray]:
    """What a scripted teacher compares: the true rewards, and the first rows of all segments.

    Raises InputError when the data set has fewer than two segments, or no rewards.
    """
    rewards = dataset.known_rewards("a scripted teacher; labels of others come from a file")
    segment_rows = dataset.segment_rows(segment_length)
    if len(segment_rows) < 2:
        raise InputError(
            f"data set {dataset.id}: {len(segment_rows)} segment of length {segment_length}, "
            "expected at least two to compare"
        )
    return rewards, segment_rows


def answers(
    difference: np.ndarray | float,
    tie_threshold: float,
    label_noise: float,
    flips: np.ndarray | float,
    shifts: np.ndarray | int,
) -> np.ndarray:
    """A scripted teacher's labels, of one shape with all that are no settings.

    difference: the second segment's return minus the first's. flips: uniform in [0, 1), noise where
    it is below `label_noise`. shifts: 1 or 2, which of the two other labels it then is.
    """
    labels = np.where(np.abs(difference) <= tie_threshold, 0.5, np.greater(difference, 0))
    return np.where(flips < label_noise, (2 * labels + shifts) % 3 / 2, labels)


def of_rows(
    dataset: Dataset,
    rows: np.ndarray,
    labels: np.ndarray,
    labeller: str,
    segment_length: int,
    seed: int,
) -> Preferences:
    """Labels, `[pairs]`, of segments that begin at these rows of the data set, `[pairs, 2]`."""
    episodes = np.searchsorted(dataset.episode_starts, rows, side="right") - 1
    return Preferences(
        episodes=episodes,
        starts=rows - dataset.episode_starts[episodes],
        labels=labels.astype(np.float32),
        labellers=(labeller,) * len(labels),
        length=segment_length,
        dataset_id=dataset.id,
        seed=seed,
    )


@jax.jit
def _draw_pairs(
    key: jax.Array, indices: jax.Array, num_segments: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    def draw(index: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        first_key, second_key, flip_key, shift_key = jax.random.split(
            jax.random.fold_in(key, index), 4
        )
        first = jax.random.randint(first_key, (), 0, num_segments)
        # Uniform over the other segments: what drawing again until they differ comes to.
        second = jax.random.randint(second_key, (), 0, num_segments - 1)
        second = second + (second >= first)
        flip = jax.random.uniform(flip_key)
        return jnp.stack([first, second]), flip, jax.random.randint(shift_key, (), 1, 3)

    return jax.vmap(draw)(indices)


def accuracy(labels: np.ndarray, scores: np.ndarray) -> tuple[float | None, int]:
    """How often scores `[pairs, 2]` order a pair as its label `[pairs]` does; ties are left out.

    Equal scores order no pair, so they count as wrong: a constant reward is right on none.
    Returns the share, None where every pair is a tie, and the number of pairs that it is over.
    """
    strict = labels != 0.5
    correct = np.sign(scores[:, 1] - scores[:, 0]) == np.sign(labels - 0.5)
    count = int(strict.sum())
    return (float(correct[strict].mean()) if count else None), count


def save(preferences: Preferences, path: Path) -> None:
    """Write the file of the module docstring."""
    header = {
        "format": label_lines.FORMAT,
        "version": label_lines.VERSION,
        "dataset": preferences.dataset_id,
        "seed": preferences.seed,
        **({"lengths": "any"} if preferences.any_length else {}),
    }
    lines: list[dict[str, Any]] = [header]
    all_lengths = [None] * len(preferences)
    if preferences.lengths is not None:
        all_lengths = preferences.lengths.tolist()
    for episodes, starts, lengths, label, labeller in zip(
        preferences.episodes.tolist(),
        preferences.starts.tolist(),
        all_lengths,
        preferences.labels.tolist(),
        preferences.labellers,
        strict=True,
    ):
        lines.append(
            {
                "episode_0": episodes[0],
                "start_0": starts[0],
                "episode_1": episodes[1],
                "start_1": starts[1],
                **label_lines.length_fields(lengths or [preferences.length] * 2),
                "label": label,
                "labeller": labeller,
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def from_arrays(
    dataset: Dataset,
    episodes: Any,
    starts: Any,
    labels: Any,
    segment_length: Any,
    on_bad_label: OnBadLabel = "refuse",
    labeller: str = "unknown",
) -> Preferences:
    """Labels that are in memory, checked as those of a file are.

    episodes, starts: `[pairs, 2]` whole numbers, the segments' episodes and first steps, from 0.
    labels: `[pairs]`, probability that the second segment is preferred. segment_length: steps of
    all segments, or `[pairs, 2]`, of each: the labels are then of any length. on_bad_label: see
    `load`. Raises InputError for other shapes, and naming the pair as `load` names the line.
    """
    arrays = {"episodes": episodes, "starts": starts, "labels": labels}
    any_length = np.ndim(segment_length) > 0
    arrays["lengths"] = segment_length if any_length else np.full(np.shape(starts), segment_length)
    columns = {name: np.asarray(values) for name, values in arrays.items()}
    count = len(columns["labels"]) if columns["labels"].ndim else 0
    for name, array in columns.items():
        expected = (count,) if name == "labels" else (count, 2)
        if array.shape != expected:
            raise InputError(f"{name} of labels have shape {array.shape}, expected {expected}")
    rows = zip(*(columns[name].tolist() for name in arrays), strict=True)
    pairs = [
        (
            f"labelled pair {index}",
            {
                "episode_0": first,
                "start_0": first_start,
                "episode_1": second,
                "start_1": second_start,
                **label_lines.length_fields(lengths),
                "label": label,
                "labeller": labeller,
            },
        )
        for index, ((first, second), (first_start, second_start), label, lengths) in enumerate(rows)
    ]
    expected_length = None if any_length else segment_length
    return _checked("labels", pairs, dataset, expected_length, on_bad_label)


def load(
    path: Path, dataset: Dataset, segment_length: int, on_bad_label: OnBadLabel = "refuse"
) -> Preferences:
    """Read and check a file of preferences over `dataset`.

    on_bad_label: what becomes of a pair of a segment with itself, which says nothing: "refuse", or
    "drop" to leave it out and count it. Raises InputError naming file and line for anything that
    isn't as the module docstring says, for a label outside [0, 1], a segment outside its episode, a
    length other than `segment_length`, unless the header allows it, and a header that names another
    data set.
    """
    (place, line), *lines = label_lines.read(path)
    header = label_lines.parse(line, place)
    label_lines.check_header(header, dataset, place)
    pairs = [(where, label_lines.parse(line, where)) for where, line in lines]
    expected_length = None if header.get("lengths") == "any" else segment_length
    return _checked(str(path), pairs, dataset, expected_length, on_bad_label, header.get("seed"))


def about(path: Path) -> tuple[str, int]:
    """The id of the data set that a file's labels are of, and how long their segments are.

    That of the first label, and of its longer one. Raises InputError for a file that can't be read,
    and one that doesn't say.
    """
    (place, line), *lines = label_lines.read(path)
    id = label_lines.parse(line, place).get("dataset")
    if not isinstance(id, str):
        raise InputError(
            f"{place}: header field 'dataset' is {label_lines.shown(id)}, expected the id of a "
            "data set"
        )
    for where, line in lines:
        lengths = label_lines.lengths(label_lines.parse(line, where))
        for length in lengths:
            if type(length) is not int or length < 1:
                raise InputError(
                    f"{where}: length {label_lines.shown(length)}, expected a whole number of "
                    "steps from 1"
                )
        return id, max(lengths)
    raise InputError(f"{path}: no labels, expected at least one")


def count_labels(path: Path, on_bad_label: OnBadLabel = "refuse") -> int:
    """How many labels a file claims to hold. Raises InputError if it can't be read."""
    _, *lines = label_lines.read(path)
    if on_bad_label == "refuse":
        return len(lines)
    pairs = (label_lines.parse(line, where) for where, line in lines)
    return sum(not label_lines.is_of_one_segment(pair) for pair in pairs)


def _checked(
    name: str,
    pairs: Iterable[tuple[str, dict[str, Any]]],
    dataset: Dataset,
    segment_length: int | None,
    on_bad_label: OnBadLabel,
    seed: int | None = None,
) -> Preferences:
    """Labels of any source, each with its place, that are as they must be.

    segment_length: None where any will do.
    """
    kept, left_out = [], 0
    for where, pair in pairs:
        label_lines.check_pair(pair, dataset, segment_length, where)
        if not label_lines.is_of_one_segment(pair):
            kept.append(pair)
        elif on_bad_label == "drop":
            left_out += 1
        else:
            raise InputError(
                f"{where}: a segment is paired with itself, expected two different ones"
            )
    if not kept:
        raise InputError(f"{name}: no labelled pairs, expected at least one")
    lengths = np.array([label_lines.lengths(pair) for pair in kept])
    return Preferences(
        episodes=np.array([[pair["episode_0"], pair["episode_1"]] for pair in kept]),
        starts=np.array([[pair["start_0"], pair["start_1"]] for pair in kept]),
        labels=np.array([pair["label"] for pair in kept], np.float32),
        labellers=tuple(str(pair.get("labeller", "unknown")) for pair in kept),
        length=int(lengths.max()),
        dataset_id=dataset.id,
        seed=seed,
        num_left_out=left_out,
        lengths=None if (lengths == lengths[0, 0]).all() else lengths,
        any_length=segment_length is None,
    )
