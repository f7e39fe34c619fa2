"""Tiny files in the layouts in which others publish theirs, for the tests of importers."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

PAIRS, LENGTH, WIDTHS = 6, 5, (3, 2)
CODES = [0, 1, -1, 1, 0, 1]  # PT's
LABELS = [0, 1, 0.5, 1, 0, 1]


def pickled(path: Path, content: Any) -> None:
    path.write_bytes(pickle.dumps(content, 4))


def walk(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Observations that show their row, and actions and rewards made of it."""
    draw = np.random.default_rng(seed)
    observations = draw.normal(size=(rows, WIDTHS[0])).astype(np.float32)
    observations[:, 0] = np.arange(rows)
    actions = draw.uniform(-1, 1, (rows, WIDTHS[1])).astype(np.float32)
    return {"observations": observations, "actions": actions, "rewards": actions.sum(axis=1)}


def chained(rows: int, horizon: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Episodes of `horizon` rows with their next observations, as LiRE has them."""
    arrays = walk(rows, seed)
    after = np.roll(arrays["observations"], -1, axis=0)
    after[horizon - 1 :: horizon] += 0.5
    return {**arrays, "next_observations": after, "dones": np.zeros(rows, np.float32)}


def lire(folder: Path) -> Path:
    folder.mkdir()
    for seed, rows in enumerate((1000, 500)):
        pickled(folder / f"saved_replay_buffer_1000000_seed{seed}.pkl", chained(rows, 500, seed))
    return folder


def lire_labels(folder: Path, episodes: int = 2) -> Path:
    """Independent pairs, two chains, and two ranked lists."""
    folder.mkdir()
    arrays = chained(500 * episodes, 500)
    pickled(folder / "dataset.pkl", {name: array.tolist() for name, array in arrays.items()})
    (folder / "_Independent.txt").write_text("10 475 1\n20 500 2\n30 700 3\n")
    # Up, up, a tie and down: [10 < 20 < 30 = 40], then [50 < 40]. A chain of its own: [600 < 610].
    (folder / "_SeqRank.txt").write_text(
        "10\t20\t3\n20\t30\t3\n30\t40\t2\n40\t50\t1\n600\t610\t3\n"
    )
    (folder / "_RLT_0.txt").write_text("0 [10]\n1 [20, 500]\n")
    (folder / "_RLT_1.txt").write_text("0 [30, 40]\n1 [900]\n")
    return folder


def ipl(path: Path, pairs: int = PAIRS, widths: tuple[int, int] = WIDTHS) -> Path:
    draw = np.random.default_rng(1)
    arrays: dict[str, Any] = {"label": np.array(LABELS[:pairs])}
    for side in (1, 2):
        arrays[f"obs_{side}"] = draw.normal(size=(pairs, LENGTH, widths[0]))
        arrays[f"action_{side}"] = draw.uniform(-0.999, 0.999, (pairs, LENGTH, widths[1]))
    np.savez_compressed(path, **arrays)
    return path


def ipl_transitions(folder: Path, lengths: tuple[int, ...] = (7, 30)) -> Path:
    """The first episode ends in a terminal state, the others by a time limit."""
    folder.mkdir()
    for number, steps in enumerate(lengths):
        arrays = walk(steps + 1, number)
        done = np.arange(steps + 1) == steps
        arrays["actions"][0] = arrays["rewards"][0] = 0
        np.savez(
            folder / f"20230101T0000_{number}_{steps}.npz",
            obs=arrays["observations"],
            action=arrays["actions"],
            reward=arrays["rewards"],
            done=done,
            discount=1.0 - (done & (number == 0)),
            **{"kwargs.timestep": np.arange(steps + 1)},  # as files may have, read by nobody
        )
    return folder


def cpl(path: Path, rows: int = 2 * PAIRS) -> Path:
    draw = np.random.default_rng(2)
    scores = draw.normal(size=rows)
    scores[rows // 2 + 2] = scores[2]
    np.savez(
        path,
        obs=draw.normal(size=(rows, LENGTH, WIDTHS[0])),
        action=draw.uniform(-1, 1, (rows, LENGTH, WIDTHS[1])),
        reward=draw.normal(size=(rows, LENGTH)),
        state=draw.normal(size=(rows, LENGTH, 4)),
        timestep=np.zeros((rows, LENGTH), np.int64),
        rl_sum=scores,
        rl_dir=-scores,
    )
    return path


def pt_labels(folder: Path, first: Any = None, second: Any = None, codes: Any = None) -> Path:
    folder.mkdir()
    pickled(folder / "indices_num6_q5", np.int32([0, 1, 2, 5, 5, 3]) if first is None else first)
    default = np.int32([5, 6, 6, 6, 0, 0])
    pickled(folder / "indices_2_num6_q5", default if second is None else second)
    pickled(folder / "label_human", CODES if codes is None else codes)
    return folder


def crowd_labels(folder: Path) -> Path:
    folder.mkdir()
    name = "domain_mujoco_env_hopper-medium-v2_num_2000_len_5_1a2b3c.pkl"
    for kind, content in (
        ("human_label", np.int64(CODES)),
        ("indices_1", np.int64([0, 1, 2, 5, 5, 3])),
        ("indices_2", np.int64([5, 6, 6, 6, 0, 0])),
    ):
        pickled(folder / f"{kind}_{name}", content)
    return folder


def d4rl(path: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> Path:
    """Rows 0 to 4 end terminal, 5 to 11 by a timeout, 12 to 20 not at all."""
    arrays: dict[str, Any] = walk(21)
    arrays |= {"terminals": np.arange(21) == 4, "timeouts": np.arange(21) == 11}
    change(arrays)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file["metadata/algorithm"] = "SAC"
    return path


def own_arrays(with_next: bool = False) -> dict[str, np.ndarray]:
    """Episodes of 8 and 12 steps."""
    lengths = np.array([8, 12])
    arrays = walk(22)
    arrays["actions"], arrays["rewards"] = arrays["actions"][:20], arrays["rewards"][:20]
    arrays |= {"lengths": lengths, "terminations": np.arange(20) == 7}
    if with_next:
        rows = np.r_[0:8, 9:21]
        observations = arrays["observations"]
        arrays |= {"observations": observations[rows], "next_observations": observations[rows + 1]}
    return arrays
