"""The algorithm of docs/adding_an_algorithm.md, added as a user would, through the commands."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.runs import TINY, Command, write_buffers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding_an_algorithm.md").read_text()
OWN = ("segment_length", "hidden_dim", "batch_size", "task", "dataset_size", "num_feedback")
OWN += ("tie_threshold", "num_updates", "eval_interval", "chunk_updates", "num_workers")
FLAGS = [flag for flag in TINY if flag.removeprefix("--").split("=")[0] in OWN]
FLAGS.append("--eval_episodes=1")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the file and the line that the page shows; no other file is changed."""
    folder = tmp_path_factory.mktemp("checkout")
    for package in ("appo_jax", "experiments"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignore)
    code, line = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (folder / "appo_jax" / "better_segments.py").write_text(code)
    registry = folder / "appo_jax" / "registry.py"
    text = registry.read_text()
    text = text.replace(
        "from appo_jax import (\n", "from appo_jax import (\n    better_segments,\n"
    )
    registry.write_text(text.replace("ALGORITHMS = {\n", f"ALGORITHMS = {{\n{line}"))
    write_buffers(folder / "data")
    return folder


def run(folder: Path, *arguments: str) -> list[str]:
    """Lines that a command prints."""
    command = [sys.executable, "-m", *arguments]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def test_it_appears_in_help(checkout: Path) -> None:
    text = "\n".join(run(checkout, "experiments.train", "--algorithm=better_segments", "--help"))
    assert "cloning of the preferred segments" in " ".join(text.split())
    assert "--learning_rate" in text
    assert "  --lam " not in text


def test_it_trains_goes_on_and_is_evaluated(checkout: Path) -> None:
    flags = (*FLAGS, "--algorithm=better_segments", "--learning_rate=0.001,0.01")
    # Evaluations run beside training: of three to come at least one is left when it is stopped.
    flags += ("--data_dir=data", "--workdir=run", "--chunk_updates=2", "--num_updates=80")
    first = Command(checkout, *flags)
    first.wait_for("success at update 20")
    first.signal(signal.SIGINT)
    assert first.finish()[0] == 130
    status, lines, stderr = Command(checkout, *flags).finish()
    assert status == 0, stderr
    assert any(line.startswith("going on from update ") for line in lines)
    assert lines[-3].split()[:2] == ["learning_rate", "seeds"]
    entries = json.loads((checkout / "run" / "summary.json").read_text())["runs"]
    assert [entry["settings"]["learning_rate"] for entry in entries] == [0.001, 0.01]
    evaluate = ("experiments.evaluate", "--checkpoint=run", "--run=1", "--episodes=1")
    told, result = run(checkout, *evaluate, "--num_workers=1")
    assert told.startswith("better_segments on button-press-topdown-v3, learning_rate 0.01, seed 0")
    last = entries[1]["evaluations"][-1]
    assert result.startswith(f"success rate {last['success_rate']:.1f} %")
    assert f"return {last['total_return']:.2f} (" in result


def write_module(checkout: Path, folder: Path) -> None:
    code = (checkout / "appo_jax" / "better_segments.py").read_text()
    code += "\nimport sys\nfrom appo_jax.registry import Algorithm\n"
    code += 'ALGORITHM = Algorithm("my own", sys.modules[__name__])\n'
    (folder / "mine.py").write_text(code)


_PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from absl import flags
import appo_jax, mine
from appo_jax import policy, registry
from experiments import evaluate, train
from experiments.runs import runner

registry.ALGORITHMS["my_own"] = mine.ALGORITHM
values, argv = flags.FlagValues(), ["train", "--algorithm=my_own", *sys.argv[1:]]
train.define_flags(values, argv)
values(argv)
(run,) = runner.run(*train.experiments_from_flags(values))
print(run.state, run.algorithm)
print(appo_jax.load_policy(values.workdir)(np.zeros((2, 39))).shape)
options = evaluate.Options(episodes=1)
((_, episodes),) = evaluate.evaluate(policy.load_all(Path(values.workdir), [0]), options)
print(float(episodes.returns.mean()) == run.evaluations[-1].total_return)
"""


@pytest.mark.slow
def test_one_registered_in_a_program(checkout: Path, tmp_path: Path) -> None:
    """A program that workers can't import, as a notebook's."""
    write_module(checkout, tmp_path)
    flags = (*FLAGS, f"--data_dir={checkout / 'data'}", "--workdir=run", "--num_updates=20")
    command = [sys.executable, "-c", _PROGRAM, *flags]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == ["finished my_own", "(2, 4)", "True"]


@pytest.mark.slow
def test_one_outside_the_package(checkout: Path, tmp_path: Path) -> None:
    write_module(checkout, tmp_path)
    flags = (*FLAGS, "--algorithm=mine:ALGORITHM", f"--data_dir={checkout / 'data'}")
    status, lines, stderr = Command(tmp_path, *flags, "--num_updates=20").finish()
    assert status == 0, stderr
    assert lines[-1].startswith("success rate ")
    (folder,) = (tmp_path / "runs" / "button-press-topdown" / "mine.ALGORITHM").iterdir()
    told, _ = run(tmp_path, "experiments.evaluate", f"--checkpoint={folder}", "--episodes=1")
    assert told.startswith("mine:ALGORITHM on button-press-topdown-v3, learning_rate 0.0003")
