"""The reward model r_hat: an ensemble of networks fitted to preferences (Algorithm 4, line 2).

As in LiRE's code, which the paper says it follows: each member has its own Adam and its own order
of the same labelled pairs, a segment scores the sum of its steps' tanh outputs, and the learning
rate decays in steps. Every state-action pair of the data set is then relabelled with the members'
mean, scaled to [0, 1] over the data set.
"""

import dataclasses
import functools
from typing import Literal

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from appo_jax import losses
from appo_jax.data import sampling
from appo_jax.networks import MLP, Params, forward, forward_ensemble, init_ensemble, state_action
from appo_jax.relabelling import rewards_of_rows
from appo_jax.settings import MAX_LAYERS, MAX_ROWS, MAX_UNITS, Settings, setting
from appo_jax.trainable import Trainable
from appo_jax.types import InputError, LabelledPairs, Metrics, SegmentPairs, Store, View

LABELS_OF_ANY_LENGTH = True  # a segment's score is a sum over as many steps as it has
_CROPS = 2**31 - 1  # folded into the key of batches; no epoch has this number
_RELABEL_ROWS = 8192  # rows of one relabelling step: bounds the memory of the activations


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    """What shapes the program. Defaults are LiRE's, which the paper follows."""

    hidden_layers: int = setting(2, "hidden layers of each member of the ensemble", high=MAX_LAYERS)
    hidden_dim: int = setting(128, "units of each hidden layer of a member", high=MAX_UNITS)
    negative_slope: float = setting(0.01, "slope of a member's LeakyReLU below 0", low=0, high=1)
    ensemble_size: int = setting(3, "members of the ensemble", high=MAX_LAYERS)
    learning_rate: float = setting(1e-3, "Adam's learning rate", above=0)
    decay_rate: float = setting(0.9, "factor on that rate at each decay", above=0, high=1)
    decay_epochs: int = setting(10, "epochs between decays")
    num_epochs: int = setting(300, "passes over the labels")
    batch_size: int = setting(512, "labelled pairs of one update", high=MAX_ROWS)
    loss: Literal["bradley_terry", "linear"] = setting(
        "bradley_terry",
        "what the scores of a pair are worth: bradley_terry (odds grow with e to their difference) "
        "or linear (LiRE's: odds are their ratio, each shifted above 0)",
    )
    crop: int | None = setting(
        None,
        "least steps of a part of each segment, drawn anew for each update (SURF); whole segments "
        "if left out",
    )
    scale: Literal["minmax", "raw"] = setting(
        "minmax", "what r_hat is brought to: minmax ([0, 1] over the data set) or raw (no scaling)"
    )


class TrainState(struct.PyTreeNode):
    """The members, with a leading axis; updates done.

    updates_per_epoch: int32; it turns `step` into an epoch for the decay of the learning rate.
    """

    members: Trainable
    step: jax.Array
    updates_per_epoch: jax.Array


class Batch(struct.PyTreeNode):
    """Labelled pairs of one update, with a leading axis of members.

    inputs: `[members, batch, 2, length, observation_dim + action_dim]`.
    labels, weights: `[members, batch]`; weight 0 marks the filling of an epoch's last batch.
    is_step: `[members, batch, 2, length]`, False behind a segment's end; None where all are equally
    long.
    """

    inputs: jax.Array
    labels: jax.Array
    weights: jax.Array
    is_step: jax.Array | None = None


def init(
    config: Config, key: jax.Array, observation_dim: int, action_dim: int, num_pairs: int
) -> TrainState:
    """A fresh ensemble for `num_pairs` labelled pairs."""
    inputs = jnp.zeros(observation_dim + action_dim)
    params = init_ensemble(_network(config), key, config.ensemble_size, inputs)
    updates_per_epoch = jnp.int32(_updates_per_epoch(config, num_pairs))
    return TrainState(
        members=Trainable.create(params, _adam(config, updates_per_epoch)),
        step=jnp.int32(0),
        updates_per_epoch=updates_per_epoch,
    )


def num_updates(config: Config, num_pairs: int) -> int:
    """Updates of a whole fit to `num_pairs` labelled pairs."""
    return config.num_epochs * _updates_per_epoch(config, num_pairs)


def sample(
    config: Config,
    key: jax.Array,
    step: jax.Array,
    store: Store,
    view: View,
    pairs: LabelledPairs,
) -> Batch:
    """The batch of update `step`: each member walks through its own permutation in every epoch."""
    del view
    num_pairs = len(pairs.labels)
    epoch, batch = jnp.divmod(step, _updates_per_epoch(config, num_pairs))
    keys = jax.random.split(jax.random.fold_in(key, epoch), config.ensemble_size)
    draw = functools.partial(
        sampling.draw_batch_of_epoch,
        batch=batch,
        num_pairs=num_pairs,
        batch_size=min(config.batch_size, num_pairs),
    )
    indices, weights = jax.vmap(draw)(keys)
    inputs, is_step = inputs_of(store, jax.tree.map(lambda leaf: leaf[indices], pairs))
    if config.crop is not None:
        crop_keys = jax.random.split(
            jax.random.fold_in(jax.random.fold_in(key, _CROPS), step), config.ensemble_size
        )
        crops = jax.vmap(functools.partial(_draw_crop, config.crop, pairs))(crop_keys)
        is_step = jnp.broadcast_to(crops[:, None], inputs.shape[:-1])
    return Batch(
        inputs=inputs,
        labels=pairs.labels[indices],
        weights=weights,
        is_step=is_step,
    )


def _draw_crop(least: int, pairs: LabelledPairs, key: jax.Array) -> jax.Array:
    """The steps of a minibatch's crop: one length, one start for each side, `[2, length]` bool."""
    if pairs.lengths is not None or least > pairs.length:
        raise InputError(
            f"crop={least}: labels compare segments of up to {pairs.length} steps"
            f"{'' if pairs.lengths is None else ', which differ'}, expected equally long ones of "
            "at least as many"
        )
    length_key, start_key = jax.random.split(key)
    length = jax.random.randint(length_key, (), least, pairs.length + 1)
    starts = jax.random.randint(start_key, (2, 1), 0, pairs.length - length + 1)
    steps = jnp.arange(pairs.length)
    return (steps >= starts) & (steps < starts + length)


def inputs_of(store: Store, pairs: LabelledPairs) -> tuple[jax.Array, jax.Array | None]:
    """What the members see of labelled pairs, `[..., 2, length, observation_dim + action_dim]`.

    Beside it, `[..., 2, length]`, whether there is such a step, or None where all are as long.
    """
    steps, is_step = jnp.arange(pairs.length), None
    if pairs.lengths is not None:
        is_step = steps < pairs.lengths[..., None]
        steps = jnp.where(is_step, steps, 0)  # behind its end lie other episodes, or nothing
    rows = pairs.rows[..., None] + steps
    return state_action(store.observations[rows], store.actions[rows]), is_step


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One step of every member on the loss of its own batch that `config.loss` names.

    The metrics count, of a member's batch, the pairs that aren't ties, and those of them that it
    orders as their label does: means of the two over any updates give the accuracy, and none where
    there was nothing to judge.
    """

    def loss(params: Params, member: Batch) -> tuple[jax.Array, jax.Array]:
        scores = forward(_network(config), params, member.inputs)[..., 0]
        scores = jnp.tanh(scores).sum(axis=-1, where=member.is_step)
        per_pair = _preference_loss(config, scores, member)
        return jnp.average(per_pair, weights=member.weights), scores

    (loss_values, scores), grads = jax.vmap(jax.value_and_grad(loss, has_aux=True))(
        state.members.params, batch
    )
    members = state.members.step(grads, _adam(config, state.updates_per_epoch))
    correct, strict = losses.is_ordered(scores[..., 1] - scores[..., 0], batch.labels)
    judged = batch.weights * strict
    metrics = {
        "reward/loss": loss_values.mean(),
        "reward/train_judged": judged.sum(axis=-1).mean(),
        "reward/train_correct": (correct * judged).sum(axis=-1).mean(),
        "reward/learning_rate": _learning_rate(config, state.updates_per_epoch, state.step),
    }
    return state.replace(members=members, step=state.step + 1), metrics


def score(config: Config, state: TrainState, segments: SegmentPairs) -> jax.Array:
    """What the labels compare: the sum of a segment's steps, `[pairs, 2]`, of the members' mean."""
    inputs = state_action(segments.observations[:, :, :-1], segments.actions)
    return scores_of(config, state, inputs, segments.is_step)


def scores_of(
    config: Config, state: TrainState, inputs: jax.Array, is_step: jax.Array | None = None
) -> jax.Array:
    """The same of what `inputs_of` gives, `[..., 2]`."""
    outputs = forward_ensemble(_network(config), state.members.params, inputs)
    return jnp.tanh(outputs[..., 0]).mean(axis=0).sum(axis=-1, where=is_step)


def relabel(
    config: Config, state: TrainState, store: Store, view: View, num_rows: int
) -> jax.Array:
    """r_hat of the transitions of the view's data set, which has `num_rows` rows.

    `[num_rows]`, by the row at which the transition starts; 0 where none does.
    """

    def members_mean(rows: jax.Array) -> jax.Array:
        rows = view.first_row + rows
        inputs = state_action(store.observations[rows], store.actions[rows])
        outputs = forward_ensemble(_network(config), state.members.params, inputs)
        return jnp.tanh(outputs[..., 0]).mean(axis=0)

    return rewards_of_rows(members_mean, store, view, num_rows, _RELABEL_ROWS, config.scale)


def linear_preference_loss(
    scores: jax.Array, labels: jax.Array, num_steps: jax.Array | int
) -> jax.Array:
    """LiRE's cross entropy with soft labels, whose odds are linear in the scores, for each pair.

    P(second) = s_2 / (s_1 + s_2), with s = score + steps + 1e-5, which is positive where each step
    scores -1 or more (Choi et al. 2024). scores: `[..., 2]`; labels: `[...]`; num_steps: of each
    segment, `[..., 2]`, or of all. Returns `[...]`: log 2 at equal scores of equally many steps.
    """
    chex.assert_equal_shape([scores[..., 0], labels])
    positive = scores + num_steps + 1e-5
    log_odds = jnp.log(positive[..., 1]) - jnp.log(positive[..., 0])
    return jax.nn.softplus(log_odds) - labels * log_odds


def _preference_loss(config: Config, scores: jax.Array, batch: Batch) -> jax.Array:
    if config.loss == "bradley_terry":
        return losses.preference_loss(scores, batch.labels)
    num_steps: jax.Array | int = batch.inputs.shape[-2]
    if batch.is_step is not None:
        num_steps = batch.is_step.sum(axis=-1)
    return linear_preference_loss(scores, batch.labels, num_steps)


def _updates_per_epoch(config: Config, num_pairs: int) -> int:
    return sampling.batches_of_epoch(num_pairs, config.batch_size)


def _learning_rate(config: Config, updates_per_epoch: jax.Array, step: jax.Array) -> jax.Array:
    epoch = step // updates_per_epoch
    return jnp.float32(config.learning_rate * config.decay_rate ** (epoch // config.decay_epochs))


def _adam(config: Config, updates_per_epoch: jax.Array) -> optax.GradientTransformation:
    return optax.adam(functools.partial(_learning_rate, config, updates_per_epoch))


def _network(config: Config) -> MLP:
    return MLP(config.hidden_layers, config.hidden_dim, 1, config.negative_slope)
