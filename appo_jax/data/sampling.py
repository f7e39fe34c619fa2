"""What learners read of a `Store`: rows that are drawn, and the arrays that lie there.

Rows are drawn from the store's index tables and from nothing else, so that every transition and
every segment stays inside one episode.
"""

import jax
import jax.numpy as jnp

from appo_jax.types import InputError, SegmentPairs, Store, Transitions, View


def draw_transition_rows(key: jax.Array, store: Store, view: View, batch_size: int) -> jax.Array:
    """Rows of `batch_size` transitions, uniform with replacement, `[batch_size]` int32."""
    index = jax.random.randint(key, (batch_size,), 0, view.num_transitions)
    return store.transition_rows[view.first_transition + index]


def draw_segment_rows(
    key: jax.Array, store: Store, view: View, shape: tuple[int, ...]
) -> jax.Array:
    """First rows of segments, uniform with replacement, int32 of the given shape."""
    index = jax.random.randint(key, shape, 0, view.num_segments)
    return store.segment_rows[view.first_segment + index]


def draw_labelled_pairs(
    key: jax.Array, store: Store, view: View, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Labelled pairs of the view, uniform with replacement: rows `[batch_size, 2]`, labels."""
    index = view.first_pair + jax.random.randint(key, (batch_size,), 0, view.num_pairs)
    return store.pair_rows[index], store.pair_labels[index]


def gather_transitions(store: Store, view: View, rows: jax.Array) -> Transitions:
    """The transitions that start at `rows` `[batch]`."""
    return Transitions(
        observations=store.observations[rows],
        actions=store.actions[rows],
        rewards=store.rewards[view.first_reward + rows - view.first_row],
        next_observations=store.observations[rows + 1],
        terminations=store.terminations[rows],
    )


def gather_segment_pairs(store: Store, view: View, rows: jax.Array, length: int) -> SegmentPairs:
    """The pairs of segments that start at `rows` `[pairs, 2]`.

    Raises InputError for a greater length than the store's: its rows start segments of that one,
    and longer ones would run into the next episode.
    """
    if length > store.segment_length:
        raise InputError(
            f"segments of {length} steps asked of a store whose segments have "
            f"{store.segment_length}, expected no more: the segment_length that to_device got"
        )
    with_next = rows[..., None] + jnp.arange(length + 1)
    steps = with_next[..., :-1]
    return SegmentPairs(
        observations=store.observations[with_next],
        actions=store.actions[steps],
        rewards=store.rewards[view.first_reward + steps - view.first_row],
        terminations=store.terminations[steps],
    )
