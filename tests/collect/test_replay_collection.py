"""Agents side by side: the same data however often they are stopped, and what a set holds."""

import dataclasses
import errno
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from appo_jax import checkpoint
from appo_jax.collect import replay_collection
from appo_jax.collect.replay_collection import Collection
from appo_jax.data.dataset import Dataset, from_episodes
from appo_jax.data.replay import Replay
from appo_jax.types import InputError
from tests.helpers import environments as odd
from tests.helpers.agents import HOPPER, PENDULUM, SteppersHere, run


@pytest.fixture(scope="module")
def whole(hoppers: SteppersHere, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return run(HOPPER, hoppers, tmp_path_factory.mktemp("whole")).dataset("mine/whole-v0")


def test_stopped_anywhere_gives_the_same_data(
    hoppers: SteppersHere, whole: Dataset, tmp_path: Path
) -> None:
    run(HOPPER, hoppers, tmp_path, 45).save()  # in the middle of episodes, before any update
    run(HOPPER, hoppers, tmp_path, 131).save()
    run(HOPPER, hoppers, tmp_path, 150)  # killed: what came after the checkpoint is made again
    assert Collection(HOPPER, hoppers, tmp_path).step == 131
    resumed = run(HOPPER, hoppers, tmp_path)
    found = resumed.dataset("mine/whole-v0")
    assert found.digest() == whole.digest()
    assert found.metadata == whole.metadata
    resumed.save()
    assert Collection(HOPPER, hoppers, tmp_path).step == HOPPER.num_steps


def test_an_agent_is_the_same_beside_others(whole: Dataset, tmp_path: Path) -> None:
    alone = dataclasses.replace(HOPPER, num_transitions=200, num_agents=1)
    dataset = run(alone, SteppersHere("Hopper-v5", 1), tmp_path).dataset("mine/alone-v0")
    rows = len(dataset.observations)
    np.testing.assert_array_equal(dataset.observations, whole.observations[:rows])
    np.testing.assert_array_equal(dataset.actions, whole.actions[:rows])


def test_agents_differ_and_follow_from_the_seed(
    hoppers: SteppersHere, whole: Dataset, tmp_path: Path
) -> None:
    rows = whole.transition_rows()
    first, second = whole.actions[rows[:200]], whole.actions[rows[200:]]
    assert not np.array_equal(first, second)
    other = run(dataclasses.replace(HOPPER, seed=4), hoppers, tmp_path, 70)
    assert not np.array_equal(other.replay.actions[0, :70], first[:70])
    # Uniform at first, then the policy's.
    assert 0.5 < first[:60].std() < 0.66


def test_what_a_set_holds(whole: Dataset) -> None:
    assert whole.num_transitions == 400
    ends = whole.terminations[whole.episode_starts + whole.lengths - 1]
    cut = np.flatnonzero(~ends)
    assert len(cut) <= 2  # the last episode of each agent, where it was cut
    assert whole.terminations.sum() == ends.sum() > 10
    assert whole.successes is None
    assert whole.metadata["recipe"] == "medium-replay"
    assert whole.metadata["sac"]["updates_per_step"] == 0.5
    assert whole.metadata["sac"]["config"]["batch_size"] == 8
    episodes = [row["episodes"] for row in whole.metadata["sources"].values()]
    assert sum(episodes) == whole.num_episodes


def test_without_terminations(tmp_path: Path) -> None:
    collection = run(PENDULUM, SteppersHere("Pendulum-v1", 1), tmp_path)
    dataset = collection.dataset("mine/pendulum-v0")
    assert dataset.lengths.tolist() == [200, 200, 50]
    assert not dataset.terminations.any()
    assert np.abs(dataset.actions).max() > 0.9
    assert not np.array_equal(dataset.observations[0], dataset.observations[201])


def test_curve_by_hand(hoppers: SteppersHere, tmp_path: Path) -> None:
    collection = Collection(dataclasses.replace(HOPPER, num_transitions=600), hoppers, tmp_path)
    replay = collection.replay
    # 41 episodes of 5 steps with reward 1; of the second 20 every other one succeeds once.
    replay.size = 5 * 41
    replay.ends[:, 4:205:5] = True
    replay.rewards[:, :205] = 1
    replay.successes[:, 102:200:10] = 1
    assert collection.curve(0) == {
        "step": [100, 200],
        "success_rate": [0.0, 50.0],
        "return": [5.0, 5.0],
    }
    assert collection.latest(1) == (45.0, 5.0)  # the last 20, numbers 21 to 40: 9 succeed
    replay.successes[:] = -1
    assert collection.curve(0)["success_rate"] == [None, None]


def test_batches_are_transitions_of_the_past(hoppers: SteppersHere, tmp_path: Path) -> None:
    collection = run(HOPPER, hoppers, tmp_path, 100)
    replay = collection.replay
    replay.rewards[:] = np.arange(replay.rewards.shape[1])
    drawn = [collection._batch(1)]
    collection._updates += 1
    drawn.append(collection._batch(1))
    assert not np.array_equal(drawn[0].rewards, drawn[1].rewards)
    steps = np.concatenate([batch.rewards for batch in drawn]).astype(int)
    assert steps.max() < 100
    found = np.concatenate([batch.next_observations for batch in drawn])
    np.testing.assert_array_equal(found, replay.next_observations[1, steps])
    inside = ~replay.ends[1, steps]
    np.testing.assert_array_equal(found[inside], replay.observations[1, steps + 1][inside])
    replay.size = 1
    assert not collection._batch(0).rewards.any()  # the first step's is 0: all draws are of it


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 40), (0.25, 10), (0.3, 12), (2.0, 80)])
def test_updates_per_step(
    rate: float, expected: int, hoppers: SteppersHere, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(HOPPER, updates_per_step=rate)
    collection = Collection(recipe, hoppers, tmp_path)
    due = []
    for step in range(100):
        collection.replay.size = step
        due.append(collection._updates_due())
    assert not any(due[:60])
    assert sum(due) == expected


def test_another_recipe_is_refused(hoppers: SteppersHere, tmp_path: Path) -> None:
    run(HOPPER, hoppers, tmp_path, 5).save()
    other = dataclasses.replace(HOPPER, updates_per_step=1.0)
    with pytest.raises(InputError, match=r"was collected with updates_per_step 0.5, not 1.0"):
        Collection(other, hoppers, tmp_path)


def test_jax_set_otherwise_is_refused(hoppers: SteppersHere, tmp_path: Path) -> None:
    with (
        jax.numpy_rank_promotion("raise"),
        pytest.raises(InputError, match="^JAX_NUMPY_RANK_PROMOTION is raise, expected allow, with"),
    ):
        Collection(HOPPER, hoppers, tmp_path)


def test_damaged_steps_are_refused(hoppers: SteppersHere, tmp_path: Path) -> None:
    run(HOPPER, hoppers, tmp_path, 30).save()
    path = tmp_path / "steps" / "steps-00000030.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"steps-00000030.npz: can't be read"):
        Collection(HOPPER, hoppers, tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"steps-00000030.npz: can't be read"):
        Collection(HOPPER, hoppers, tmp_path)


def test_bytes_that_a_zip_reader_chokes_on_are_damage(tmp_path: Path) -> None:
    replay = Replay(1, 4, 2, 1)
    replay.size = 4
    replay.save_chunk(tmp_path, 0)
    path = tmp_path / "steps-00000004.npz"
    content = path.read_bytes()
    entry = content.index(b"PK\1\2")
    # An unknown compression and LZMA, then an encrypted file.
    for place, value in ((entry + 10, 99), (entry + 10, 14), (entry + 8, 1)):
        path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
        with pytest.raises(checkpoint.Damaged, match="steps-00000004.npz: can't be read"):
            Replay(1, 4, 2, 1).load_chunk(tmp_path, 4)
    path.write_bytes(content)
    Replay(1, 4, 2, 1).load_chunk(tmp_path, 4)


def test_steps_that_cannot_be_opened_are_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "open", no_more)
    with pytest.raises(InputError, match=r"can't be opened \(Too many open files\)") as refused:
        Replay(1, 4, 2, 1).load_chunk(tmp_path, 4)
    assert not isinstance(refused.value, checkpoint.Damaged)


def test_a_set_knows_success_where_every_step_says() -> None:
    replay = Replay(1, 6, 3, 1)
    replay.size = 6
    replay.ends[0, [2, 3, 5]] = True
    replay.successes[0] = [-1, -1, 1, 1, -1, -1]  # the second episode, of one step, says all
    assert from_episodes(replay.episodes(0), "mine/some-v0").successes is None
    replay.successes[0] = [0, 0, 1, 1, 0, 0]
    assert from_episodes(replay.episodes(0), "mine/all-v0").success_rate() == 2 / 3


def test_another_simulator_is_noticed(hoppers: SteppersHere, tmp_path: Path) -> None:
    collection = run(HOPPER, hoppers, tmp_path, 30)
    collection.replay.ends[:] = False  # so that the unfinished episode is the whole of it
    collection.save()
    with pytest.raises(InputError, match="gives other observations at step"):
        Collection(HOPPER, hoppers, tmp_path)


def test_steps_of_another_shape_are_refused(tmp_path: Path) -> None:
    replay = Replay(2, 10, 3, 1)
    replay.size = 4
    replay.save_chunk(tmp_path, 0)
    with pytest.raises(InputError, match=r"observations are float32\[2, 4, 3\], expected .*4, 5"):
        Replay(2, 10, 5, 1).load_chunk(tmp_path, 4)


@pytest.mark.parametrize(
    ("name", "size", "unit"),
    [("sweep-v3", 1000, 1500), ("sweep-v3", 0, 1500), ("Hopper-v5", 100, 3)],
)
def test_sizes(name: str, size: int, unit: int) -> None:
    with pytest.raises(InputError, match=f"size is {size}, expected a positive multiple of {unit}"):
        replay_collection.check_size(name, size, 3)
    replay_collection.check_size(name, unit, 3)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        pytest.param(
            odd.NotANumber,
            "the reward is nan at agent 1, episode 1, step 3",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            odd.HugeObservation,
            "the observation is .*inf in column 0 at agent 0, episode 0, step 0",
            marks=pytest.mark.slow,
        ),
        (odd.Raises, "failed at step 2 of the episode of seed .*ZeroDivisionError"),
    ],
)
def test_a_simulator_that_goes_wrong_ends_it_at_once(
    cls: type, message: str, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(HOPPER, env_name=odd.name(cls), seed=10, random_steps=400)
    with pytest.raises(InputError, match=message):
        run(recipe, SteppersHere(recipe.env_name, 2), tmp_path)
