"""Success rate and return of a policy, in worker processes that simulate and run the policy.

Episodes are worked off in groups of fixed size, each with one inference batch of fixed shape, and
an episode's seed depends on run seed, update and episode alone: the same policy gives the same
numbers whatever the number of workers.
"""

import dataclasses
import math
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from appo_jax import workers
from appo_jax.policy import Policy

GROUP_SIZE = 5  # episodes of one group: part of the inference shape, and so of the numbers
MAX_STEPS = 10_000  # of an episode without a time limit of its own
LOST = "eval/lost_episodes"


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Outcomes of some episodes, `[episodes]` each.

    succeeded: at any step. succeeded_at_end: at the last step. Both 0 or 1, or nan where the
    environment doesn't say. returns: sums of true rewards; nan for an episode that is lost, since
    its simulator gave a number that isn't finite. is_cut: had not ended after `MAX_STEPS`
    steps. last_observations: `[episodes, observation_dim]`.
    """

    succeeded: np.ndarray
    succeeded_at_end: np.ndarray
    returns: np.ndarray
    is_cut: np.ndarray
    last_observations: np.ndarray

    @property
    def num_lost(self) -> int:
        """Episodes whose outcome isn't known."""
        return int(np.isnan(self.returns).sum())

    def metrics(self) -> dict[str, float]:
        """Rates in percent, where the environment knows success, and the mean return.

        Where episodes are lost, nothing but their number: the others' means would say something
        else.
        """
        if self.num_lost:
            return {LOST: float(self.num_lost)}
        found = {"eval/return": float(self.returns.mean())}
        if np.isnan(self.succeeded).any():
            return found
        return {
            "eval/success_rate": 100 * float(self.succeeded.mean()),
            "eval/success_rate_at_end": 100 * float(self.succeeded_at_end.mean()),
        } | found

    def warnings(self) -> list[str]:
        """What makes these episodes say less than they seem to, in sentences."""
        total, found = len(self.returns), []
        if self.num_lost:
            found.append(
                f"{self.num_lost} of {total} episodes are lost: the simulator gave numbers that "
                "aren't finite; there is no result"
            )
        if self.is_cut.any():
            found.append(
                f"{self.is_cut.sum()} of {total} episodes had not ended after {MAX_STEPS:,} steps "
                "and were cut there; register the environment with a max_episode_steps"
            )
        both = np.column_stack([self.returns, self.last_observations])
        if total > 1 and not self.num_lost and np.all(both == both[0]):
            found.append(
                f"all {total} episodes are the same: the environment ignores its seed, or nothing "
                "in it is random, and they say no more than one does"
            )
        return found


def wilson_interval(num_successes: float, total: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a success rate in percent, of `total` episodes."""
    rate, z = num_successes / total, 1.959964
    centre = (rate + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z * math.sqrt(rate * (1 - rate) / total + (z / (2 * total)) ** 2) / (1 + z**2 / total)
    return 100 * (centre - half), 100 * (centre + half)


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean of `values`, `[episodes]`: 10,000 resamples of a fixed seed."""
    draws = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


class PendingEvaluation:
    """An evaluation under way in other processes."""

    def __init__(self, groups: list[Future]):
        self._groups = groups

    def done(self) -> bool:
        """Whether `result` returns at once."""
        return all(group.done() for group in self._groups)

    def result(self) -> Episodes:
        """Wait for all episodes. Raises what a worker raised, BrokenProcessPool if one died."""
        groups = [group.result() for group in self._groups]
        return Episodes(
            *(
                np.concatenate([getattr(group, field.name) for group in groups])
                for field in dataclasses.fields(Episodes)
            )
        )


def episode_seed(run_seed: int, update: int, episode: int) -> int:
    """The environment's seed of one episode of one evaluation of one run."""
    return int(np.random.SeedSequence([run_seed, update, episode]).generate_state(1)[0])


def start(
    pool: Executor,
    policy: Policy,
    env_name: str,
    run_seed: int,
    update: int,
    num_episodes: int,
    stop_at_success: bool = False,
) -> PendingEvaluation:
    """Begin an evaluation of `num_episodes` episodes in `pool`'s workers.

    env_name: a Meta-World task or an id of Gymnasium. With `stop_at_success` an episode ends at its
    first success: the rate is the same, the return and the rate at the end aren't.
    """
    seeds = [episode_seed(run_seed, update, episode) for episode in range(num_episodes)]
    groups = [seeds[first : first + GROUP_SIZE] for first in range(0, num_episodes, GROUP_SIZE)]
    return PendingEvaluation(
        [pool.submit(_run_group, policy, env_name, group, stop_at_success) for group in groups]
    )


_environments: dict[str, list[Any]] = {}  # a worker's own: building one takes long, reseeding none


def _run_group(policy: Policy, env_name: str, seeds: list[int], stop_at_success: bool) -> Episodes:
    # Needed in workers only: the core imports without it.
    from appo_jax.envs.environment import Environment

    environments = _environments.setdefault(env_name, [])
    while len(environments) < len(seeds):
        environments.append(Environment(env_name))
    return _run_episodes(policy, environments[: len(seeds)], seeds, stop_at_success)


def _run_episodes(
    policy: Policy, environments: list[Any], seeds: list[int], stop_at_success: bool = False
) -> Episodes:
    """One episode of each environment, all stepped together until the last is over."""
    from appo_jax.envs.environment import not_finite

    policy = policy.on_device()
    # The batch has GROUP_SIZE rows also for a smaller group: other shapes round differently.
    observations = np.zeros((GROUP_SIZE, len(policy.normaliser.mean)), np.float32)
    for index, (environment, seed) in enumerate(zip(environments, seeds, strict=True)):
        observations[index] = environment.reset(seed)
    count = len(environments)
    succeeded, succeeded_at_end, returns = np.zeros((3, count))
    is_cut = np.zeros(count, np.bool_)
    running = [index for index in range(count) if not not_finite(observations[index])]
    returns[[index for index in range(count) if index not in running]] = np.nan
    step = 0
    while running:
        workers.check_wanted()
        step += 1
        actions = policy.unit_actions(observations)
        for index in tuple(running):
            outcome = environments[index].step(actions[index])
            observations[index] = outcome.observation
            returns[index] += outcome.reward
            succeeded_at_end[index] = np.nan if outcome.success is None else outcome.success
            succeeded[index] = np.maximum(succeeded[index], succeeded_at_end[index])  # nan stays
            ended = outcome.terminated or outcome.truncated
            if not_finite(outcome.observation, outcome.reward):
                returns[index] = np.nan
                ended = True
            elif not ended and step >= max(MAX_STEPS, environments[index].time_limit or 0):
                is_cut[index] = ended = True
            if ended or (stop_at_success and outcome.success):
                running.remove(index)
    return Episodes(succeeded, succeeded_at_end, returns, is_cut, observations[:count])
