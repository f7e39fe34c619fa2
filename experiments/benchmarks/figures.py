"""What `experiments.benchmark` measures: each figure is a function that gives rows of a table."""

import functools
import importlib.util
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from appo_jax import (
    appo,
    bc,
    cpl,
    dppo,
    ipl,
    iql,
    preference_transformer,
    registry,
    training,
    transformer,
)
from appo_jax.training import PolicyLearner
from appo_jax.types import Store, View
from experiments.benchmarks.workloads import (
    CONFIG,
    Product,
    Workload,
    interleave,
    jax_workload,
    lower_chunk,
    matrix_products,
    product_workload,
    random_store,
    relabel_workload,
    reward_workload,
    runs_of,
    torch_appo_workload,
    torch_bc_workload,
    torch_cpl_workload,
    torch_dppo_workload,
    torch_ipl_workload,
    torch_iql_workload,
    torch_transformer_workload,
    transformer_pairs,
    transformer_products,
)

Row = dict[str, Any]

SMALL, LARGE = 100_000, 2_400_000  # transitions; the paper's largest set has the latter
RELABELLED = 300_000  # transitions; most of the paper's sets have as many
PAPER_RUNS, PAPER_UPDATES = 80, 250_000  # eight tasks, two numbers of labels, five seeds


def update_figure(
    figure: str,
    learner: PolicyLearner,
    torch_workload: Callable[[Store, int], Workload],
    rounds: int,
    num_updates: int,
) -> list[Row]:
    """Milliseconds of one update, with sampling and gathering of its batch: ours, PyTorch's.

    Both draw from 100,000 random transitions in memory, or their labelled pairs, and use all cores
    this process may use. PyTorch is left out where it isn't installed.
    """
    store, view = random_store(SMALL)
    workloads = {"appo_jax": jax_workload(store, view, num_updates, learner=learner)}
    if importlib.util.find_spec("torch"):
        workloads["PyTorch, eager"] = torch_workload(store, num_updates)
    return _rows(figure, interleave(workloads, rounds), dict.fromkeys(workloads, num_updates))


def learners_figure(rounds: int, num_updates: int) -> list[Row]:
    """Milliseconds of an update of every policy learner, with sampling; defaults of each."""
    store, view = random_store(SMALL)
    names: dict[Any, str] = {}
    for name, found in registry.ALGORITHMS.items():
        learner = found.policy_learner
        names[learner] = f"{names[learner]}, {name}" if learner in names else name
    workloads = {
        name: jax_workload(store, view, num_updates, learner=learner)
        for learner, name in names.items()
    }
    rows = _rows("learners", interleave(workloads, rounds), dict.fromkeys(workloads, num_updates))
    for row in rows:
        row["updates_per_second"] = 1e3 / row["median"]
    return rows


def transformer_figure(rounds: int, num_updates: int) -> list[Row]:
    """An update of Preference Transformer's reward model, its matrix products alone, PyTorch's.

    PyTorch's network has no dropout.
    """
    each, pairs = max(1, num_updates // 50), transformer_pairs()
    at_once = transformer.pairs_at_once(pairs)
    products, parts = transformer_products(at_once), pairs // at_once
    store, view = random_store(SMALL)
    workloads = {
        "pt's reward model": reward_workload(store, view, each, preference_transformer),
        "its products": product_workload(products, each * parts, 1),
    }
    if importlib.util.find_spec("torch"):
        workloads["PyTorch, eager"] = torch_transformer_workload(store, each)
    rows = _rows("transformer", interleave(workloads, rounds), dict.fromkeys(workloads, each))
    for row in rows[:2]:
        row["gflop_per_second"] = parts * flop(products) / row["median"] / 1e6
    rows[0]["fraction_of_products"] = rows[1]["median"] / rows[0]["median"]
    return rows


def relabel_figure(rounds: int, _: int) -> list[Row]:
    """Seconds in which each reward learner gives 300,000 transitions their rewards."""
    store, view = random_store(RELABELLED)
    learners: dict[Any, str] = {}
    for name, found in registry.ALGORITHMS.items():
        if found.reward_learner:
            learners.setdefault(found.reward_learner, name)
    workloads = {name: relabel_workload(store, view, learner) for learner, name in learners.items()}
    seconds = interleave(workloads, min(rounds, 3))
    return [
        {"figure": "relabel", "name": name, "unit": "s"} | spread(found)
        for name, found in seconds.items()
    ]


def runs_figure(rounds: int, num_updates: int, counts: Sequence[int] = (1, 5, 20)) -> list[Row]:
    """Many runs in one program against as many matrix products alone; ms per run and update."""
    store, view = random_store(SMALL)
    workloads: dict[str, Workload] = {}
    updates: dict[str, int] = {}
    together = training.choose_runs_axis() == "vmap"  # whose runs take their updates together
    for count in counts:
        each = num_updates if together else max(1, num_updates // count)
        workloads[f"{count} runs"] = jax_workload(store, view, each, count)
        workloads[f"{count} x products"] = product_workload(matrix_products(), each, count)
        updates |= {f"{count} runs": each * count, f"{count} x products": each * count}
    rows = _rows("runs", interleave(workloads, rounds), updates)
    for row in rows:
        row["updates_per_second"] = 1e3 / row["median"]
        row["gflop_per_second"] = flop(matrix_products()) / row["median"] / 1e6
    for ours, products in zip(rows[::2], rows[1::2], strict=True):
        ours["fraction_of_products"] = products["median"] / ours["median"]
    return rows


def flop(products: Sequence[Product]) -> int:
    """Multiplications and additions."""
    return sum(2 * math.prod(product) for product in products)


def size_figure(rounds: int, num_updates: int) -> list[Row]:
    """Milliseconds of an update with a small and with a large data set."""
    workloads = {
        f"{size:,} transitions": jax_workload(*random_store(size), num_updates)
        for size in (SMALL, LARGE)
    }
    return _rows("data size", interleave(workloads, rounds), dict.fromkeys(workloads, num_updates))


def compile_figure(rounds: int, _: int) -> list[Row]:
    """Seconds to trace and compile a chunk; a cache is used only where JAX's variables name one."""
    store, view = random_store(SMALL)
    runs = runs_of(view, 1)
    seconds = []
    for _ in range(min(rounds, 3)):
        jax.clear_caches()
        clock = time.perf_counter()
        lower_chunk(store, runs, 100).compile()
        seconds.append(time.perf_counter() - clock)
    return [{"figure": "compile", "name": "a chunk", "unit": "s"} | spread(seconds)]


def memory_figure(_: int, __: int) -> list[Row]:
    """Peak memory of five runs on the large set, above that of Python with JAX loaded."""
    code = "from experiments.benchmarks.figures import peak_memory; print(peak_memory({}, {}))"
    peaks = [
        float(
            subprocess.run(
                [sys.executable, "-c", code.format(num_runs, LARGE)],
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            ).stdout
        )
        for num_runs in (0, 5)
    ]
    return [
        {"figure": "memory", "name": "5 runs, 2.4e6 rows", "unit": "GB"}
        | spread([(peaks[1] - peaks[0]) / 1e9])
    ]


def peak_memory(num_runs: int, num_transitions: int) -> int:
    """Bytes that this process has had in memory at most, after two updates of some runs.

    With the making of the data set, whose host copy is gone once it is on the device.
    """
    jax.block_until_ready(jnp.zeros(1))
    if num_runs:
        store, view = random_store(num_transitions)
        rewards = [jnp.full(len(store.actions), run, jnp.float32) for run in range(num_runs)]
        store = store.replace(rewards=jnp.concatenate(rewards))
        del rewards
        jax_workload(store, view, 2, num_runs)()
    status = Path("/proc/self/status")
    if status.exists():  # getrusage tells the peak of the process that started this one, too
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def precision_figure(rounds: int, num_updates: int, count: int = 20) -> list[Row]:
    """Matrix products in float32, TensorFloat-32 and bfloat16: speed, and what it does to losses.

    On a CPU the three are the same.
    """
    store, view = random_store(SMALL)
    each = max(1, num_updates // count)
    workloads: dict[str, Workload] = {}
    losses: dict[str, dict[str, float]] = {}
    for name in ("float32", "tensorfloat32", "bfloat16"):
        with jax.default_matmul_precision(name):
            metrics = trained_metrics(store, view, 200)
            losses[name] = {k: v for k, v in metrics.items() if k.endswith("/loss")}
            workloads[name] = _under(name, jax_workload(store, view, each, count))
    rows = _rows("precision", interleave(workloads, rounds), dict.fromkeys(workloads, each * count))
    for row in rows:
        row["losses_after_200_updates"] = losses[row["name"]]
        row["largest_difference"] = max(
            abs(value - losses["float32"][name]) / (abs(losses["float32"][name]) + 1e-6)
            for name, value in losses[row["name"]].items()
        )
    return rows


def _under(precision: str, work: Workload) -> Workload:
    def run() -> None:
        with jax.default_matmul_precision(precision):
            work()

    return run


def trained_metrics(store: Store, view: View, num_updates: int) -> dict[str, float]:
    """Mean metrics of the first updates of one run."""
    states, keys, views = runs_of(view, 1)
    _, metrics, _ = training.train_chunk(
        appo, CONFIG, num_updates, states, keys, store, (views,), training.choose_runs_axis()
    )
    return {name: float(value[0]) for name, value in metrics.items()}


def saturation(rows: Sequence[Row]) -> dict[str, float]:
    """From `runs_figure`: from how many runs on throughput no longer grows, and the paper's time.

    It no longer grows where the best number of runs gains less than 5 %.
    """
    ours = [row for row in rows if row["figure"] == "runs" and row["name"].endswith(" runs")]
    best = max(ours, key=lambda row: row["updates_per_second"])
    enough = next(
        row for row in ours if row["updates_per_second"] > 0.95 * best["updates_per_second"]
    )
    hours = PAPER_RUNS * PAPER_UPDATES / best["updates_per_second"] / 3600
    return {
        "runs_that_fill_the_device": int(enough["name"].split()[0]),
        "hours_for_the_papers_80_runs": hours,
    }


def _rows(figure: str, seconds: dict[str, list[float]], updates: dict[str, int]) -> list[Row]:
    """Milliseconds per update, and the first workload's time over each, round by round."""
    first = next(iter(seconds))
    rows = []
    for name, found in seconds.items():
        each = [1e3 * one / updates[name] for one in found]
        ratios = [
            (ours / updates[first]) / (theirs / updates[name])
            for ours, theirs in zip(seconds[first], found, strict=True)
        ]
        row = {"figure": figure, "name": name, "unit": "ms/update"} | spread(each)
        rows.append(row | {"first_over_this": statistics.median(ratios)})
    return rows


def spread(values: Sequence[float]) -> Row:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


Figure = Callable[[int, int], list[Row]]  # of the rounds, and of the updates of a workload

# Of each learner whose update was written in PyTorch, too.
OF_UPDATES: dict[str, Figure] = {
    name: functools.partial(update_figure, name, learner, torch_workload)
    for name, learner, torch_workload in (
        ("update", appo, torch_appo_workload),
        ("iql", iql, torch_iql_workload),
        ("ipl", ipl, torch_ipl_workload),
        ("bc", bc, torch_bc_workload),
        ("cpl", cpl, torch_cpl_workload),
        ("dppo", dppo, torch_dppo_workload),
    )
}
ON_ANY_DEVICE: dict[str, Figure] = OF_UPDATES | {
    "runs": runs_figure,
    "size": size_figure,
    "compile": compile_figure,
    "memory": memory_figure,
    "learners": learners_figure,
    "transformer": transformer_figure,
    "relabel": relabel_figure,
}
ON_A_GPU: dict[str, Figure] = {
    "runs": functools.partial(runs_figure, counts=(1, 2, 5, 10, 20, 40, 80)),
    "precision": precision_figure,
    "size": size_figure,
    "compile": compile_figure,
}
BESIDE_PYTORCH = {*OF_UPDATES, "transformer"}
PRESETS = {"default": ON_ANY_DEVICE, "gpu": ON_A_GPU}
