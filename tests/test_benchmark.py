"""`python -m experiments.benchmark` as a user types it, with and without PyTorch."""

import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from appo_jax import appo
from experiments import benchmark, blocks, measure

SMALL_CONFIG = appo.Config(hidden_layers=1, hidden_dim=8, batch_size=4, num_pairs=2)


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.benchmark", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_prints_and_writes(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    done = run("--rounds=2", "--num_updates=2", "--figures=update", f"--output={output}")
    assert done.returncode == 0, done.stderr
    written = json.loads(output.read_text())
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["cpu"] in done.stdout
    assert written["machine"]["versions"]["jax"] in done.stdout
    ours = written["rows"][0]
    assert (ours["name"], ours["unit"]) == ("appo_jax", "ms/update")
    assert 0 < ours["min"] <= ours["median"] <= ours["max"]
    assert ours["first_over_this"] == 1
    others = [row["name"] for row in written["rows"][1:]]
    assert others == (["PyTorch, eager"] if "torch" in written["machine"]["versions"] else [])
    assert f"{ours['median']:.2f}" in done.stdout


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(blocks, "CONFIG", SMALL_CONFIG)
    find_spec = benchmark.importlib.util.find_spec
    monkeypatch.setattr(
        benchmark.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "torch" else find_spec(name, *rest),
    )
    values = types.SimpleNamespace(
        output=None, rounds=1, num_updates=1, preset="default", figures=["update"]
    )
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
        ("--figures=speed", "--figures: 'speed', expected some of update, runs"),
        ("--preset=tpu", "--preset=tpu: value should be one of <default|gpu>"),
    ],
)
def test_bad_flag(flag: str, expected: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_blocks_take_turns_and_the_first_call_is_not_counted() -> None:
    calls: list[str] = []
    turns = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    seconds = blocks.interleave(turns, rounds=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert {name: len(found) for name, found in seconds.items()} == {"a": 2, "b": 2}


def test_matrix_products_of_an_update_by_hand() -> None:
    """Forward, weights and inner gradients of a network of widths m, 256, 256, 256, n."""
    inner = 2 * 256 * 256
    critic = 1312 * (3 * (inner + 256) + 2 * 43 * 256)
    others = (
        2 * 256 * (43 * 256 + inner + 256)  # target critics
        + 800 * (39 * 256 + inner + 256)  # V of the next states
        + 256 * (3 * (inner + 256) + 2 * 39 * 256)  # V
        + 256 * (3 * (inner + 256 * 8) + 2 * 39 * 256)  # actor
        + 256 * 2 * (43 * 256 + inner + 256)  # Q of the actor loss, to its input
    )
    products = blocks.matrix_products()
    assert sum(m * k * n for m, k, n in products) == 2 * critic + others
    assert sum(2 * m * k * n for m, k, n in products) == 3_127_410_688


def test_the_products_of_an_update_are_those_of_the_program() -> None:
    """What XLA counts of the compiled update, elementwise work included, is little more."""
    store, view = blocks.random_store(1000)
    counted = blocks.lower_chunk(store, view, 1, 1).compile().cost_analysis()["flops"]
    assert 3.127e9 < counted < 1.1 * 3.127e9


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LARGE", 2000)
    ours = np.ones(10**9, np.uint8)
    (memory,) = measure.memory_figure(1, 1)
    assert 0 < memory["median"] < len(ours) / 1e9


def test_figures_of_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CONFIG", SMALL_CONFIG)
    monkeypatch.setattr(measure, "SMALL", 1000)
    monkeypatch.setattr(measure, "LARGE", 2000)
    monkeypatch.setattr(blocks, "PAUSE", 0)
    rows = measure.runs_figure(1, 2, counts=(1, 2))
    assert [row["name"] for row in rows] == ["1 runs", "1 x products", "2 runs", "2 x products"]
    gflop = sum(2e-9 * m * k * n for m, k, n in blocks.matrix_products())
    for row in rows:
        assert row["updates_per_second"] == pytest.approx(1e3 / row["median"])
        assert row["gflop_per_second"] == pytest.approx(gflop / row["median"] * 1e3)
    assert rows[0]["fraction_of_products"] == rows[1]["median"] / rows[0]["median"]
    sizes = measure.size_figure(1, 1)
    assert [row["name"] for row in sizes] == ["1,000 transitions", "2,000 transitions"]
    told = measure.saturation(
        [
            {"figure": "runs", "name": f"{n} runs", "updates_per_second": rate}
            for n, rate in ((1, 50), (5, 200), (20, 390), (40, 400))
        ]
    )
    # 80 runs of 250,000 updates at 400 a second: 50,000 s. 390 is within 5 % of the best.
    assert told["runs_that_fill_the_device"] == 20
    assert told["hours_for_the_papers_80_runs"] == pytest.approx(50_000 / 3600)
