"""The command: its flags, what it refuses, and labels that training reads."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appo_jax.data import lire, minari_io, preferences
from appo_jax.types import InputError
from experiments import label
from tests.helpers.commands import call
from tests.helpers.labelling import walks
from tests.helpers.runs import SIZE, TASK

LIRE = (f"--task={TASK}", "--dataset=medium-replay", f"--dataset_size={SIZE}")


main = functools.partial(call, label)


@pytest.mark.parametrize("pairs", ["random", "changing", "ranked"])
def test_the_scripted_teacher_answers_through_the_same_code(
    data_dir: Path, tmp_path: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = tmp_path / "labels"
    main(
        *LIRE,
        f"--data_dir={data_dir}",
        f"--workdir={workdir}",
        "--num_pairs=30",
        "--repeats=0.2",
        "--segment_length=5",
        f"--pairs={pairs}",
        "--scripted",
        "--labeller=teacher",
    )
    said = capsys.readouterr().out
    found = re.search(r"with themself in (\d+)% of (\d+) repeated pairs", said)
    assert found
    assert found[1] == "100"
    data = lire.load(data_dir / f"{TASK}-v3", SIZE)
    for name in ("preferences", *(["preferences-ranked"] if pairs == "ranked" else [])):
        labels = preferences.load(workdir / f"{name}.jsonl", data, 5)
        steps = data.rewards[labels.rows(data)[..., None] + np.arange(5)]
        difference = np.diff(steps.sum(axis=-1, dtype=np.float64), axis=1)[:, 0]
        if name == "preferences":
            assert len(labels) == 30 - int(found[2])
            expected = np.where(np.abs(difference) <= 12.5, 0.5, difference > 0)
            assert np.array_equal(labels.labels, expected)
        else:
            assert len(labels) > 40
    session = json.loads((workdir / "session.json").read_text())
    assert (session["dataset"], session["plan"]["pairs"]) == (data.id, pairs)


def test_the_teacher_answers_beside_a_person_not_among_their_answers(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = (*LIRE, f"--data_dir={data_dir}", "--segment_length=5", "--num_pairs=8", "--scripted")
    for pairs in ("random", "changing"):
        main(*flags, f"--pairs={pairs}")
    folder = tmp_path / "labels" / lire.load(data_dir / f"{TASK}-v3", SIZE).id
    assert not folder.exists()
    for pairs in ("random", "changing"):
        own = folder.parent / f"{folder.name}-scripted-{pairs}-seed0"
        assert (own / "answers-scripted.jsonl").exists()
    file = f"--pairs={folder.parent / f'{folder.name}-scripted-random-seed0' / 'preferences.jsonl'}"
    with pytest.raises(InputError, match="^--workdir is missing, expected a folder"):
        main(*flags, file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--dataset is missing, expected an id; there are: tiny/walks-v0"),
        (("--dataset=tiny/none-v0",), "data set 'tiny/none-v0' is not in"),
        (("--dataset=x", "--task=sweep", "--env=Hopper-v5"), "--env=Hopper-v5: given with --task"),
        (
            ("--dataset=tiny/walks-v0", "--data_seed=1"),
            "--data_seed=1: is read with --task or --env",
        ),
        (("--dataset=tiny/walks-v0", "--size=10x10"), "--size=10x10: expected 160x120 to"),
        (("--dataset=tiny/walks-v0", "--labeller=a/b"), "--labeller=a/b: expected 1 to 40"),
        (("--dataset=tiny/walks-v0", "--pairs=best"), "--pairs=best: expected random, changing"),
        (("--dataset=tiny/walks-v0", "--repeats=0.6"), "--repeats=0.6: expected a number from 0"),
        (("--dataset=tiny/walks-v0", "--fps=0"), "--fps=0: expected a whole number from 1"),
        (("--dataset=tiny/walks-v0", "--frames=."), "--frames=.: holds no file like 0.npy"),
        (
            ("--dataset=tiny/walks-v0", "--segment_length=41"),
            "0 of 6 episodes have at least the segment length 41",
        ),
    ],
)
def test_what_can_not_be_is_refused_in_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari_io.save(walks(), tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)):
        main(f"--data_dir={tmp_path}", *arguments)


def test_a_data_set_that_names_no_environment_can_be_labelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari_io.save(walks(), tmp_path)
    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []
    monkeypatch.setattr(label, "serve", lambda *arguments: seen.append(arguments))
    main(f"--data_dir={tmp_path}", "--dataset=tiny/walks-v0", "--segment_length=5")
    session, renderer, page, is_opened = seen[0]
    assert (session.total, page.port, is_opened) == (500, 8765, False)
    assert session.folder == Path("labels/tiny/walks-v0")
    assert "doesn't name its environment, expected --task or --env" in renderer.notes[0]
