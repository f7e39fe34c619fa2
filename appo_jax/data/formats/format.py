"""What a format of published files offers, what it is asked, and what its readers share."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.data.preferences import Preferences
from appo_jax.envs import origin
from appo_jax.types import InputError


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be read.

    source: a file or a folder. id: of the data set that comes out. dataset: the trajectories that
    labels point into, or that are to come along with labelled segments. size: transitions to take,
    None for all. segment_length: steps of a labelled segment, None where the files say. score: of
    CPL's segments, the array whose larger value is better. drop_last_step: leave out the last step
    of segments that carry themselves, whose next observation isn't known.
    """

    source: Path
    id: str
    dataset: Dataset | None = None
    size: int | None = None
    segment_length: int | None = None
    score: str = "rl_sum"
    drop_last_step: bool = False


@dataclasses.dataclass(frozen=True)
class Imported:
    """What came out: a new data set, labels, or both, and what is odd about them, in sentences."""

    dataset: Dataset | None
    labels: Preferences | None = None
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Format:
    """A layout in which data or labels are published.

    help: what it is, for a person. read: raises InputError for files that aren't in it. options:
    the fields of `Request`, beside source and id, that it reads.
    """

    help: str
    read: Callable[[Request], Imported]
    options: tuple[str, ...] = ()


def check_names(found: Iterable[str], wanted: Sequence[str], where: str) -> None:
    """Raise InputError unless all arrays that are wanted are there."""
    found = list(found)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InputError(
            f"{where}: holds {', '.join(map(str, found))[:200] or 'nothing'}, expected also "
            f"{', '.join(missing)}"
        )


def check_shapes(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, Sequence[int | str]], where: str
) -> dict[str, int]:
    """The sizes that letters stand for in the `expected` shapes of arrays.

    Raises InputError for an array that isn't as the others are.
    """
    sizes: dict[str, int] = {}
    for name, dims in expected.items():
        shape = arrays[name].shape
        known = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]
        if len(shape) != len(dims) or any(
            isinstance(dim, int) and dim != size for dim, size in zip(known, shape, strict=True)
        ):
            raise InputError(
                f"{where}: {name} have shape {list(shape)}, expected [{', '.join(map(str, known))}]"
            )
        sizes |= {dim: size for dim, size in zip(dims, shape, strict=True) if isinstance(dim, str)}
    return sizes


def only_file(folder: Path, pattern: str, what: str) -> Path:
    """The one file of a folder whose name fits. Raises InputError for none and for several."""
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder, expected one that holds {what}")
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or ", ".join(
            path.name for path in sorted(folder.iterdir())[:5]
        )
        raise InputError(f"{folder}: holds {names or 'nothing'}, expected one file {what}")
    return found[0]


def at_transitions(
    dataset: Dataset, rows: Any, labels: Any, length: int, name: str, where: str
) -> Preferences:
    """Labels of segments that begin with the transitions of these numbers in a data set.

    rows: `[pairs, 2]`, counted from 0 over all transitions. labels: `[pairs]`, probability that the
    second is better. name: of who gave them. Raises InputError for numbers that aren't there, and
    for segments that go on into the next episode: its transitions have the numbers that follow.
    """
    rows = np.asarray(rows)
    if rows.dtype.kind not in "iu":
        raise InputError(f"{where}: indices have dtype {rows.dtype}, expected whole numbers")
    ends = np.cumsum(dataset.lengths)
    wrong = (rows < 0) | (rows >= ends[-1])
    if wrong.any():
        pair, side = np.argwhere(wrong)[0]
        raise InputError(
            f"{where}: index {rows[pair, side]} in row {pair}, expected 0 to {ends[-1] - 1}, the "
            f"transitions of {dataset.id}"
        )
    episodes = np.searchsorted(ends, rows, side="right")
    starts = rows - (ends - dataset.lengths)[episodes]
    wrong = starts + length > dataset.lengths[episodes]
    if wrong.any():
        pair, side = np.argwhere(wrong)[0]
        episode = episodes[pair, side]
        raise InputError(
            f"{where}: index {rows[pair, side]} in row {pair} begins a segment of {length} steps "
            f"at step {starts[pair, side]} of episode {episode}, which has "
            f"{dataset.lengths[episode]}: expected it to stay inside of an episode of "
            f"{dataset.id} ({wrong.any(axis=1).sum():,} of {len(rows):,} pairs don't)"
        )
    return _labels(dataset, episodes, starts, labels, length, name, where)


def of_segments(
    request: Request,
    segments: Sequence[Mapping[str, np.ndarray]],
    labels: Any,
    metadata: Mapping[str, Any],
) -> Imported:
    """A data set whose episodes are labelled segments, and the labels.

    segments: two sides of the pairs, each with observations and actions `[pairs, length, dim]`, and
    rewards `[pairs, length]` where they are known. An episode has the segment's observations, so
    one transition less than the segment has steps; the action of the last step, whose next
    observation isn't known, is kept for labels alone. With trajectories in the request, the
    episodes come behind those, and the set is from their environment.
    """
    count, length = segments[0]["actions"].shape[:2]
    if length < 2:
        raise InputError(f"{request.source}: segments of {length} step, expected two or more")
    trajectories = request.dataset
    warnings = []
    with_rewards = all("rewards" in side for side in segments)
    if trajectories is not None:
        lost = ["rewards"] if trajectories.rewards is not None and not with_rewards else []
        lost += ["success flags"] if trajectories.successes is not None else []
        if lost:
            warnings.append(
                f"the {' and '.join(lost)} of {trajectories.id} are left out, since those of the "
                "labelled segments aren't known"
            )
        if (made_in := origin.environment_of(trajectories)) is not None:
            metadata = {**metadata, "environment_id": made_in}
    with_rewards &= trajectories is None or trajectories.rewards is not None
    first = 0 if trajectories is None else trajectories.num_episodes

    def episodes() -> Iterable[Episode]:
        if trajectories is not None:
            yield from _episodes_of(trajectories, with_rewards)
        for pair in range(count):
            for side in segments:
                yield Episode(
                    observations=side["observations"][pair],
                    actions=side["actions"][pair, :-1],
                    rewards=side["rewards"][pair, :-1] if with_rewards else None,
                    terminations=np.zeros(length - 1),
                    last_action=None if request.drop_last_step else side["actions"][pair, -1],
                )

    dataset = from_episodes(episodes(), request.id, metadata)
    numbers = first + np.arange(2 * count).reshape(count, 2)
    length -= request.drop_last_step
    found = _labels(
        dataset,
        numbers,
        np.zeros_like(numbers),
        labels,
        length,
        str(metadata["format"]),
        str(request.source),
        any_length=not request.drop_last_step,
    )
    return Imported(dataset, found, tuple(warnings))


def _episodes_of(dataset: Dataset, with_rewards: bool) -> Iterable[Episode]:
    for start, steps in zip(dataset.episode_starts, dataset.lengths, strict=True):
        rows = slice(start, start + steps)
        yield Episode(
            observations=dataset.observations[start : start + steps + 1],
            actions=dataset.actions[rows],
            rewards=dataset.rewards[rows] if with_rewards and dataset.rewards is not None else None,
            terminations=dataset.terminations[rows],
        )


def _labels(
    dataset: Dataset,
    episodes: np.ndarray,
    starts: np.ndarray,
    labels: Any,
    length: int,
    name: str,
    where: str,
    any_length: bool = False,
) -> Preferences:
    steps = np.full(episodes.shape, length) if any_length else length
    try:
        return preferences.from_arrays(
            dataset, episodes, starts, labels, steps, on_bad_label="drop", labeller=name
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
