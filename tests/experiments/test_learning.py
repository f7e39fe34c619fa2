"""APPO learns button-press-topdown from 500 labels, and it is the labels that it learns from.

SAC learns it from the true reward. Slow: four runs of 30,000 updates, about an hour on two cores,
and one collection, which takes as long; `pytest -m slow -s -n 0`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appo_jax.data import minari_io

BUFFERS = Path(__file__).parents[3] / "shared" / "data" / "sac_replay"
SEEDS = (0, 1)


def curve(workdir: Path, seed: int, reward: str) -> dict[int, float]:
    """Train as a user would and give the success rate in percent at each evaluation."""
    command = [sys.executable, "-m", "experiments.train"]
    command += ["--task=button-press-topdown", "--dataset=medium-replay", f"--data_dir={BUFFERS}"]
    command += ["--num_feedback=500", "--num_updates=30000", f"--seed={seed}"]
    command += [f"--reward={reward}", f"--workdir={workdir}"]
    subprocess.run(command, check=True)
    (run,) = json.loads((workdir / "summary.json").read_text())["runs"]
    assert run["reward_accuracy"] > 0.85
    return {one["update"]: one["success_rate"] for one in run["evaluations"]}


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.skipif(not BUFFERS.is_dir(), reason="needs the replay buffers in ../shared/data")
def test_learns_from_the_labels(tmp_path: Path) -> None:
    # A folder given by hand keeps the runs, and lets a stopped check go on.
    folder = Path(os.environ.get("APPO_LEARNING_DIR", tmp_path))
    last_two = {}
    for reward in ("learned", "shuffled"):
        rates = []
        for seed in SEEDS:
            found = curve(folder / f"{reward}-{seed}", seed, reward)
            print(f"{reward} reward, seed {seed}: {found}")
            rates += [found[25_000], found[30_000]]
        last_two[reward] = np.mean(rates)
    assert last_two["learned"] >= last_two["shuffled"] + 40


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_sac_learns(tmp_path: Path) -> None:
    folder = Path(os.environ.get("APPO_LEARNING_DIR", tmp_path))
    command = [sys.executable, "-m", "experiments.collect", "--task=button-press-topdown"]
    command += ["--dataset=medium-replay", "--size=360000", "--batch_size=256"]
    command += ["--updates_per_step=0.6", f"--data_dir={folder}"]
    subprocess.run(command, check=True)
    id = "metaworld/button-press-topdown-v3/medium-replay-n360000-seed0-v0"
    curves = minari_io.load(id, folder).metadata["curves"]
    # Blocks of 20 episodes of 500 steps: the last one ends with step 120,000.
    assert [curve["step"][-1] for curve in curves] == [120_000] * 3
    for curve in curves:
        print(curve["success_rate"])
    assert max(curve["success_rate"][-1] for curve in curves) >= 50
