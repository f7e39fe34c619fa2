"""Tiny SAC agents, and a collection of what they see."""

from pathlib import Path

from appo_jax.collect import sac
from appo_jax.collect.replay_collection import Collection, Recipe
from appo_jax.collect.stepping import Steppers

TINY = sac.Config(hidden_layers=1, hidden_dim=8, batch_size=8)
HOPPER = Recipe("Hopper-v5", 400, 3, 2, 0.5, 60, TINY)  # random hoppers fall after 10 to 40 steps
PENDULUM = Recipe("Pendulum-v1", 450, 3, 1, 1.0, 450, TINY)  # episodes of 200 steps


def run(recipe: Recipe, running: Steppers, folder: Path, until: int | None = None) -> Collection:
    collection = Collection(recipe, running, folder)
    while collection.step < (until or recipe.num_steps):
        collection.advance()
    return collection
