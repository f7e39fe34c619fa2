"""Minari data sets: an exact round trip, other people's sets, and writes that are killed."""

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from minari.data_collector.episode_buffer import EpisodeBuffer

from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.types import InputError

ID = "metaworld/sweep-v3/medium-expert-n20-seed0-v0"


def make(id: str = ID, successes: bool = True, lengths: tuple[int, ...] = (7, 1, 12)) -> Dataset:
    draw = np.random.default_rng(0)
    episodes = [
        Episode(
            observations=draw.normal(size=(steps + 1, 5)).astype(np.float32),
            actions=draw.uniform(-1, 1, (steps, 2)).astype(np.float32),
            rewards=draw.uniform(0, 10, steps).astype(np.float32),
            terminations=np.arange(steps) == (steps - 1 if index == 0 else -1),
            successes=draw.random(steps) < 0.5 if successes else None,
        )
        for index, steps in enumerate(lengths)
    ]
    metadata = {
        "environment_id": "sweep-v3",
        "environment_version": "v3",
        "recipe": "medium-expert",
        "reward_function_version": "v2",
        "seed": 0,
        "packages": {"metaworld": "3.1.1", "mujoco": "3.3.0"},
        "sources": {"expert": {"episodes": 3, "success_rate": 1 / 3}, "random": None},
    }
    return from_episodes(episodes, id, metadata)


def assert_same(found: Dataset, expected: Dataset) -> None:
    for field in dataclasses.fields(Dataset):
        left, right = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(right, np.ndarray):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right
    assert found.digest() == expected.digest()


@pytest.mark.parametrize("successes", [True, False])
def test_round_trip_is_exact_and_silent(tmp_path: Path, successes: bool) -> None:
    dataset = make(successes=successes)
    before = dict(os.environ)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = minari_io.save(dataset, tmp_path)
        assert_same(minari_io.load(ID, tmp_path), dataset)
    assert path == tmp_path / ID == minari_io.folder(ID, tmp_path)
    assert minari_io.exists(ID, tmp_path)
    assert minari_io.local_ids(tmp_path) == [ID]
    assert dict(os.environ) == before
    assert os.listdir(path.parent) == [path.name]


def test_minari_reads_what_we_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = make()
    minari_io.save(dataset)  # without a folder: where Minari looks
    assert list(minari.list_local_datasets()) == [ID]
    found = minari.load_dataset(ID)
    assert (found.total_episodes, found.total_steps) == (3, 20)
    assert found.action_space == Box(-1, 1, (2,), np.float32)
    episodes = list(found)
    for episode, steps in zip(episodes, (7, 1, 12), strict=True):
        assert episode.observations.shape == (steps + 1, 5)
        assert episode.infos["success"].shape == (steps + 1,)
    np.testing.assert_array_equal(episodes[0].terminations, np.arange(7) == 6)
    assert not episodes[0].truncations.any()
    np.testing.assert_array_equal(episodes[2].truncations, np.arange(12) == 11)
    metadata = found.storage.metadata
    assert metadata["requirements"] == ["metaworld==3.1.1", "mujoco==3.3.0"]
    assert metadata["author"]
    assert metadata["code_permalink"]


class Walk(gymnasium.Env):
    """A user's own environment: other widths, no success, ends when it likes."""

    observation_space = Box(-np.inf, np.inf, (2, 3), np.float64)
    action_space = Box(-2, 2, (1,), np.float64)

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.left = 0
        return np.zeros((2, 3)), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left += 1
        return np.full((2, 3), self.left) + action, 0.5 * self.left, self.left == 3, False, {}


@pytest.mark.filterwarnings("ignore")
def test_a_users_own_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    collector = minari.DataCollector(Walk())
    for steps in (2, 3, 1):
        collector.reset()
        for _ in range(steps):
            collector.step(np.array([1.5]))
    collector.create_dataset("mine-v3", algorithm_name="by hand")
    dataset = minari_io.load("mine-v3", tmp_path)
    np.testing.assert_array_equal(dataset.lengths, [2, 3, 1])
    assert (dataset.observation_dim, dataset.action_dim) == (6, 1)
    assert dataset.successes is None
    # Rows 0 to 2 are the first episode with its last observation, 3 to 6 the second.
    np.testing.assert_array_equal(
        dataset.observations[:, 0], [0, 2.5, 3.5, 0, 2.5, 3.5, 4.5, 0, 2.5]
    )
    np.testing.assert_array_equal(dataset.rewards, [0.5, 1, 0, 0.5, 1, 1.5, 0, 0.5, 0])
    np.testing.assert_array_equal(np.flatnonzero(dataset.terminations), [5])
    assert dataset.metadata["minari"]["algorithm_name"] == "by hand"
    again = dataclasses.replace(dataset, id="copy-v0")
    minari_io.save(again, tmp_path)
    assert_same(minari_io.load("copy-v0", tmp_path), again)


def write_foreign(
    observation_space: gymnasium.Space = Box(-1, 1, (2,)),  # noqa: B008
    action_space: gymnasium.Space = Box(-1, 1, (2,)),  # noqa: B008
    **fields: Any,
) -> None:
    arrays: dict[str, Any] = {
        "observations": np.zeros((5, 2), np.float32),
        "actions": np.zeros((4, 2), np.float32),
        "rewards": np.zeros(4),
        "terminations": np.zeros(4, bool),
        "truncations": np.zeros(4, bool),
    }
    minari.create_dataset_from_buffers(
        "theirs-v0",
        [EpisodeBuffer(**(arrays | fields))],
        observation_space=observation_space,
        action_space=action_space,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"action_space": Discrete(3), "actions": np.zeros(4, int)},
            r"action space is Discrete\(3\)",
        ),
        (
            {"observation_space": Dict(a=Box(-1, 1)), "observations": {"a": np.zeros((5, 1))}},
            "observation space is Dict",
        ),
        (
            {"observations": np.zeros((4, 2))},
            r"episode 0: observations have shape \(4, 2\), expected \(5",
        ),
        ({"actions": np.zeros((5, 2))}, "episode 0: observations"),
        ({"terminations": np.zeros(3, bool)}, r"terminations have shape \(3,\), expected \(4,\)"),
        ({"rewards": np.float32([1, 1, np.nan, 1])}, "rewards hold nan in row 2, expected finite"),
        ({"rewards": np.zeros((4, 2))}, r"episode 0: rewards have shape \(4, 2\), expected \(4,\)"),
        ({"observations": np.full((5, 2), 1e300)}, r"observations hold 1e\+300 in row 0, column 0"),
        ({"terminations": np.full(4, 2)}, "episode 0: terminations hold 2 in row 0, expected 0"),
        ({"infos": {"success": np.zeros(2)}}, r"successes have shape \(2,\)"),
        (
            {"terminations": np.arange(4) == 1},
            "episode 0: terminations hold 1 in row 1 of 4, expected an episode to end in its last",
        ),
        ({"truncations": np.arange(4) < 2}, "episode 0: truncations hold 1 in row 0 of 4, expecte"),
    ],
)
def test_sets_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_foreign(**fields)
    with pytest.raises(InputError, match=message) as error:
        minari_io.load("theirs-v0")
    assert "data set theirs-v0" in str(error.value)


def test_unknown_id_names_the_folder_and_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data sets") as error:
        minari_io.load("nothing-v0", tmp_path / "none")
    assert str(tmp_path / "none") in str(error.value)
    minari_io.save(make(), tmp_path)
    with pytest.raises(InputError, match=ID):
        minari_io.load("nothing-v0", tmp_path)
    assert not minari_io.exists("nothing-v0", tmp_path)
    assert not minari_io.exists("x" * 300, tmp_path)  # longer than a file's name may be


def test_a_set_has_one_id(tmp_path: Path) -> None:
    path = minari_io.save(make(), tmp_path)
    for id in (f"./{ID}", f"{ID}/", f"metaworld/../{ID}", ID.replace("/", "//"), str(path), ""):
        assert not minari_io.exists(id, tmp_path)
        with pytest.raises(InputError, match=f"is not in {tmp_path}, which holds {ID}"):
            minari_io.load(id, tmp_path)


def test_a_message_lists_a_few_ids(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"set{number:02}-v0" / "data").mkdir(parents=True)
        (tmp_path / f"set{number:02}-v0" / "data" / "metadata.json").touch()
    assert minari_io.what_is_there(tmp_path).endswith("set08-v0, set09-v0 and 2 more")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["success", "is_success"])
def test_success_by_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_foreign(infos={name: np.array([1, 0, 0, 1, 0])})  # the first belongs to the reset
    dataset = minari_io.load("theirs-v0")
    assert dataset.successes is not None
    np.testing.assert_array_equal(dataset.successes, [0, 0, 1, 0, 0])


def test_an_existing_set_is_not_overwritten(tmp_path: Path) -> None:
    minari_io.save(make(), tmp_path)
    with pytest.raises(InputError, match="exists, expected a new id"):
        minari_io.save(make(lengths=(3,)), tmp_path)
    assert_same(minari_io.load(ID, tmp_path), make())


@pytest.mark.parametrize("id", ["no version", "../up-v0", "name", ""])
def test_ids_that_minari_would_not_take(tmp_path: Path, id: str) -> None:
    with pytest.raises(InputError, match="expected e.g. namespace/name-v0"):
        minari_io.save(make(id), tmp_path)


@pytest.mark.parametrize("value", [np.zeros(2), float("nan"), {1: 2}, (1, 2)])
def test_metadata_that_would_not_come_back(tmp_path: Path, value: Any) -> None:
    dataset = dataclasses.replace(make(), metadata={"a": value})
    with pytest.raises(InputError, match="JSON"):
        minari_io.save(dataset, tmp_path)
    assert not any(tmp_path.iterdir())


def test_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        minari_io.save(make(), tmp_path / "file")


def test_changed_contents_are_noticed(tmp_path: Path) -> None:
    path = minari_io.save(make(), tmp_path) / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        file["episode_1/rewards"][0] += 1
    with pytest.raises(InputError, match="digest"):
        minari_io.load(ID, tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match="can't be read"):
        minari_io.load(ID, tmp_path)


def test_an_array_larger_than_its_file(tmp_path: Path) -> None:
    path = minari_io.save(make(), tmp_path) / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        file["episode_1/terminations"].resize((10**13,))  # reading it would fill any memory
    with pytest.raises(
        InputError, match=r"array episode_1/terminations has shape \(10{13},\), but the file holds"
    ):
        minari_io.load(ID, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_episodes": 10**13}, "says 10{13} episodes of 20 steps in all, expected a step"),
        ({"total_episodes": -1}, "says -1 episodes of 20 steps"),
        ({"total_episodes": "3"}, "says '3' episodes of 20 steps"),
        ({"total_steps": None}, "says 3 episodes of None steps"),
        ({"total_episodes": 2}, r"has 8 steps in 2 episodes, expected the 20 of its metadata"),
        ({"total_episodes": 0}, "no episodes, expected at least one"),
        ({"total_episodes": 4}, "can't be read .*episode_3"),
        ({"appo_jax": 7}, "can't be read .*expected a whole Minari data set"),
        ({"appo_jax": {"metadata": 7, "digest": ""}}, "can't be read .*expected a whole Minari"),
        ({"action_space": "[]"}, "can't be read .*expected a whole Minari data set"),
        ({"author": 7}, "can't be read .*expected a whole Minari data set"),
        (None, "can't be read .*expected a whole Minari data set"),
    ],
)
def test_metadata_that_are_damaged(tmp_path: Path, change: Any, message: str) -> None:
    path = minari_io.save(make(), tmp_path) / "data" / "metadata.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(None if change is None else stored | change))
    with pytest.raises(InputError, match=f"data set {ID}.*{message}"):
        minari_io.load(ID, tmp_path)


def _save_slowly(data_dir: Path, mark: Path) -> None:
    original: Callable[..., Any] = minari_io._to_minari

    def slow(dataset: Dataset) -> Any:
        for index, episode in enumerate(original(dataset)):
            yield episode
            if index == 1:
                mark.touch()
                time.sleep(60)

    minari_io._to_minari = slow
    minari_io.save(make(), data_dir)


def test_a_killed_write_leaves_nothing_that_counts(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    data_dir = tmp_path / "data"
    process = multiprocessing.get_context("spawn").Process(
        target=_save_slowly, args=(data_dir, mark)
    )
    process.start()
    while not mark.exists():
        assert process.is_alive()
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert any((data_dir / ID).parent.iterdir())  # the half set is there, hidden
    assert not minari_io.exists(ID, data_dir)
    assert minari_io.local_ids(data_dir) == []
    with pytest.raises(InputError, match="no data sets"):
        minari_io.load(ID, data_dir)
    minari_io.save(make(), data_dir)
    assert_same(minari_io.load(ID, data_dir), make())
    assert os.listdir((data_dir / ID).parent) == [Path(ID).name]


def test_a_failing_write_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Dataset) -> Any:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(minari_io, "_to_minari", fail)
    with pytest.raises(RuntimeError, match="fire"):
        minari_io.save(make(), tmp_path)
    assert not any((tmp_path / ID).parent.iterdir())


def test_metadata_are_plain_in_minaris_own_file(tmp_path: Path) -> None:
    path = minari_io.save(make(), tmp_path)
    stored = json.loads((path / "data" / "metadata.json").read_text())
    assert stored["appo_jax"]["metadata"] == make().metadata
    assert stored["algorithm_name"] == "medium-expert"


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert minari_io.save(make(), "data") == tmp_path / "data" / ID
    assert_same(minari_io.load(ID, "data"), make())


_FULL_DISK = """
import resource, sys
sys.path[:0] = [sys.argv[1]]
from appo_jax.data import minari_io
from test_minari_io import ID, make
for room in (0, 100, 5000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        minari_io.save(make(), sys.argv[2])
    except OSError as error:
        print(error)
"""


def test_a_full_disk_ends_in_a_sentence(tmp_path: Path) -> None:
    """The kernel refuses to let a file grow; HDF5 on a file of its own crashes the process."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(Path(__file__).parent), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("can't be written to") == 3
    assert len(done.stdout.splitlines()) == 3
    assert os.listdir((tmp_path / ID).parent) == []


def test_room_is_asked_for_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"takes about 1\d{15} MB, .* has room for \d+ MB, exp"):
        minari_io.check_writable(ID, tmp_path, 10**21)
    minari_io.check_writable(ID, tmp_path, 10)


def test_without_rewards_and_with_last_actions(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    episodes = [
        Episode(
            observations=draw.normal(size=(4, 2)),
            actions=draw.uniform(-1, 1, (3, 2)),
            rewards=None,
            terminations=np.zeros(3),
            last_action=draw.uniform(-1, 1, 2) if index else None,
        )
        for index in range(3)
    ]
    dataset = from_episodes(episodes, "mine/segments-v0", {"recipe": "by hand"})
    minari_io.save(dataset, tmp_path)
    assert_same(minari_io.load(dataset.id, tmp_path), dataset)
    (first, *_) = minari.MinariDataset(tmp_path / dataset.id / "data")
    assert np.isnan(first.rewards).all()  # whoever else reads them sees that nobody knows them
