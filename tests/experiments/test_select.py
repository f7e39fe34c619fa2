"""Trained runs, judged by pairs that they weren't trained on."""

import json
import shutil
from pathlib import Path

import pytest

from appo_jax.types import InputError
from experiments import select
from experiments.runs import files, runner
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
    assert ": 5 runs, " in lines[0]
    assert lines[1].split() == ["setting", "seed", "values", "actions", "error", "adversarial",
                                "success", "(%)"]  # fmt: skip
    table = [line.strip() for line in lines[2:7]]
    assert [line.split("  ")[0] for line in table] == [
        *("appo, lam 0.03", "appo, lam 0.03", "appo, lam 1", "appo, lam 1", "bc")
    ]
    assert table[4].split()[2] == "-"  # cloning has no Q
    assert [line.split(":")[0] for line in lines[-4:]] == [
        *("by values", "by actions", "by error", "by adversarial")
    ]
    assert "rank correlation over 3 settings" in lines[-3]
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
    (labels, *_) = sorted((runs / "appo" / "preferences").iterdir())
    arguments = (f"--runs={runs}", f"--data_dir={data_dir}")
    call(select, *arguments, f"--preferences={labels}")
    assert "5 runs, " in capsys.readouterr().out
    trained = tmp_path / "trained"
    flags = (f"--workdir={trained}", f"--data_dir={data_dir}", f"--preferences={labels}")
    runner.run(*parse(*(one for one in tiny("bc") if "num_feedback" not in one), *flags))
    with pytest.raises(InputError, match="runs were trained on these labels, expected others, hel"):
        call(select, f"--runs={trained}", f"--data_dir={data_dir}", f"--preferences={labels}")


def test_bad_input(
    runs: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="--runs is missing, expected folders"):
        call(select)
    with pytest.raises(InputError, match=f"--runs={tmp_path}: holds no finished run, expected"):
        call(select, f"--runs={tmp_path}")
    with pytest.raises(InputError, match="num_pairs=0: expected a whole number from 1"):
        call(select, f"--runs={runs}", "--num_pairs=0")
    with pytest.raises(InputError, match="no buffers of button-press-topdown-v3, expected"):
        call(select, f"--runs={runs}", f"--data_dir={tmp_path}")
    write_buffers(tmp_path / "others", seed=1)
    with pytest.raises(InputError, match="its contents aren't those on which .* expected the same"):
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
    assert ": 1 runs, " in out
    assert "warning: 1 of 2 runs are left out, not finished" in err
    assert f"warning: {some}/damaged is left out: " in err
