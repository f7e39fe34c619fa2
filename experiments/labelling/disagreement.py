"""Pairs about which an ensemble disagrees that is fitted to the answers so far.

The ensemble is the project's own reward model, made small. It is fitted anew in the background
while the person works; until there are enough answers, pairs are those of another strategy. Which
fit a pair is chosen by depends on how long fits take; what was asked is written down.
"""

import functools
import threading
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import reward_model
from appo_jax.data import sampling
from appo_jax.data.dataset import to_device
from appo_jax.keys import Purpose, purpose_key
from appo_jax.networks import Params
from appo_jax.trainable import Trainable
from appo_jax.types import LabelledPairs, Store, View
from experiments.labelling.records import Segments, unordered
from experiments.labelling.strategies import Answers, Segmented, Strategy

CONFIG = reward_model.Config(
    hidden_layers=2, hidden_dim=64, ensemble_size=5, batch_size=64, num_epochs=100
)
FIRST = 20  # answers before the first fit
EVERY = 10  # answers between two fits
_PAIRS = 64  # places of a fit's labels at least, doubled as they grow: few programs are compiled
_CANDIDATES = 100


class Disagreement:
    """Of a hundred random pairs the one about which the members disagree most.

    Disagreement is the standard deviation over members of the probability that segment 1 is
    preferred, as in PEBBLE (arXiv 2106.05091).
    """

    def __init__(self, segmented: Segmented, seed: int, before: Strategy, waits: bool = False):
        """before: finds pairs until there is a fit. waits: fit at once, not in the background."""
        self._segmented, self._seed, self._before, self._waits = segmented, seed, before, waits
        self._store, self._view = to_device(segmented.dataset, segmented.length)
        self._fitted: tuple[int, reward_model.TrainState] | None = None
        self._thread: threading.Thread | None = None

    def propose(self, asked: Sequence[Segments], answers: Answers) -> Segments:
        """The pair of those drawn for its place that the latest fit is least sure of."""
        self._refit({pair: label for pair, label in answers.items() if label is not None})
        if self._fitted is None:
            return self._before.propose(asked, answers)
        known = {unordered(pair) for pair in asked}
        generator = np.random.default_rng([self._seed, len(asked), 3])
        rows = np.stack([self._segmented.draw(generator) for _ in range(_CANDIDATES)])
        unsure = np.asarray(
            _disagreement(
                self._fitted[1], self._store, self._view, jnp.asarray(rows), self._segmented.length
            )
        )
        for place in np.argsort(-unsure, kind="stable"):
            pair = self._segmented.pair(rows[place])
            if unordered(pair) not in known:
                return pair
        return self._before.propose(asked, answers)

    def left(self, asked: Sequence[Segments], answers: Answers) -> int | None:
        """It doesn't end."""
        return None

    def _refit(self, labels: Mapping[Segments, float]) -> None:
        seen = self._fitted[0] if self._fitted else FIRST - EVERY
        is_running = self._thread is not None and self._thread.is_alive()
        if len(labels) < seen + EVERY or is_running:
            return
        self._thread = threading.Thread(target=self._fit, args=(dict(labels),), daemon=True)
        self._thread.start()
        if self._waits:
            self._thread.join()

    def _fit(self, labels: Mapping[Segments, float]) -> None:
        pairs = _resampled(labels, self._segmented, self._seed)
        state = _fit(self._store, self._view, pairs, self._seed)
        self._fitted = len(labels), state


def _resampled(labels: Mapping[Segments, float], segmented: Segmented, seed: int) -> LabelledPairs:
    """The labels, each about as often as the others, in a power of two of places."""
    count = max(_PAIRS, 1 << (len(labels) - 1).bit_length())
    order = np.random.default_rng([seed, len(labels)]).permutation(count) % len(labels)
    rows = np.array([[segmented.row(segment) for segment in pair] for pair in labels], np.int32)
    return LabelledPairs(
        rows=jnp.asarray(rows[order]),
        labels=jnp.asarray(np.array(list(labels.values()), np.float32)[order]),
        length=segmented.length,
    )


def _fit(store: Store, view: View, pairs: LabelledPairs, seed: int) -> reward_model.TrainState:
    init_key, batch_key = jax.random.split(purpose_key(seed, Purpose.REWARD_MODEL))
    dims = store.observations.shape[1], store.actions.shape[1]
    state = reward_model.init(CONFIG, init_key, *dims, len(pairs.labels))
    num_updates = reward_model.num_updates(CONFIG, len(pairs.labels))
    return _updates(state, batch_key, store, view, pairs, jnp.int32(num_updates))


@jax.jit
def _updates(
    state: reward_model.TrainState,
    key: jax.Array,
    store: Store,
    view: View,
    pairs: LabelledPairs,
    num_updates: jax.Array,
) -> reward_model.TrainState:
    def update(_: jax.Array, state: reward_model.TrainState) -> reward_model.TrainState:
        batch = reward_model.sample(CONFIG, key, state.step, store, view, pairs)
        return reward_model.update_step(CONFIG, state, batch)[0]

    return jax.lax.fori_loop(0, num_updates, update, state)


@functools.partial(jax.jit, static_argnames="length")
def _disagreement(
    state: reward_model.TrainState, store: Store, view: View, rows: jax.Array, length: int
) -> jax.Array:
    """Spread over the members of each pair's probability, `[pairs]`; rows: `[pairs, 2]`."""
    segments = sampling.gather_segment_pairs(store, view, rows, length)

    def preferred(params: Params) -> jax.Array:
        alone = Trainable(jax.tree.map(lambda leaf: leaf[None], params), optimiser=None)
        scores = reward_model.score(CONFIG, state.replace(members=alone), segments)
        return jax.nn.sigmoid(scores[:, 1] - scores[:, 0])

    return jax.vmap(preferred)(state.members.params).std(axis=0)
