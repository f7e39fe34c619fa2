"""Tiny SAC agents, and a collection of what they see."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from appo_jax.collect import sac
from appo_jax.collect.replay_collection import Collection, Recipe
from appo_jax.collect.stepping import Steppers
from appo_jax.envs.environment import Environment, Outcome

TINY = sac.Config(hidden_layers=1, hidden_dim=8, batch_size=8)
HOPPER = Recipe("Hopper-v5", 400, 3, 2, 0.5, 60, TINY)  # random hoppers fall after 10 to 40 steps
PENDULUM = Recipe("Pendulum-v1", 450, 3, 1, 1.0, 450, TINY)  # episodes of 200 steps


class SteppersHere:
    """In place of `Steppers`: the environments are in this process."""

    def __init__(self, env_name: str, count: int):
        self._environments = [Environment(env_name) for _ in range(count)]
        one = self._environments[0]
        self.observation_dim, self.action_dim = one.observation_dim, one.action_dim
        self.actions = one.actions

    def reset(self, index: int, seed: int) -> np.ndarray:
        return self._environments[index].reset(seed)

    def begin(self, actions: Sequence[np.ndarray]) -> None:
        self._begun = [np.array(action) for action in actions]

    def end(self) -> list[Outcome]:
        pairs = zip(self._environments, self._begun, strict=True)
        return [environment.step(action) for environment, action in pairs]

    def step(self, index: int, action: np.ndarray) -> Outcome:
        return self._environments[index].step(action)


def run(
    recipe: Recipe, running: Steppers | SteppersHere, folder: Path, until: int | None = None
) -> Collection:
    collection = Collection(recipe, running, folder)
    while collection.step < (until or recipe.num_steps):
        collection.advance()
    return collection
