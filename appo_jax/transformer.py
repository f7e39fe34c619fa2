"""The body of both transformers over segments, and how it is trained: Preference Transformer's.

As in the published code of PT (Kim et al. 2023), from which DPPO's predictor is made: a step is two
tokens, its action and then its observation, each embedded linearly with an embedding of its place
in the segment added; pre-norm GPT-2 layers with ReLU follow. What is read is the output at the
observations' tokens, so that the last layer is computed for these alone.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from appo_jax import losses
from appo_jax.data import sampling
from appo_jax.networks import Params
from appo_jax.settings import MAX_LAYERS, MAX_ROWS, MAX_UNITS, Settings, setting
from appo_jax.types import InputError, LabelledPairs, Store

Aux = TypeVar("Aux")

_MASKED = -1e4  # the score of a key that a query may not see, as GPT-2's
_EPSILON = 1e-5  # of LayerNorm
# What a CPU computes at once, so that activations stay in its caches: pairs for their gradient,
# rows for their rewards.
_PAIRS_AT_ONCE = _ROWS_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    """What both learners' programs share. Defaults are those of PT's documented command.

    Differs from it: segments of 25 steps in place of 100, as the APPO paper's.
    """

    num_layers: int = setting(1, "layers of the transformer", high=MAX_LAYERS)
    num_heads: int = setting(4, "heads of its attention", high=MAX_UNITS)
    head_dim: int = setting(
        64, "units of each head; times the heads, the width of the transformer", high=MAX_UNITS
    )
    dropout: float = setting(0.1, "share of units dropped while fitting", low=0, high=0.9)
    learning_rate: float = setting(1e-3, "AdamW's learning rate at its peak", above=0)
    lowest_rate: float = setting(
        0.1, "the learning rate at the start and at the end, as a share of the peak", low=0, high=1
    )
    warmup: float = setting(0.1, "share of the updates in which the rate rises", low=0, high=1)
    weight_decay: float = setting(1e-4, "AdamW's weight decay", low=0)
    num_epochs: int = setting(10_000, "passes over the labels")
    batch_size: int = setting(
        256,
        "labelled pairs of one update, about: an epoch is cut into equal batches of at most so "
        "many, which are filled up to whole parts of up to 16",
        high=MAX_ROWS,
    )
    segment_length: int = setting(25, "steps of a segment", of_run=True)

    @property
    def width(self) -> int:
        """Units of a token."""
        return self.num_heads * self.head_dim


class Windows(struct.PyTreeNode):
    """Steps in a row of one episode each.

    observations: `[..., length, observation_dim]`; actions: `[..., length, action_dim]`.
    is_real: `[..., length]`, False where a short window, which is at the end of its places, has no
    step and the others are 0; None where all windows are whole.
    """

    observations: jax.Array
    actions: jax.Array
    is_real: jax.Array | None = None


class Pairs(struct.PyTreeNode):
    """Labelled pairs of segments.

    segments: windows `[pairs, 2, ...]`. labels, weights: `[pairs]`; weight 0 marks a batch's
    filling.
    """

    segments: Windows
    labels: jax.Array
    weights: jax.Array


def gather_segments(store: Store, rows: jax.Array, length: int) -> Windows:
    """The segments that start at `rows` `[...]`."""
    steps = rows[..., None] + jnp.arange(length)
    return Windows(store.observations[steps], store.actions[steps])


def gather_histories(store: Store, rows: jax.Array, counts: jax.Array, length: int) -> Windows:
    """The last `length` steps up to those of `rows` `[windows]`, or `counts` where these are fewer.

    counts: `[windows]`, steps that an episode has up to that of the row.
    """
    ago = jnp.arange(length - 1, -1, -1)
    is_real = ago < counts[:, None]
    steps = jnp.where(is_real, rows[:, None] - ago, rows[:, None])

    def of_real(values: jax.Array) -> jax.Array:
        return jnp.where(is_real[..., None], values[steps], 0.0)

    return Windows(of_real(store.observations), of_real(store.actions), is_real)


def size_of_batches(config: Config, num_pairs: int) -> int:
    """Pairs of each update of a fit to `num_pairs` pairs.

    An epoch is cut into equal batches of at most `batch_size`, then filled to whole parts.
    """
    size = -(-num_pairs // sampling.batches_of_epoch(num_pairs, config.batch_size))
    num_parts = -(-size // _PAIRS_AT_ONCE)
    return num_parts * -(-size // num_parts)


def updates_per_epoch(config: Config, num_pairs: int) -> int:
    """Updates in which a fit to `num_pairs` pairs sees each of them once."""
    return sampling.batches_of_epoch(num_pairs, size_of_batches(config, num_pairs))


def draw_pairs(
    config: Config, key: jax.Array, step: jax.Array, store: Store, pairs: LabelledPairs, count: int
) -> Pairs:
    """The batch of update `step`: every epoch is a permutation of the first `count` pairs."""
    epoch, batch = jnp.divmod(step, updates_per_epoch(config, count))
    indices, weights = sampling.draw_batch_of_epoch(
        jax.random.fold_in(key, epoch), batch, count, size_of_batches(config, count)
    )
    return gather_pairs(store, pairs, indices, weights)


def gather_pairs(
    store: Store, pairs: LabelledPairs, indices: jax.Array, weights: jax.Array
) -> Pairs:
    """The pairs of these numbers.

    Raises InputError for segments whose lengths differ, which a transformer takes for whole ones,
    and for longer ones than the store's.
    """
    if pairs.lengths is not None or pairs.length > store.segment_length:
        raise InputError(
            f"labelled pairs of segments of {pairs.length} steps"
            f"{'' if pairs.lengths is None else ' or fewer'} for a store whose segments have "
            f"{store.segment_length}, expected equally long ones of no more"
        )
    segments = gather_segments(store, pairs.rows[indices], pairs.length)
    return Pairs(segments, pairs.labels[indices], weights)


def preference_sums(scores: jax.Array, pairs: Pairs) -> tuple[jax.Array, jax.Array]:
    """Sum over pairs of the Bradley-Terry loss, times weights, and counts `[2]` of pairs.

    scores: `[pairs, 2]`. Counted are pairs that scores order as their labels do, and all but ties.
    """
    correct, strict = losses.is_ordered(scores[:, 1] - scores[:, 0], pairs.labels)
    judged = pairs.weights * strict
    loss = jnp.sum(pairs.weights * losses.preference_loss(scores, pairs.labels))
    return loss, jnp.stack([jnp.sum(correct * judged), jnp.sum(judged)])


def sum_of_gradients(
    loss: Callable[[Params, Any, jax.Array], tuple[jax.Array, Aux]],
    params: Params,
    batch: Any,
    key: jax.Array,
) -> tuple[tuple[jax.Array, Aux], Params]:
    """Sums over parts of a batch of a loss, of what comes with it, and of its gradient.

    loss: parameters, a part and a key for it to the part's share of the loss and other sums. batch:
    arrays `[pairs, ...]`, cut into parts on a CPU, whose caches are small.
    """
    num_pairs = len(jax.tree.leaves(batch)[0])
    at_once = pairs_at_once(num_pairs)
    parts = jax.tree.map(lambda leaf: leaf.reshape(-1, at_once, *leaf.shape[1:]), batch)
    keys = jax.random.split(key, num_pairs // at_once)

    def of_part(part: tuple[Any, jax.Array]) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(params, *part)

    def add(sums: Any, part: tuple[Any, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, of_part(part)), None

    first = jax.tree.map(lambda leaf: leaf[0], (parts, keys))
    zeros = jax.tree.map(jnp.zeros_like, (jax.eval_shape(loss, params, *first), params))
    return jax.lax.scan(add, zeros, (parts, keys))[0]


def attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array, num_heads: int
) -> tuple[jax.Array, jax.Array]:
    """Softmax attention's weights `[batch, heads, queries, keys]`, and values by heads.

    queries: `[batch, queries, width]`; keys, values: `[batch, keys, width]`; mask: True where a
    query sees a key, of a shape that broadcasts to that of the weights. A head's scores are
    divided by the root of its width. The values are `[batch, keys, heads, width / heads]`.
    """
    queries, keys, values = (
        each.reshape(*each.shape[:-1], num_heads, -1) for each in (queries, keys, values)
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) * queries.shape[-1] ** -0.5
    return jax.nn.softmax(jnp.where(mask, scores, _MASKED)), values


def pairs_at_once(num_pairs: int) -> int:
    """Pairs of each part into which the gradient of a batch is cut."""
    if jax.default_backend() != "cpu":
        return num_pairs
    divisors = range(1, min(_PAIRS_AT_ONCE, num_pairs) + 1)
    return max(divisor for divisor in divisors if num_pairs % divisor == 0)


def rows_at_once() -> int:
    """Windows of one step of relabelling."""
    return _ROWS_AT_ONCE if jax.default_backend() == "cpu" else 16 * _ROWS_AT_ONCE


class _Dropout:
    """Dropout at one place after the other of a body, from one draw for all of them.

    Each draw in a program takes seconds to compile.
    """

    def __init__(self, key: jax.Array | None, config: Config, num_windows: int, length: int):
        self._kept: Iterator[jax.Array] | None = None
        if key is None or not config.dropout:
            return
        shapes: list[tuple[int, ...]] = [(2 * length, config.width)]
        for layer in range(config.num_layers):
            read = length if layer == config.num_layers - 1 else 2 * length
            outputs = (read, config.width)
            shapes += [(config.num_heads, read, 2 * length), outputs, outputs]
        sizes = [math.prod(shape) for shape in shapes]
        self._scale = 1 / (1 - config.dropout)
        kept = jax.random.bernoulli(key, 1 - config.dropout, (num_windows, sum(sizes)))
        pieces = jnp.split(jax.lax.optimization_barrier(kept), np.cumsum(sizes)[:-1], axis=1)
        self._kept = iter(
            piece.reshape(-1, *shape) for piece, shape in zip(pieces, shapes, strict=True)
        )

    def __call__(self, values: jax.Array) -> jax.Array:
        if self._kept is None:
            return values
        return jnp.where(next(self._kept), self._scale * values, 0.0)


class Body(nn.Module):
    """Windows to the outputs at their observations' tokens, `[..., length, width]`.

    causal: a token sees those before it and itself, not all of its window.
    """

    config: Config
    causal: bool

    @nn.compact
    def __call__(
        self, windows: Windows, key: jax.Array | None = None, last_only: bool = False
    ) -> jax.Array:
        """Apply the transformer.

        key: for dropout; None for none. last_only: the output at the last step alone,
        `[..., 1, width]`, which takes a small part of the time.
        """
        batch_shape = windows.actions.shape[:-2]
        windows = jax.tree.map(
            lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch_shape) :]), windows
        )
        config, width = self.config, self.config.width
        length = windows.actions.shape[1]
        assert length <= config.segment_length, "longer than the segments that it was made for"
        drop = _Dropout(key, config, len(windows.actions), length)
        places = jnp.arange(length)
        if windows.is_real is not None:
            places = jnp.maximum(jnp.cumsum(windows.is_real, axis=1) - 1, 0)
        place_embedding = nn.Embed(config.segment_length, width, name="place")(places)
        actions = nn.Dense(width, name="action")(windows.actions) + place_embedding
        observations = nn.Dense(width, name="observation")(windows.observations) + place_embedding
        # All actions and then all observations: attention sees the order by its mask alone.
        tokens = jnp.concatenate([actions, observations], axis=1)
        tokens = drop(nn.LayerNorm(_EPSILON, name="norm")(tokens))
        mask = self._mask(length, windows.is_real)
        for layer in range(config.num_layers):
            seen = nn.LayerNorm(_EPSILON, name=f"norm_attention_{layer}")(tokens)
            read = seen
            if layer == config.num_layers - 1:
                first = 2 * length - 1 if last_only else length
                tokens, read, mask = tokens[:, first:], seen[:, first:], mask[..., first:, :]
            weights, values = attention(
                nn.Dense(width, name=f"query_{layer}")(read),
                # A bias would be the same in all scores of a query, which softmax doesn't see.
                nn.Dense(width, use_bias=False, name=f"key_{layer}")(seen),
                nn.Dense(width, name=f"value_{layer}")(seen),
                mask,
                config.num_heads,
            )
            mixed = jnp.einsum("bhqk,bkhd->bqhd", drop(weights), values).reshape(tokens.shape)
            tokens = tokens + drop(nn.Dense(width, name=f"mixed_{layer}")(mixed))
            hidden = nn.LayerNorm(_EPSILON, name=f"norm_hidden_{layer}")(tokens)
            hidden = jax.nn.relu(nn.Dense(4 * width, name=f"hidden_{layer}")(hidden))
            tokens = tokens + drop(nn.Dense(width, name=f"output_{layer}")(hidden))
        outputs = nn.LayerNorm(_EPSILON, name="norm_output")(tokens)
        return outputs.reshape(*batch_shape, *outputs.shape[1:])

    def _mask(self, length: int, is_real: jax.Array | None) -> jax.Array:
        """True where a query's token may see a key's, `[windows or 1, 1, queries, keys]`."""
        steps = jnp.arange(length)
        order = jnp.concatenate([2 * steps, 2 * steps + 1])
        mask = order[:, None] >= order if self.causal else jnp.ones((2 * length, 2 * length), bool)
        mask = mask[None, None]
        if is_real is not None:
            mask = mask & jnp.tile(is_real, 2)[:, None, None, :]
        return mask


def learning_rate(config: Config, num_updates: jax.Array, step: jax.Array) -> jax.Array:
    """AdamW's after `step` of `num_updates`: it rises in a line, then falls along a cosine."""
    rising = jnp.maximum(config.warmup * num_updates, 1)
    falling = jnp.maximum(num_updates - rising, 1)
    share = jnp.where(
        step < rising,
        step / rising,
        (1 + jnp.cos(jnp.pi * jnp.clip((step - rising) / falling, 0, 1))) / 2,
    )
    return config.learning_rate * (config.lowest_rate + (1 - config.lowest_rate) * share)


def optimiser(config: Config, num_updates: jax.Array) -> optax.GradientTransformation:
    """AdamW for a fit of `num_updates`, with that learning rate."""
    adamw = optax.adamw(
        lambda step: learning_rate(config, num_updates, step), weight_decay=config.weight_decay
    )
    return optax.flatten(adamw)  # one vector: dozens of small ones take seconds to compile
