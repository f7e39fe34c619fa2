"""Parameters and what their optimiser keeps, as one thing that a learner's state holds."""

import dataclasses
from typing import Any, Self

import optax
from flax import struct

from appo_jax.networks import Params


class Trainable(struct.PyTreeNode):
    """Parameters with the state of their optimiser, an optax transformation that both calls get."""

    params: Params
    optimiser: optax.OptState

    @classmethod
    def create(cls, params: Params, optimiser: optax.GradientTransformation) -> Self:
        """Parameters before their first step."""
        return cls(params=params, optimiser=optimiser.init(params))

    def step(self, grads: Params, optimiser: optax.GradientTransformation) -> Self:
        """After one step of descent along `grads`."""
        updates, state = optimiser.update(grads, self.optimiser, self.params)
        return self.replace(params=optax.apply_updates(self.params, updates), optimiser=state)


def snapshot(state: Any) -> Any:
    """A policy learner's state with only what `act` reads, for sending to an evaluator."""
    empty = {field.name: None for field in dataclasses.fields(state)}
    actor = Trainable(params=state.actor.params, optimiser=None)
    return state.replace(**{**empty, "actor": actor})
