"""The rewards that policies train on: of a reward model, or what stands for them."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.data import dataset as datasets_on_device
from appo_jax.data import preferences
from appo_jax.keys import Purpose
from appo_jax.types import InputError
from experiments.runs import datasets, labels, reward_controls, rewards
from experiments.runs.events import silent
from experiments.runs.folder import RunFolder
from tests.helpers.runs import TINY, parse, print_told


def prepared(workdir: Path, *arguments: str) -> tuple[Any, RunFolder, Any]:
    """The feedback of one run, its folder, and how it is carried out."""
    workdir.mkdir(exist_ok=True)
    runs, execution = parse(*TINY, f"--workdir={workdir}", *arguments)
    folder = RunFolder(runs, execution)
    data = datasets.obtain_all(runs, folder, execution, silent)
    found = labels.obtain_all(runs, execution, data, silent)
    (dataset,) = data.values()
    store, view = datasets_on_device.to_device(dataset, runs[0].segment_length)
    pairs = {key: own.to_device(dataset) for key, own in found.items()}
    feedback = rewards.Feedback(runs, data, found, pairs, store, {dataset.id: view})
    return feedback, folder, execution


def test_shuffled_rewards_are_the_learned_ones_elsewhere(data_dir: Path, tmp_path: Path) -> None:
    found, accuracies = {}, {}
    kinds = ("learned", "shuffled")
    for reward in kinds:
        arguments = (f"--data_dir={data_dir}", f"--reward={reward}", "--num_feedback=200")
        arguments += ("--reward_num_epochs=20", "--reward_learning_rate=0.01")
        feedback, folder, execution = prepared(tmp_path / reward, *arguments)
        (own,) = rewards.rewards_of(feedback, folder, execution, silent, []).values()
        found[reward] = np.asarray(own)
        accuracies[reward] = folder.metrics.values(0, "reward", "reward/accuracy")
        rows = list(folder.metrics.rows)
        (again,) = rewards.rewards_of(feedback, folder, execution, silent, []).values()
        np.testing.assert_array_equal(again, found[reward])
        assert folder.metrics.rows == rows
    (dataset,) = feedback.data.values()
    rows = dataset.transition_rows()
    learned, shuffled = (found[reward][rows] for reward in kinds)
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(learned))
    assert np.mean(shuffled == learned) < 0.01
    assert abs(np.corrcoef(shuffled, learned)[0, 1]) < 0.1
    others = np.delete(np.arange(len(found["shuffled"])), rows)
    assert not found["shuffled"][others].any()
    assert accuracies["shuffled"] == accuracies["learned"]
    assert accuracies["learned"][20] > 0.7


def test_an_ending_moves_the_learned_rewards(data_dir: Path, tmp_path: Path) -> None:
    found = {}
    for ending in ("unknown", "goal"):
        arguments = (f"--data_dir={data_dir}", f"--ending={ending}")
        feedback, folder, execution = prepared(tmp_path / ending, *arguments)
        (own,) = rewards.rewards_of(feedback, folder, execution, silent, []).values()
        found[ending] = np.asarray(own)
    (dataset,) = feedback.data.values()
    rows = dataset.transition_rows()
    assert (found["unknown"][rows].min(), found["unknown"][rows].max()) == (0, 1)
    expected = found["unknown"][rows] - 1.15  # the best, and 0.15 of the range
    np.testing.assert_allclose(found["goal"][rows], expected, atol=1e-6)


def test_a_model_is_judged_by_pairs_that_it_was_not_fitted_to(
    data_dir: Path, tmp_path: Path
) -> None:
    feedback, folder, execution = prepared(tmp_path, f"--data_dir={data_dir}", "--seed=1")
    rewards.rewards_of(feedback, folder, execution, silent, [])
    (dataset,), (trained,) = feedback.data.values(), feedback.labels.values()
    own, fresh = (
        preferences.scripted(dataset, 1, rewards.NUM_FRESH_PAIRS, 5, 1.0, purpose=purpose)
        for purpose in (Purpose.LABELS, Purpose.FRESH_LABELS)
    )
    np.testing.assert_array_equal(own.starts[: len(trained)], trained.starts)
    (ties,) = folder.metrics.values(0, "reward", "reward/fresh_ties").values()
    assert ties == fresh.num_ties != own.num_ties


def test_labels_upside_down_and_ties_alone_are_told(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"--data_dir={data_dir}"
    (run,), execution = parse(*TINY, place)
    dataset = datasets.obtain(run, execution, silent)
    given = preferences.scripted(dataset, 3, 200, 5, 1.0)
    folders = {}
    for name, changed in (("turned", 1 - given.labels), ("ties", np.full(200, 0.5))):
        file = tmp_path / f"{name}.jsonl"
        preferences.save(dataclasses.replace(given, labels=np.float32(changed)), file)
        arguments = ("--num_feedback=200", "--reward_num_epochs=20", "--reward_learning_rate=0.01")
        feedback, folders[name], execution = prepared(
            tmp_path / name, place, f"--preferences={file}", *arguments
        )
        rewards.rewards_of(feedback, folders[name], execution, print_told, [])
    told = [x for x in capsys.readouterr().out.splitlines() if "where a guess is on 50 %" in x]
    share = folders["turned"].metrics.values(0, "reward", "reward/accuracy")[20]
    assert share < 0.3
    assert told[0].startswith(
        f"warning: reward model of {dataset.id}, seed 0, 200 labels: by the true rewards it is "
        f"right on {100 * share:.1f} % of "
    )
    for name, strict in (("turned", 200 - given.num_ties), ("ties", 0)):
        judged, correct = (
            folders[name].metrics.values(0, "reward", f"reward/train_{what}")
            for what in ("judged", "correct")
        )
        assert set(judged.values()) == {strict}
        assert all(0 <= correct[update] <= strict for update in judged)


def test_controls_by_hand(numbered: Any) -> None:
    dataset = numbered(lengths=(2, 1))  # rows 0, 1 and 3 start transitions; true reward row + 1/2
    learned = np.array([0.2, 1.0, 9.0, 0.0, 9.0], np.float32)
    expected = {
        "learned": learned,
        "true": learned,  # of an algorithm whose own they are
        "negated": [0.8, 0.0, 0.0, 1.0, 0.0],  # (1 + 0) - r_hat
        "zero": np.zeros(5),
        "none": np.zeros(5),
    }
    for kind, values in expected.items():
        found = reward_controls.controlled(kind, 0, dataset, jnp.asarray(learned))
        np.testing.assert_allclose(found, values, rtol=1e-6, err_msg=kind)
    found = reward_controls.controlled("shuffled", 0, dataset, jnp.asarray(learned))
    assert sorted(np.asarray(found)[[0, 1, 3]]) == pytest.approx([0.0, 0.2, 1.0])
    assert not np.asarray(found)[[2, 4]].any()
    # 0.5, 1.5 and 3.5, minus 0.5, over 3.
    dataset = dataclasses.replace(dataset, terminations=np.zeros(5, bool))
    np.testing.assert_allclose(
        reward_controls.true_rewards(dataset), [0.0, 1 / 3, 0.0, 1.0, 0.0], rtol=1e-6
    )
    # Means over two steps: 0.5, 1 and 3.5, the last one alone in its episode.
    np.testing.assert_allclose(
        reward_controls.true_rewards(dataset, 2), [0.0, 1 / 6, 0.0, 1.0, 0.0], rtol=1e-6
    )
    constant = dataclasses.replace(dataset, rewards=np.ones(5, np.float32))
    assert not reward_controls.true_rewards(constant).any()
    # Where an end is worth 0, true rewards keep their zero: divided by 3.5, and -2 by 2.
    ending = dataclasses.replace(dataset, terminations=np.array([0, 1, 0, 0, 0], bool))
    np.testing.assert_allclose(
        reward_controls.true_rewards(ending), [1 / 7, 3 / 7, 0.0, 1.0, 0.0], rtol=1e-6
    )
    costs = dataclasses.replace(ending, rewards=np.full(5, -2, np.float32))
    assert reward_controls.true_rewards(costs).tolist() == [-1, -1, 0, -1, 0]
    kinds = {kind for allowed in reward_controls.KINDS.values() for kind in allowed}
    assert set(expected) | {"shuffled"} == kinds


def test_where_an_ending_puts_the_zero(numbered: Any) -> None:
    dataset = numbered(lengths=(2, 1))  # rows 0, 1 and 3 start transitions
    learned = jnp.array([0.25, 1.0, 0.0, -0.5, 0.0])
    for ending, expected in (
        ("unknown", learned),
        ("fall", [0.75, 1.5, 0.0, 0.0, 0.0]),
        ("goal", [-0.975, -0.225, 0.0, -1.725, 0.0]),  # 0.15 of the range 1.5 below 0 at best
    ):
        found = reward_controls.with_ending(ending, dataset, learned)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_ending_is_of_rewards_that_are_learned_for_each_step() -> None:
    for algorithm, kind in (("appo", "true"), ("oracle", "true"), ("dppo", "learned")):
        reward_controls.check_ending(algorithm, kind, "unknown")
        with pytest.raises(InputError, match="^ending=goal: .* algorithm .*; expected unknown$"):
            reward_controls.check_ending(algorithm, kind, "goal")
    for algorithm in ("appo", "mr", "pt"):
        reward_controls.check_ending(algorithm, "shuffled", "goal")


def test_which_rewards_go_with_which_algorithm() -> None:
    assert [reward_controls.own_kind(name) for name in ("appo", "mr", "oracle")] == [
        *("learned", "learned", "true")
    ]
    reward_controls.check_kind("appo", "true")
    with pytest.raises(InputError, match="reward=learned: expected true, shuffled, negated or z"):
        reward_controls.check_kind("oracle", "learned")
    assert not reward_controls.needs_model("oracle", "shuffled")
    assert reward_controls.needs_model("mr", "shuffled")


@pytest.mark.parametrize("reward", ["true", "zero"])
def test_no_model_is_fitted_where_none_is_needed(
    reward: str, data_dir: Path, tmp_path: Path
) -> None:
    feedback, folder, execution = prepared(tmp_path, f"--data_dir={data_dir}", f"--reward={reward}")
    (own,) = rewards.rewards_of(feedback, folder, execution, silent, []).values()
    assert not (tmp_path / "checkpoints").exists()
    assert not folder.metrics.rows
    (dataset,) = feedback.data.values()
    rows, found = dataset.transition_rows(), np.asarray(own)
    if reward == "true":
        assert np.corrcoef(dataset.rewards[rows], found[rows])[0, 1] == pytest.approx(1.0)
    assert found.max() == (reward == "true")


def test_a_reward_model_of_other_labels_is_refused(data_dir: Path, tmp_path: Path) -> None:
    places = (f"--data_dir={data_dir}",)
    first = prepared(tmp_path / "first", *places)
    rewards.rewards_of(*first, silent, [])
    other, folder, execution = prepared(tmp_path / "other", *places, "--label_noise=0.5")
    (tmp_path / "first" / "checkpoints").rename(tmp_path / "other" / "checkpoints")
    with pytest.raises(InputError, match=r"reward-40/2: labels .* expected one of the same run"):
        rewards.rewards_of(other, folder, execution, silent, [])
