"""How fast an update is: `python -m experiments.benchmark --output=benchmark.json`.

A figure is a function that returns rows; `FIGURES` lists them. What is compared runs in turn, block
by block in the same minutes, and medians are reported: a busy machine then slows all sides alike.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from appo_jax import appo, training
from appo_jax.data import dataset
from appo_jax.types import Store, View
from experiments.cli import available_cores, parse_flags

Row = dict[str, Any]
Block = Callable[[], None]

OBSERVATION_DIM, ACTION_DIM = 39, 4  # Meta-World's
NUM_EPISODES, EPISODE_LENGTH = 200, 500
CONFIG = appo.Config()
# Threads of the other side still spin for a moment after its block.
PAUSE = 0.2  # seconds
# Of other processes, in the last minute. PyTorch's threads spin while they wait for each other, so
# one that has lost its core to another process stops them all.
QUIET_LOAD = 0.5
NO_TORCH = "No PyTorch here to compare with: pip install -c constraints.txt -e '.[torch]' adds it."


def update_figure(rounds: int, num_updates: int) -> list[Row]:
    """Milliseconds of one APPO update, with sampling and gathering of its batch: ours, PyTorch's.

    Both draw from 100,000 random transitions in memory and use all cores this process may use.
    PyTorch is left out where it isn't installed.
    """
    store, view = random_store()
    blocks = {"appo_jax": jax_block(store, view, num_updates)}
    if importlib.util.find_spec("torch"):
        blocks["PyTorch, eager"] = torch_block(store, view, num_updates)
    seconds = interleave(blocks, rounds)
    rows = []
    for name, found in seconds.items():
        milliseconds = [1e3 * one / num_updates for one in found]
        ratios = [ours / theirs for ours, theirs in zip(seconds["appo_jax"], found, strict=True)]
        row = {"figure": "update", "name": name, "unit": "ms/update"}
        row |= spread(milliseconds) | {"appo_jax_over_this": statistics.median(ratios)}
        rows.append(row)
    return rows


FIGURES: dict[str, Callable[[int, int], list[Row]]] = {"update": update_figure}


def random_store() -> tuple[Store, View]:
    """100,000 transitions of noise in episodes of Meta-World's length and widths."""
    draw = np.random.default_rng(0)
    episodes = [
        dataset.Episode(
            observations=draw.standard_normal((EPISODE_LENGTH + 1, OBSERVATION_DIM)),
            actions=draw.uniform(-1, 1, (EPISODE_LENGTH, ACTION_DIM)),
            rewards=draw.uniform(0, 1, EPISODE_LENGTH),
            terminations=np.zeros(EPISODE_LENGTH, bool),
        )
        for _ in range(NUM_EPISODES)
    ]
    return dataset.to_device(dataset.from_episodes(episodes, "noise"), CONFIG.segment_length)


def jax_block(store: Store, view: View, num_updates: int) -> Block:
    """A call makes `num_updates` updates of one run, scanned as in training."""
    views = training.stack_runs([view])
    keys = training.stack_runs([jax.random.key(1)])
    state = appo.init(CONFIG, jax.random.key(0), OBSERVATION_DIM, ACTION_DIM)
    states = training.stack_runs([state])

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


def spread(values: Sequence[float]) -> Row:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def machine() -> Row:
    """The processor, the cores this process may use, JAX's device, the load, and versions."""
    versions = {"python": platform.python_version()}
    for package in ("jax", "jaxlib", "numpy", "torch"):
        if importlib.util.find_spec(package):
            versions[package] = importlib.metadata.version(package)
    return {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "device": jax.devices()[0].device_kind,
        "load_average": os.getloadavg()[0],
        "versions": versions,
    }


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def table(rows: Sequence[Row]) -> str:
    """The rows of all figures, one line each."""
    lines = [
        f"{'figure':<10}{'':<18}{'unit':<12}{'median':>9}{'min':>9}{'max':>9}{'ratio of ours':>16}"
    ]
    lines += [
        f"{row['figure']:<10}{row['name']:<18}{row['unit']:<12}{row['median']:>9.2f}"
        f"{row['min']:>9.2f}{row['max']:>9.2f}{row['appo_jax_over_this']:>16.2f}"
        for row in rows
    ]
    return "\n".join(lines)


def main(_: Sequence[str]) -> None:
    """Measure all figures, print them and write them."""
    values = flags.FLAGS
    output = Path(values.output) if values.output else None
    if output and not output.parent.is_dir():
        sys.exit(f"flag --output: no folder {output.parent}, expected one that exists")
    found = machine()
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    print(f"{found['cpu']}, {found['cores']} cores, device {found['device']}; {versions}")
    if found["load_average"] > QUIET_LOAD:
        print(f"Other processes are busy (load {found['load_average']:.1f}): figures will be off.")
    rows = [row for figure in FIGURES.values() for row in figure(values.rounds, values.num_updates)]
    print(table(rows))
    if "torch" not in found["versions"]:
        print(NO_TORCH)
    if output:
        output.write_text(json.dumps({"machine": found, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    flags.DEFINE_integer("rounds", 9, "blocks of each side, at least 1", lower_bound=1)
    flags.DEFINE_integer("num_updates", 100, "updates of a block, at least 1", lower_bound=1)
    flags.DEFINE_string("output", None, "JSON file for the figures")
    app.run(main, flags_parser=parse_flags)
