"""Arrays that travel between the modules, and the one error for bad input.

Shapes are written `[batch, dim]`; every float array is float32. `label` is always the probability
that the *second* segment of a pair is preferred.
"""

from typing import TypeAlias

import jax
from flax import struct

Metrics: TypeAlias = dict[str, jax.Array]


class InputError(ValueError):
    """Input that the user can put right: one sentence with what was found and what was expected."""

    def __init__(self, message: str):
        # What a library says, or a file holds, may have several lines.
        super().__init__(" ".join(message.splitlines()))


class Diverged(ArithmeticError):
    """Training came to numbers that aren't finite; what was good before is on disk."""


def first_line(error: BaseException) -> str:
    """What an error says in its first line, else of what type it is."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


class Transitions(struct.PyTreeNode):
    """A batch of single steps.

    observations, next_observations: `[batch, observation_dim]`, normalised.
    actions: `[batch, action_dim]`, in [-1, 1].
    rewards: `[batch]`, what the policy learns from: r_hat, or the true ones.
    terminations: `[batch]`, True where the step reached a terminal state; a time limit is none.
    """

    observations: jax.Array
    actions: jax.Array
    rewards: jax.Array
    next_observations: jax.Array
    terminations: jax.Array


class SegmentPairs(struct.PyTreeNode):
    """A batch of pairs of segments, each inside one episode.

    observations: `[pairs, 2, length + 1, observation_dim]`, normalised; the last one is s_{L+1}.
    actions: `[pairs, 2, length, action_dim]`.
    rewards: `[pairs, 2, length]`, r_hat of each step.
    terminations: `[pairs, 2, length]`, True where the step reached a terminal state.
    is_step: `[pairs, 2, length]`, False behind a segment's end, where the other arrays hold
    anything; None where all are whole.
    """

    observations: jax.Array
    actions: jax.Array
    rewards: jax.Array
    terminations: jax.Array
    is_step: jax.Array | None = None


class Store(struct.PyTreeNode):
    """One or more data sets on the device, one behind the other; all runs share it.

    Episodes lie back to back with one row more than they have steps, so the next observation of
    row i is row i + 1.

    observations: `[rows, observation_dim]`, normalised.
    actions: `[rows, action_dim]`; the last row of an episode holds a dummy.
    terminations: `[rows]`, bool.
    transition_rows: `[transitions]`, int32, the rows that start a transition.
    segment_rows: `[segments]`, int32, the rows that start a segment inside one episode.
    segment_length: steps of those segments (static).
    rewards: `[rewards]`, of the transition that starts at each row, for each data set, or for each
    reward model one after another: a view says which are its own.
    pair_rows: `[pairs, 2]`, int32, the rows at which the two segments of each labelled pair start.
    pair_labels: `[pairs]`, probability that the second is preferred.
    """

    observations: jax.Array
    actions: jax.Array
    terminations: jax.Array
    transition_rows: jax.Array
    segment_rows: jax.Array
    rewards: jax.Array
    pair_rows: jax.Array
    pair_labels: jax.Array
    segment_length: int = struct.field(pytree_node=False)


class View(struct.PyTreeNode):
    """One run's part of a `Store`: its slices of the index tables and labels, its rows and rewards.

    All are scalars, int32. `first_reward` is the place in the store's rewards of the reward of
    `first_row`, the data set's first row.
    """

    first_transition: jax.Array
    num_transitions: jax.Array
    first_segment: jax.Array
    num_segments: jax.Array
    first_row: jax.Array
    first_reward: jax.Array
    first_pair: jax.Array
    num_pairs: jax.Array


class LabelledPairs(struct.PyTreeNode):
    """The preferences of one reward model, on the device.

    rows: `[pairs, 2]`, int32, the store's rows at which the two segments start.
    labels: `[pairs]`, probability that the second is preferred.
    length: steps of a segment, or of the longest (static).
    lengths: `[pairs, 2]`, int32, steps of each segment, where they differ, else None.
    """

    rows: jax.Array
    labels: jax.Array
    length: int = struct.field(pytree_node=False)
    lengths: jax.Array | None = None
