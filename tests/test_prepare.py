"""What a run needs before its policy trains: labels from a file, and rewards."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_helpers import TINY, compile_cache, parse, write_buffers

from appo_jax.data import dataset as datasets
from appo_jax.data import preferences
from appo_jax.data.preferences import Preferences
from appo_jax.types import InputError
from experiments import outputs, prepare, train


@pytest.fixture(autouse=True, scope="module")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with compile_cache(tmp_path_factory.getbasetemp() / "compiled"):
        yield


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_buffers(folder)
    return folder


def test_labels_from_a_file(data_dir: Path, tmp_path: Path) -> None:
    common = (*[flag for flag in TINY if "num_feedback" not in flag], f"--data_dir={data_dir}")
    (experiment,), local = parse(*common, "--num_feedback=12")
    dataset = prepare.obtain_dataset(experiment, local)
    labels = preferences.scripted(dataset, 3, 12, 5, 1.0)
    file = tmp_path / "labels.jsonl"
    preferences.save(labels, file)
    workdir = f"--workdir={tmp_path / 'run'}"
    (tmp_path / "run").mkdir()

    def used(*arguments: str) -> tuple[Preferences, str]:
        (experiment,), local = parse(*common, workdir, f"--preferences={file}", *arguments)
        found = prepare.obtain_all_preferences([experiment], local, {dataset.id: dataset})
        (found,) = found.values()
        assert experiment.num_feedback == len(found)
        return found, experiment.digest()

    found, digest = used()
    np.testing.assert_array_equal(found.rows(dataset), labels.rows(dataset))
    np.testing.assert_array_equal(found.labels, labels.labels)
    assert (tmp_path / "run" / "preferences.jsonl").read_text() == file.read_text()
    assert len(used("--num_feedback=5")[0]) == 5
    own = tmp_path / "run" / "preferences.jsonl"
    own.write_text(file.read_text() + "\n")
    file = own
    assert len(used("--num_feedback=5")[0]) == 5
    assert own.read_text().endswith("\n\n")  # as its writer left it
    file = tmp_path / "labels.jsonl"
    with pytest.raises(InputError, match=r"^--num_feedback=13: .*labels.jsonl holds 12 labels"):
        used("--num_feedback=13")

    assert used()[1] == digest
    file.write_text(file.read_text().replace('"label": 1.0', '"label": 0.0', 1))
    assert used()[1] != digest
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    with pytest.raises(InputError, match=r"^--preferences=.*labels.jsonl: no labels"):
        used()


def test_shuffled_rewards_are_the_learned_ones_elsewhere(data_dir: Path, tmp_path: Path) -> None:
    rewards, accuracies = {}, {}
    for reward in train.REWARDS:
        workdir = tmp_path / reward
        workdir.mkdir()
        arguments = (*TINY, f"--data_dir={data_dir}", f"--workdir={workdir}", f"--reward={reward}")
        arguments += ("--num_feedback=200", "--reward_num_epochs=20", "--reward_learning_rate=0.01")
        runs, local = parse(*arguments)
        dataset = prepare.obtain_dataset(runs[0], local)
        data = {dataset.id: dataset}
        labels = prepare.obtain_all_preferences(runs, local, data)
        store, view = datasets.to_device(dataset, runs[0].segment_length)
        metrics = outputs.MetricsFile(workdir / "metrics.csv")
        inputs = (runs, local, data, labels, store, {dataset.id: view}, metrics)
        rewards[reward] = np.asarray(prepare.learn_rewards(*inputs)[0].rewards)
        accuracies[reward] = metrics.values(0, "reward", "reward/accuracy")
        again = prepare.learn_rewards(*inputs)[0].rewards
        np.testing.assert_array_equal(again, rewards[reward])
    rows = dataset.transition_rows()
    learned, shuffled = (rewards[reward][rows] for reward in train.REWARDS)
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(learned))
    assert np.mean(shuffled == learned) < 0.01
    assert abs(np.corrcoef(shuffled, learned)[0, 1]) < 0.1
    others = np.delete(np.arange(len(rewards["shuffled"])), rows)
    assert not rewards["shuffled"][others].any()
    assert accuracies["shuffled"] == accuracies["learned"]
    assert accuracies["learned"][0] > 0.7


def test_a_set_of_another_environment(numbered: Any, data_dir: Path, tmp_path: Path) -> None:
    local = parse(*TINY, f"--data_dir={data_dir}", f"--workdir={tmp_path}")[1]
    with pytest.raises(InputError, match=r"--dataset=tiny/numbered-v0: 2 numbers in an observ"):
        prepare.check_dataset(numbered(), {}, local)
    assert not any(tmp_path.iterdir())
