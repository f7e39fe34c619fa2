"""The arithmetic of the figures, on times that are made up, and one figure measured for real."""

import collections
import importlib.util
from collections.abc import Callable

import numpy as np
import pytest

from appo_jax import appo, preference_predictor, preference_transformer, reward_model
from experiments.benchmarks import figures, workloads

SMALL_CONFIG = appo.Config(hidden_layers=1, hidden_dim=8, batch_size=4, num_pairs=2)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks and data."""
    monkeypatch.setattr(workloads, "CONFIG", SMALL_CONFIG)
    monkeypatch.setattr(figures, "SMALL", 1000)
    monkeypatch.setattr(figures, "LARGE", 2000)
    monkeypatch.setattr(workloads, "PAUSE", 0)


@pytest.mark.slow  # tests/experiments/test_benchmark.py measures one for real
@pytest.mark.usefixtures("small")
def test_two_runs_are_measured() -> None:
    rows = figures.runs_figure(1, 4, counts=(2,))
    assert [row["name"] for row in rows] == ["2 runs", "2 x products"]
    assert all(0 < row["median"] < np.inf for row in rows)


def test_every_learner_is_measured(timed: Callable[[dict[str, list[float]]], list[tuple]]) -> None:
    asked = timed(collections.defaultdict(lambda: [0.1]))
    rows = figures.learners_figure(1, 5)
    assert [row["name"] for row in rows][:3] == ["appo", "mr, pt, oracle", "pvo"]
    assert all(row["updates_per_second"] == pytest.approx(50) for row in rows)
    assert asked == [("jax", f"{figures.SMALL} rows", "view", 5)] * len(rows)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[float]]], list[tuple]]:
    """Put seconds in the place of measurements; gives the workloads that were asked for."""

    def use(seconds: dict[str, list[float]]) -> list[tuple]:
        asked: list[tuple] = []
        monkeypatch.setattr(figures, "random_store", lambda size: (f"{size} rows", "view"))
        for kind in ("jax", "product", "reward", "relabel", "torch_transformer"):
            monkeypatch.setattr(
                figures,
                f"{kind}_workload",
                lambda *given, kind=kind, **_: asked.append((kind, *given)),
            )
        monkeypatch.setattr(
            figures, "interleave", lambda names, _: {name: seconds[name] for name in names}
        )
        return asked

    return use


def test_many_runs_by_hand(timed: Callable[[dict[str, list[float]]], list[tuple]]) -> None:
    seconds = {
        "1 runs": [1.0, 1.2, 1.1],
        "1 x products": [0.5, 0.4, 0.6],
        "4 runs": [2.0, 2.2, 2.4],
        "4 x products": [1.0, 1.0, 1.0],
    }
    asked = timed(seconds)
    rows = figures.runs_figure(3, 100, counts=(1, 4))
    # 100 updates of one run, 25 of each of four.
    store = (f"{figures.SMALL} rows", "view")
    assert asked == [
        ("jax", *store, 100, 1),
        ("product", workloads.matrix_products(), 100, 1),
        ("jax", *store, 25, 4),
        ("product", workloads.matrix_products(), 25, 4),
    ]
    one, one_product, four, four_product = rows
    assert [row["name"] for row in rows] == list(seconds)
    assert (one["median"], one["min"], one["max"]) == pytest.approx((11, 10, 12))  # ms for each
    assert four["median"] == pytest.approx(22)
    # Round by round: 1 / 2, 1.2 / 2.2 and 1.1 / 2.4; the middle one.
    assert four["first_over_this"] == pytest.approx(0.5)
    assert one["updates_per_second"] == pytest.approx(1000 / 11)
    gflop = figures.flop(workloads.matrix_products()) / 1e9
    assert one["gflop_per_second"] == pytest.approx(gflop / 0.011)
    assert one["fraction_of_products"] == pytest.approx(5 / 11)
    assert four["fraction_of_products"] == pytest.approx(10 / 22)
    assert "fraction_of_products" not in one_product | four_product


@pytest.mark.parametrize("has_torch", [True, False])
def test_a_transformer_by_hand(
    timed: Callable[[dict[str, list[float]]], list[tuple]],
    monkeypatch: pytest.MonkeyPatch,
    has_torch: bool,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: has_torch)
    names = ("pt's reward model", "its products", "PyTorch, eager")
    seconds = ([2.0, 2.2, 2.4], [1.1, 1.0, 1.2], [4.0, 4.4, 4.8])
    asked = timed(dict(zip(names, seconds, strict=True)))
    ours, products, *others = figures.transformer_figure(3, 100)
    assert [row["name"] for row in (ours, products, *others)] == list(names[: 2 + has_torch])
    # Two updates of the 225 pairs of a batch, of which a CPU takes 15 at once.
    part = workloads.transformer_products(15)
    assert asked == [
        ("reward", f"{figures.SMALL} rows", "view", 2, preference_transformer),
        ("product", part, 30, 1),
        *([("torch_transformer", f"{figures.SMALL} rows", 2)] * has_torch),
    ]
    assert [row["first_over_this"] for row in others] == [pytest.approx(0.5)] * has_torch
    assert ours["median"] == pytest.approx(1100)  # ms
    assert ours["fraction_of_products"] == pytest.approx(0.5)
    assert ours["gflop_per_second"] == pytest.approx(15 * figures.flop(part) / 1.1e9)


def test_every_reward_learner_relabels(
    timed: Callable[[dict[str, list[float]]], list[tuple]],
) -> None:
    asked = timed(collections.defaultdict(lambda: [3.0, 2.0, 4.0]))
    rows = figures.relabel_figure(3, 100)
    assert [(row["name"], row["median"]) for row in rows] == [("appo", 3), ("pt", 3), ("dppo", 3)]
    assert asked == [
        ("relabel", f"{figures.RELABELLED} rows", "view", learner)
        for learner in (reward_model, preference_transformer, preference_predictor)
    ]


def test_flop_by_hand() -> None:
    assert figures.flop([(2, 3, 4), (5, 2, 3, 4)]) == 6 * 2 * 3 * 4 * 2


def test_both_sizes_are_timed(timed: Callable[[dict[str, list[float]]], list[tuple]]) -> None:
    names = [f"{size:,} transitions" for size in (figures.SMALL, figures.LARGE)]
    asked = timed({name: [0.1] for name in names})
    assert [row["name"] for row in figures.size_figure(1, 5)] == names
    assert [given[1] for given in asked] == ["100000 rows", "2400000 rows"]


def test_saturation_by_hand() -> None:
    full = figures.saturation(
        [
            {"figure": "runs", "name": f"{n} runs", "updates_per_second": rate}
            for n, rate in ((1, 50), (5, 375), (20, 390), (40, 400))
        ]
    )
    # 80 runs of 250,000 updates at 400 a second: 50,000 s. 390, but not 375, is within 5 %.
    assert full["runs_that_fill_the_device"] == 20
    assert full["hours_for_the_papers_80_runs"] == pytest.approx(50_000 / 3600)


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "LARGE", 2000)
    ours = np.ones(10**9, np.uint8)
    (memory,) = figures.memory_figure(1, 1)
    assert 0 < memory["median"] < len(ours) / 1e9
