"""Where randomness comes from: one key for each purpose, folded out of the run's seed.

A run's keys depend on its seed alone, never on its place among other runs, so that adding a run
to a grid changes no other.
"""

import enum

import jax


class Purpose(enum.IntEnum):
    """What a key is for. The numbers are part of every result: append, never reorder."""

    LABELS = 0
    FRESH_LABELS = 1
    REWARD_MODEL = 2
    SHUFFLED_REWARDS = 3
    POLICY = 4
    BATCHES = 5


def key(seed: int) -> jax.Array:
    """A typed key: threefry's, also where JAX_DEFAULT_PRNG_IMPL names other numbers."""
    return jax.random.key(seed, impl="threefry2x32")


def purpose_key(seed: int, purpose: Purpose) -> jax.Array:
    """The typed key of one purpose under one seed."""
    return jax.random.fold_in(key(seed), purpose)
