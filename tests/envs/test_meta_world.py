"""One test for each trap of Meta-World, and the scripted policies as proof that the tasks work."""

import itertools
import random
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from appo_jax.data.dataset import Episode, from_episodes
from appo_jax.envs import meta_world
from appo_jax.types import InputError

# pytest forgets the module's own filter between tests.
pytestmark = pytest.mark.filterwarnings("ignore:Constant")


@pytest.fixture(scope="module")
def env() -> gymnasium.Env:
    return meta_world.make("sweep-into", seed=0)


def trajectory(env: gymnasium.Env, steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Observations and rewards of two starts of episodes, the actions drawn from the seed."""
    actions = np.random.default_rng(seed)
    observations, rewards = [], []
    for _ in range(2):
        observations.append(env.reset()[0])
        for _ in range(steps):
            observation, reward, _, _, _ = env.step(actions.uniform(-1, 1, 4))
            observations.append(observation)
            rewards.append(reward)
    return np.array(observations), np.array(rewards)


@pytest.mark.parametrize("task", meta_world.PAPER_TASKS)
def test_goal_is_in_every_observation_and_changes_at_each_reset(task: str) -> None:
    env = meta_world.make(task, seed=0)
    starts = []
    for _ in range(3):
        start, _ = env.reset()
        assert start[-3:].any()
        for _ in range(3):
            observation, *_ = env.step(np.zeros(4))
            np.testing.assert_array_equal(observation[-3:], start[-3:])
        starts.append(start)
    for first, second in itertools.combinations(starts, 2):
        # Some tasks vary the object and keep the goal at a fixed place, so look at both.
        assert not np.array_equal(first[[4, 5, 6, -3, -2, -1]], second[[4, 5, 6, -3, -2, -1]])
        is_fixed = np.array_equal(first[-3:], second[-3:])
        assert is_fixed == (task in meta_world.FIXED_GOALS)


def test_global_generators_do_not_matter() -> None:
    found = []
    for global_seed in (1, 2):
        np.random.seed(global_seed)  # noqa: NPY002 - the generator that Meta-World draws from
        random.seed(global_seed)
        found.append(trajectory(meta_world.make("sweep-into", seed=5), 10))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_building_leaves_the_global_generators_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.random(3)  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    meta_world.make("sweep-into", seed=1).reset()
    np.testing.assert_array_equal(np.random.random(3), expected)  # noqa: NPY002


@pytest.mark.parametrize("task", ["box-close", "button-press-topdown", "lever-pull", "sweep"])
def test_reseeded_environment_equals_a_new_one(task: str) -> None:
    new = trajectory(meta_world.make(task, seed=7), 40)
    used = meta_world.make(task, seed=1)
    policy = meta_world.scripted_policy(task)
    observation, _ = used.reset()
    for _ in range(120):  # long enough to touch and to move things
        observation, *_ = used.step(np.clip(policy(observation), -1, 1))
    meta_world.reseed(used, 7)
    again = trajectory(used, 40)
    np.testing.assert_array_equal(new[0], again[0])
    np.testing.assert_array_equal(new[1], again[1])
    meta_world.reseed(used, 8)
    assert not np.array_equal(trajectory(used, 5)[0], new[0][:12])


def test_reset_ignores_its_seed(env: gymnasium.Env) -> None:
    # The reason for `reseed`. When this fails, Meta-World honours the argument at last.
    first, _ = env.reset(seed=3)
    second, _ = env.reset(seed=3)
    assert not np.array_equal(first, second)


def test_step_500_truncates_and_never_terminates(env: gymnasium.Env) -> None:
    env.reset()
    for step in range(1, meta_world.HORIZON + 1):
        _, _, terminated, truncated, _ = env.step(np.zeros(4))
        assert not terminated
        assert truncated == (step == meta_world.HORIZON)
    with pytest.raises(ValueError, match="reset"):
        env.step(np.zeros(4))
    env.reset()
    assert env.step(np.zeros(4))[3] is False


def test_spaces_and_casts(env: gymnasium.Env) -> None:
    observation, _ = env.reset()
    after, reward, _, _, info = env.step(np.zeros(4))
    assert observation.shape == after.shape == env.observation_space.shape == (39,)
    assert observation.dtype == after.dtype == np.float64
    assert env.action_space == gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    assert info["success"] in (0.0, 1.0)
    episode = Episode(
        observations=np.array([observation, after]),
        actions=np.zeros((1, 4)),
        rewards=np.array([reward]),
        terminations=np.zeros(1, bool),
    )
    assert from_episodes([episode], "one").observations.dtype == np.float32


@pytest.mark.parametrize("task", ["sweep", "box-close"])
def test_touching_is_what_meta_world_says(task: str) -> None:
    env, policy = meta_world.make(task, seed=0).unwrapped, meta_world.scripted_policy(task)
    answers = []
    observation, _ = env.reset()
    for _ in range(120):
        observation, *_ = env.step(np.clip(policy(observation), -1, 1))
        for geom in np.unique(env.data.contact.geom):  # type: ignore[attr-defined]
            answers.append(env.touching_object(geom))  # type: ignore[attr-defined]
            assert answers[-1] == type(env).touching_object(env, geom)  # type: ignore[attr-defined]
    assert set(answers) == {False, True}


def test_scripted_actions_exceed_the_bounds(env: gymnasium.Env) -> None:
    observation, _ = env.reset()
    action = meta_world.scripted_policy("sweep-into")(observation)
    assert action.shape == (4,)
    assert np.abs(action).max() > 1


@pytest.mark.parametrize("task", meta_world.PAPER_TASKS)
def test_scripted_policy_solves_the_task(task: str) -> None:
    env = meta_world.make(task, seed=0)
    policy = meta_world.scripted_policy(task)
    solved = 0
    for seed in range(6):
        meta_world.reseed(env, seed)
        solved += _succeeds(env, policy)
        if solved == 4:
            return
    pytest.fail(f"{solved} of 6 episodes succeeded, expected at least 4")


def _succeeds(env: gymnasium.Env, policy: Any) -> bool:
    observation, _ = env.reset()
    for _ in range(meta_world.HORIZON):
        observation, _, _, _, info = env.step(np.clip(policy(observation), -1, 1))
        if info["success"]:
            return True
    return False


def test_names_of_both_versions() -> None:
    for task in ("sweep", "sweep-v2", "sweep-v3"):
        assert meta_world.canonical_name(task) == "sweep-v3"


@pytest.mark.parametrize(
    "task", ["sweeep", "sweep-v1", "sweep-v3-v2", "", "-v3", "sweep v3", "Sweep"]
)
def test_unknown_names(task: str) -> None:
    with pytest.raises(
        InputError, match="expected a name like sweep, sweep-v2 or sweep-v3"
    ) as error:
        meta_world.canonical_name(task)
    assert repr(task) in str(error.value)


def test_close_names_are_named() -> None:
    with pytest.raises(InputError, match="drawer-open"):
        meta_world.make("draweropen", seed=0)


def test_task_list_is_the_installed_one() -> None:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert set(meta_world.TASKS) == set(ALL_V3_ENVIRONMENTS)
    assert len(set(meta_world.TASKS)) == len(meta_world.TASKS)


def test_paper_sizes() -> None:
    assert len(meta_world.PAPER_TASKS) == 8
    assert meta_world.paper_size("box-close") == 2_400_000
    assert meta_world.paper_size("button-press-topdown-wall-v2") == 450_000
    assert meta_world.paper_size("reach") is None


def test_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *_: Any) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(meta_world.importlib, "import_module", refuse)
    meta_world._import.cache_clear()
    with pytest.raises(InputError, match="pip install metaworld packaging"):
        meta_world.make("sweep", seed=0)
    monkeypatch.undo()
    assert meta_world._import("env_dict").__name__ == "metaworld.env_dict"


def test_names_need_no_simulator() -> None:
    code = (
        "import sys; from appo_jax.envs import meta_world; meta_world.canonical_name('sweep'); "
        "assert meta_world.package_versions()['metaworld']; "
        "assert not {'metaworld', 'mujoco'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
