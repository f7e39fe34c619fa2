"""The medium-expert data of the paper: scripted episodes from five sources.

In each source the noisy, clipped action is stepped in the main environment, whose observations,
rewards and successes are stored. The scripted policy reads
- expert: the main environment;
- random-variant-expert: a second environment of the same task, with its own object and goal;
- other-task-expert: a second environment of a task drawn anew for each episode, maybe the same;
- random: nothing, the actions are uniform;
- epsilon-greedy: the main environment, with uniform actions half of the time.

Differs from IPL's collector, which has no fifth source, no fixed length and no noise on random
actions: the paper describes these.
"""

import collections
import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from appo_jax import workers
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.envs import environment, meta_world
from appo_jax.envs.environment import explained, not_finite
from appo_jax.types import InputError

RECIPE = "medium-expert"
PROPORTIONS = {
    "expert": 1,
    "random-variant-expert": 1,
    "other-task-expert": 2,
    "random": 4,
    "epsilon-greedy": 4,
}
NOISE_STD = 1.0
EPSILON = 0.5  # share of uniform actions of the epsilon-greedy source
ACTION_LIMIT = 1 - 1e-5  # inside the bounds, so that a squashed policy can give these actions

Policy = Callable[[np.ndarray], np.ndarray]
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class EpisodePlan:
    """All that decides one episode; the seeds depend on the data seed and `index` alone.

    driver_task: the task of the second environment, None where the source has none.
    """

    index: int
    task: str
    source: str
    driver_task: str | None
    main_seed: int
    driver_seed: int
    action_seed: int


def collect(
    task: str,
    num_transitions: int,
    seed: int,
    num_workers: int,
    progress: Progress | None = None,
) -> Dataset:
    """Collect a medium-expert data set; the same one whatever the number of workers.

    progress(done, total) is called with numbers of stored transitions after each episode.
    Raises InputError for an unknown task, for a size that isn't a positive multiple of 500, for a
    negative seed, for fewer than one worker and when Meta-World isn't installed.
    """
    name = meta_world.canonical_name(task)
    check_size(num_transitions)
    if num_workers < 1:
        raise InputError(f"num_workers is {num_workers}, expected at least 1")
    packages = meta_world.package_versions()
    plans = plan_episodes(name, num_transitions // meta_world.HORIZON, seed)
    executor = workers.pool(min(num_workers, len(plans)))
    try:
        episodes = run_plans(plans, executor, progress)
    finally:
        executor.shutdown(cancel_futures=True)  # after an error, the episodes not begun
    metadata = {
        "environment_id": name,
        "environment_version": meta_world.VERSION,
        "reward_function_version": meta_world.REWARD_FUNCTION_VERSION,
        "horizon": meta_world.HORIZON,
        "goal_visible": True,
        "recipe": RECIPE,
        "proportions": PROPORTIONS,
        "noise_std": NOISE_STD,
        "epsilon": EPSILON,
        "action_limit": ACTION_LIMIT,
        "seed": seed,
        "packages": packages,
        "sources": _success_by_source(plans, episodes),
        "episode_seeds": [plan.main_seed for plan in plans],
    }
    id = environment.dataset_id(name, RECIPE, num_transitions, seed)
    return from_episodes(episodes, id, metadata)


def check_size(num_transitions: int) -> None:
    """Raise InputError unless the size is a whole number of episodes, at least one."""
    if num_transitions < 1 or num_transitions % meta_world.HORIZON:
        raise InputError(
            f"size is {num_transitions}, expected a positive multiple of {meta_world.HORIZON}, "
            "the steps of an episode"
        )


def episode_counts(num_episodes: int) -> dict[str, int]:
    """Split a number of episodes in the recipe's proportions, by largest remainder.

    Equal remainders go to the earlier source.
    """
    total = sum(PROPORTIONS.values())
    counts = {source: num_episodes * part // total for source, part in PROPORTIONS.items()}
    by_remainder = sorted(PROPORTIONS, key=lambda s: -(num_episodes * PROPORTIONS[s] % total))
    for source in by_remainder[: num_episodes - sum(counts.values())]:
        counts[source] += 1
    return counts


def plan_episodes(task: str, num_episodes: int, seed: int) -> list[EpisodePlan]:
    """Plan every episode of a data set, the sources shuffled.

    Raises InputError for an unknown task and for a negative seed.
    """
    if seed < 0:
        raise InputError(f"seed is {seed}, expected 0 or more")
    name = meta_world.canonical_name(task)
    sources = [source for source, n in episode_counts(num_episodes).items() for _ in range(n)]
    order = np.random.default_rng(seed).permutation(num_episodes)
    return [_plan(name, sources[place], seed, index) for index, place in enumerate(order)]


def _plan(task: str, source: str, seed: int, index: int) -> EpisodePlan:
    draw = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index,)))
    main_seed, driver_seed, action_seed = (int(n) for n in draw.integers(2**31, size=3))
    other_task = meta_world.TASKS[draw.integers(len(meta_world.TASKS))]
    driver_task = {"random-variant-expert": task, "other-task-expert": other_task}.get(source)
    return EpisodePlan(index, task, source, driver_task, main_seed, driver_seed, action_seed)


def run_plans(
    plans: Sequence[EpisodePlan],
    executor: concurrent.futures.Executor,
    progress: Progress | None = None,
    steps: int = meta_world.HORIZON,
) -> list[Episode]:
    """Run planned episodes in worker processes; the list is in the order of the plans."""
    # Neighbours share a second environment, which takes as long to build as 500 steps; the longest
    # episodes come first, so that no worker is left with one at the end.
    order = sorted(range(len(plans)), key=lambda i: plans[i].driver_task or "", reverse=True)
    places = {executor.submit(_run_plan, plans[i], steps): i for i in order}
    episodes: dict[int, Episode] = {}
    for future in concurrent.futures.as_completed(list(places)):
        episodes[places.pop(future)] = future.result()
        if progress is not None:
            progress(len(episodes) * steps, len(plans) * steps)
    return [episodes[i] for i in range(len(plans))]


def _run_plan(plan: EpisodePlan, steps: int) -> Episode:
    with explained(f"episode {plan.index} of {plan.task}, source {plan.source}, failed"):
        main, driver = environments(plan)
        return run_episode(plan, main, driver, _policy(plan.driver_task or plan.task), steps)


def environments(plan: EpisodePlan) -> tuple[gymnasium.Env, gymnasium.Env | None]:
    """Environments for an episode, seeded for it; this process keeps them for later calls."""
    main = _environment(plan.task, "main")
    meta_world.reseed(main, plan.main_seed)
    if plan.driver_task is None:
        return main, None
    driver = _environment(plan.driver_task, "driver")
    meta_world.reseed(driver, plan.driver_seed)
    return main, driver


@functools.lru_cache(maxsize=4)  # main, its variant, and other tasks that come in a row
def _environment(task: str, role: str) -> gymnasium.Env:
    return meta_world.make(task, seed=0)


_policy = functools.cache(meta_world.scripted_policy)


def run_episode(
    plan: EpisodePlan,
    main: gymnasium.Env,
    driver: gymnasium.Env | None,
    policy: Policy,
    steps: int = meta_world.HORIZON,
    noise_std: float = NOISE_STD,
    epsilon: float = EPSILON,
) -> Episode:
    """Run one episode in environments seeded for it; `policy` reads the driver's observations.

    Without a driver it reads those of `main`. The scripted action is not clipped before the noise
    is added, so that far from its aim the expert moves as it would without noise. Raises InputError
    for a number that isn't finite.
    """
    draw = np.random.default_rng(plan.action_seed)
    noise = noise_std * draw.standard_normal((steps, 4))
    uniform = draw.uniform(-1, 1, (steps, 4))
    share = {"random": 1.0, "epsilon-greedy": epsilon}.get(plan.source, 0.0)
    is_uniform = (draw.random(steps) < share).tolist()

    seen, _ = main.reset()
    observations = np.empty((steps + 1, len(seen)), np.float32)
    actions = np.empty((steps, 4), np.float32)
    rewards = np.empty(steps, np.float32)
    terminations = np.zeros(steps, np.bool_)
    successes = np.zeros(steps, np.bool_)
    observations[0] = seen
    if driver is not None:
        seen, _ = driver.reset()
    for step in range(steps):
        action = (uniform[step] if is_uniform[step] else policy(seen)) + noise[step]
        actions[step] = np.minimum(np.maximum(action, -ACTION_LIMIT), ACTION_LIMIT)
        # What is stepped is what is stored, to the bit: float32.
        observation, reward, terminations[step], _, info = main.step(actions[step])
        observations[step + 1] = observation
        rewards[step] = reward
        wrong = not_finite(observations[step + 1], float(reward))
        if wrong:
            raise InputError(
                f"{plan.task}: {wrong} at episode {plan.index}, step {step + 1}, expected finite "
                "numbers"
            )
        successes[step] = info["success"]
        seen = observation if driver is None else driver.step(actions[step])[0]
    return Episode(observations, actions, rewards, terminations, successes)


def _success_by_source(
    plans: Sequence[EpisodePlan], episodes: Sequence[Episode]
) -> dict[str, dict[str, Any]]:
    succeeded: dict[str, list[bool]] = collections.defaultdict(list)
    for plan, episode in zip(plans, episodes, strict=True):
        succeeded[plan.source].append(bool(np.any(episode.successes)))
    return {
        source: {
            "episodes": len(succeeded[source]),
            "success_rate": float(np.mean(succeeded[source])) if succeeded[source] else None,
        }
        for source in PROPORTIONS
    }
