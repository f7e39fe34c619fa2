"""A data set's learned rewards: what all reward learners' `relabel` has in common."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from appo_jax.types import Store, View

_TINY = jnp.finfo(jnp.float32).tiny


def rewards_of_rows(
    reward_of: Callable[[jax.Array], jax.Array],
    store: Store,
    view: View,
    num_rows: int,
    rows_at_once: int,
    scale: Literal["minmax", "returns", "raw"],
) -> jax.Array:
    """The rewards of the view's data set, which has `num_rows` rows, a part at a time.

    reward_of: rows of the data set, `[rows_at_once]` from 0 on, to their rewards; a small
    `rows_at_once` bounds the memory of its activations. scale: to [0, 1] over the data set
    ("minmax"), so that the episodes' returns lie as far apart as the longest has steps ("returns"),
    or not at all ("raw").
    Returns `[num_rows]`, by the row at which a transition starts; 0 where none does.
    """
    # The filling repeats the last row; its rewards are cut off.
    filled = jnp.arange(num_rows + -num_rows % rows_at_once)
    rows = jnp.minimum(filled, num_rows - 1).reshape(-1, rows_at_once)
    rewards = jax.lax.map(reward_of, rows).reshape(-1)[:num_rows]
    mask = starts_transition(store, view, num_rows)
    if scale == "minmax":
        low = jnp.min(rewards, where=mask, initial=jnp.inf)
        high = jnp.max(rewards, where=mask, initial=-jnp.inf)
        rewards = (rewards - low) / jnp.maximum(high - low, _TINY)
    elif scale == "returns":
        episodes = jnp.cumsum(~mask)  # those that end before a row
        steps = jax.ops.segment_sum(jnp.float32(mask), episodes, num_rows)
        returns = jax.ops.segment_sum(jnp.where(mask, rewards, 0), episodes, num_rows)
        low = jnp.min(returns, where=steps > 0, initial=jnp.inf)
        high = jnp.max(returns, where=steps > 0, initial=-jnp.inf)
        rewards *= jnp.max(steps) / jnp.maximum(high - low, _TINY)
    return jnp.where(mask, rewards, 0.0)


def starts_transition(store: Store, view: View, num_rows: int) -> jax.Array:
    """Whether one of the view's transitions starts at a row of its data set, `[num_rows]`."""
    index = jnp.arange(len(store.transition_rows))
    own = (index >= view.first_transition) & (index < view.first_transition + view.num_transitions)
    rows = jnp.where(own, store.transition_rows - view.first_row, num_rows)
    return jnp.zeros(num_rows, bool).at[rows].set(True, mode="drop")


def steps_into_episode(store: Store, view: View, num_rows: int) -> jax.Array:
    """Transitions that end with the one of a row and began in its episode, `[num_rows]` int32.

    1 for an episode's first, 0 where none starts.
    """
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    mask = starts_transition(store, view, num_rows)
    return rows - jax.lax.cummax(jnp.where(mask, -1, rows))
