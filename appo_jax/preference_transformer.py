"""Preference Transformer (Kim et al. 2023) as a reward learner: rewards that depend on the past.

    state = preference_transformer.init(config, key, observation_dim, action_dim, num_pairs)
    state, metrics = preference_transformer.update_step(config, state, batch)
    rewards = preference_transformer.relabel(config, state, store, view, num_rows)

A causal transformer reads a segment; its output x_t, which has seen the steps up to t, gives the
reward r_hat_t. A segment scores the mean over i of what preference attention makes of its rewards,
z_i = sum_t softmax_t(q_i . k_t) r_hat_t (section 4 of the paper), or, without it, their mean. The
reward of a transition is r_hat at the end of the last steps of its episode, as many as a segment
has, scaled to [0, 1] over the data set as MR's is, or as its authors do.

The last tenth of the pairs is held out; what is used in the end is the model with the least loss on
these, as it was at one of the evaluations.
"""

import dataclasses
import functools
from typing import Literal, cast

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from appo_jax import transformer
from appo_jax.networks import Params
from appo_jax.relabelling import rewards_of_rows, steps_into_episode
from appo_jax.settings import setting
from appo_jax.trainable import Trainable
from appo_jax.transformer import Body, Pairs, Windows
from appo_jax.types import LabelledPairs, Metrics, SegmentPairs, Store, View


@dataclasses.dataclass(frozen=True)
class Config(transformer.Config):
    """What shapes the program. Defaults are those of PT's documented command, with the attention.

    Differs from the code, whose default is a head without it: the paper has it.
    """

    preference_attention: bool = setting(
        True, "weigh a segment's rewards by attention, as the paper; else their mean"
    )
    held_out: float = setting(
        0.1, "share of the labels, the last ones, that are only evaluated on", low=0, high=0.9
    )
    evaluation_epochs: int = setting(5, "epochs between two evaluations on the held-out labels")
    least_improvement: float = setting(
        1e-3, "by how much the loss on the held-out labels must fall for a new best model", low=0
    )
    scale: Literal["minmax", "returns"] = setting(
        "minmax",
        "of r_hat: minmax ([0, 1] over the data set) or returns (as its authors: the longest "
        "episode's steps over the range of returns, not moved)",
    )


class TrainState(struct.PyTreeNode):
    """The model, and as it was when it was best on the pairs held out.

    held_out_loss: then; before the first evaluation log 2, the loss of equal scores.
    updates_per_epoch: int32; it turns `step` into an epoch.
    """

    model: Trainable
    best_params: Params
    held_out_loss: jax.Array
    step: jax.Array
    updates_per_epoch: jax.Array


class Batch(struct.PyTreeNode):
    """What one update reads: labelled pairs, those held out, and a key for dropout."""

    pairs: Pairs
    held_out: Pairs
    key: jax.Array


class Network(nn.Module):
    """The body and its heads."""

    config: Config

    def setup(self) -> None:
        """Name the parts."""
        width = self.config.width
        self.body = Body(self.config, causal=True)
        # A bias of the rewards would be the same in both scores of a pair, one of the keys in all
        # that a softmax is over.
        self.reward = nn.Dense(1, use_bias=False)
        if self.config.preference_attention:
            self.query, self.key = nn.Dense(width), nn.Dense(width, use_bias=False)
        else:
            self.hidden = nn.Dense(width // 2)

    def scores(self, segments: Windows, key: jax.Array | None = None) -> jax.Array:
        """What labels compare, of each segment, `[segments]`."""
        hidden = self.body(segments, key)
        rewards = self._rewards(hidden)
        if not self.config.preference_attention:
            return rewards.mean(axis=-1)
        return attended_score(self.query(hidden), self.key(hidden), rewards)

    def last_rewards(self, windows: Windows) -> jax.Array:
        """r_hat at the last step of each window, `[windows]`."""
        return self._rewards(self.body(windows, last_only=True))[:, 0]

    def _rewards(self, hidden: jax.Array) -> jax.Array:
        if not self.config.preference_attention:
            hidden = jax.nn.relu(self.hidden(hidden))
        return self.reward(hidden)[..., 0]


def init(
    config: Config, key: jax.Array, observation_dim: int, action_dim: int, num_pairs: int
) -> TrainState:
    """A fresh model for `num_pairs` labelled pairs."""
    length = config.segment_length
    window = Windows(jnp.zeros((1, length, observation_dim)), jnp.zeros((1, length, action_dim)))
    params = Network(config).init(key, window, method="scores")
    updates_per_epoch = jnp.int32(_updates_per_epoch(config, num_pairs))
    total = config.num_epochs * updates_per_epoch
    return TrainState(
        model=Trainable.create(params, transformer.optimiser(config, total)),
        # A copy: a state whose leaves share a buffer can't be donated.
        best_params=jax.tree.map(jnp.copy, params),
        held_out_loss=jnp.log(jnp.float32(2)),
        step=jnp.int32(0),
        updates_per_epoch=updates_per_epoch,
    )


def num_updates(config: Config, num_pairs: int) -> int:
    """Updates of a whole fit to `num_pairs` labelled pairs."""
    return config.num_epochs * _updates_per_epoch(config, num_pairs)


def num_fitted(config: Config, num_pairs: int) -> int:
    """How many of the labelled pairs, the first ones, aren't held out."""
    return num_pairs - int(config.held_out * num_pairs)


def sample(
    config: Config,
    key: jax.Array,
    step: jax.Array,
    store: Store,
    view: View,
    pairs: LabelledPairs,
) -> Batch:
    """The batch of update `step`: a permutation of the pairs, but for those held out, an epoch."""
    del view
    order_key, dropout_key = jax.random.split(key)
    count = num_fitted(config, len(pairs.labels))
    held_out = jnp.arange(count, len(pairs.labels))
    return Batch(
        pairs=transformer.draw_pairs(config, order_key, step, store, pairs, count),
        held_out=transformer.gather_pairs(store, pairs, held_out, jnp.ones(len(held_out))),
        key=jax.random.fold_in(dropout_key, step),
    )


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One step on the Bradley-Terry loss; at the end of some epochs, an evaluation."""
    sum_of_weights = batch.pairs.weights.sum()

    def loss(params: Params, pairs: Pairs, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = _scores(config, params, pairs.segments, key)
        loss_sum, counts = transformer.preference_sums(scores, pairs)
        return loss_sum / sum_of_weights, counts

    (loss_value, (right, strict)), grads = transformer.sum_of_gradients(
        loss, state.model.params, batch.pairs, batch.key
    )
    total = config.num_epochs * state.updates_per_epoch
    model = state.model.step(grads, transformer.optimiser(config, total))
    metrics = {
        "reward/loss": loss_value,
        "reward/train_judged": strict,
        "reward/train_correct": right,
        "reward/learning_rate": transformer.learning_rate(config, total, state.step),
    }
    state = _keep_best(config, state.replace(model=model, step=state.step + 1), batch.held_out)
    return state, metrics | {"reward/held_out_loss": state.held_out_loss}


def score(config: Config, state: TrainState, segments: SegmentPairs) -> jax.Array:
    """What the labels compare, of each segment, `[pairs, 2]`."""
    windows = Windows(segments.observations[:, :, :-1], segments.actions)
    return _scores(config, state.best_params, windows)


def relabel(
    config: Config, state: TrainState, store: Store, view: View, num_rows: int
) -> jax.Array:
    """r_hat of the transitions of the view's data set, which has `num_rows` rows, scaled.

    `[num_rows]`, by the row at which the transition starts; 0 where none does. Exact: every row's
    window is read from its first step on, as steps have their places in the window as a part.
    """
    counts = steps_into_episode(store, view, num_rows)

    def last_rewards(rows: jax.Array) -> jax.Array:
        windows = transformer.gather_histories(
            store, view.first_row + rows, counts[rows], config.segment_length
        )
        rewards = Network(config).apply(state.best_params, windows, method="last_rewards")
        return cast(jax.Array, rewards)

    return rewards_of_rows(
        last_rewards, store, view, num_rows, transformer.rows_at_once(), config.scale
    )


def attended_score(queries: jax.Array, keys: jax.Array, rewards: jax.Array) -> jax.Array:
    """Mean over i of z_i = sum_t softmax_t(q_i . k_t) r_hat_t, the paper's eq. for z and its mean.

    queries, keys: `[..., length, width]`; rewards: `[..., length]`. Returns `[...]`. Scores aren't
    scaled, as in the code, which divides by the root of the values' width, 1.
    """
    chex.assert_equal_shape([queries, keys])
    chex.assert_equal_shape([queries[..., 0], rewards])
    weights = jax.nn.softmax(jnp.einsum("...id,...td->...it", queries, keys))
    return jnp.mean(jnp.einsum("...it,...t->...i", weights, rewards), axis=-1)


def _keep_best(config: Config, state: TrainState, held_out: Pairs) -> TrainState:
    """The state after an evaluation, where one is due; without pairs held out the last is best."""
    if not len(held_out.labels):
        return state.replace(best_params=state.model.params)
    epoch, updates = jnp.divmod(state.step, state.updates_per_epoch)
    is_due = (epoch % config.evaluation_epochs == 0) | (epoch == config.num_epochs)
    is_first = epoch == min(config.evaluation_epochs, config.num_epochs)

    def evaluate(best: Params, least: jax.Array) -> tuple[Params, jax.Array]:
        scores = _scores(config, state.model.params, held_out.segments)
        loss, _ = transformer.preference_sums(scores, held_out)
        loss = loss / held_out.weights.sum()
        is_better = is_first | (loss < least - config.least_improvement)
        return jax.tree.map(
            functools.partial(jnp.where, is_better), (state.model.params, loss), (best, least)
        )

    best, least = jax.lax.cond(
        is_due & (updates == 0),
        evaluate,
        lambda best, least: (best, least),
        *(state.best_params, state.held_out_loss),
    )
    return state.replace(best_params=best, held_out_loss=least)


def _scores(
    config: Config, params: Params, segments: Windows, key: jax.Array | None = None
) -> jax.Array:
    return cast(jax.Array, Network(config).apply(params, segments, key, method="scores"))


def _updates_per_epoch(config: Config, num_pairs: int) -> int:
    return transformer.updates_per_epoch(config, num_fitted(config, num_pairs))
