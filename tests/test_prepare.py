"""What a run needs before its policy trains: labels from a file, and rewards."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from train_helpers import TINY, parse

from appo_jax.data import dataset as datasets
from appo_jax.data import minari_io, preferences
from appo_jax.data.dataset import Episode, from_episodes
from appo_jax.data.preferences import Preferences
from appo_jax.types import InputError
from experiments import controls, outputs, prepare
from experiments.rewards import learn_rewards

pytestmark = pytest.mark.usefixtures("compiled")


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
    kinds = ("learned", "shuffled")
    for reward in kinds:
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
        rewards[reward] = np.asarray(learn_rewards(*inputs)[0].rewards)
        accuracies[reward] = metrics.values(0, "reward", "reward/accuracy")
        again = learn_rewards(*inputs)[0].rewards
        np.testing.assert_array_equal(again, rewards[reward])
    rows = dataset.transition_rows()
    learned, shuffled = (rewards[reward][rows] for reward in kinds)
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(learned))
    assert np.mean(shuffled == learned) < 0.01
    assert abs(np.corrcoef(shuffled, learned)[0, 1]) < 0.1
    others = np.delete(np.arange(len(rewards["shuffled"])), rows)
    assert not rewards["shuffled"][others].any()
    assert accuracies["shuffled"] == accuracies["learned"]
    assert accuracies["learned"][0] > 0.7


def test_a_set_of_another_environment(numbered: Any, tmp_path: Path) -> None:
    minari_io.save(numbered(), tmp_path)
    flags = [flag for flag in TINY if "dataset_size" not in flag]
    flags += [f"--data_dir={tmp_path}", "--dataset=tiny/numbered-v0"]
    runs, local = parse(*flags)
    with pytest.raises(InputError, match=r"--dataset=tiny/numbered-v0: 2 numbers in an observ"):
        prepare.obtain_dataset(runs[0], local)
    flags[0] = "--env=Hopper-v5"
    runs, local = parse(*flags)
    with pytest.raises(InputError, match=r"1 in an action, expected Hopper-v5's 11 and 3"):
        prepare.obtain_dataset(runs[0], local)


def test_controls_by_hand(numbered: Any) -> None:
    dataset = numbered(lengths=(2, 1))  # rows 0, 1 and 3 start transitions; true reward row + 1/2
    learned = np.array([0.2, 1.0, 9.0, 0.0, 9.0], np.float32)
    expected = {
        "learned": learned,
        "negated": [0.8, 0.0, 0.0, 1.0, 0.0],  # (1 + 0) - r_hat
        "true": [0.0, 1 / 3, 0.0, 1.0, 0.0],  # 0.5, 1.5 and 3.5, minus 0.5, over 3
        "zero": np.zeros(5),
    }
    for kind, rewards in expected.items():
        found = controls.rewards(kind, 0, dataset, jnp.asarray(learned))
        np.testing.assert_allclose(found, rewards, rtol=1e-6, err_msg=kind)
    found = controls.rewards("shuffled", 0, dataset, jnp.asarray(learned))
    assert sorted(np.asarray(found)[[0, 1, 3]]) == pytest.approx([0.0, 0.2, 1.0])
    assert not np.asarray(found)[[2, 4]].any()
    constant = dataclasses.replace(dataset, rewards=np.ones(5, np.float32))
    assert not controls.rewards("true", 0, constant, jnp.asarray(learned)).any()
    assert set(expected) | {"shuffled"} == set(controls.REWARDS)


@pytest.mark.parametrize("reward", controls.UNLEARNED)
def test_no_model_is_fitted_where_none_is_needed(
    reward: str, data_dir: Path, tmp_path: Path
) -> None:
    arguments = (*TINY, f"--data_dir={data_dir}", f"--workdir={tmp_path}", f"--reward={reward}")
    runs, local = parse(*arguments)
    dataset = prepare.obtain_dataset(runs[0], local)
    data = {dataset.id: dataset}
    labels = prepare.obtain_all_preferences(runs, local, data)
    store, view = datasets.to_device(dataset, runs[0].segment_length)
    metrics = outputs.MetricsFile(tmp_path / "metrics.csv")
    store, _ = learn_rewards(runs, local, data, labels, store, {dataset.id: view}, metrics)
    assert not (tmp_path / "checkpoints").exists()
    assert not metrics.rows
    rows = dataset.transition_rows()
    found = np.asarray(store.rewards)
    if reward == "true":
        assert np.corrcoef(dataset.rewards[rows], found[rows])[0, 1] == pytest.approx(1.0)
    assert found.max() == (reward == "true")


def test_odd_data_and_labels_are_told_and_hopeless_ones_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    observations = draw.normal(size=(2, 31, 39))
    observations[..., 36:] = 0
    episodes = [
        Episode(rows, draw.uniform(-1.2, 1.2, (30, 4)), np.ones(30), np.zeros(30))
        for rows in observations
    ]
    dataset = from_episodes(episodes, "mine/odd-v0")
    minari_io.save(dataset, tmp_path)
    common = [flag for flag in TINY if "dataset_size" not in flag]
    flags = (*common, f"--data_dir={tmp_path}", "--dataset=mine/odd-v0", f"--workdir={tmp_path}")
    runs, local = parse(*flags, "--segment_length=30")
    data = prepare.obtain_datasets(runs, {}, local)
    found = data["mine/odd-v0"]
    np.testing.assert_array_equal(found.actions, dataset.actions.clip(-1, 1))
    assert found.actions.max() == 1
    prepare.obtain_all_preferences(runs, local, data)
    lines = capsys.readouterr().out.splitlines()
    about_data, about_labels = "warning: data set mine/odd-v0: ", "warning: labels of the scripted "
    for line, beginning in zip(
        lines,
        (
            f"{about_data}actions of 30 of ",
            f"{about_data}the goal is the same ",
            f"{about_data}the true reward is 1",
            "data: 60 transitions",
            "labels: 40 pairs, 40 of them ties",
            f"{about_labels}teacher, seed 0: 39 of 40",
            f"{about_labels}teacher, seed 0: all 40 labels are ties",
        ),
        strict=True,
    ):
        assert line.startswith(beginning)
    with pytest.raises(InputError, match=r"mine/odd-v0: 0 of 2 episodes have at least the segment"):
        prepare.obtain_datasets(parse(*flags, "--segment_length=31")[0], {}, local)


@pytest.mark.parametrize(
    "change",
    [
        *({"runs": runs} for runs in (None, {}, [1])),
        *({"identities": identities} for identities in (None, {}, [], [1], [None], [{}])),
        *({"dataset_contents": contents} for contents in (None, [], 1)),
        None,
    ],
)
def test_a_config_that_is_not_the_runs_own(data_dir: Path, tmp_path: Path, change: Any) -> None:
    runs, local = parse(*TINY, f"--data_dir={data_dir}", f"--workdir={tmp_path}")
    config = prepare.check_config(runs, local)
    outputs.write_json(tmp_path / "config.json", [] if change is None else config | change)
    with pytest.raises(InputError, match=rf"^--workdir={tmp_path}: .*expected"):
        prepare.check_config(runs, local)
