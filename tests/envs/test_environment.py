"""One face for Meta-World and Gymnasium: seeds, scaled actions, ends, success."""

import gymnasium
import numpy as np
import pytest

from appo_jax.data.dataset import ActionScale
from appo_jax.envs import environment
from appo_jax.envs.environment import Environment
from appo_jax.types import InputError
from tests.helpers import environments as odd


def test_actions_are_scaled_to_the_bounds() -> None:
    ours, bare = Environment("Pendulum-v1"), gymnasium.make("Pendulum-v1")  # torques in [-2, 2]
    assert (ours.observation_dim, ours.action_dim) == (3, 1)
    np.testing.assert_array_equal(ours.reset(3), bare.reset(seed=3)[0])
    for action in (-1.0, 0.25, 1.0):
        outcome = ours.step(np.array([action], np.float32))
        observation, reward, *_ = bare.step(np.array([2 * action], np.float32))
        np.testing.assert_array_equal(outcome.observation, observation)
        assert outcome.reward == pytest.approx(float(reward))
        assert outcome.success is None


def test_scaled_actions_stay_inside_the_bounds() -> None:
    env = Environment(odd.name(odd.Lopsided))
    ends = np.array([[-1], [1]], np.float32)
    low, high = env.actions.to_raw(ends)
    assert low in odd.Lopsided.action_space
    assert high in odd.Lopsided.action_space
    np.testing.assert_allclose((low, high), [[0.05], [1]], rtol=1e-6)
    np.testing.assert_array_equal(env.actions.to_unit(np.float32([[0.05], [1]])), ends)


def test_no_bounds_are_left_and_symmetric_ones_are_met() -> None:
    draw = np.random.default_rng(0)
    low = (draw.normal(size=100_000) * 10 ** draw.uniform(-4, 4, 100_000)).astype(np.float32)
    high = low + (10 ** draw.uniform(-3, 4, 100_000)).astype(np.float32)
    low, high = low[low < high], high[low < high]
    scale = ActionScale.between(low, high)
    ones = np.ones(len(low), np.float32)
    assert (scale.to_raw(-ones) >= low).all()
    assert (scale.to_raw(ones) <= high).all()
    np.testing.assert_allclose(scale.half_range, (high - low) / 2, rtol=1e-5, atol=1e-3)
    high = np.abs(high)
    np.testing.assert_array_equal(ActionScale.between(-high, high).half_range, high)


def test_a_time_limit_is_not_a_termination() -> None:
    env = Environment("Pendulum-v1")
    env.reset(0)
    outcomes = [env.step(np.zeros(1, np.float32)) for _ in range(200)]
    assert [o.truncated for o in outcomes] == [False] * 199 + [True]
    assert not any(o.terminated for o in outcomes)


def test_a_fall_is_a_termination() -> None:
    env = Environment("Hopper-v5")
    assert env.reset(0).dtype == np.float32
    for _ in range(300):
        outcome = env.step(np.ones(3, np.float32))
        if outcome.terminated:
            break
    assert outcome.terminated
    assert not outcome.truncated


@pytest.mark.parametrize("name", ["Hopper-v5", "drawer-open-v3"])
def test_an_episode_follows_from_its_seed_and_actions(name: str) -> None:
    def episode(env: Environment, seed: int) -> np.ndarray:
        draw = np.random.default_rng(seed)
        rows = [env.reset(seed)]
        rows += [env.step(a).observation for a in draw.uniform(-1, 1, (20, env.action_dim))]
        return np.stack(rows)

    env = Environment(name)
    first = episode(env, 1)
    other = episode(env, 2)
    np.testing.assert_array_equal(episode(env, 1), first)
    np.testing.assert_array_equal(episode(Environment(name), 1), first)
    assert not np.array_equal(other, first)


def test_meta_world_knows_success() -> None:
    env = Environment("drawer-open-v3")
    assert env.reset(0).shape == (39,)
    assert env.reset(0)[-3:].any()  # the goal is visible
    assert env.step(np.zeros(4, np.float32)).success is False


def test_success_by_its_other_name() -> None:
    env = Environment(odd.name(odd.OtherSuccess))
    env.reset(0)
    assert [env.step(np.zeros(1, np.float32)).success for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Nothing-v0",
            "environment 'Nothing-v0' is no .* can't be made .*expected an id for gymnasium",
        ),
        ("no_such_module:Nothing-v0", "can't be made"),
        ("CartPole-v1", "action space is Discrete.*, expected a Box"),
        (
            "metaworld:Meta-World/MT1",
            r"can't be made .*TypeError: .*'env_name'.* that needs no arg",
        ),
        (odd.name(odd.NeedsArguments), r"can't be made .*TypeError: .*'size'"),
        (
            odd.name(odd.Refuses),
            r"can't be made by Gymnasium \(OSError: no licence\), expected an id",
        ),
        (odd.name(odd.Boundless), r"Boundless-v0': actions from .* expected finite bounds"),
        (odd.name(odd.BeyondFloat32), r"actions from \[-1.e\+300\] to .* expected finite bounds"),
    ],
)
def test_what_cannot_be_used(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Environment(name)


def test_a_reward_in_an_array_of_one_is_a_number() -> None:
    env = Environment(odd.name(odd.RewardInAnArray))
    place = env.reset(0)
    outcome = env.step(np.ones(1, np.float32))
    assert type(outcome.reward) is float
    assert outcome.reward == pytest.approx(place.sum() + 6)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (odd.Raises, r"step 2 .* \(ZeroDivisionError: division by zero; environments.py line \d+"),
        (odd.TwoRewards, "step 1 .*ValueError: can only convert an array of size 1"),
        (odd.WideObservation, "step 0 .*found 4 numbers in an observation, expected the 3 of its"),
        (odd.OddSuccess, "step 1 .*success is nan, expected true or false"),
    ],
)
def test_what_a_simulator_raises_is_one_sentence(cls: type, message: str) -> None:
    env = Environment(odd.name(cls))

    def episode() -> None:
        env.reset(7)
        for _ in range(2):
            env.step(np.zeros(1, np.float32))

    with pytest.raises(InputError, match=f"environment '.*{cls.__name__}-v0' failed at {message}"):
        episode()


def test_numbers_that_are_not_finite() -> None:
    fine = np.zeros(2, np.float32)
    assert environment.not_finite(fine, -1e30) is None
    assert environment.not_finite(fine, np.nan) == "the reward is nan"
    assert environment.not_finite(fine, 1e39) == "the reward is 1e+39"
    assert environment.not_finite(np.float32([0, -np.inf])) == "the observation is -inf in column 1"
    huge = Environment(odd.name(odd.HugeObservation)).reset(0)
    assert "inf in column" in str(environment.not_finite(huge))


def test_names() -> None:
    assert environment.canonical_name("Hopper-v5", "env") == "Hopper-v5"
    assert environment.canonical_name("sweep-v2", "task") == "sweep-v3"
    with pytest.raises(InputError, match="--env=sweep-v3: .* expected --task=sweep-v3"):
        environment.canonical_name("sweep-v3", "env")
    with pytest.raises(InputError, match="--env: .*expected an id of Gymnasium"):
        environment.canonical_name("", "env")
    with pytest.raises(InputError, match="--task: task 'Hopper-v5' is none of Meta-World's 50"):
        environment.canonical_name("Hopper-v5", "task")
    assert (
        environment.dataset_id("mine:My/Env-v0", "medium-replay", 30, 1)
        == "gymnasium/mine-My-Env-v0/medium-replay-n30-seed1-v0"
    )
    for task in ("sweep", "sweep-v2", "sweep-v3"):
        assert environment.dataset_id(task, "r", 500, 0) == "metaworld/sweep-v3/r-n500-seed0-v0"
    assert "metaworld" in environment.family("sweep-v3").versions()
    assert "metaworld" not in environment.family("Hopper-v5").versions()


def test_spaces_that_a_family_declares_are_the_simulators() -> None:
    for name in ("sweep-v3", "Pendulum-v1"):
        simulator = Environment(name)
        observation_dim, action_dim, actions = environment.spaces(name)
        assert observation_dim == simulator.observation_dim
        assert action_dim == simulator.action_dim
        np.testing.assert_array_equal(actions.centre, simulator.actions.centre)
        np.testing.assert_array_equal(actions.half_range, simulator.actions.half_range)
        low, high = simulator._env.action_space.low, simulator._env.action_space.high
        np.testing.assert_allclose(actions.to_raw(-np.ones(action_dim)), low)
        np.testing.assert_allclose(actions.to_raw(np.ones(action_dim)), high)
