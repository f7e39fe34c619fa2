"""Evaluation: episodes of a policy in fakes, and in the real simulator by one and two workers."""

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import appo, evaluation, registry, workers
from appo_jax.data.dataset import ActionScale, Normaliser
from appo_jax.envs.environment import Outcome
from appo_jax.evaluation import Episodes, Policy
from appo_jax.trainable import snapshot
from appo_jax.types import InputError
from tests.helpers.processes import InTurn

TASK = "Hopper-v5"


@dataclasses.dataclass
class Fake:
    """An environment whose observation is its place and the step, with given outcomes."""

    place: int
    rewards: list[float]
    successes: list[bool]
    terminates: bool = False
    time_limit: int | None = None

    def reset(self, seed: int) -> np.ndarray:
        assert seed == 100 + self.place
        self.step_count = 0
        return self._observation()

    def step(self, action: np.ndarray) -> Outcome:
        np.testing.assert_array_equal(action, self._observation())
        index, self.step_count = self.step_count, self.step_count + 1
        assert self.step_count <= len(self.rewards), "stepped on after its end"
        ended = self.step_count == len(self.rewards)
        return Outcome(
            self._observation(),
            self.rewards[index],
            ended and self.terminates,
            ended and not self.terminates,
            self.successes[index] if self.successes else None,
        )

    def _observation(self) -> np.ndarray:
        return np.array([self.place, self.step_count], np.float64)


@pytest.fixture
def fake_policy(monkeypatch: pytest.MonkeyPatch) -> tuple[Policy, list[Any]]:
    """A policy that answers the raw observation, and the list of the shapes that it was asked."""
    asked: list[Any] = []

    def act(config: str, state: Any, observations: np.ndarray) -> np.ndarray:
        assert config == "config"
        asked.append((observations.shape, observations.dtype))
        np.testing.assert_array_equal(state["scale"], 2.0)
        return observations * np.array([2.0, 4.0]) + np.array([10.0, 20.0])

    learner = SimpleNamespace(act=act)
    monkeypatch.setitem(registry.ALGORITHMS, "fake", SimpleNamespace(policy_learner=learner))
    normaliser = Normaliser(np.float32([10, 20]), np.float32([2, 4]))
    scale = ActionScale(np.zeros(2), np.full(2, 5.0))  # of actions that no simulator here gets
    return Policy("fake", "config", {"scale": np.float32(2)}, normaliser, scale), asked


def test_episodes_of_fakes(fake_policy: tuple[Policy, list[Any]]) -> None:
    policy, asked = fake_policy
    environments = [
        Fake(0, [1.0, 2.0, 3.0], [False, True, False]),  # succeeds, but not at the end
        Fake(1, [0.5], [True], terminates=True),
        Fake(2, [-1.0, 4.0, 0.0, 0.25], [False, False, False, True], terminates=True),
        Fake(3, [1.0, 1.0], [False, False]),
    ]
    seeds = [100, 101, 102, 103]
    episodes = evaluation._run_episodes(policy, environments, seeds)
    np.testing.assert_array_equal(episodes.succeeded, [True, True, True, False])
    np.testing.assert_array_equal(episodes.succeeded_at_end, [False, True, True, False])
    np.testing.assert_array_equal(episodes.returns, [6.0, 0.5, 3.25, 2.0])
    assert [environment.step_count for environment in environments] == [3, 1, 4, 2]
    # Every inference has the same shape, however many environments are left.
    assert asked == [((evaluation.GROUP_SIZE, 2), np.float32)] * 4
    assert episodes.metrics()["eval/success_rate"] == 75.0


def test_where_success_is_not_known(fake_policy: tuple[Policy, list[Any]]) -> None:
    environments = [Fake(0, [1.0, 2.0], []), Fake(1, [0.5], [], terminates=True)]
    episodes = evaluation._run_episodes(fake_policy[0], environments, [100, 101])
    assert episodes.metrics() == {"eval/return": 1.75}


def test_stopping_at_the_first_success(fake_policy: tuple[Policy, list[Any]]) -> None:
    environments = [
        Fake(0, [1.0, 2.0, 3.0], [False, True, False]),
        Fake(1, [1.0, 1.0, 1.0, 1.0], [False, False, False, False]),
    ]
    episodes = evaluation._run_episodes(
        fake_policy[0], environments, [100, 101], stop_at_success=True
    )
    np.testing.assert_array_equal(episodes.succeeded, [True, False])
    np.testing.assert_array_equal(episodes.returns, [3.0, 4.0])
    assert [environment.step_count for environment in environments] == [2, 4]


def test_an_episode_of_numbers_that_are_not_finite_is_lost(
    fake_policy: tuple[Policy, list[Any]],
) -> None:
    environments = [
        Fake(0, [1.0, np.nan, 3.0], [False, True, False]),
        Fake(1, [1.0, 1.0], [True, True]),
    ]
    episodes = evaluation._run_episodes(fake_policy[0], environments, [100, 101])
    assert [environment.step_count for environment in environments] == [2, 2]
    np.testing.assert_array_equal(episodes.returns, [np.nan, 2.0])
    assert episodes.metrics() == {"eval/lost_episodes": 1.0}
    (warning,) = episodes.warnings()
    assert warning.startswith(
        "1 of 2 episodes are lost: the simulator gave numbers that aren't fin"
    )


def test_an_episode_that_does_not_end_is_cut(
    fake_policy: tuple[Policy, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MAX_STEPS", 3)
    environments = [
        Fake(0, [1.0] * 9, [False] * 9),
        Fake(1, [1.0] * 3, [False] * 3),
        Fake(2, [1.0] * 5, [False] * 5, time_limit=5),  # longer, but meant
    ]
    episodes = evaluation._run_episodes(fake_policy[0], environments, [100, 101, 102])
    np.testing.assert_array_equal(episodes.returns, [3.0, 3.0, 5.0])
    np.testing.assert_array_equal(episodes.is_cut, [True, False, False])
    (warning,) = episodes.warnings()
    assert warning.startswith("1 of 3 episodes had not ended after 3 steps and were cut there")


def test_an_episode_ends_between_two_steps_where_the_pool_was_shut_down(
    fake_policy: tuple[Policy, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shut_down = threading.Event()
    monkeypatch.setattr(workers, "_shut_down", shut_down)
    environment = Fake(0, [1.0] * 5, [False] * 5)
    step = environment.step

    def stepping(action: np.ndarray) -> Any:
        if environment.step_count == 1:
            shut_down.set()
        return step(action)

    monkeypatch.setattr(environment, "step", stepping)
    with pytest.raises(CancelledError):
        evaluation._run_episodes(fake_policy[0], [environment], [100])
    assert environment.step_count == 2


def test_episodes_that_are_all_the_same_are_told() -> None:
    def episodes(last: list[list[float]], returns: list[float]) -> Episodes:
        flags = np.zeros((3, len(returns)))
        return Episodes(flags[0], flags[1], np.array(returns), flags[2] > 0, np.array(last))

    (warning,) = episodes([[1, 2]] * 3, [5, 5, 5]).warnings()
    assert warning.startswith("all 3 episodes are the same: the environment ignores its seed, or")
    assert episodes([[1, 2], [1, 2], [1, 3]], [5, 5, 5]).warnings() == []  # rewards are sparse
    assert episodes([[1, 2]] * 3, [5, 5, 6]).warnings() == []
    assert episodes([[1, 2]], [5]).warnings() == []


def test_metrics_are_percentages() -> None:
    succeeded = np.array([True, True, True, False])
    episodes = Episodes(
        succeeded,
        np.array([True, False, False, False]),
        np.array([1, 2, 3, 6.0]),
        np.zeros(4, bool),
        np.zeros((4, 2)),
    )
    assert episodes.warnings() == []
    assert episodes.metrics() == {
        "eval/success_rate": 75.0,
        "eval/success_rate_at_end": 25.0,
        "eval/return": 3.0,
    }


def test_intervals() -> None:
    # By hand, of 8 of 10: (0.8 + 0.192) / 1.384 +- 1.96 sqrt(0.016 + 0.0096) / 1.384.
    np.testing.assert_allclose(evaluation.wilson_interval(8, 10), (49.0, 94.3), atol=0.05)
    assert evaluation.wilson_interval(0, 5)[0] == pytest.approx(0, abs=1e-9)
    values = np.random.default_rng(0).normal(3, 2, 400)
    low, high = evaluation.bootstrap_interval(values)
    assert (low, high) == evaluation.bootstrap_interval(values)
    # 1.96 standard errors of 2 / 20 to each side.
    np.testing.assert_allclose([low, high], values.mean() + 0.196 * np.array([-1, 1]), atol=0.03)


def test_an_episodes_seed_depends_on_run_update_and_episode() -> None:
    seed = evaluation.episode_seed
    assert seed(3, 250_000, 7) == seed(3, 250_000, 7)
    grid = [
        (run, update, episode) for run in range(5) for update in range(5) for episode in range(5)
    ]
    assert len({seed(*place) for place in grid}) == len(grid)
    assert all(0 <= seed(*place) < 2**32 for place in grid)
    # Part of every published number, so this may not change.
    assert seed(0, 0, 0) == int(np.random.SeedSequence([0, 0, 0]).generate_state(1)[0])


class _InProcess:
    """An executor that keeps what it's given."""

    def __init__(self) -> None:
        self.submitted: list[Any] = []

    def submit(self, *call: Any) -> Any:
        self.submitted.append(call)
        return SimpleNamespace(cancel=lambda: self.submitted.remove(call))


def test_groups_have_a_fixed_size() -> None:
    executor = _InProcess()
    policy: Any = object()
    evaluation.start(executor, policy, TASK, 3, 10, 12)  # type: ignore[arg-type]
    groups = [
        seeds
        for _, found, task, seeds, stop in executor.submitted
        if (found, task, stop) == (policy, TASK, False)
    ]
    seeds = [evaluation.episode_seed(3, 10, episode) for episode in range(12)]
    assert groups == [seeds[:5], seeds[5:10], seeds[10:]]


@pytest.fixture(scope="module")
def policy() -> Policy:
    config = appo.Config(hidden_layers=1, hidden_dim=8)
    state = jax.jit(lambda key: appo.init(config, key, 11, 3))(jax.random.key(0))
    state = jax.tree.map(lambda leaf: 3 * np.asarray(leaf), snapshot(state))
    normaliser = Normaliser.identity(11)
    return Policy("appo", config, state, normaliser, ActionScale(np.zeros(3), np.ones(3)))


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with workers.pool(2) as pool:
        yield pool


def assert_same(found: Episodes, expected: Episodes) -> None:
    for field in dataclasses.fields(Episodes):
        left, right = getattr(found, field.name), getattr(expected, field.name)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_the_same_numbers_by_any_number_of_workers(
    policy: Policy, pool: ProcessPoolExecutor
) -> None:
    pending = [
        evaluation.start(executor, policy, TASK, 1, 500, num_episodes)
        for executor, num_episodes in ((pool, 6), (InTurn(), 6), (pool, 5))
    ]
    by_two, once, five = (evaluation.result() for evaluation in pending)
    assert all(evaluation.done() for evaluation in pending)
    assert by_two.returns.shape == by_two.succeeded.shape == (6,)
    assert_same(once, by_two)
    first = Episodes(*(getattr(by_two, field.name)[:5] for field in dataclasses.fields(Episodes)))
    assert_same(five, first)
    assert len(set(by_two.returns)) == 6  # each begins elsewhere
    assert np.isfinite(by_two.returns).all()


def test_what_decides_an_episode(policy: Policy, pool: ProcessPoolExecutor) -> None:
    shifted = dataclasses.replace(policy.normaliser, mean=np.ones(11, np.float32))
    other = dataclasses.replace(policy, normaliser=shifted)
    pending = [
        evaluation.start(pool, policy, TASK, 1, 500, 1),
        evaluation.start(pool, policy, TASK, 2, 500, 1),
        evaluation.start(pool, policy, TASK, 1, 501, 1),
        evaluation.start(pool, other, TASK, 1, 500, 1),
    ]
    returns = [evaluation.result().returns[0] for evaluation in pending]
    assert len(set(returns)) == 4


def test_an_action_depends_on_its_own_row_alone(policy: Policy) -> None:
    observations = jax.random.normal(jax.random.key(1), (evaluation.GROUP_SIZE, 11))
    alone = jnp.zeros_like(observations).at[0].set(observations[0])
    together = appo.act(policy.config, policy.state, observations)
    np.testing.assert_array_equal(together[0], appo.act(policy.config, policy.state, alone)[0])
    assert len(np.unique(np.asarray(together)[:, 0])) == evaluation.GROUP_SIZE


def test_what_a_worker_raises_arrives(policy: Policy, pool: ProcessPoolExecutor) -> None:
    with pytest.raises(InputError, match="'drawer-opne' is no Meta-World task .*can't be made"):
        evaluation.start(pool, policy, "drawer-opne", 0, 0, 1).result()
    unknown = dataclasses.replace(policy, algorithm="appx")
    with pytest.raises(InputError, match="algorithm 'appx': expected appo, "):
        evaluation.start(pool, unknown, TASK, 0, 0, 1).result()
