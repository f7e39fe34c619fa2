"""One step of Adam, for every policy learner."""

import optax

from appo_jax.networks import Params


def adam_step(
    learning_rate: float, grads: Params, optimiser: optax.OptState, params: Params
) -> tuple[Params, optax.OptState]:
    """The parameters after a step of `optax.adam(learning_rate)`, and its state."""
    updates, optimiser = optax.adam(learning_rate).update(grads, optimiser, params)
    return optax.apply_updates(params, updates), optimiser
