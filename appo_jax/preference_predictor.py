"""DPPO's preference predictor (An et al. 2023), its first stage, as a reward learner.

    state = preference_predictor.init(config, key, observation_dim, action_dim, num_pairs)
    state, metrics = preference_predictor.update_step(config, state, batch)
    scores = preference_predictor.relabel(config, state, store, view, num_rows)

A transformer in which every step sees its whole window scores it by the mean over its steps. It is
fitted to the labels and, by the smoothness term, to score windows alike that begin a few steps
apart. What `relabel` gives a transition is no reward of its own but the score of the window that
ends with it: `dppo` reads these.

Symbols to names: nu `smoothness`, m `smoothness_steps`.
"""

import dataclasses
import functools
from typing import cast

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from appo_jax import transformer
from appo_jax.data import sampling
from appo_jax.networks import Params
from appo_jax.relabelling import rewards_of_rows, steps_into_episode
from appo_jax.settings import setting
from appo_jax.trainable import Trainable
from appo_jax.transformer import Body, Pairs, Windows
from appo_jax.types import LabelledPairs, Metrics, SegmentPairs, Store, View


@dataclasses.dataclass(frozen=True)
class Config(transformer.Config):
    """What shapes the program. The smoothness is a guess: DPPO's code leaves it at 0."""

    smoothness: float = setting(
        1.0, "nu, the weight of the squared difference of scores of shifted windows", low=0
    )
    smoothness_steps: float = setting(
        20.0, "m, the standard deviation of the shift between them, in steps", low=0
    )


class TrainState(struct.PyTreeNode):
    """The model; updates_per_epoch: int32, with the epochs the length of the fit."""

    model: Trainable
    step: jax.Array
    updates_per_epoch: jax.Array


class Batch(struct.PyTreeNode):
    """What one update reads: labelled pairs, windows and the same shifted, a key for dropout.

    neighbours: windows `[pairs, 2, ...]`, one and, some steps before or behind it, another.
    """

    pairs: Pairs
    neighbours: Windows
    key: jax.Array


class Network(nn.Module):
    """The body and its head: windows `[..., length, dim]` to scores `[...]`."""

    config: Config

    @nn.compact
    def __call__(self, windows: Windows, key: jax.Array | None = None) -> jax.Array:
        """Apply the network."""
        hidden = Body(self.config, causal=False, name="body")(windows, key)
        hidden = jax.nn.relu(nn.Dense(self.config.width // 2, name="hidden")(hidden))
        # A bias would be the same in all scores, which only differences are taken of.
        scores = nn.Dense(1, use_bias=False, name="output")(hidden)[..., 0]
        return jnp.mean(scores, axis=-1, where=windows.is_real)


def init(
    config: Config, key: jax.Array, observation_dim: int, action_dim: int, num_pairs: int
) -> TrainState:
    """A fresh model for `num_pairs` labelled pairs."""
    length = config.segment_length
    window = Windows(jnp.zeros((1, length, observation_dim)), jnp.zeros((1, length, action_dim)))
    params = Network(config).init(key, window)
    updates_per_epoch = jnp.int32(transformer.updates_per_epoch(config, num_pairs))
    total = config.num_epochs * updates_per_epoch
    return TrainState(
        model=Trainable.create(params, transformer.optimiser(config, total)),
        step=jnp.int32(0),
        updates_per_epoch=updates_per_epoch,
    )


def num_updates(config: Config, num_pairs: int) -> int:
    """Updates of a whole fit to `num_pairs` labelled pairs."""
    return config.num_epochs * transformer.updates_per_epoch(config, num_pairs)


def sample(
    config: Config,
    key: jax.Array,
    step: jax.Array,
    store: Store,
    view: View,
    pairs: LabelledPairs,
) -> Batch:
    """The batch of update `step`: a permutation of the pairs an epoch, and as many neighbours.

    Half of the neighbours are windows that have labels, half any of the data set.
    """
    order_key, key = jax.random.split(key)
    drawn = transformer.draw_pairs(config, order_key, step, store, pairs, len(pairs.labels))
    keys = jax.random.split(jax.random.fold_in(key, step), 4)
    count = len(drawn.labels)
    labelled = jax.random.choice(keys[0], pairs.rows.ravel(), (count // 2,))
    others = sampling.draw_segment_rows(keys[1], store, view, (count - count // 2,))
    rows = jnp.concatenate([labelled, others])
    shifts = jnp.round(config.smoothness_steps * jax.random.normal(keys[2], (count,)))
    shifted = sampling.shift_segment_rows(store, rows, shifts.astype(jnp.int32))
    both = jnp.stack([rows, shifted], axis=1)
    return Batch(
        pairs=drawn,
        neighbours=transformer.gather_segments(store, both, pairs.length),
        key=keys[3],
    )


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One step on the Bradley-Terry loss plus nu times the smoothness term."""
    sum_of_weights, count = batch.pairs.weights.sum(), len(batch.pairs.weights)

    def loss(
        params: Params, part: tuple[Pairs, Windows], key: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
        pairs, neighbours = part
        windows = jax.tree.map(lambda *both: jnp.concatenate(both), pairs.segments, neighbours)
        # One key for both windows of a pair: without a shift they score the same.
        score = functools.partial(_scores, config, params, key=key)
        scores = jax.vmap(score, in_axes=1, out_axes=1)(windows)
        pair_scores, shifted = jnp.split(scores, 2)
        loss_sum, counts = transformer.preference_sums(pair_scores, pairs)
        preference = loss_sum / sum_of_weights
        roughness = smoothness_loss(*shifted.T) * (len(pairs.labels) / count)
        return preference + config.smoothness * roughness, (preference, roughness, counts)

    (_, (preference, roughness, (right, strict))), grads = transformer.sum_of_gradients(
        loss, state.model.params, (batch.pairs, batch.neighbours), batch.key
    )
    total = config.num_epochs * state.updates_per_epoch
    model = state.model.step(grads, transformer.optimiser(config, total))
    metrics = {
        "reward/loss": preference,
        "reward/roughness": roughness,
        "reward/train_judged": strict,
        "reward/train_correct": right,
        "reward/learning_rate": transformer.learning_rate(config, total, state.step),
    }
    return state.replace(model=model, step=state.step + 1), metrics


def score(config: Config, state: TrainState, segments: SegmentPairs) -> jax.Array:
    """What the labels compare, of each segment, `[pairs, 2]`."""
    windows = Windows(segments.observations[:, :, :-1], segments.actions)
    return _scores(config, state.model.params, windows)


def relabel(
    config: Config, state: TrainState, store: Store, view: View, num_rows: int
) -> jax.Array:
    """The score of the window that ends with each transition of the view's data set, `[num_rows]`.

    By the row at which the transition starts; 0 where none does. The window of a transition with
    fewer steps before it in its episode has only these, and its score is the mean over them.
    """
    counts = steps_into_episode(store, view, num_rows)

    def scores(rows: jax.Array) -> jax.Array:
        windows = transformer.gather_histories(
            store, view.first_row + rows, counts[rows], config.segment_length
        )
        return _scores(config, state.model.params, windows)

    return rewards_of_rows(scores, store, view, num_rows, transformer.rows_at_once(), scale="raw")


def smoothness_loss(scores: jax.Array, shifted: jax.Array) -> jax.Array:
    """Mean of (S(w) - S(w'))^2, `[windows]` each, of windows a few steps apart."""
    chex.assert_equal_shape([scores, shifted])
    return jnp.mean(jnp.square(scores - shifted))


def _scores(
    config: Config, params: Params, windows: Windows, key: jax.Array | None = None
) -> jax.Array:
    return cast(jax.Array, Network(config).apply(params, windows, key))
