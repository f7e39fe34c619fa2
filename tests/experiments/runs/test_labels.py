"""The data and labels of runs, and what is told of what is odd in them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appo_jax.data import minari_io, preferences
from appo_jax.data.dataset import Episode, from_episodes
from appo_jax.data.preferences import Preferences
from appo_jax.types import InputError
from experiments.runs import datasets, labels
from experiments.runs.events import silent
from experiments.runs.folder import RunFolder
from tests.helpers.runs import TASK, TINY, parse, print_told, tiny


def test_labels_from_a_file(data_dir: Path, tmp_path: Path) -> None:
    common = (*[flag for flag in TINY if "num_feedback" not in flag], f"--data_dir={data_dir}")
    (experiment,), execution = parse(*common, "--num_feedback=12")
    dataset = datasets.obtain(experiment, execution, silent)
    given = preferences.scripted(dataset, 3, 12, 5, 1.0)
    file = tmp_path / "labels.jsonl"
    preferences.save(given, file)
    workdir = f"--workdir={tmp_path / 'run'}"
    (tmp_path / "run").mkdir()

    def used(*arguments: str) -> tuple[Preferences, str]:
        (experiment,), execution = parse(*common, workdir, f"--preferences={file}", *arguments)
        found = labels.obtain_all([experiment], execution, {dataset.id: dataset}, silent)
        (found,) = found.values()
        assert experiment.num_feedback == len(found)
        return found, experiment.digest()

    found, digest = used()
    np.testing.assert_array_equal(found.rows(dataset), given.rows(dataset))
    np.testing.assert_array_equal(found.labels, given.labels)
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
    pair = json.loads(file.read_text().splitlines()[1])
    itself = json.dumps(pair | {"episode_1": pair["episode_0"], "start_1": pair["start_0"]})
    paired = tmp_path / "paired.jsonl"
    paired.write_text(file.read_text() + itself + "\n")
    whole, file = file, paired
    with pytest.raises(InputError, match="paired.jsonl line 14: a segment is paired with itself"):
        used()
    found, _ = used("--on_bad_label=drop")
    np.testing.assert_array_equal(found.labels, given.labels)
    assert found.num_left_out == 1
    with pytest.raises(InputError, match=r"^--num_feedback=13: .*paired.jsonl holds 12 labels"):
        used("--on_bad_label=drop", "--num_feedback=13")
    file = whole
    file.write_text(file.read_text().replace('"label": 1.0', '"label": 0.0', 1))
    assert used()[1] != digest
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    with pytest.raises(InputError, match=r"^--preferences=.*labels.jsonl: no labels"):
        used()


def test_a_set_of_another_environment(numbered: Any, tmp_path: Path) -> None:
    minari_io.save(numbered(), tmp_path)
    flags = [flag for flag in TINY if "dataset_size" not in flag]
    flags += [f"--data_dir={tmp_path}", "--dataset=tiny/numbered-v0"]
    runs, execution = parse(*flags)
    with pytest.raises(InputError, match=r"--dataset=tiny/numbered-v0: 2 numbers in an observ"):
        datasets.obtain(runs[0], execution, silent)
    of_sweep = {"environment_id": "sweep-v3"}
    minari_io.save(dataclasses.replace(numbered(id="tiny/sweep-v0"), metadata=of_sweep), tmp_path)
    runs, execution = parse(*flags[:-1], "--dataset=tiny/sweep-v0")
    with pytest.raises(
        InputError, match=rf"--dataset=tiny/sweep-v0: data of sweep-v3, expected data of {TASK}-v3"
    ):
        datasets.obtain(runs[0], execution, silent)
    flags[0] = "--env=Hopper-v5"
    runs, execution = parse(*flags)
    with pytest.raises(InputError, match=r"1 in an action, expected Hopper-v5's 11 and 3"):
        datasets.obtain(runs[0], execution, silent)


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
    runs, execution = parse(*flags, "--segment_length=30")
    data = datasets.obtain_all(runs, RunFolder(runs, execution), execution, print_told)
    found = data["mine/odd-v0"]
    np.testing.assert_array_equal(found.actions, dataset.actions.clip(-1, 1))
    assert found.actions.max() == 1
    labels.obtain_all(runs, execution, data, print_told)
    lines = capsys.readouterr().out.splitlines()
    about_data, about_labels = "warning: data set mine/odd-v0: ", "warning: labels of the scripted "
    for line, beginning in zip(
        lines,
        (
            f"{about_data}actions of 30 of ",
            f"{about_data}the goal is the same ",
            f"{about_data}the true reward is 1",
            "data: 60 transitions",
            "labels: 40 pairs, 40 of them ties (100 %)",
            f"{about_labels}teacher, seed 0: 39 of 40",
            f"{about_labels}teacher, seed 0: all 40 labels are ties",
        ),
        strict=True,
    ):
        assert line.startswith(beginning)
    with pytest.raises(InputError, match=r"mine/odd-v0: 0 of 2 episodes have at least the segment"):
        datasets.obtain(parse(*flags, "--segment_length=31")[0][0], execution, silent)


def test_what_is_odd_follows_from_the_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    observations = draw.normal(size=(2, 31, 39))
    observations[..., 36:] = 1
    rewards, ends = np.arange(30), np.arange(30) == 29
    episodes = [Episode(rows, draw.uniform(-1, 1, (30, 4)), rewards, ends) for rows in observations]
    episodes.append(Episode(observations[0, :4], episodes[0].actions[:3], np.ones(3), np.zeros(3)))
    minari_io.save(from_episodes(episodes, "mine/odd-v0"), tmp_path)
    common = [flag for flag in TINY if "dataset_size" not in flag and "task" not in flag]
    common += [f"--data_dir={tmp_path}", "--dataset=mine/odd-v0"]
    goal = "the goal is the same (1, 1, 1) in all 3 episodes"
    for task, about_goal in (("sweep", [goal]), ("sweep-into", [])):
        (run,), execution = parse(f"--task={task}", *common)
        datasets.obtain(run, execution, print_told)
        found = capsys.readouterr().out.splitlines()
        expected = [
            "1 of 3 episodes, with 3 of 63 transitions, are shorter than a segment of 5 steps",
            *about_goal,
            "a true reward is 29, where a step gives 10 at most",
            "2 of 3 episodes end in a terminal state, where the environment has none",
        ]
        for line, beginning in zip(found, expected, strict=True):
            assert line.startswith(f"warning: data set mine/odd-v0: {beginning}")


def test_data_without_rewards_and_labels_of_any_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    episodes = [
        Episode(draw.normal(size=(31, 39)), draw.uniform(-1, 1, (30, 4)), None, np.zeros(30))
        for _ in range(3)
    ]
    dataset = from_episodes(episodes, "mine/own-v0")
    minari_io.save(dataset, tmp_path)
    own = preferences.from_arrays(
        dataset, [[0, 1], [1, 2]], [[0, 4], [2, 2]], [1, 0], [[5, 20], [7, 5]], labeller="me"
    )
    preferences.save(own, tmp_path / "labels.jsonl")
    common = [flag for flag in TINY if "dataset_size" not in flag and "feedback" not in flag]
    common += [f"--data_dir={tmp_path}", "--dataset=mine/own-v0", f"--workdir={tmp_path / 'run'}"]
    (tmp_path / "run").mkdir()
    given = f"--preferences={tmp_path / 'labels.jsonl'}"
    (run,), execution = parse(*common, given)
    data = {dataset.id: datasets.obtain(run, execution, print_told)}
    (found,) = labels.obtain_all([run], execution, data, print_told).values()
    np.testing.assert_array_equal(found.lengths, own.lengths)
    copy = preferences.load(tmp_path / "run" / "preferences.jsonl", dataset, 5)
    np.testing.assert_array_equal(copy.lengths, own.lengths)
    (run,), execution = parse(*common, given, "--labelled_pairs")
    with pytest.raises(
        InputError, match=r"^--labelled_pairs: found with --preferences=.* up to 20 steps, expected"
    ):
        labels.obtain_all([run], execution, data, silent)
    needs = [
        ("--num_feedback=20", "for a scripted teacher, or labels of your own in --preferences")
    ]
    needs += [(f"{given} --reward=true", "for --reward=true with --algorithm=appo")]
    for flags, message in needs:
        runs, execution = parse(*common, *flags.split())
        with pytest.raises(
            InputError, match=f"mine/own-v0: has no rewards, expected them {message}"
        ):
            datasets.obtain(runs[0], execution, silent)
    of_ipl = [flag for flag in tiny("ipl") if "size" not in flag and "feedback" not in flag]
    of_ipl += [flag for flag in common if "data" in flag or "workdir" in flag]
    (run,), execution = parse(*of_ipl, given)
    data = {dataset.id: datasets.obtain(run, execution, silent)}
    with pytest.raises(InputError, match=r"compares segments of up to 20 steps, which ipl can't, "):
        labels.obtain_all([run], execution, data, silent)


def test_a_named_data_set_is_of_every_runs_environment(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(2, 31, 39))
    episodes = [
        Episode(one, draw.uniform(-1, 1, (30, 4)), one[1:, 0], np.zeros(30)) for one in rows
    ]
    dataset = from_episodes(episodes, "mine/own-v0", {"environment_id": f"{TASK}-v3"})
    minari_io.save(dataset, tmp_path)
    own = [flag for flag in TINY if not flag.startswith(("--dataset_size", "--task"))]
    places = (f"--data_dir={tmp_path}", "--dataset=mine/own-v0", f"--workdir={tmp_path}")
    runs, execution = parse(*own, *places, f"--task={TASK},drawer-open")
    folder = RunFolder(runs, execution)
    with pytest.raises(InputError, match=f"data of {TASK}-v3, expected data of drawer-open-v3"):
        datasets.obtain_all(runs, folder, execution, silent)
    assert list(datasets.obtain_all(runs[:1], folder, execution, silent)) == ["mine/own-v0"]
