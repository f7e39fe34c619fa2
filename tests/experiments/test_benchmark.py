"""`python -m experiments.benchmark` with small networks, with and without PyTorch."""

import importlib.util
import json
from pathlib import Path

import pytest
from absl.flags import FlagValues

from appo_jax import appo
from appo_jax.types import InputError
from experiments import benchmark
from experiments.benchmarks import figures, workloads
from experiments.terminal.cli import parse_flags

SMALL_CONFIG = appo.Config(hidden_layers=1, hidden_dim=8, batch_size=4, num_pairs=2)


def parsed(*arguments: str) -> FlagValues:
    values = FlagValues()
    line = ["benchmark", *arguments]
    benchmark.define_flags(values, line)
    parse_flags(values, line)
    return values


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks and data."""
    monkeypatch.setattr(workloads, "CONFIG", SMALL_CONFIG)
    monkeypatch.setattr(figures, "SMALL", 1000)
    monkeypatch.setattr(workloads, "PAUSE", 0)


@pytest.mark.usefixtures("small")
def test_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "figures.json"
    flags = ("--rounds=2", "--num_updates=2", "--figures=update", f"--output={output}")
    benchmark.main(parsed(*flags))
    printed = capsys.readouterr()
    written = json.loads(output.read_text())
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["cpu"] in printed.out
    assert written["machine"]["versions"]["jax"] in printed.out
    assert "measuring: update" in printed.err
    ours = written["rows"][0]
    assert (ours["name"], ours["unit"]) == ("appo_jax", "ms/update")
    assert 0 < ours["min"] <= ours["median"] <= ours["max"]
    assert ours["first_over_this"] == 1
    others = [row["name"] for row in written["rows"][1:]]
    assert others == (["PyTorch, eager"] if "torch" in written["machine"]["versions"] else [])
    assert f"{ours['median']:.2f}" in printed.out


@pytest.mark.usefixtures("small")
def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "torch" else find_spec(name, *rest),
    )
    benchmark.main(parsed("--rounds=1", "--num_updates=2", "--figures=update"))
    printed = capsys.readouterr().out
    assert "appo_jax" in printed
    assert "PyTorch, eager" not in printed
    assert benchmark.NO_TORCH in printed


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--rounds=0", "--rounds=0: .*, expected: times that each side is timed"),
        ("--num_updates=0", "--num_updates=0: .*, expected: updates of each side"),
        ("--output=nowhere/figures.json", "--output: no folder nowhere"),
        (
            "--figures=speed",
            "--figures: 'speed', expected some of update, iql, ipl, bc, cpl, dppo, runs",
        ),
        (
            "--figures=precision",
            "--figures: 'precision', expected some of update, iql, ipl, bc, cpl, dppo, runs",
        ),
        ("--preset=tpu", "--preset=tpu: value should be one of <default|gpu>"),
    ],
)
def test_bad_flag(flag: str, expected: str) -> None:
    with pytest.raises(InputError, match=f"^{expected}"):
        benchmark.main(parsed(flag))


def test_every_figure_of_a_preset_is_measured_by_default() -> None:
    assert benchmark.check_figures(None, "default") == [
        *(
            "update",
            "iql",
            "ipl",
            "bc",
            "cpl",
            "dppo",
            "runs",
            "size",
            "compile",
            "memory",
            "learners",
            "transformer",
            "relabel",
        )
    ]
    assert benchmark.check_figures(None, "gpu") == ["runs", "precision", "size", "compile"]
    assert benchmark.check_figures(["size", "runs"], "gpu") == ["size", "runs"]
