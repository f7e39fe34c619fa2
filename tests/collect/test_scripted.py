"""The medium-expert recipe, and that its data follow from the seed alone."""

import dataclasses
import itertools
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

import numpy as np
import pytest

from appo_jax import workers
from appo_jax.collect import scripted
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.envs import meta_world
from appo_jax.types import InputError
from tests.helpers.processes import InTurn

# pytest forgets the module's own filter between tests.
pytestmark = pytest.mark.filterwarnings("ignore:Constant")

TASK = "button-press-topdown-v3"
STEPS = 20


def run(
    source: str,
    driver_task: str | None = None,
    steps: int = STEPS,
    noise_std: float = 1.0,
    epsilon: float = 0.5,
    **seeds: int,
) -> Episode:
    """One short episode here, in this process."""
    plan = scripted.EpisodePlan(0, TASK, source, driver_task, 1, 2, 3)
    plan = dataclasses.replace(plan, **seeds)  # type: ignore[arg-type]
    main, driver = scripted.environments(plan)
    policy = meta_world.scripted_policy(driver_task or TASK)
    return scripted.run_episode(plan, main, driver, policy, steps, noise_std, epsilon)


def run_short(executor: Executor, seed: int) -> Dataset:
    """Twelve episodes of a few steps."""
    plans = scripted.plan_episodes(TASK, 12, seed)
    return from_episodes(scripted.run_plans(plans, executor, steps=5), "short")


@pytest.mark.parametrize(
    ("num_episodes", "expected"),
    [
        (12, [1, 1, 2, 4, 4]),
        (24, [2, 2, 4, 8, 8]),
        # Quotas 0.08, 0.08, 0.17, 0.33, 0.33: the one episode goes to the earlier of the largest.
        (1, [0, 0, 0, 1, 0]),
        # 16.67, 16.67, 33.33, 66.67, 66.67: four of 0.67 share the three that are left of 200.
        (200, [17, 17, 33, 67, 66]),
    ],
)
def test_episode_counts(num_episodes: int, expected: list[int]) -> None:
    counts = scripted.episode_counts(num_episodes)
    assert list(counts.values()) == expected
    assert sum(expected) == num_episodes


def test_plans_are_shuffled_and_follow_from_the_seed() -> None:
    plans = scripted.plan_episodes("sweep", 1200, seed=4)
    assert plans == scripted.plan_episodes("sweep-v2", 1200, seed=4)
    assert plans != scripted.plan_episodes("sweep", 1200, seed=5)
    assert [plan.index for plan in plans] == list(range(1200))
    sources = [plan.source for plan in plans]
    assert sources != sorted(sources, key=list(scripted.PROPORTIONS).index)
    counts = {source: sources.count(source) for source in scripted.PROPORTIONS}
    assert counts == scripted.episode_counts(1200)
    for plan in plans:
        if plan.source == "random-variant-expert":
            assert plan.driver_task == "sweep-v3"
        elif plan.source != "other-task-expert":
            assert plan.driver_task is None
    others = {plan.driver_task for plan in plans if plan.source == "other-task-expert"}
    assert len(others) > 40  # 200 draws from 50 tasks leave out one on average
    # All three seeds of all episodes differ: none shares its goal or noise with another.
    seeds = {s for plan in plans for s in (plan.main_seed, plan.driver_seed, plan.action_seed)}
    assert len(seeds) == 3 * 1200


def test_seeds_of_an_episode_do_not_depend_on_the_size() -> None:
    few, many = (scripted.plan_episodes(TASK, n, seed=0) for n in (3, 30))
    for left, right in zip(few, many, strict=False):
        assert (left.main_seed, left.driver_seed, left.action_seed) == (
            right.main_seed,
            right.driver_seed,
            right.action_seed,
        )


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with workers.pool(2) as executor:
        yield executor


def test_workers_make_the_data_that_one_process_makes(pool: Executor) -> None:
    here = run_short(InTurn(), seed=0).digest()
    assert run_short(pool, seed=0).digest() == here
    assert run_short(InTurn(), seed=1).digest() != here


@pytest.mark.parametrize(
    ("source", "driver_task"),
    [
        ("expert", None),
        ("random-variant-expert", TASK),
        ("other-task-expert", "reach-v3"),
        ("random", None),
        ("epsilon-greedy", None),
    ],
)
def test_actions_stay_inside_the_bounds(source: str, driver_task: str | None) -> None:
    episode = run(source, driver_task)
    limit = 1 - 1e-5
    assert episode.actions.dtype == np.float32
    assert np.abs(episode.actions.astype(np.float64)).max() <= limit
    assert (np.abs(episode.actions) > limit - 1e-6).any()  # and some reach them
    assert episode.observations.shape == (STEPS + 1, 39)
    assert episode.observations[:, -3:].any(axis=1).all()
    assert not episode.terminations.any()


@pytest.mark.parametrize("driver_task", [None, "sweep-v3"])
def test_without_noise_the_policy_follows_its_environment(driver_task: str | None) -> None:
    episode = run("other-task-expert" if driver_task else "expert", driver_task, noise_std=0.0)
    main, policy = meta_world.make(TASK, seed=1), meta_world.scripted_policy(driver_task or TASK)
    driver = main if driver_task is None else meta_world.make(driver_task, seed=2)
    seen = [env.reset()[0] for env in {main: None, driver: None}][-1]
    for step in range(STEPS):
        action = np.clip(policy(seen), -scripted.ACTION_LIMIT, scripted.ACTION_LIMIT)
        np.testing.assert_array_equal(episode.actions[step], action.astype(np.float32))
        seen, reward, _, _, _ = main.step(episode.actions[step])
        np.testing.assert_array_equal(episode.observations[step + 1], seen.astype(np.float32))
        assert episode.rewards[step] == np.float32(reward)
        if driver is not main:
            seen, *_ = driver.step(episode.actions[step])


def test_noise_and_epsilon_act() -> None:
    quiet = run("expert", noise_std=0.0).actions
    assert not np.array_equal(run("expert").actions, quiet)
    greedy = run("epsilon-greedy", noise_std=0.0, epsilon=0.0).actions
    np.testing.assert_array_equal(greedy, quiet)
    uniform = run("epsilon-greedy", noise_std=0.0, epsilon=1.0).actions
    np.testing.assert_array_equal(uniform, run("random", noise_std=0.0).actions)
    assert not np.array_equal(uniform, run("random").actions)  # noise on random actions, too
    # The uniform draws are the same, so equal rows are those where the coin said uniform.
    half = run("epsilon-greedy", steps=200, noise_std=0.0).actions
    ends = run("random", steps=200, noise_std=0.0).actions
    assert 70 <= (half == ends).all(axis=1).sum() <= 130


def test_the_noise_is_standard_and_added_before_the_one_clip() -> None:
    def share_at_limit(source: str, action: list[float]) -> np.ndarray:
        plan = scripted.EpisodePlan(0, TASK, source, None, 1, 2, 3)
        main, driver = scripted.environments(plan)
        actions = scripted.run_episode(plan, main, driver, lambda _: np.array(action)).actions
        return np.abs(actions) >= np.float32(scripted.ACTION_LIMIT)

    # P(|N| > 1) = 0.317, P(0.5 + N > 1 or < -1) = 0.375, and of 3 + N and -3 + N 0.977: of an
    # action that was clipped before, it would be a half. Four standard errors of 500 steps.
    clipped = share_at_limit("expert", [0, 0.5, 3, -3]).mean(axis=0)
    assert np.all(np.abs(clipped - [0.317, 0.375, 0.977, 0.977]) < [0.083, 0.087, 0.027, 0.027])
    # Actions of 9 stay at the limit; of four uniform ones with noise hardly ever all do.
    greedy = share_at_limit("epsilon-greedy", [9, 9, 9, 9]).all(axis=1).mean()
    assert abs(greedy - 0.5) < 0.05


@pytest.mark.parametrize(
    ("source", "driver_task", "acts"),
    [
        ("expert", None, False),
        ("random-variant-expert", TASK, True),
        ("other-task-expert", "sweep-v3", True),
    ],
)
def test_driver_decides_the_actions(source: str, driver_task: str | None, acts: bool) -> None:
    base = run(source, driver_task, noise_std=0.0)
    driver_changed = run(source, driver_task, noise_std=0.0, driver_seed=9)
    assert acts != np.array_equal(base.actions, driver_changed.actions)
    np.testing.assert_array_equal(base.observations[0], driver_changed.observations[0])
    main_changed = run(source, driver_task, noise_std=0.0, main_seed=9)
    assert acts == np.array_equal(base.actions, main_changed.actions)
    assert not np.array_equal(base.observations[0], main_changed.observations[0])


def test_environments_are_kept() -> None:
    plan = scripted.EpisodePlan(0, TASK, "random-variant-expert", TASK, 1, 2, 3)
    first, second = scripted.environments(plan), scripted.environments(plan)
    assert first[0] is second[0]
    assert first[1] is second[1]
    assert first[0] is not first[1]


def test_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "pool", InTurn)
    seen: list[tuple[int, int]] = []
    dataset = scripted.collect("button-press-topdown-v2", 3500, 0, 2, lambda *p: seen.append(p))
    assert seen == [(500 * (i + 1), 3500) for i in range(7)]
    assert dataset.id == "metaworld/button-press-topdown-v3/medium-expert-n3500-seed0-v0"
    np.testing.assert_array_equal(dataset.lengths, [500] * 7)
    assert dataset.observations.shape == (7 * 501, 39)
    assert dataset.successes is not None
    metadata = dataset.metadata
    assert metadata["environment_id"] == "button-press-topdown-v3"
    assert metadata["packages"].keys() >= {"metaworld", "mujoco"}
    assert metadata["seed"] == 0
    sources = metadata["sources"]
    assert [row["episodes"] for row in sources.values()] == [1, 1, 1, 2, 2]
    assert sources["expert"]["success_rate"] == 1.0
    successes = sum(row["episodes"] * row["success_rate"] for row in sources.values())
    assert successes == pytest.approx(7 * (dataset.success_rate() or 0.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing", 500, 0, 1), "task 'nothing'"),
        (("sweep", 0, 0, 1), "size is 0, expected a positive multiple of 500"),
        (("sweep", -500, 0, 1), "size is -500"),
        (("sweep", 750, 0, 1), "size is 750"),
        (("sweep", 500, -1, 1), "seed is -1, expected 0 or more"),
        (("sweep", 500, 0, 0), "num_workers is 0, expected at least 1"),
    ],
)
def test_bad_arguments(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, int, int, int], message: str
) -> None:
    monkeypatch.setattr(workers, "pool", lambda _: pytest.fail("work began"))
    with pytest.raises(InputError, match=message):
        scripted.collect(*arguments)


def test_an_error_in_the_callback_stops_the_workers() -> None:
    def stop(done: int, total: int) -> None:
        raise RuntimeError("enough")

    before = set(multiprocessing.active_children())
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="enough"):
        scripted.collect(TASK, 1_000_000, 0, 1, stop)
    assert set(multiprocessing.active_children()) == before
    assert time.monotonic() - start < 60  # and not the minutes of a million steps


def test_a_number_that_is_not_finite_ends_it_at_once() -> None:
    main, _ = scripted.environments(scripted.EpisodePlan(4, TASK, "random", None, 1, 2, 3))
    step, count = main.step, itertools.count(1)

    def stepping(action: np.ndarray) -> Any:
        observation, _, *rest = step(action)
        return observation, np.nan if next(count) == 3 else 0.0, *rest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "step", stepping)
        plan = scripted.EpisodePlan(4, TASK, "random", None, 1, 2, 3)
        with pytest.raises(InputError, match=f"^{TASK}: the reward is nan at episode 4, step 3"):
            scripted._run_plan(plan, STEPS)
        patch.setattr(main, "step", lambda _: 1 / 0)
        with pytest.raises(InputError, match=r"^episode 4 of .* failed \(ZeroDivisionError: "):
            scripted._run_plan(plan, STEPS)
