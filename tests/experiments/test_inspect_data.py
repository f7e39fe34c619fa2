"""The command that inspects a data set."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from appo_jax.data import minari_io, preferences
from appo_jax.data.dataset import Dataset
from appo_jax.types import InputError
from experiments import inspect_data
from tests.helpers.commands import call

run = functools.partial(call, inspect_data)


def test_a_data_set_and_its_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], numbered: Callable[..., Dataset]
) -> None:
    dataset = numbered((30, 40))
    minari_io.save(dataset, tmp_path)
    preferences.save(preferences.scripted(dataset, 0, 8, 5, 0.0), tmp_path / "labels.jsonl")
    common = (f"--dataset={dataset.id}", f"--data_dir={tmp_path}")
    picture = tmp_path / "one.png"
    labels = (f"--preferences={tmp_path / 'labels.jsonl'}", "--segment_length=5")
    run(*common, *labels, f"--output={picture}")
    out = capsys.readouterr().out
    assert "transitions   70 in 2 episodes of 30 to 40 steps" in out
    assert "truth         100.0 % of 8 labels that aren't ties" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    for output, found in ((tmp_path, "is a folder"), (tmp_path / "none" / "one.png", "no folder")):
        with pytest.raises(InputError, match=f"--output: .*{found}"):
            run(*common, f"--output={output}")
    assert not capsys.readouterr().out
    with pytest.raises(InputError, match="--folds=1: expected a whole number from 2, and labels"):
        run(*common, *labels, "--folds=1")
    with pytest.raises(InputError, match="--dataset is missing"):
        run()
    with pytest.raises(InputError, match="--preferences: .*labels.jsonl line 2: length 5, expecte"):
        run(*common, labels[0])
