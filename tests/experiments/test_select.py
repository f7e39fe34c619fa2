"""Trained runs, judged by pairs that they weren't trained on."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from appo_jax.data import preferences
from appo_jax.types import InputError
from experiments import select
from experiments.runs import files, results, runner
from experiments.runs.experiment import Execution
from experiments.selecting import held_out
from tests.helpers.commands import call
from tests.helpers.runs import parse, tiny, write_buffers

pytestmark = pytest.mark.usefixtures("fake_evaluations")


@pytest.fixture(scope="module")
def runs(data_dir: Path, fake_evaluations: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two lambdas of two seeds, and cloning."""
    folder = tmp_path_factory.mktemp("runs")
    for algorithm, *more in (("appo", "--lam=0.03,1", "--num_seeds=2"), ("bc",)):
        place = f"--workdir={folder / algorithm}"
        runner.run(*parse(*tiny(algorithm), *more, place, f"--data_dir={data_dir}"))
    return folder


def test_judges_all_runs_and_chooses(
    runs: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "found.json"
    arguments = (f"--runs={runs}", f"--data_dir={data_dir}", f"--output={output}")
    call(select, *arguments, "--num_pairs=200")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("button-press-topdown-v3, ")
    assert ": runs 5, pairs that aren't ties " in lines[0]
    assert lines[1].split() == ["setting", "seed", "values", "actions", "error", "adversarial",
                                "success", "(%)"]  # fmt: skip
    table = [line.strip() for line in lines[2:7]]
    assert [line.split("  ")[0] for line in table] == [
        *("appo, lam 0.03", "appo, lam 0.03", "appo, lam 1", "appo, lam 1", "bc")
    ]
    assert table[4].split()[2] == "-"  # cloning has no Q
    assert [line.split(":")[0] for line in lines[-5:]] == [
        *("by values", "by actions", "by error", "by adversarial", "warning")
    ]
    assert "rank correlation over 3 settings" in lines[-4]
    assert lines[-1].endswith("seeds (appo, lam 0.03: 0, 1; appo, lam 1: 0, 1; bc: 0)")
    (group,) = files.read_json(output)["groups"]
    assert [one["seed"] for one in group["runs"]] == [0, 1, 0, 1, 0]
    numbers = [one["criteria"] for one in group["runs"][:4]]
    assert len({json.dumps(own) for own in numbers}) == 4
    for own in numbers:
        assert 0 <= own["values"] <= 100
    # Of the last tenth of 60 updates.
    metrics = files.MetricsFile(runs / "appo" / "metrics.csv").values(
        2, "train", "critic/pair_error"
    )
    assert numbers[2]["error"] == pytest.approx(
        sum(metrics[update] for update in range(55, 61)) / 6
    )
    # A planted reward grows with the first action: other pairs, other numbers.
    call(select, *arguments, "--num_pairs=200", "--seed=1")
    (again,) = files.read_json(output)["groups"]
    assert again["runs"][0]["criteria"] != group["runs"][0]["criteria"]


def test_labels_of_a_file(
    runs: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, *_) = sorted((runs / "appo" / "preferences").iterdir())
    header, *labels = first.read_text().splitlines()
    (dataset,) = {one["dataset"]["id"] for one in files.read_json(runs / "bc/config.json")["runs"]}
    others = tmp_path / "others.jsonl"
    fresh = [
        {"episode_0": 0, "start_0": at, "episode_1": 2, "start_1": at + 1, "length": 5, "label": 1}
        for at in range(20)
    ]
    others.write_text(
        "\n".join([header, *(json.dumps({**one, "labeller": "me"}) for one in fresh)])
    )
    call(select, f"--runs={runs}", f"--data_dir={data_dir}", f"--preferences={others}")
    assert f"{dataset}, segments of 5 steps: runs 5, pairs that aren't ties 20\n" in (
        capsys.readouterr().out
    )
    swapped = json.loads(labels[7])
    for name in ("episode", "start"):
        pair = swapped[f"{name}_0"], swapped[f"{name}_1"]
        swapped[f"{name}_1"], swapped[f"{name}_0"] = pair
    others.write_text(others.read_text() + "\n" + json.dumps(swapped))
    with pytest.raises(
        InputError, match="1 of 21 pairs, the first in label 20, are in .*, on whic"
    ):
        call(select, f"--runs={runs}", f"--data_dir={data_dir}", f"--preferences={others}")
    with pytest.raises(
        InputError, match="--seed: of pairs of the scripted teacher, expected it to"
    ):
        call(select, f"--runs={runs}", f"--preferences={others}", "--seed=3")


def test_scripted_pairs_are_others_than_those_of_training(
    runs: Path, data_dir: Path, tmp_path: Path
) -> None:
    found, file = results.read(runs / "appo"), tmp_path / "judging.jsonl"
    saved, execution = select.checkpoints_of(found)[0], Execution(workdir=runs, data_dir=data_dir)
    judging = held_out.of_runs(found, saved, execution, 200, seed=found[0].seed).labels
    preferences.save(judging, file)
    from_file = dataclasses.replace(execution, preferences=file)  # no pair may be a trained one
    assert len(held_out.of_runs(found, saved, from_file, 200, seed=0).labels) == 200


def test_runs_that_see_other_observations_are_judged_apart(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "bc", tmp_path / "bc")
    config = files.read_json(tmp_path / "bc" / "config.json")
    for run in (*config["runs"], *config["identities"]):
        run["normalise_observations"] = False
    files.write_json(tmp_path / "bc" / "config.json", config)
    assert len(select.groups_of([runs], True)) == 1
    assert len(select.groups_of([runs, tmp_path], True)) == 2


def test_settings_are_apart_where_labels_are(runs: Path) -> None:
    found = results.read(runs / "appo")
    fewer = {**found[3].settings, "num_feedback": 20}
    found[3] = dataclasses.replace(found[3], settings=fewer)
    assert select.setting_names(found)[2:] == ["appo, lam 1, 40 labels", "appo, lam 1, 20 labels"]


def test_a_checkpoint_of_something_else_is_refused(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bc"
    shutil.copytree(runs / "bc", folder)
    (one,) = results.read(folder)
    config = files.read_json(folder / "config.json")
    config["runs"][0]["eval_episodes"] = 7
    files.write_json(folder / "config.json", config)
    (other,) = results.read(folder)
    with pytest.raises(InputError, match="run with eval_episodes 2, not 7 as in its config.json"):
        select.checkpoints_of([other])
    (folder / "checkpoints" / "policy" / "60").rename(tmp_path / "60")
    with pytest.raises(InputError, match="last checkpoint is of update 40, expected 60"):
        select.checkpoints_of([one])


def test_a_run_that_was_begun_as_a_longer_one(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bc"
    shutil.copytree(runs / "bc", folder)
    shutil.rmtree(folder / "checkpoints" / "policy" / "60")
    config = files.read_json(folder / "config.json")
    config["runs"][0]["num_updates"] = 40
    files.write_json(folder / "config.json", config)
    (one,) = results.read(folder)
    (saved,) = select.checkpoints_of([one])
    assert (saved.update, saved.config["num_updates"]) == (40, 60)


def test_bad_input(
    runs: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="--runs is missing, expected folders"):
        call(select)
    with pytest.raises(InputError, match=f"--runs={tmp_path}/none: no such folder, expected one"):
        call(select, f"--runs={runs},{tmp_path}/none")
    with pytest.raises(InputError, match=f"--runs={tmp_path}: holds no finished run, expected"):
        call(select, f"--runs={tmp_path}")
    with pytest.raises(InputError, match="num_pairs=0: expected a whole number from 1"):
        call(select, f"--runs={runs}", "--num_pairs=0")
    with pytest.raises(InputError, match="no buffers of button-press-topdown-v3, expected"):
        call(select, f"--runs={runs}", f"--data_dir={tmp_path}")
    write_buffers(tmp_path / "others", seed=1)
    with pytest.raises(InputError, match="others: the contents of data set .* aren't those that"):
        call(select, f"--runs={runs}", f"--data_dir={tmp_path / 'others'}")
    # A run under way and a folder that can't be read are named, and the others judged.
    some = tmp_path / "some"
    shutil.copytree(runs / "bc", some / "bc")
    shutil.copytree(runs / "bc", some / "half")
    path = some / "half" / "metrics.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:20]))
    (some / "damaged").mkdir()
    (some / "damaged" / "config.json").write_text("{")
    call(select, f"--runs={some}", f"--data_dir={data_dir}")
    out, err = capsys.readouterr()
    assert ": runs 1, " in out
    assert "half (unfinished) is left out for " in err
    assert f"warning: left out: {some}/damaged/config.json: not JSON" in err
