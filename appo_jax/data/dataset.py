"""`Dataset`: trajectories on the host, and the `Store` that it becomes on the device.

Episodes lie back to back with one row more than they have steps: the last row of an episode holds
its final observation and a dummy action. The next observation of row i is row i + 1, so no array
of next observations exists, and the index tables keep every sample inside one episode.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax.data.array_checks import checked_arrays
from appo_jax.types import InputError, LabelledPairs, Store, View

# Added to every standard deviation: 18 of 39 columns of a Meta-World set hardly vary.
STD_FLOOR = 1e-3
_ROUNDING = 1e-5  # of an action at a bound
_KEPT = ("observations", "actions", "rewards", "terminations", "successes")  # of an `Episode`
_GROWTH = 8  # an array that grows gets room for an eighth more


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode of T steps.

    observations `[T + 1, observation_dim]`, actions `[T, action_dim]`, rewards `[T]` (the true
    reward) or None where nobody knows them, terminations `[T]` bool, True at the last step at most,
    successes `[T]` bool or None where the task knows no success. truncations `[T]` bool, where a
    time limit cut the episode, at the last step at most; None where that isn't known. They are
    checked and not kept. last_action `[action_dim]`: taken at the last observation, where the
    episode is a segment out of a longer one; None where no action was, or none is known.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray | None
    terminations: np.ndarray
    successes: np.ndarray | None = None
    truncations: np.ndarray | None = None
    last_action: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Normaliser:
    """Mean and standard deviation (+ 1e-3) of each observation column, `[observation_dim]`."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def identity(cls, observation_dim: int) -> "Normaliser":
        """The one that leaves observations as they are."""
        return cls(np.zeros(observation_dim, np.float32), np.ones(observation_dim, np.float32))

    def __call__(self, observations: Any) -> Any:
        """Normalise `[..., observation_dim]`."""
        return (observations - self.mean) / self.std


@dataclasses.dataclass(frozen=True)
class ActionScale:
    """Between [-1, 1] and an environment's actions, in `centre` +- `half_range`, `[action_dim]`."""

    centre: np.ndarray
    half_range: np.ndarray

    @classmethod
    def between(cls, low: np.ndarray, high: np.ndarray) -> "ActionScale":
        """That of the environment's lowest and highest actions, which none in [-1, 1] leaves.

        Bounds are those of float32, which may lie a rounding beyond ones of float64.
        Raises InputError for bounds between which float32 has no such scale.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            least, most = np.asarray(low, np.float32), np.asarray(high, np.float32)
            centre, half_range = (most + least) / 2, (most - least) / 2
            # Rounding may put an end a little beyond its bound.
            is_beyond = (centre - half_range < least) | (centre + half_range > most)
            inner = np.nextafter(np.minimum(most - centre, centre - least), np.float32(0))
            half_range = np.where(is_beyond & np.isfinite(half_range), inner, half_range)
        if not (np.isfinite(centre) & np.isfinite(half_range) & (half_range > 0)).all():
            raise InputError(f"actions from {low} to {high}, expected finite bounds (float32)")
        return cls(centre, half_range)

    def to_raw(self, actions: np.ndarray) -> np.ndarray:
        """The environment's actions, `[..., action_dim]`, of ones in [-1, 1]."""
        return self.centre + self.half_range * actions

    def to_unit(self, actions: np.ndarray) -> np.ndarray:
        """The environment's actions, `[..., action_dim]`, in [-1, 1]; beyond it where they were.

        What rounding alone puts beyond is put back.
        """
        unit = (actions - self.centre) / self.half_range
        inside = np.abs(unit) <= 1 + _ROUNDING
        return np.where(inside, np.clip(unit, -1, 1), unit).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Trajectories in the layout of the module docstring, on the host.

    observations `[rows, observation_dim]` float32, actions `[rows, action_dim]` float32,
    rewards `[rows]` float32 (true reward; 0 on the last row of an episode) or None where they
    aren't known, terminations `[rows]` bool, successes `[rows]` bool or None, lengths `[episodes]`
    int64 (steps of each episode), id: name under which people know the set; metadata: where it came
    from. has_last_action `[episodes]` bool: whether the action on an episode's last row was taken,
    and is no dummy; None where none was. is_normalised: whether learners see the observations
    normalised or as they are.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray | None
    terminations: np.ndarray
    successes: np.ndarray | None
    lengths: np.ndarray
    id: str
    metadata: Mapping[str, Any]
    has_last_action: np.ndarray | None = None
    is_normalised: bool = True

    @property
    def observation_dim(self) -> int:
        """Size of one observation."""
        return self.observations.shape[1]

    @property
    def action_dim(self) -> int:
        """Size of one action."""
        return self.actions.shape[1]

    @property
    def num_episodes(self) -> int:
        """How many episodes there are."""
        return len(self.lengths)

    @property
    def num_transitions(self) -> int:
        """How many transitions there are, all episodes together."""
        return int(self.lengths.sum())

    @property
    def episode_starts(self) -> np.ndarray:
        """The first row of each episode, `[episodes]` int64."""
        return np.concatenate([[0], np.cumsum(self.lengths + 1)[:-1]])

    @property
    def label_lengths(self) -> np.ndarray:
        """Steps of each episode that a label may compare, `[episodes]` int64.

        One more than it has transitions, where its last action is known: what is compared are
        observations and actions, and what came of the last one needn't be known.
        """
        return self.lengths + (0 if self.has_last_action is None else self.has_last_action)

    def action_rows(self) -> np.ndarray:
        """The rows whose action was taken, `[actions]`: transitions', and last ones if known."""
        if self.has_last_action is None:
            return self.transition_rows()
        last = (self.episode_starts + self.lengths)[self.has_last_action]
        return np.sort(np.concatenate([self.transition_rows(), last.astype(np.int32)]))

    def transition_rows(self) -> np.ndarray:
        """The rows that start a transition, `[transitions]` int32."""
        return self.segment_rows(1)

    def segment_rows(self, length: int) -> np.ndarray:
        """The rows that start `length` steps inside one episode, `[segments]` int32.

        An episode of T steps gives T - length + 1 of them; a shorter episode gives none.
        Raises InputError when no episode is long enough.
        """
        starts = [
            np.arange(start, start + steps - length + 1)
            for start, steps in zip(self.episode_starts, self.lengths, strict=True)
        ]
        rows = np.concatenate(starts).astype(np.int32)
        if not len(rows):
            raise InputError(
                f"data set {self.id}: the longest of {self.num_episodes} episodes has "
                f"{self.lengths.max()} steps, expected at least the segment length {length}"
            )
        return rows

    @functools.cached_property  # seconds for a large set, and several ask
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and population std of each observation column, `[observation_dim]` float64.

        Over the observations that start a transition.
        """
        rows = self.transition_rows()
        # A column at a time: in float64, a large set would need twice its memory once more.
        columns = (column[rows].astype(np.float64) for column in self.observations.T)
        mean, std = np.array([(column.mean(), column.std()) for column in columns]).T
        return mean, std

    def normaliser(self) -> Normaliser:
        """Mean and population std + 1e-3 over the observations that start a transition.

        Of a set that isn't normalised 0 and 1.
        """
        if not self.is_normalised:
            return Normaliser.identity(self.observation_dim)
        mean, std = self.moments
        return Normaliser(mean.astype(np.float32), (std + STD_FLOOR).astype(np.float32))

    def known_rewards(self, use: str) -> np.ndarray:
        """The true rewards. Raises InputError, naming the `use` for them, where there are none."""
        if self.rewards is None:
            raise InputError(f"data set {self.id}: has no rewards, expected them for {use}")
        return self.rewards

    def returns(self) -> np.ndarray | None:
        """The true return of each episode, `[episodes]` float64, or None without rewards."""
        if self.rewards is None:
            return None
        return np.add.reduceat(self.rewards.astype(np.float64), self.episode_starts)

    def success_rate(self) -> float | None:
        """Share of episodes with a success at any step, or None where success is not known."""
        if self.successes is None:
            return None
        return float(np.logical_or.reduceat(self.successes, self.episode_starts).mean())

    def digest(self) -> str:
        """SHA-256 over observations, actions, rewards, terminations and lengths.

        The identity of the contents. Success flags, and which last actions were taken, aren't in
        it: with them, sets that are there would have another.
        """
        hasher = hashlib.sha256()
        for array in (
            self.observations,
            self.actions,
            self.rewards,
            self.terminations,
            self.lengths,
        ):
            if array is not None:
                hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


def from_episodes(
    episodes: Iterable[Episode], id: str, metadata: Mapping[str, Any] | None = None
) -> Dataset:
    """Check episodes of any source and lay them back to back.

    Numbers of any real dtype are cast to float32; rewards and flags may also be `[T, 1]`.
    Raises InputError, naming episode, array and place, for an empty list, an episode without steps,
    a missing array (rewards and successes may be missing in all episodes; a last action in any),
    lengths or widths that don't match,
    values that aren't finite numbers in float32, flags other than 0 and 1, and an episode that
    goes on behind its end.
    """
    first: Episode | None = None
    lengths: list[int] = []
    has_last_action: list[bool] = []
    arrays = {name: _Rows() for name in _KEPT}
    for index, episode in enumerate(episodes):
        where = f"data set {id}, episode {index}"
        checked = Episode(**checked_arrays(vars(episode), vars(first) if first else None, where))
        first = first or checked
        lengths.append(len(checked.actions))
        has_last_action.append(checked.last_action is not None)
        for name, array in arrays.items():
            array.extend(getattr(checked, name), lengths[-1] + 1)
        if checked.last_action is not None:
            arrays["actions"].set_last(checked.last_action)
    if first is None:
        raise InputError(f"data set {id}: no episodes, expected at least one")
    whole: dict[str, Any] = {name: array.whole() for name, array in arrays.items()}
    return Dataset(
        **whole,
        lengths=np.array(lengths, np.int64),
        id=id,
        metadata=dict(metadata or {}),
        has_last_action=np.array(has_last_action) if any(has_last_action) else None,
    )


class _Rows:
    """An array that grows where it is: of a large set there are never two copies."""

    def __init__(self) -> None:
        self._array: np.ndarray | None = None
        self._count = 0

    def extend(self, rows: np.ndarray | None, count: int) -> None:
        """Append `count` rows, of which all but those given are 0; None: there is no such array."""
        if rows is None:
            return
        if self._array is None:
            self._array = np.zeros((0, *rows.shape[1:]), rows.dtype)
        needed = self._count + count
        if needed > len(self._array):
            room = max(needed, len(self._array) + len(self._array) // _GROWTH)
            self._array.resize((room, *rows.shape[1:]), refcheck=False)
        self._array[self._count : self._count + len(rows)] = rows
        self._count = needed

    def set_last(self, row: np.ndarray) -> None:
        """Put something into the last row."""
        assert self._array is not None
        self._array[self._count - 1] = row

    def whole(self) -> np.ndarray | None:
        """The array; nothing is appended from now on."""
        if self._array is not None:
            self._array.resize((self._count, *self._array.shape[1:]), refcheck=False)
        return self._array


def to_device(dataset: Dataset, segment_length: int) -> tuple[Store, View]:
    """Put a data set on the device, observations normalised.

    The rewards are the true ones, 0 where there are none.

    Raises InputError when no episode is as long as a segment.
    """
    store, (view,) = to_device_together([dataset], segment_length)
    return store, view


def to_device_together(
    datasets: Sequence[Dataset], segment_length: int
) -> tuple[Store, list[View]]:
    """Put data sets of equal widths into one store, each normalised by itself, a view for each.

    Raises InputError for other widths and for a set without an episode as long as a segment.
    """
    widths = {(dataset.observation_dim, dataset.action_dim) for dataset in datasets}
    if len(widths) > 1:
        raise InputError(
            f"data sets {', '.join(dataset.id for dataset in datasets)} have observations and "
            f"actions of the widths {sorted(widths)}, expected the same in all"
        )
    first_row = first_transition = first_segment = 0
    transition_rows, segment_rows, views = [], [], []
    for dataset in datasets:
        transition_rows.append(dataset.transition_rows() + np.int32(first_row))
        segment_rows.append(dataset.segment_rows(segment_length) + np.int32(first_row))
        numbers = {
            "first_transition": first_transition,
            "num_transitions": len(transition_rows[-1]),
            "first_segment": first_segment,
            "num_segments": len(segment_rows[-1]),
            "first_row": first_row,
            "first_reward": first_row,
            "first_pair": 0,
            "num_pairs": 0,
        }
        views.append(View(**{name: jnp.int32(number) for name, number in numbers.items()}))
        first_row += len(dataset.observations)
        first_transition += len(transition_rows[-1])
        first_segment += len(segment_rows[-1])
    store = Store(
        observations=_joined([_normalised(dataset) for dataset in datasets]),
        actions=_joined([dataset.actions for dataset in datasets]),
        terminations=_joined([dataset.terminations for dataset in datasets]),
        transition_rows=_joined(transition_rows),
        segment_rows=_joined(segment_rows),
        rewards=_joined([_rewards(dataset) for dataset in datasets]),
        pair_rows=jnp.zeros((0, 2), jnp.int32),
        pair_labels=jnp.zeros(0, jnp.float32),
        segment_length=segment_length,
    )
    return store, views


def with_pairs(
    store: Store, views: Sequence[View], pairs: Sequence[LabelledPairs]
) -> tuple[Store, list[View]]:
    """The store with labelled pairs in it, and each view with its own, `pairs[i]` for `views[i]`.

    Pairs that several views share (the same object) lie in the store once. Raises InputError for
    pairs of segments of other lengths than the store's.
    """
    for own in pairs:
        if own.length != store.segment_length or own.lengths is not None:
            raise InputError(
                f"labelled pairs of segments of {own.length} steps"
                f"{'' if own.lengths is None else ' or fewer'} for a store whose segments have "
                f"{store.segment_length}, expected the same of all"
            )
    places: dict[int, int] = {}
    kept: list[LabelledPairs] = []
    for own in pairs:
        if id(own) not in places:
            places[id(own)] = sum(len(before.labels) for before in kept)
            kept.append(own)
    store = store.replace(
        pair_rows=jnp.concatenate([own.rows for own in kept]),
        pair_labels=jnp.concatenate([own.labels for own in kept]),
    )
    return store, [
        view.replace(first_pair=jnp.int32(places[id(own)]), num_pairs=jnp.int32(len(own.labels)))
        for view, own in zip(views, pairs, strict=True)
    ]


def _rewards(dataset: Dataset) -> np.ndarray:
    if dataset.rewards is None:  # a reward learner's come in their place
        return np.zeros(len(dataset.observations), np.float32)
    return dataset.rewards


def _normalised(dataset: Dataset) -> np.ndarray:
    normaliser = dataset.normaliser()
    observations = dataset.observations - normaliser.mean
    observations /= normaliser.std  # in place: a large set is large
    return observations


def _joined(arrays: Sequence[np.ndarray]) -> jax.Array:
    return jnp.asarray(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
