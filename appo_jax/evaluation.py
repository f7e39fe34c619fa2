"""Success rate and return of a policy, in worker processes that simulate and run the policy.

Episodes are worked off in groups of fixed size, each with one inference batch of fixed shape, and
an episode's seed depends on run seed, update and episode alone: the same policy gives the same
numbers whatever the number of workers.
"""

import dataclasses
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from appo_jax.policy import Policy

GROUP_SIZE = 5  # episodes of one group: part of the inference shape, and so of the numbers


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Outcomes of some episodes, `[episodes]` each.

    succeeded: at any step. succeeded_at_end: at the last step. returns: sums of true rewards.
    """

    succeeded: np.ndarray
    succeeded_at_end: np.ndarray
    returns: np.ndarray

    def metrics(self) -> dict[str, float]:
        """Rates in percent, and the mean return."""
        return {
            "eval/success_rate": 100 * float(self.succeeded.mean()),
            "eval/success_rate_at_end": 100 * float(self.succeeded_at_end.mean()),
            "eval/return": float(self.returns.mean()),
        }


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

    def cancel(self) -> None:
        """Drop the groups that no worker has begun."""
        for group in self._groups:
            group.cancel()


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
    """Begin an evaluation of `num_episodes` episodes of a Meta-World task in `pool`'s workers.

    With `stop_at_success` an episode ends at its first success: the rate is the same, the return
    and the rate at the end aren't.
    """
    seeds = [episode_seed(run_seed, update, episode) for episode in range(num_episodes)]
    groups = [seeds[first : first + GROUP_SIZE] for first in range(0, num_episodes, GROUP_SIZE)]
    return PendingEvaluation(
        [pool.submit(_run_group, policy, env_name, group, stop_at_success) for group in groups]
    )


_environments: dict[str, list[Any]] = {}  # a worker's own: building one takes long, reseeding none


def _run_group(policy: Policy, env_name: str, seeds: list[int], stop_at_success: bool) -> Episodes:
    from appo_jax.envs import meta_world  # needed in workers only: the core imports without it

    environments = _environments.setdefault(env_name, [])
    while len(environments) < len(seeds):
        environments.append(meta_world.make(env_name, seed=0))
    environments = environments[: len(seeds)]
    for environment, seed in zip(environments, seeds, strict=True):
        meta_world.reseed(environment, seed)
    return _run_episodes(policy, environments, stop_at_success)


def _run_episodes(
    policy: Policy, environments: list[Any], stop_at_success: bool = False
) -> Episodes:
    """One episode of each environment, all stepped together until the last is over."""
    policy = policy.on_device()
    # The batch has GROUP_SIZE rows also for a smaller group: other shapes round differently.
    observations = np.zeros((GROUP_SIZE, len(policy.normaliser.mean)), np.float32)
    for index, environment in enumerate(environments):
        observations[index] = environment.reset()[0]
    succeeded = np.zeros(len(environments), bool)
    succeeded_at_end = np.zeros(len(environments), bool)
    returns = np.zeros(len(environments))
    running = list(range(len(environments)))
    while running:
        actions = policy(observations)
        for index in tuple(running):
            observation, reward, terminated, truncated, info = environments[index].step(
                actions[index]
            )
            observations[index] = observation
            returns[index] += reward
            succeeded_at_end[index] = bool(info["success"])
            succeeded[index] |= succeeded_at_end[index]
            if terminated or truncated or (stop_at_success and succeeded[index]):
                running.remove(index)
    return Episodes(succeeded, succeeded_at_end, returns)
