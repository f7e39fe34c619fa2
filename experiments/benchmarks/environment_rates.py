"""What `experiments.benchmark_environments` measures: steps per second with and without our code.

The physics of a step depends on what the arm touches, so the bare loops take the very actions that
the collection, or the policy, took in the same environments; random actions are there for
comparison.
"""

import dataclasses
import time
from concurrent.futures import Executor

import gymnasium
import jax
import numpy as np

from appo_jax import appo, evaluation, workers
from appo_jax.collect import scripted
from appo_jax.data.dataset import Normaliser
from appo_jax.envs import environment, meta_world
from appo_jax.policy import Policy
from appo_jax.trainable import snapshot

GROUPS = 5  # for each worker: with two, the 50 episodes of the paper's evaluations


@dataclasses.dataclass(frozen=True)
class Rates:
    """Simulated steps per second of all workers together; a second environment's steps count.

    whole: `scripted.collect` from the call to the data set, with the start of its workers;
    warm: the same episodes in workers that run already;
    bare: loops of `env.step` alone, with the actions of these episodes, in their environments;
    bare_random: the same with random actions, in the task's own environment;
    evaluated: an evaluation of an untrained policy of the paper's size, in running workers;
    bare_evaluated: loops of `env.step` alone, with the actions of that policy.
    """

    whole: float
    warm: float
    bare: float
    bare_random: float
    evaluated: float
    bare_evaluated: float


def measure_rates(task: str, num_workers: int, num_transitions: int, rounds: int) -> list[Rates]:
    """Measure the rates `rounds` times, one after the other within each round."""
    found = []
    with workers.pool(num_workers) as executor:
        # Every worker builds its environments and touches the code once before the clock starts.
        start = scripted.plan_episodes(task, 4 * num_workers, seed=0)
        scripted.run_plans(start, executor)
        episodes = num_workers * evaluation.GROUP_SIZE
        evaluation.start(executor, _untrained(), task, 0, 0, episodes).result()
        for index in range(rounds):
            found.append(_one_round(task, num_workers, num_transitions, index, executor))
    return found


def _one_round(
    task: str, num_workers: int, num_transitions: int, seed: int, executor: Executor
) -> Rates:
    plans = scripted.plan_episodes(task, num_transitions // meta_world.HORIZON, seed)
    steps = sum(meta_world.HORIZON * (1 if plan.driver_task is None else 2) for plan in plans)

    clock = time.perf_counter()
    scripted.collect(task, num_transitions, seed, num_workers)
    whole = steps / (time.perf_counter() - clock)

    clock = time.perf_counter()
    episodes = scripted.run_plans(plans, executor)
    warm = steps / (time.perf_counter() - clock)

    actions = [episode.actions for episode in episodes]
    seconds = list(executor.map(_step_again, plans, actions))
    bare = num_workers * steps / sum(seconds)

    seconds = list(executor.map(_step_at_random, plans))
    bare_random = num_workers * len(plans) * meta_world.HORIZON / sum(seconds)

    policy, num_episodes = _untrained(), num_workers * GROUPS * evaluation.GROUP_SIZE
    clock = time.perf_counter()
    evaluation.start(executor, policy, task, seed, 0, num_episodes).result()
    evaluated = num_episodes * meta_world.HORIZON / (time.perf_counter() - clock)

    seeds = [evaluation.episode_seed(seed, 0, episode) for episode in range(num_episodes)]
    seconds = list(executor.map(_step_as_policy, [policy] * len(seeds), [task] * len(seeds), seeds))
    bare_evaluated = num_workers * num_episodes * meta_world.HORIZON / sum(seconds)
    return Rates(whole, warm, bare, bare_random, evaluated, bare_evaluated)


def _untrained() -> Policy:
    state = appo.init(appo.Config(), jax.random.key(0), 39, 4)
    normaliser = Normaliser.identity(39)
    scale = environment.spaces("sweep-v3").actions
    return Policy("appo", appo.Config(), jax.device_get(snapshot(state)), normaliser, scale)


def _step_as_policy(policy: Policy, task: str, seed: int) -> float:
    """Seconds that the steps of an episode of a policy take, its inference left out."""
    simulator = meta_world.make(task, seed)
    observation, _ = simulator.reset()
    actions = []
    for _ in range(meta_world.HORIZON):
        actions.append(policy(observation))
        observation = simulator.step(actions[-1])[0]
    meta_world.reseed(simulator, seed)
    return _seconds(simulator, np.array(actions))


def _step_again(plan: scripted.EpisodePlan, actions: np.ndarray) -> float:
    """Seconds that the steps of an episode take in its environments, and nothing else."""
    return sum(
        _seconds(environment, actions)
        for environment in scripted.environments(plan)
        if environment is not None
    )


def _step_at_random(plan: scripted.EpisodePlan) -> float:
    environment, _ = scripted.environments(dataclasses.replace(plan, driver_task=None))
    draw = np.random.default_rng(plan.action_seed)
    return _seconds(environment, draw.uniform(-1, 1, (meta_world.HORIZON, 4)).astype(np.float32))


def _seconds(simulator: gymnasium.Env, actions: np.ndarray) -> float:
    simulator.reset()
    step = simulator.step
    clock = time.perf_counter()
    for action in actions:
        step(action)
    return time.perf_counter() - clock
