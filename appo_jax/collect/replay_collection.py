"""The medium-replay data of the paper: all that agents see while SAC trains them from nothing.

Several agents train side by side, each with an environment in a process of its own; the data set
is the first steps of each, agents in order, as the published replay buffers are read. Everything
random is drawn from the agent's seed and the step's, episode's or update's number, so that a
collection that goes on from a checkpoint gives the same data to the bit. An environment's state
can't be saved in general: the episode under way is simulated again, from its seed and its actions.

The update of a step runs while the environments simulate it and draws from the transitions before
it, as BPref's does; the simulators cost no time of their own where there is a second core. Differs
from BPref: updates begin with step 5,000, BPref's with the one after.
"""

import dataclasses
import enum
import functools
import importlib.metadata
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from appo_jax import checkpoint, training
from appo_jax.collect import sac
from appo_jax.collect.stepping import Steppers
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.data.replay import Replay
from appo_jax.envs import environment, meta_world
from appo_jax.keys import key
from appo_jax.types import InputError, Metrics, Transitions

RECIPE = "medium-replay"
BLOCK = 20  # episodes of one point of the success curve


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that decides a data set.

    env_name: a Meta-World task or an id of Gymnasium. num_transitions: of all agents together.
    updates_per_step: of each agent for each of its steps, after the first `random_steps` steps,
    whose actions are uniform.
    """

    env_name: str
    num_transitions: int
    seed: int
    num_agents: int = 3
    updates_per_step: float = 1.0
    random_steps: int = 5000
    config: sac.Config = sac.Config()

    @property
    def num_steps(self) -> int:
        """Steps of each agent."""
        return self.num_transitions // self.num_agents

    def resolved(self) -> dict[str, Any]:
        """Every field, JSON-able."""
        return dataclasses.asdict(self)


def check_size(env_name: str, num_transitions: int, num_agents: int) -> None:
    """Raise InputError unless the agents can share the size, in whole episodes on Meta-World."""
    whole = env_name in meta_world.TASKS
    unit = num_agents * (meta_world.HORIZON if whole else 1)
    if num_transitions < 1 or num_transitions % unit:
        why = "as many whole episodes from each agent" if whole else "as many steps from each agent"
        raise InputError(
            f"size is {num_transitions}, expected a positive multiple of {unit}: {why}"
        )


class _Draw(enum.IntEnum):
    """What an agent's randomness is for; the numbers are part of every data set."""

    NETWORKS = 0
    EXPLORATION = 1
    RANDOM_ACTIONS = 2
    BATCHES = 3
    EPISODES = 4


class Collection:
    """Agents in training, from nothing or from what `folder` holds.

    step: steps that each agent has made. replay: what they saw.
    """

    def __init__(self, recipe: Recipe, steppers: Steppers, folder: Path):
        """Go on from the latest checkpoint in `folder`, or begin.

        Raises InputError for a folder that holds a collection of another recipe, and where JAX is
        set otherwise (`training.check_jax`), checkpoint.Damaged for a checkpoint, or steps before
        it, that are damaged.
        """
        training.check_jax()
        self.recipe = recipe
        self._steppers, self._folder = steppers, folder
        dims = (steppers.observation_dim, steppers.action_dim)
        agents = range(recipe.num_agents)
        self._seeds = [_agent_seed(recipe.seed, agent) for agent in agents]
        init = jax.jit(sac.init, static_argnums=(0, 2, 3))
        self._states = training.stack_runs(
            [init(recipe.config, _key(seed, _Draw.NETWORKS), *dims) for seed in self._seeds]
        )
        self._keys = training.stack_runs([_key(seed, _Draw.EXPLORATION) for seed in self._seeds])
        self._runs_axis = training.choose_runs_axis("auto")
        self.replay = Replay(recipe.num_agents, recipe.num_steps, *dims)
        self._chunks: list[int] = []
        self._restore()
        self._observations = np.stack([self._catch_up(agent) for agent in agents])

    @property
    def step(self) -> int:
        """Steps that each agent has made."""
        return self.replay.size

    def advance(self) -> None:
        """One step of every agent, and the updates that are due.

        Raises InputError where a simulator fails, or gives a number that isn't finite.
        """
        actions = self._actions()
        self._steppers.begin(actions)
        for _ in range(self._updates_due()):
            self._update()
        replay, step = self.replay, self.step
        replay.observations[:, step] = self._observations
        replay.actions[:, step] = actions
        for agent, outcome in enumerate(self._steppers.end()):
            self._check(agent, outcome.observation, outcome.reward, steps=1)
            replay.next_observations[agent, step] = outcome.observation
            replay.rewards[agent, step] = outcome.reward
            replay.terminations[agent, step] = outcome.terminated
            replay.ends[agent, step] = outcome.terminated or outcome.truncated
            replay.successes[agent, step] = -1 if outcome.success is None else outcome.success
        replay.size += 1
        self._observations = replay.next_observations[:, step].copy()
        for agent in np.flatnonzero(replay.ends[:, step]).tolist():
            self._observations[agent] = self._begin_episode(agent)

    def save(self) -> None:
        """Write a checkpoint, unless it is there, and keep one of those before."""
        folder = checkpoints(self._folder)
        saved = checkpoint.updates(folder)
        if self.step in saved:
            return
        start = self._chunks[-1] if self._chunks else 0
        self.replay.save_chunk(self._folder / "steps", start)
        self._chunks.append(self.step)
        metadata = {"recipe": self.recipe.resolved(), "chunks": self._chunks}
        checkpoint.save(folder, self.step, self._states, metadata)
        for step in saved[:-1]:
            checkpoint.delete(folder, step)

    def dataset(self, id: str) -> Dataset:
        """What the agents saw so far, with the recipe and each agent's success curve.

        Actions are the environment's own, which differ from the agents' where its bounds aren't
        -1 and 1.
        """
        own = [self._episodes(agent) for agent in range(self.recipe.num_agents)]
        recipe = json.loads(json.dumps(self.recipe.resolved()))
        metadata = {
            "environment_id": self.recipe.env_name,
            "recipe": RECIPE,
            "sac": recipe,
            "seed": self.recipe.seed,
            "packages": {**environment.family(self.recipe.env_name).versions(), **_versions()},
            "sources": {f"agent {agent}": _outcome(found) for agent, found in enumerate(own)},
            "curves": [self.curve(agent) for agent in range(self.recipe.num_agents)],
            "episode_seeds": [
                self._episode_seed(agent, number)
                for agent, found in enumerate(own)
                for number in range(len(found))
            ],
        }
        if self.recipe.env_name in meta_world.TASKS:
            metadata |= {
                "environment_version": meta_world.VERSION,
                "reward_function_version": meta_world.REWARD_FUNCTION_VERSION,
                "horizon": meta_world.HORIZON,
                "goal_visible": True,
            }
        return from_episodes([episode for found in own for episode in found], id, metadata)

    def _episodes(self, agent: int) -> list[Episode]:
        return [
            dataclasses.replace(episode, actions=self._steppers.actions.to_raw(episode.actions))
            for episode in self.replay.episodes(agent)
        ]

    def curve(self, agent: int) -> dict[str, list[Any]]:
        """An agent's success and return over each 20 episodes in a row that it has finished.

        step: the agent's at the end of the 20. success_rate: in percent, None where the
        environment knows no success. return: mean true return.
        """
        finished = [
            (start, stop)
            for start, stop in self.replay.episode_bounds(agent)
            if self.replay.ends[agent, stop - 1]
        ]
        curve: dict[str, list[Any]] = {"step": [], "success_rate": [], "return": []}
        for first in range(0, len(finished) - BLOCK + 1, BLOCK):
            block = finished[first : first + BLOCK]
            curve["step"].append(block[-1][1])
            curve["success_rate"].append(self._success_rate(agent, block))
            curve["return"].append(self._mean_return(agent, block))
        return curve

    def latest(self, agent: int) -> tuple[float | None, float | None]:
        """Success in percent and mean return over an agent's last 20 finished episodes."""
        bounds = self.replay.episode_bounds(agent)
        finished = [b for b in bounds if self.replay.ends[agent, b[1] - 1]][-BLOCK:]
        if not finished:
            return None, None
        return self._success_rate(agent, finished), self._mean_return(agent, finished)

    def _success_rate(self, agent: int, bounds: list[tuple[int, int]]) -> float | None:
        successes = [self.replay.successes[agent, start:stop] for start, stop in bounds]
        if any((found < 0).any() for found in successes):
            return None
        return 100 * float(np.mean([found.any() for found in successes]))

    def _mean_return(self, agent: int, bounds: list[tuple[int, int]]) -> float:
        rewards = self.replay.rewards[agent]
        return float(np.mean([rewards[a:b].sum(dtype=np.float64) for a, b in bounds]))

    def _actions(self) -> np.ndarray:
        if self.step < self.recipe.random_steps:
            return np.stack(
                [
                    _generator(seed, _Draw.RANDOM_ACTIONS, self.step)
                    .uniform(-1, 1, self._steppers.action_dim)
                    .astype(np.float32)
                    for seed in self._seeds
                ]
            )
        actions = _explore(
            self.recipe.config,
            self._states,
            self._keys,
            self.step,
            self._observations,
            self._runs_axis,
        )
        return np.asarray(actions)

    def _updates_due(self) -> int:
        before = self.step - self.recipe.random_steps
        if before < 0:
            return 0
        rate = self.recipe.updates_per_step
        return math.floor((before + 1) * rate) - math.floor(before * rate)

    def _update(self) -> None:
        batches = [self._batch(agent) for agent in range(self.recipe.num_agents)]
        self._states, _ = _update(
            self.recipe.config,
            self._states,
            jax.tree.map(lambda *leaves: np.stack(leaves), *batches),
            self._runs_axis,
        )
        self._updates += 1

    def _batch(self, agent: int) -> Transitions:
        draw = _generator(self._seeds[agent], _Draw.BATCHES, self._updates)
        steps = draw.integers(self.step, size=self.recipe.config.batch_size)
        replay = self.replay
        return Transitions(
            observations=replay.observations[agent, steps],
            actions=replay.actions[agent, steps],
            rewards=replay.rewards[agent, steps],
            next_observations=replay.next_observations[agent, steps],
            terminations=replay.terminations[agent, steps],
        )

    def _begin_episode(self, agent: int) -> np.ndarray:
        observation = self._steppers.reset(agent, self._episode_seed(agent, self._num_ended(agent)))
        self._check(agent, observation)
        return observation

    def _episode_seed(self, agent: int, number: int) -> int:
        draw = _generator(self._seeds[agent], _Draw.EPISODES, number)
        return int(draw.integers(2**31))

    def _check(
        self, agent: int, observation: np.ndarray, reward: float = 0.0, steps: int = 0
    ) -> None:
        """Raise InputError for numbers that aren't finite, `steps` after those in the replay."""
        wrong = environment.not_finite(observation, reward)
        if wrong:
            step = len(self._unfinished(agent)) + steps
            raise InputError(
                f"environment {self.recipe.env_name!r}: {wrong} at agent {agent}, episode "
                f"{self._num_ended(agent)}, step {step}, expected finite numbers; the same seed "
                "comes to the same place"
            )

    def _num_ended(self, agent: int) -> int:
        return int(self.replay.ends[agent, : self.step].sum())

    def _catch_up(self, agent: int) -> np.ndarray:
        """Simulate the unfinished episode, if there is one; the observation to act on."""
        observation = self._begin_episode(agent)
        for step in self._unfinished(agent):
            same = np.array_equal(observation, self.replay.observations[agent, step])
            observation = self._steppers.step(agent, self.replay.actions[agent, step]).observation
            same &= np.array_equal(observation, self.replay.next_observations[agent, step])
            if not same:
                raise InputError(
                    f"{self._folder}: environment {self.recipe.env_name} gives other observations "
                    f"at step {step} than when the collection was stopped, expected the versions "
                    "it was begun with, and an environment that follows from its seed"
                )
        return observation

    def _unfinished(self, agent: int) -> range:
        bounds = self.replay.episode_bounds(agent)
        if not bounds or self.replay.ends[agent, bounds[-1][1] - 1]:
            return range(0)
        return range(*bounds[-1])

    def _restore(self) -> None:
        self._updates = 0
        folder = checkpoints(self._folder)
        saved = checkpoint.updates(folder)
        if not saved:
            return
        self._states, metadata = checkpoint.restore(folder, saved[-1], self._states)
        check_recipe(str(self._folder), metadata["recipe"], self.recipe)
        self._chunks = list(metadata["chunks"])
        for stop in self._chunks:
            self.replay.load_chunk(self._folder / "steps", stop)
        self._updates = int(self._states.step[0])


def checkpoints(folder: Path) -> Path:
    """Where a collection in `folder` keeps its checkpoints."""
    return folder / "checkpoints"


def check_recipe(name: str, found: Mapping[str, Any], recipe: Recipe) -> None:
    """Raise InputError when what `name` holds was made by another recipe than this one."""
    expected = json.loads(json.dumps(recipe.resolved()))
    for field in expected:
        if found.get(field) != expected[field]:
            raise InputError(
                f"{name}: was collected with {field} {found.get(field)!r}, not "
                f"{expected[field]!r}; expected the same flags, or another --size, --seed or "
                "--data_dir"
            )


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")}


def _outcome(episodes: list[Any]) -> dict[str, Any]:
    successes = [episode.successes for episode in episodes]
    known = all(found is not None for found in successes)
    return {
        "episodes": len(episodes),
        "success_rate": float(np.mean([found.any() for found in successes])) if known else None,
        "mean_return": float(np.mean([episode.rewards.sum() for episode in episodes])),
    }


def _agent_seed(seed: int, agent: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(agent,)).generate_state(1)[0]) >> 1


def _generator(agent_seed: int, draw: _Draw, number: int) -> np.random.Generator:
    return np.random.default_rng([agent_seed, draw, number])


def _key(agent_seed: int, draw: _Draw) -> jax.Array:
    return jax.random.fold_in(key(agent_seed), draw)


@functools.partial(jax.jit, static_argnames=("config", "runs_axis"))
def _explore(
    config: sac.Config,
    states: sac.TrainState,
    keys: jax.Array,
    step: jax.Array | int,
    observations: jax.Array | np.ndarray,
    runs_axis: training.RunsAxis,
) -> jax.Array:
    def one_agent(state: sac.TrainState, key: jax.Array, observation: jax.Array) -> jax.Array:
        return sac.explore(config, state, jax.random.fold_in(key, step), observation)

    return training.over_runs(one_agent, runs_axis)(states, keys, observations)


@functools.partial(jax.jit, static_argnames=("config", "runs_axis"), donate_argnames="states")
def _update(
    config: sac.Config, states: sac.TrainState, batches: Transitions, runs_axis: training.RunsAxis
) -> tuple[sac.TrainState, Metrics]:
    def one_agent(state: sac.TrainState, batch: Transitions) -> tuple[sac.TrainState, Metrics]:
        return sac.update_step(config, state, batch)

    return training.over_runs(one_agent, runs_axis)(states, batches)
