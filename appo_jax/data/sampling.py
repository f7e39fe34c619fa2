"""What learners read of a `Store`: rows that are drawn, and the arrays that lie there.

Rows are drawn from the store's index tables and from nothing else, so that every transition and
every segment stays inside one episode.
"""

import jax
import jax.numpy as jnp

from appo_jax.types import InputError, LabelledPairs, SegmentPairs, Store, Transitions, View


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


def draw_partial_segments(
    key: jax.Array, store: Store, view: View, shape: tuple[int, ...], length: int
) -> tuple[jax.Array, jax.Array]:
    """Segments that begin at any transition and are cut where their episode ends.

    Uniform with replacement: first rows, int32 of the given shape, and `[*shape, length]`, whether
    there is such a step.
    """
    index = view.first_transition + jax.random.randint(key, shape, 0, view.num_transitions)
    rows, steps = store.transition_rows[index], jnp.arange(length)
    # Rows follow one another inside an episode; its last one, which starts no transition, is left
    # out between two. Behind the last index there is no row: the last one, that JAX would give
    # there, may be the very number that is looked for.
    following = store.transition_rows.at[index[..., None] + steps].get(mode="fill", fill_value=-1)
    return rows, following == rows[..., None] + steps


def draw_segments(
    key: jax.Array, store: Store, view: View, shape: tuple[int, ...], length: int, partial: bool
) -> tuple[jax.Array, jax.Array | None]:
    """Segments: whole ones, or, `partial`, those of `draw_partial_segments`.

    First rows, int32 of the given shape, and which steps there are, None where all are.
    """
    if partial:
        return draw_partial_segments(key, store, view, shape, length)
    return draw_segment_rows(key, store, view, shape), None


def draw_labelled_pairs(
    key: jax.Array, store: Store, view: View, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Labelled pairs of the view, uniform with replacement: rows `[batch_size, 2]`, labels."""
    index = view.first_pair + jax.random.randint(key, (batch_size,), 0, view.num_pairs)
    return store.pair_rows[index], store.pair_labels[index]


def batches_of_epoch(num_pairs: int, batch_size: int) -> int:
    """Batches of at most `batch_size` pairs in which an epoch shows `num_pairs` pairs."""
    return -(-num_pairs // batch_size)


def draw_batch_of_epoch(
    key: jax.Array, batch: jax.Array, num_pairs: int, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """One batch of an epoch that shows every pair once, in an order that `key` decides.

    key: the epoch's. batch: its number in the epoch, from 0 on. Returns numbers of pairs and their
    weights, `[batch_size]` each; weight 0 marks the filling of the last batch.
    """
    padding = batches_of_epoch(num_pairs, batch_size) * batch_size - num_pairs
    order = jnp.pad(jax.random.permutation(key, num_pairs), (0, padding))
    first = batch * batch_size
    is_pair = first + jnp.arange(batch_size) < num_pairs
    return jax.lax.dynamic_slice(order, (first,), (batch_size,)), jnp.float32(is_pair)


def shift_segment_rows(store: Store, rows: jax.Array, shifts: jax.Array) -> jax.Array:
    """First rows of segments so many steps further, or back, in the episodes of those at `rows`.

    At most an episode's last, or first, segment. One whose last step nothing follows, as a label's
    may be, stays. rows, shifts: int32 of one shape.
    """
    # The same number for all segments of an episode, a larger one in the next.
    episodes = store.segment_rows - jnp.arange(len(store.segment_rows))
    index = jnp.searchsorted(store.segment_rows, rows)
    first = jnp.searchsorted(episodes, episodes[index])
    last = jnp.searchsorted(episodes, episodes[index], side="right") - 1
    shifted = store.segment_rows[jnp.clip(index + shifts, first, last)]
    return jnp.where(_among(store.segment_rows, rows), shifted, rows)


def start_transitions(store: Store, rows: jax.Array) -> jax.Array:
    """Whether a transition starts at each of `rows`, bool of their shape."""
    return _among(store.transition_rows, rows)


def _among(numbers: jax.Array, found: jax.Array) -> jax.Array:
    """Whether each number that was found is among `numbers`, which are in order."""
    return numbers[jnp.searchsorted(numbers, found)] == found


def gather_transitions(store: Store, view: View, rows: jax.Array) -> Transitions:
    """The transitions that start at `rows` `[batch]`."""
    return Transitions(
        observations=store.observations[rows],
        actions=store.actions[rows],
        rewards=store.rewards[view.first_reward + rows - view.first_row],
        next_observations=store.observations[rows + 1],
        terminations=store.terminations[rows],
    )


def gather_labelled_pairs(store: Store, view: View, pairs: LabelledPairs) -> SegmentPairs:
    """The segments that labels compare. Raises InputError as `gather_segment_pairs` does."""
    is_step = None
    if pairs.lengths is not None:
        is_step = jnp.arange(pairs.length) < pairs.lengths[..., None]
    return gather_segment_pairs(store, view, pairs.rows, pairs.length, is_step)


def check_segment_length(store: Store, length: int) -> None:
    """Refuse segments that are longer than the store's.

    Raises InputError: the store's rows start segments of its own length, and longer ones would run
    into the next episode.
    """
    if length > store.segment_length:
        raise InputError(
            f"segments of {length} steps asked of a store whose segments have "
            f"{store.segment_length}, expected no more: the segment_length that to_device got"
        )


def gather_segment_pairs(
    store: Store, view: View, rows: jax.Array, length: int, is_step: jax.Array | None = None
) -> SegmentPairs:
    """The pairs of segments that start at `rows` `[pairs, 2]`.

    is_step: which steps there are, where a segment may be cut; what stands behind its end is its
    first step again.
    Raises InputError for a greater length than the store's.
    """
    check_segment_length(store, length)
    if is_step is None:
        with_next = rows[..., None] + jnp.arange(length + 1)
        steps = with_next[..., :-1]
    else:
        steps = rows[..., None] + jnp.where(is_step, jnp.arange(length), 0)
        with_next = jnp.concatenate([steps[..., :1], steps + 1], axis=-1)
    return SegmentPairs(
        observations=store.observations[with_next],
        actions=store.actions[steps],
        rewards=store.rewards[view.first_reward + steps - view.first_row],
        terminations=store.terminations[steps],
        is_step=is_step,
    )
