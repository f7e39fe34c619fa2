"""What `experiments.benchmark` measures: each figure is a function that gives rows of a table."""

import functools
import importlib.util
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import appo, training
from appo_jax.data import dataset
from appo_jax.types import Store, View
from experiments.cli import available_cores

Row = dict[str, Any]
Block = Callable[[], None]
Product = tuple[int, int, int]  # [m, k] times [k, n]

OBSERVATION_DIM, ACTION_DIM = 39, 4  # Meta-World's
EPISODE_LENGTH = 500
SMALL, LARGE = 100_000, 2_400_000  # transitions; the paper's largest set has the latter
CONFIG = appo.Config()
PAPER_RUNS, PAPER_UPDATES = 80, 250_000  # eight tasks, two numbers of labels, five seeds
# Threads of the other side still spin for a moment after its block.
PAUSE = 0.2  # seconds


def update_figure(rounds: int, num_updates: int) -> list[Row]:
    """Milliseconds of one APPO update, with sampling and gathering of its batch: ours, PyTorch's.

    Both draw from 100,000 random transitions in memory and use all cores this process may use.
    PyTorch is left out where it isn't installed.
    """
    store, view = random_store(SMALL)
    blocks = {"appo_jax": jax_block(store, view, num_updates)}
    if importlib.util.find_spec("torch"):
        blocks["PyTorch, eager"] = torch_block(store, view, num_updates)
    return _rows("update", interleave(blocks, rounds), dict.fromkeys(blocks, num_updates))


def runs_figure(rounds: int, num_updates: int, counts: Sequence[int] = (1, 5, 20)) -> list[Row]:
    """Many runs in one program against as many matrix products alone; ms per run and update."""
    store, view = random_store(SMALL)
    blocks: dict[str, Block] = {}
    updates: dict[str, int] = {}
    for count in counts:
        each = max(1, num_updates // count)
        blocks[f"{count} runs"] = jax_block(store, view, each, count)
        blocks[f"{count} x products"] = product_block(each, count)
        updates |= {f"{count} runs": each * count, f"{count} x products": each * count}
    rows = _rows("runs", interleave(blocks, rounds), updates)
    flop = sum(2 * m * k * n for m, k, n in matrix_products())
    for row in rows:
        row["updates_per_second"] = 1e3 / row["median"]
        row["gflop_per_second"] = flop / row["median"] / 1e6
    for ours, products in zip(rows[::2], rows[1::2], strict=True):
        ours["fraction_of_products"] = products["median"] / ours["median"]
    return rows


def size_figure(rounds: int, num_updates: int) -> list[Row]:
    """Milliseconds of an update with a small and with a large data set."""
    blocks = {
        f"{size:,} transitions": jax_block(*random_store(size), num_updates)
        for size in (SMALL, LARGE)
    }
    return _rows("data size", interleave(blocks, rounds), dict.fromkeys(blocks, num_updates))


def compile_figure(rounds: int, _: int) -> list[Row]:
    """Seconds to compile a chunk, without a cache."""
    store, view = random_store(SMALL)
    seconds = []
    for _ in range(min(rounds, 3)):
        jax.clear_caches()
        clock = time.perf_counter()
        lower_chunk(store, view, 100, 1).compile()
        seconds.append(time.perf_counter() - clock)
    return [{"figure": "compile", "name": "a chunk", "unit": "s"} | spread(seconds)]


def memory_figure(_: int, __: int) -> list[Row]:
    """Peak memory of five runs on the large set, above that of Python with JAX loaded."""
    code = "from experiments.measure import peak_memory; print(peak_memory({}))"
    peaks = [
        float(
            subprocess.run(
                [sys.executable, "-c", code.format(num_runs)],
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


def peak_memory(num_runs: int) -> int:
    """Bytes that this process has had in memory at most, after two updates of some runs.

    The data are read as from a file: one array after another, each freed once on the device.
    """
    jax.block_until_ready(jnp.zeros(1))
    if num_runs:
        store, view = random_store(LARGE)
        rewards = [jnp.full(len(store.actions), run, jnp.float32) for run in range(num_runs)]
        store = store.replace(rewards=jnp.concatenate(rewards))
        del rewards
        jax_block(store, view, 2, num_runs)()
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
    blocks: dict[str, Block] = {}
    losses: dict[str, dict[str, float]] = {}
    for name in ("float32", "tensorfloat32", "bfloat16"):
        with jax.default_matmul_precision(name):
            metrics = trained_metrics(store, view, 200)
            losses[name] = {k: v for k, v in metrics.items() if k.endswith("/loss")}
            blocks[name] = _under(name, jax_block(store, view, each, count))
    rows = _rows("precision", interleave(blocks, rounds), dict.fromkeys(blocks, each * count))
    for row in rows:
        row["losses_after_200_updates"] = losses[row["name"]]
        row["largest_difference"] = max(
            abs(value - losses["float32"][name]) / (abs(losses["float32"][name]) + 1e-6)
            for name, value in losses[row["name"]].items()
        )
    return rows


def _under(precision: str, block: Block) -> Block:
    def run() -> None:
        with jax.default_matmul_precision(precision):
            block()

    return run


def trained_metrics(store: Store, view: View, num_updates: int) -> dict[str, float]:
    """Mean metrics of the first updates of one run."""
    states, keys, views = runs_of(view, 1)
    _, metrics, _ = training.train_chunk(
        appo, CONFIG, num_updates, states, keys, store, views, training.choose_batch_runs()
    )
    return {name: float(value[0]) for name, value in metrics.items()}


def saturation(rows: Sequence[Row]) -> dict[str, float]:
    """From `runs_figure`: from how many runs on throughput no longer grows, and the paper's time.

    It no longer grows where doubling the runs, or the next step of the list, gains less than 5 %.
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


def matrix_products() -> list[Product]:
    """The matrix products of one update, 3.13 GFLOP in all.

    Of each network: forward, then for each layer the gradient of its weights and, but for the first
    layer where nothing before it learns, of its input.
    """
    transitions, steps = CONFIG.batch_size, CONFIG.num_pairs * 2 * CONFIG.segment_length
    state, pair = OBSERVATION_DIM, OBSERVATION_DIM + ACTION_DIM

    def layers(inputs: int, outputs: int) -> list[tuple[int, int]]:
        widths = [inputs, *[CONFIG.hidden_dim] * CONFIG.hidden_layers, outputs]
        return list(zip(widths[:-1], widths[1:], strict=True))

    def forward(rows: int, inputs: int, outputs: int) -> Iterator[Product]:
        return ((rows, m, n) for m, n in layers(inputs, outputs))

    def weights(rows: int, inputs: int, outputs: int) -> Iterator[Product]:
        return ((m, rows, n) for m, n in layers(inputs, outputs))

    def inner(rows: int, inputs: int, outputs: int, first: int = 1) -> Iterator[Product]:
        return ((rows, n, m) for m, n in layers(inputs, outputs)[first:])

    critic, actor = (2 * transitions + steps, pair, 1), (transitions, state, 2 * ACTION_DIM)
    value, one = (transitions, state, 1), (transitions, pair, 1)
    twice = [*forward(*critic), *weights(*critic), *inner(*critic), *forward(*one)]  # and targets
    return [
        *twice,
        *twice,
        *forward(steps, state, 1),  # V of the segments' next states
        *forward(*value),
        *weights(*value),
        *inner(*value),
        *forward(*actor),
        *weights(*actor),
        *inner(*actor),
        *forward(*one),  # Q of the actor loss, and its gradient to the action
        *inner(*one, first=0),
    ]


def product_block(num_updates: int, num_runs: int) -> Block:
    """A call makes the matrix products of so many updates of so many runs, and nothing else."""
    shapes = matrix_products()
    batch_runs = training.choose_batch_runs()

    @jax.jit
    def run(left: Any, right: Any) -> Any:
        def one_run(left: Any, right: Any) -> Any:
            def body(_: jax.Array, left: list[jax.Array]) -> list[jax.Array]:
                # The barrier keeps the compiler from computing the one entry that is read alone.
                out = jax.lax.optimization_barrier(
                    [a @ b for a, b in zip(left, right, strict=True)]
                )
                return [
                    a.at[0, 0].add(1e-30 * product[0, 0])
                    for a, product in zip(left, out, strict=True)
                ]

            return jax.lax.fori_loop(0, num_updates, body, left)

        return training.over_runs(one_run, batch_runs)(left, right)

    draw = np.random.default_rng(0)

    def matrices(places: tuple[int, int]) -> list[jax.Array]:
        return [
            jnp.asarray(draw.standard_normal((num_runs, *(s[p] for p in places)), np.float32))
            for s in shapes
        ]

    left, right = matrices((0, 1)), matrices((1, 2))

    def block() -> None:
        jax.block_until_ready(run(left, right))

    return block


@functools.lru_cache(maxsize=1)
def random_store(num_transitions: int) -> tuple[Store, View]:
    """Transitions of noise in episodes of Meta-World's length and widths."""
    draw = np.random.default_rng(0)
    episodes = num_transitions // EPISODE_LENGTH
    rows = episodes * (EPISODE_LENGTH + 1)
    data = dataset.Dataset(
        observations=draw.standard_normal((rows, OBSERVATION_DIM), np.float32),
        actions=draw.random((rows, ACTION_DIM), np.float32) * 2 - 1,
        rewards=draw.random(rows, np.float32),
        terminations=np.zeros(rows, bool),
        successes=None,
        lengths=np.full(episodes, EPISODE_LENGTH),
        id="noise",
        metadata={},
    )
    return dataset.to_device(data, CONFIG.segment_length)


def runs_of(view: View, num_runs: int) -> tuple[appo.TrainState, jax.Array, View]:
    """States, keys and views of runs that differ in their keys."""
    keys = jax.random.split(jax.random.key(1), num_runs)
    init = jax.vmap(lambda key: appo.init(CONFIG, key, OBSERVATION_DIM, ACTION_DIM))
    return jax.jit(init)(keys), keys, training.stack_runs([view] * num_runs)


def lower_chunk(store: Store, view: View, num_updates: int, num_runs: int) -> Any:
    """A chunk, traced."""
    states, keys, views = runs_of(view, num_runs)
    return training.train_chunk.lower(
        appo, CONFIG, num_updates, states, keys, store, views, training.choose_batch_runs()
    )


def jax_block(store: Store, view: View, num_updates: int, num_runs: int = 1) -> Block:
    """A call makes `num_updates` updates of each run, in one program as in training."""
    states, keys, views = runs_of(view, num_runs)

    def block() -> None:
        nonlocal states
        states, metrics, _ = training.train_chunk(
            appo, CONFIG, num_updates, states, keys, store, views, training.choose_batch_runs()
        )
        jax.block_until_ready((states, metrics))

    return block


def torch_block(store: Store, view: View, num_updates: int) -> Block:
    """The same in eager PyTorch, with the same data."""
    import torch

    from experiments import torch_reference

    torch.set_num_threads(available_cores())
    observations, actions, terminations, rewards, transition_rows, segment_rows = (
        torch.from_numpy(np.array(array))
        for array in (
            store.observations,
            store.actions,
            store.terminations.astype(jnp.float32),
            store.rewards,
            store.transition_rows,
            store.segment_rows,
        )
    )
    reference = torch_reference.APPO(OBSERVATION_DIM, ACTION_DIM)
    offsets = torch.arange(CONFIG.segment_length + 1)

    def sample() -> torch_reference.Batch:
        rows = transition_rows[torch.randint(len(transition_rows), (CONFIG.batch_size,))]
        first = segment_rows[torch.randint(len(segment_rows), (CONFIG.num_pairs, 2))]
        with_next = first[..., None] + offsets
        steps = with_next[..., :-1]
        return torch_reference.Batch(
            observations=observations[rows],
            actions=actions[rows],
            segment_observations=observations[with_next],
            segment_actions=actions[steps],
            segment_rewards=rewards[steps],
            segment_terminations=terminations[steps],
        )

    def block() -> None:
        for _ in range(num_updates):
            noise = torch.randn(CONFIG.batch_size, ACTION_DIM)
            reference.update(sample(), noise, int(torch.randint(2, ())))

    return block


def interleave(blocks: dict[str, Block], rounds: int) -> dict[str, list[float]]:
    """Seconds of each block in each round, after one call that isn't counted."""
    for block in blocks.values():
        block()
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(rounds):
        for name, block in blocks.items():
            time.sleep(PAUSE)
            clock = time.perf_counter()
            block()
            seconds[name].append(time.perf_counter() - clock)
    return seconds


def _rows(figure: str, seconds: dict[str, list[float]], updates: dict[str, int]) -> list[Row]:
    """Milliseconds per update, and the first block's time over each, round by round."""
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
