"""`python -m experiments.benchmark` as a user types it, with and without PyTorch."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from experiments import benchmark


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.benchmark", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_prints_and_writes(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    done = run("--rounds=2", "--num_updates=2", f"--output={output}")
    assert done.returncode == 0, done.stderr
    written = json.loads(output.read_text())
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["cpu"] in done.stdout
    assert written["machine"]["versions"]["jax"] in done.stdout
    ours = written["rows"][0]
    assert (ours["name"], ours["unit"]) == ("appo_jax", "ms/update")
    assert 0 < ours["min"] <= ours["median"] <= ours["max"]
    assert ours["appo_jax_over_this"] == 1
    others = [row["name"] for row in written["rows"][1:]]
    assert others == (["PyTorch, eager"] if "torch" in written["machine"]["versions"] else [])
    assert f"{ours['median']:.2f}" in done.stdout


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find_spec = benchmark.importlib.util.find_spec
    monkeypatch.setattr(
        benchmark.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "torch" else find_spec(name, *rest),
    )
    values = types.SimpleNamespace(output=None, rounds=1, num_updates=1)
    monkeypatch.setattr(benchmark, "flags", types.SimpleNamespace(FLAGS=values))
    benchmark.main([])
    printed = capsys.readouterr().out
    assert "appo_jax" in printed
    assert "PyTorch, eager" not in printed
    assert benchmark.NO_TORCH in printed


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--rounds=0", "rounds"),
        ("--output=nowhere/figures.json", "--output: no folder nowhere"),
    ],
)
def test_bad_flag(flag: str, expected: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_blocks_take_turns_and_the_first_call_is_not_counted() -> None:
    calls: list[str] = []
    blocks = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    seconds = benchmark.interleave(blocks, rounds=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert {name: len(found) for name, found in seconds.items()} == {"a": 2, "b": 2}
