"""Reader of LiRE's published Meta-World replay buffers (the paper's medium-replay data).

A folder `<task>-v2` or `<task>-v3` holds `saved_replay_buffer_1000000_seed<k>.pkl`, each a pickled
dict of arrays: one SAC agent's training in time order, episodes of 500 steps back to back. The
set of the paper is the first size x 1e5 steps of each of the agents.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from appo_jax.data import plain_pickle
from appo_jax.data.array_checks import as_bool, as_float32
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.types import InputError

HORIZON = 500
_VECTORS = ("observations", "next_observations", "actions")
_NUMBERS = ("rewards", "dones")
_ARRAYS = _VECTORS + _NUMBERS
_FILE_NAME = re.compile(r"saved_replay_buffer_\d+_seed(\d+)(\.pkl)?")


def folder_of(data_dir: Path, env_name: str) -> Path | None:
    """The folder of buffers of `<task>-v3` (or its -v2) in `data_dir`, or None."""
    task = env_name.rsplit("-v", 1)[0]
    for name in (f"{task}-v2", f"{task}-v3"):
        if (data_dir / name).is_dir() and buffer_files(data_dir / name):
            return data_dir / name
    return None


def buffer_files(folder: Path) -> list[Path]:
    """The folder's buffer files, ordered by the agent's seed."""
    found = (path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name))
    return sorted(found, key=lambda path: (_seed(path), path))


def _seed(path: Path) -> int:
    return int(_FILE_NAME.sub(r"\1", path.name))


def load(folder: Path, num_transitions: int | None, id: str | None = None) -> Dataset:
    """The first `num_transitions` / agents steps of each agent in `folder`, agents in order.

    num_transitions: None for as many as all agents have, in whole episodes.

    Nothing terminates in Meta-World, so `dones` are read as time limits. Raises InputError for a
    folder without buffers or with two of one agent, for a file that isn't such a buffer or holds
    too few steps, for one whose `dones` or chain of observations tell of other episodes than those
    of 500 steps, and for a size that the agents can't share in whole episodes.
    """
    files = buffer_files(folder) if folder.is_dir() else []
    names = ", ".join(path.name for path in files)
    if not files or len({_seed(path) for path in files}) < len(files):
        raise InputError(
            f"{folder}: holds {names or 'no buffers'}, expected one file "
            "saved_replay_buffer_1000000_seed<k>.pkl for each agent"
        )
    if num_transitions is None:
        shortest = min(len(_read(path)["actions"]) for path in files)
        num_transitions = len(files) * (shortest - shortest % HORIZON)
    steps, rest = divmod(num_transitions, len(files))
    if rest or steps % HORIZON or steps <= 0:
        raise InputError(
            f"{folder}: {num_transitions} transitions from {len(files)} buffers, expected a "
            f"positive multiple of {HORIZON * len(files)}: whole episodes, as many from each"
        )
    # One file after another: each holds a whole buffer, of which a part may be asked for.
    episodes = (episode for path in files for episode in _episodes(path, _read(path), steps))
    return from_episodes(
        episodes,
        id or f"lire/{folder.name}/n{num_transitions}",
        {"recipe": "medium-replay", "format": "LiRE", "buffers": [path.name for path in files]},
    )


def load_file(path: Path, id: str) -> Dataset:
    """All of one file of such arrays, which may be lists, as LiRE's human labels come with.

    Raises InputError as `load` does, and for rows that aren't whole episodes.
    """
    raw = _read(path, lists=True)
    steps = len(raw["actions"])
    if steps % HORIZON or not steps:
        raise InputError(f"{path}: {steps} rows, expected whole episodes of {HORIZON}")
    metadata = {"recipe": "medium-replay", "format": "LiRE", "buffers": [path.name]}
    return from_episodes(_episodes(path, raw, steps), id, metadata)


def _episodes(path: Path, raw: Mapping[str, np.ndarray], steps: int) -> list[Episode]:
    available = len(raw["actions"])
    if available < steps:
        raise InputError(f"{path}: {available} transitions, expected at least {steps}")
    # Cast here and not only in `from_episodes`, so that an error names the file and its row.
    arrays = {name: as_float32(raw[name][:steps], name, str(path)) for name in _ARRAYS}
    observations, next_observations = arrays["observations"], arrays["next_observations"]
    inside = np.arange(steps - 1) % HORIZON != HORIZON - 1
    broken = inside & np.any(next_observations[:-1] != observations[1:], axis=1)
    if broken.any():
        raise InputError(
            f"{path} row {int(broken.argmax())}: next_observations differ from the observations "
            f"of the following row, expected episodes of {HORIZON} steps back to back"
        )
    _check_ends(path, raw, steps)
    return [
        Episode(
            observations=np.concatenate(
                [observations[start:end], next_observations[end - 1 : end]]
            ),
            actions=arrays["actions"][start:end],
            rewards=arrays["rewards"][start:end],
            terminations=np.zeros(HORIZON, bool),
        )
        for start, end in ((start, start + HORIZON) for start in range(0, steps, HORIZON))
    ]


def _check_ends(path: Path, raw: Mapping[str, np.ndarray], steps: int) -> None:
    """Raise InputError where the buffer's own episodes aren't those of `HORIZON` steps."""
    dones = as_bool(raw["dones"][:steps].reshape(-1), "dones", str(path))
    early = dones & (np.arange(1, steps + 1) % HORIZON != 0)
    if early.any():
        raise InputError(
            f"{path} row {int(early.argmax())}: dones hold 1, expected episodes of {HORIZON} steps "
            f"back to back, which end in rows {HORIZON - 1}, {2 * HORIZON - 1}, ..."
        )
    ends = np.arange(HORIZON - 1, min(steps, len(raw["observations"]) - 1), HORIZON)
    with np.errstate(over="ignore"):  # the row behind the last one asked for isn't checked
        after = raw["next_observations"][ends].astype(np.float32)
        first = raw["observations"][ends + 1].astype(np.float32)
    going_on = np.all(after == first, axis=1)
    if going_on.any():
        raise InputError(
            f"{path} row {int(ends[going_on.argmax()])}: next_observations are the observations of "
            f"the following row, expected an episode of {HORIZON} steps to end here and the next "
            "to begin with a reset"
        )


def _read(path: Path, lists: bool = False) -> dict[str, np.ndarray]:
    arrays = plain_pickle.load(path)
    if lists and isinstance(arrays, dict):
        arrays = {
            name: as_float32(values, str(name), str(path)) if isinstance(values, list) else values
            for name, values in arrays.items()
        }
    if not isinstance(arrays, dict) or not all(
        isinstance(arrays.get(name), np.ndarray) for name in _ARRAYS
    ):
        is_dict = isinstance(arrays, dict)
        found = ", ".join(map(str, arrays))[:200] if is_dict else type(arrays).__name__
        raise InputError(f"{path}: holds {found}, expected arrays {', '.join(_ARRAYS)}")
    shapes = {name: arrays[name].shape for name in _ARRAYS}
    steps = shapes["observations"][:1]
    fits = (
        all(len(shapes[name]) == 2 and shapes[name][:1] == steps for name in _VECTORS)
        and shapes["observations"] == shapes["next_observations"]
        and all(shapes[name] in (steps, (*steps, 1)) for name in _NUMBERS)
    )
    if not fits:
        found = ", ".join(f"{name} {list(shapes[name])}" for name in _ARRAYS)
        raise InputError(
            f"{path}: holds {found}, expected {' and '.join(_VECTORS)} [steps, dim], "
            f"{' and '.join(_NUMBERS)} [steps] or [steps, 1]"
        )
    return arrays
