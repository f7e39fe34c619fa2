"""What a sweep costs on this machine: time from rates measured now, and room on the disk.

The updates of each program are timed for some seconds on noise in the shapes of the data, and so
are a few episodes of each environment in worker processes.
"""

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from appo_jax import evaluation, registry, training, workers
from appo_jax.data import dataset, preferences
from appo_jax.data.dataset import Dataset, Episode
from appo_jax.envs import environment
from appo_jax.keys import Purpose, purpose_key
from appo_jax.policy import Policy
from appo_jax.trainable import snapshot
from experiments.runs import reward_controls
from experiments.runs.checkpoints import KEPT
from experiments.runs.experiment import Experiment
from experiments.runs.groups import Slots, TrainingProgram
from experiments.runs.labels import LabelKey, key_of
from experiments.sweeps.plan import Grid, grouped

# Updates are timed in chunks of at most so many, for about so many seconds, in at least so many
# chunks: one of PT's reward model takes most of a second, one of BC's policy a millisecond.
_CHUNK, _SECONDS, _LEAST = 50, 2.0, 3
_EPISODES, _STEPS = 8, 500  # of the noise
# On disk: of a transition beside its observation and action; of a run's tables and pictures; of a
# row of metrics.csv, of which a chunk leaves about twenty.
_NUMBER, _BESIDE, _FILES, _ROWS_OF_CHUNK = 4, 40, 2**20, 20 * 60


@dataclasses.dataclass(frozen=True)
class Program:
    """One learner's updates. seconds: of an update of one run. compiling: seconds, once. bytes: of
    the state of one run.
    """

    seconds: float
    compiling: float
    bytes: int


@dataclasses.dataclass(frozen=True)
class Rates:
    """What was measured. rewards: by number of labels. episodes: seconds that one takes all workers
    together, by environment.
    """

    policy: Program
    rewards: dict[int, Program]
    episodes: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Cost:
    """seconds: of the whole grid. bytes: on the disk, once it is finished."""

    seconds: float
    bytes: int


def of_grid(grid: Grid, rates: Rates, cores: int, is_cpu: bool) -> Cost:
    """What a grid costs from its first update to its last.

    On a CPU the evaluations take from the cores that train; beside an accelerator they run while
    it trains, and the slower of the two counts.
    """
    first = grid.runs[0]
    learner = registry.algorithm(first.algorithm).reward_learner
    fits: dict[LabelKey, int] = {}
    if learner is not None and rates.rewards:
        fits = {key_of(run): run.num_feedback for run in grid.runs}
    fitting = sum(
        rates.rewards[count].seconds * learner.num_updates(first.reward_model, count)
        for count in fits.values()
        if learner is not None
    )
    training_seconds = sum(run.num_updates * rates.policy.seconds for run in grid.runs)
    evaluating = sum(
        (1 + math.ceil(run.num_updates / run.eval_interval))  # one before the first update
        * run.eval_episodes
        * rates.episodes[run.env_name]
        for run in grid.runs
    )
    if is_cpu:
        share = min(1.0, grid.execution.num_workers / cores)
        seconds = training_seconds + evaluating * share
    else:
        seconds = max(training_seconds, evaluating)
    compiling = sum(one.compiling for one in [rates.policy, *rates.rewards.values()])
    runs_axis = training.choose_runs_axis(grid.execution.runs_axis)
    slots = Slots.of(grouped(grid).runs_per_group or len(grid.runs), runs_axis, None)
    chunk_updates = slots.chunk_updates(grid.execution.chunk_updates)
    bytes = sum(
        min(KEPT, math.ceil(run.num_updates / run.eval_interval)) * rates.policy.bytes
        + _FILES
        + run.num_updates // chunk_updates * _ROWS_OF_CHUNK
        for run in grid.runs
    ) + sum(KEPT * rates.rewards[count].bytes for count in fits.values())
    return Cost(compiling + fitting + seconds, bytes + _data_to_be_made(grid.runs))


def _data_to_be_made(runs: Sequence[Experiment]) -> int:
    sets = {run.dataset.id: run for run in runs if run.dataset.source == "collected"}
    total = 0
    for run in sets.values():
        spaces = environment.spaces(run.env_name)
        of_one = _NUMBER * (spaces.observation_dim + spaces.action_dim) + _BESIDE
        total += (run.dataset.size or 0) * of_one
    return total


class Meter:
    """Measures rates, each once."""

    def __init__(self, tell: Callable[[str], None]):
        self._tell = tell
        self._programs: dict[str, Program] = {}
        self._episodes: dict[tuple[str, int], float] = {}

    def rates(self, grid: Grid) -> Rates:
        """Of a grid's programs and environments."""
        run = grid.runs[0]
        algorithm = registry.algorithm(run.algorithm)
        runs_axis = training.choose_runs_axis(grid.execution.runs_axis)
        num_slots = 1 if runs_axis == "map" else len(grid.runs)
        setting = _Setting(run, Slots.of(num_slots, runs_axis, None))
        rewards = {}
        if reward_controls.needs_model(run.algorithm, run.reward):
            for count in sorted({one.num_feedback for one in grid.runs}):
                labelled = dataclasses.replace(run, num_feedback=count)
                rewards[count] = self._program(
                    f"reward model of {count} labels",
                    algorithm.reward_learner,
                    run.reward_model,
                    _Setting(labelled, Slots.of(1, runs_axis, None)),
                )
        policy = self._program(run.algorithm, algorithm.policy_learner, run.policy, setting)
        episodes = {
            name: self._episode_seconds(dataclasses.replace(run, env_name=name), grid)
            for name in dict.fromkeys(one.env_name for one in grid.runs)
        }
        return Rates(policy, rewards, episodes)

    def _program(self, name: str, learner: Any, config: Any, setting: "_Setting") -> Program:
        run = setting.run
        key = json.dumps(
            [learner.__name__, repr(config), run.num_feedback, run.segment_length, run.env_name]
            + [setting.slots.count]
        )
        if key not in self._programs:
            found = self._programs[key] = _timed(learner, config, setting)
            self._tell(f"measured: {name}, {1000 * found.seconds:.3g} ms an update")
        return self._programs[key]

    def _episode_seconds(self, run: Experiment, grid: Grid) -> float:
        key = run.env_name, grid.execution.num_workers
        if key not in self._episodes:
            found = self._episodes[key] = _timed_episodes(run, grid.execution.num_workers)
            self._tell(f"measured: {run.env_name}, {found:.3g} s an episode")
        return self._episodes[key]


class _Setting:
    """Noise in the shapes of a run's data, and labels of it."""

    def __init__(self, run: Experiment, slots: Slots):
        self.run, self.slots = run, slots
        self.spaces = environment.spaces(run.env_name)
        data = _noise(self.spaces, max(_STEPS, 2 * run.segment_length))
        store, (view,) = dataset.to_device_together([data], run.segment_length)
        labels = preferences.scripted(data, 0, run.num_feedback, run.segment_length, 0.0)
        self.pairs = labels.to_device(data, int(view.first_row))
        self.store, (self.view,) = dataset.with_pairs(store, [view], [self.pairs])


def _noise(spaces: environment.Spaces, steps: int) -> Dataset:
    draw = np.random.default_rng(0)
    episodes = [
        Episode(
            draw.standard_normal((steps + 1, spaces.observation_dim), np.float32),
            draw.uniform(-1, 1, (steps, spaces.action_dim)),
            draw.random(steps),
            np.zeros(steps, bool),
        )
        for _ in range(_EPISODES)
    ]
    return dataset.from_episodes(episodes, "noise")


def _timed(learner: Any, config: Any, setting: _Setting) -> Program:
    run, slots, dims = setting.run, setting.slots, setting.spaces[:2]
    is_policy = hasattr(learner, "Swept")
    key = purpose_key(0, Purpose.REWARD_MODEL)
    data: tuple[Any, ...]
    if is_policy:
        state = _policy_state(run, dims)
        data = (slots.fill([setting.view]),)
    else:
        init = jax.jit(learner.init, static_argnums=(0, 2, 3, 4))
        state = init(config, key, *dims, run.num_feedback)
        data = (slots.fill([setting.view]), slots.fill([setting.pairs]))
    program = TrainingProgram(learner, config, setting.store, slots)
    states, keys = slots.fill([state]), slots.fill([purpose_key(0, Purpose.BATCHES)])
    began = time.perf_counter()
    program.compile(states, keys, data)
    compiling = time.perf_counter() - began

    def took(num_updates: int) -> float:
        nonlocal states
        began = time.perf_counter()
        states, *_ = jax.block_until_ready(program.chunk(num_updates, states, keys, data))
        return time.perf_counter() - began

    took(1)  # a program's first update is slower
    chunk = max(1, min(_CHUNK, int(_SECONDS / _LEAST / took(1))))
    seconds: list[float] = []
    while len(seconds) < _LEAST or sum(seconds) < _SECONDS:
        seconds.append(took(chunk))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes"))
    of_one = statistics.median(seconds) / chunk / slots.count
    return Program(of_one, compiling, size)


def _policy_state(run: Experiment, dims: tuple[int, int]) -> Any:
    learner = registry.algorithm(run.algorithm).policy_learner
    init = jax.jit(learner.init, static_argnums=(0, 2, 3))  # one program, not dozens
    key = purpose_key(0, Purpose.POLICY)
    return init(run.policy, key, *dims, **vars(run.swept.on_device()))


def _timed_episodes(run: Experiment, num_workers: int) -> float:
    spaces = environment.spaces(run.env_name)
    state = _policy_state(run, spaces[:2])
    normaliser = dataset.Normaliser.identity(spaces.observation_dim)
    policy = Policy(
        run.algorithm, run.policy, jax.device_get(snapshot(state)), normaliser, spaces.actions
    )
    number = evaluation.GROUP_SIZE * num_workers
    with workers.pool(num_workers) as pool:
        for _ in range(2):  # the first builds the environments
            began = time.perf_counter()
            evaluation.start(pool, policy, run.env_name, 0, 0, number).result()
            seconds = time.perf_counter() - began
    return seconds / number
