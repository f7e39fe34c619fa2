"""The command that imports, and what can be done with what it leaves."""

import functools
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from appo_jax import appo, reward_model, training
from appo_jax.data import minari_io, preferences
from appo_jax.data.dataset import to_device
from appo_jax.types import InputError
from experiments import import_data
from experiments.runs import files, runner
from tests.helpers import published
from tests.helpers.commands import call
from tests.helpers.runs import parse, tiny

run = functools.partial(call, import_data)


def test_labels_and_their_segments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published.ipl(tmp_path / "six pairs.npz")
    common = ("--format=ipl", f"--source={tmp_path / 'six pairs.npz'}", f"--data_dir={tmp_path}")
    run(*common, "--env=Hopper-v5")
    id = "imported/ipl-six-pairs-v0"
    file = tmp_path / f"{id}.jsonl"
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["data", "set", id]
    assert "labels        6 pairs of segments of 5 steps: 2 say first, 3 second, 1 neither" in out
    assert "transitions   48 in 12 episodes of 4 to 4 steps (mean 4.0)" in out
    # The labels are of 5 steps and say that a policy's segments may be others; episodes have 4.
    assert out[-1] == f"train with    --dataset={id} --preferences={file} --segment_length=4"
    dataset = minari_io.load(id, tmp_path)
    assert dataset.metadata["environment_id"] == "Hopper-v5"
    assert len(preferences.load(file, dataset, 25)) == 6
    with pytest.raises(InputError, match=r"six-pairs-v0 exists, expected a new id"):
        run(*common)
    with pytest.raises(InputError, match=r"--preferences=.*: exists, expected a new file"):
        run(*common, "--id=mine/six-v0", f"--preferences={file}")
    assert minari_io.local_ids(tmp_path) == [id]


def test_says_what_to_train_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also the segment length, where 25 steps don't fit the labels or the episodes."""
    place, id = f"--data_dir={tmp_path}", "mine/walks-v0"
    source = published.d4rl(tmp_path / "hopper.hdf5")
    run("--format=d4rl", f"--source={source}", place, f"--id={id}", "--env=Hopper-v5")
    out = capsys.readouterr().out.splitlines()
    # Episodes of 5, 6 and 8 steps: two of them hold a segment of 6.
    assert out[-1] == f"train with    --dataset={id} --segment_length=6"
    labels = published.pt_labels(tmp_path / "pt")
    pointing = ("--format=pt-labels", f"--source={labels}", f"--dataset={id}")
    run(*pointing, "--segment_length=2", f"--preferences={tmp_path / 'labels.jsonl'}", place)
    command, named = capsys.readouterr().out.splitlines()[-1].split(maxsplit=2)[1:]
    assert command == "with"
    assert named.split()[-1] == "--segment_length=2"
    (found, *_), _ = parse("--env=Hopper-v5", place, *named.split())
    dataset = minari_io.load(id, tmp_path)
    assert len(preferences.load(tmp_path / "labels.jsonl", dataset, found.segment_length)) == 6


def test_neither_data_nor_labels_where_one_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = published.ipl(tmp_path / "pairs.npz")
    arguments = ("--format=ipl", f"--source={source}", f"--data_dir={tmp_path / 'data'}")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        run(*arguments, f"--preferences={tmp_path / 'file' / 'labels.jsonl'}")

    def full(*_: object) -> None:
        raise OSError("no room")

    labels = f"--preferences={tmp_path / 'labels.jsonl'}"
    for module in (preferences, minari_io):
        with monkeypatch.context() as patch:
            patch.setattr(module, "save", full)
            with pytest.raises(OSError, match="no room"):
                run(*arguments, labels)
        assert minari_io.local_ids(tmp_path / "data") == []
        assert not {"labels.jsonl", ".labels.jsonl.partial"} & set(map(str, os.listdir(tmp_path)))
    run(*arguments, labels)
    assert (tmp_path / "labels.jsonl").exists()


@pytest.mark.usefixtures("fake_evaluations")
def test_ipl_learns_from_its_own_file_alone(tmp_path: Path) -> None:
    """Segments and labels, without trajectories beside them."""
    place = f"--data_dir={tmp_path}"
    source = published.ipl(tmp_path / "pairs.npz", widths=(11, 3))
    run("--format=ipl", f"--source={source}", place, "--env=Hopper-v5", "--drop_last_step")
    id = "imported/ipl-pairs-v0"
    left_out = ("--task", "--dataset_size", "--num_feedback", "--tie", "--segment_length")
    flags = [flag for flag in tiny("ipl") if not flag.startswith(left_out)]
    flags += [place, f"--dataset={id}", f"--preferences={tmp_path / id}.jsonl", "--env=Hopper-v5"]
    flags += ["--segment_length=4", "--replay_batch=0", "--num_updates=20"]
    (found,) = runner.run(*parse(*flags, f"--workdir={tmp_path / 'run'}"))
    assert found.state == "finished"
    assert found.settings["num_feedback"] == published.PAIRS
    losses = files.MetricsFile(tmp_path / "run" / "metrics.csv").values(0, "train", "critic/loss")
    assert len(losses) > 1
    assert np.isfinite(list(losses.values())).all()


def test_an_environment_in_place_of_the_trajectories_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"--data_dir={tmp_path}"
    source = published.ipl_transitions(tmp_path / "episodes")
    run(
        "--format=ipl-transitions",
        f"--source={source}",
        place,
        "--id=mine/walks-v0",
        "--env=Hopper-v5",
    )
    labels = published.ipl(tmp_path / "pairs.npz")
    capsys.readouterr()
    run("--format=ipl", f"--source={labels}", place, "--dataset=mine/walks-v0", "--env=Walker2d-v5")
    warning = "warning: it is from Hopper-v5 and used for Walker2d-v5: another environment, whose"
    assert warning in capsys.readouterr().out
    found = minari_io.load("imported/ipl-pairs-v0", tmp_path)
    assert found.metadata["environment_id"] == "Walker2d-v5"


def test_flags_that_are_refused(tmp_path: Path) -> None:
    for arguments, message in (
        ((), "--format is missing"),
        (("--format=zip", f"--source={tmp_path}"), "--format: 'zip', expected lire, "),
        (("--format=ipl",), "--source is missing"),
        (("--format=lire", f"--source={tmp_path}", "--size=0"), "--size=0: expected a whole"),
        (
            ("--format=pt-labels", f"--source={tmp_path}", "--dataset=a/b-v0"),
            "--dataset: data set 'a/b-v0' is not in",
        ),
        (
            ("--format=d4rl", f"--source={tmp_path}", "--task=sweep", "--env=Hopper-v5"),
            "--env=Hopper-v5: found with --task, expected one",
        ),
    ):
        with pytest.raises(InputError, match=message):
            run(*arguments, f"--data_dir={tmp_path}")


@pytest.mark.slow
def test_every_format_from_published_files_to_a_policy(tmp_path: Path) -> None:
    """Imported, written, read back, and trained on for 100 updates."""
    place = f"--data_dir={tmp_path}"
    np.savez(tmp_path / "own.npz", **published.own_arrays())
    sources = {
        "lire": published.lire(tmp_path / "sweep-v2"),
        "d4rl": published.d4rl(tmp_path / "hopper.hdf5"),
        "ipl-transitions": published.ipl_transitions(tmp_path / "episodes"),
        "arrays": tmp_path / "own.npz",
        "ipl": published.ipl(tmp_path / "pairs.npz"),
        "cpl": published.cpl(tmp_path / "segments.npz"),
        "lire-independent": published.lire_labels(tmp_path / "lire"),
        "pt-labels": published.pt_labels(tmp_path / "pt"),
        "crowd-labels": published.crowd_labels(tmp_path / "crowd"),
    }
    sources |= dict.fromkeys(("lire-seqrank", "lire-ranked"), sources["lire-independent"])
    for format, source in sources.items():
        extra = []
        if format in ("pt-labels", "crowd-labels"):
            extra = ["--dataset=mine/d4rl-v0", "--segment_length=2"]
        run(f"--format={format}", f"--source={source}", f"--id=mine/{format}-v0", place, *extra)
    run("--format=minari", f"--source={tmp_path / 'mine/d4rl-v0'}", "--id=mine/minari-v0", place)
    config = appo.Config(hidden_layers=1, hidden_dim=8, batch_size=8, num_pairs=4, segment_length=2)
    for format in (*sources, "minari"):
        pointing = format in ("pt-labels", "crowd-labels")
        data = minari_io.load(f"mine/{'d4rl' if pointing else format}-v0", tmp_path)
        file = tmp_path / f"mine/{format}-v0.jsonl"
        store, view = to_device(data, 2)
        if file.exists():
            length = 25 if format.startswith("lire-") else 2
            labels = preferences.load(file, data, length)
            model = reward_model.Config(hidden_dim=8, hidden_layers=1, num_epochs=20)
            pairs = labels.to_device(data)
            fitted, metrics = training.fit(
                reward_model, model, jax.random.key(0), store, view, pairs
            )
            assert 0 < metrics["reward/loss"] < 5, format
            rewards = reward_model.relabel(model, fitted, store, view, len(data.observations))
            store = store.replace(rewards=rewards)
        dims = data.observation_dim, data.action_dim
        state = appo.init(config, jax.random.key(1), *dims, lam=0.03)
        state, _ = training.train(appo, config, 100, state, jax.random.key(2), store, view)
        assert int(state.step) == 100, format
