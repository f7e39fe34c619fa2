"""Data sets on disk, as Minari data sets: ours open with Minari, and a user's own load here.

An episode has one observation more than steps, and so have its infos, as Minari wants: the first
entry of `infos["success"]` belongs to the reset. Minari has no sets without rewards: where nobody
knows them, all are NaN. What only this package knows (the metadata, the digest) lies under the key
`appo_jax` of Minari's `metadata.json`; of a segment out of a longer episode, the last row of
`infos["last_action"]` is the action that was taken at its last observation.
"""

import importlib.metadata
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from appo_jax.data import atomic, hdf5
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.types import InputError

_KEY = "appo_jax"
_MAX_LISTED = 10
_AT_ONCE = 100  # episodes


def folder(dataset_id: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where a data set lies, there or not: below `data_dir`, else where Minari keeps its own.

    Minari's place is `MINARI_DATASETS_PATH`, else `~/.minari/datasets`.
    """
    return root(data_dir) / dataset_id


def exists(dataset_id: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether `load` would find this data set, whole."""
    # One data set has one id: `./a/b-v0` finds the same files as `a/b-v0`, and isn't it.
    if any(part in ("", ".", "..") for part in dataset_id.split("/")):
        return False
    # Not Path.is_file, which raises for some names, such as too long ones.
    return os.path.isfile(folder(dataset_id, data_dir) / "data" / "metadata.json")


def local_ids(data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """The ids of the data sets that lie below the folder, sorted."""
    top = root(data_dir)
    found = (path.parent.parent.relative_to(top) for path in top.glob("**/data/metadata.json"))
    # Minari skips hidden folders, and an unfinished write hides in one.
    return sorted(p.as_posix() for p in found if not any(part.startswith(".") for part in p.parts))


def check_writable(
    dataset_id: str, data_dir: str | os.PathLike[str] | None = None, num_bytes: int = 0
) -> None:
    """Raise InputError when `save` couldn't write a new set of this id; to ask before long work.

    num_bytes: that the set will take on the disk, about.
    """
    check_id(dataset_id)
    target = folder(dataset_id, data_dir)
    if target.exists():
        raise InputError(f"data set {dataset_id}: {target} exists, expected a new id")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(_unwritable(dataset_id, target, error)) from error
    if not os.access(target.parent, os.W_OK):
        raise InputError(_unwritable(dataset_id, target, PermissionError("no permission")))
    atomic.check_room(f"data set {dataset_id}", num_bytes, target.parent)


def load(dataset_id: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Read a data set; observations and actions of any Box space are laid flat and cast to float32.

    A set that `save` wrote comes back with the same arrays and metadata. One from elsewhere may
    have episodes of any lengths; without a flag `success` or `is_success` in its infos,
    `successes` is None, and its metadata holds Minari's own under `minari`. Rewards that are all
    NaN count as not known.
    Raises InputError for an unknown id, for files that can't be read, for spaces other than Box,
    for all that `from_episodes` refuses, and for contents that aren't those once written, by our
    digest or by Minari's own count of steps.
    """
    path = folder(dataset_id, data_dir)
    if not exists(dataset_id, data_dir):
        raise InputError(_not_found(dataset_id, data_dir))
    name = f"data set {dataset_id}"
    minari = _minari()
    try:
        _check_sizes(path / "data", name)
        stored = minari.MinariDataset(path / "data")
        _check_spaces(stored, name)
        raw = stored.storage.read_raw_metadata(path / "data")
        own = raw.pop(_KEY, None)
        if own is None:
            kept = {k: v for k, v in raw.items() if k not in ("observation_space", "action_space")}
            own = {"metadata": {"minari": kept}, "digest": None}
        metadata, expected_digest = dict(own["metadata"]), own["digest"]
        is_ours = expected_digest is not None
        # One after another: a large set is in memory once.
        episodes = (_from_minari(episode, is_ours) for episode in _episodes(stored))
        dataset = from_episodes(episodes, dataset_id, metadata)
    except InputError:
        raise
    except Exception as error:  # damaged files make the libraries raise anything
        raise InputError(
            f"{name} at {path} can't be read ({type(error).__name__}: {error}), expected a whole "
            "Minari data set"
        ) from error
    if raw.get("total_steps") != dataset.num_transitions:
        raise InputError(
            f"{name} at {path} has {dataset.num_transitions} steps in {dataset.num_episodes} "
            f"episodes, expected the {raw.get('total_steps')!r} of its metadata"
        )
    if expected_digest is not None and expected_digest != (digest := dataset.digest()):
        raise InputError(
            f"{name} at {path} has contents with digest {digest}, "
            f"expected {expected_digest}: it was changed or damaged after it was written"
        )
    return dataset


def save(
    dataset: Dataset, data_dir: str | os.PathLike[str] | None = None, description: str = ""
) -> Path:
    """Write a data set under its id and return its folder; all of it appears at once or not at all.

    The last step of an episode that doesn't terminate is truncated. Raises InputError when the data
    set exists already, when the folder can't be written to, for an id that Minari wouldn't take and
    for metadata that JSON would change; OSError when writing fails, as on a full disk.
    """
    target = folder(dataset.id, data_dir)
    _check_metadata(dataset.metadata, f"data set {dataset.id}")
    check_writable(dataset.id, data_dir)
    try:
        with atomic.new_folder(target) as path:
            _write(dataset, path / "data", description)
    except OSError as error:
        raise OSError(_unwritable(dataset.id, target, error)) from error
    return target


def _unwritable(dataset_id: str, target: Path, error: OSError) -> str:
    return (
        f"data set {dataset_id} can't be written to {target} ({error.strerror or error}), "
        "expected a folder that can be written to, with room for it"
    )


def root(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data sets: `data_dir`, else Minari's own."""
    place = data_dir or os.environ.get("MINARI_DATASETS_PATH")
    if not place:
        try:
            place = Path.home() / ".minari" / "datasets"
        except RuntimeError as error:
            raise InputError(
                f"no place for data sets ({error}), expected --data_dir, or a home folder (HOME)"
            ) from error
    return Path(place).absolute()


def _minari() -> Any:
    # Imported late: training on arrays that are in memory already needs neither Minari nor HDF5.
    try:
        import minari
    except ImportError as error:
        raise InputError(
            f'Minari can\'t be imported ({error}), expected: pip install "minari[hdf5]"'
        ) from error
    return minari


def what_is_there(data_dir: str | os.PathLike[str] | None = None) -> str:
    """The first ids below the folder and how many more there are, for a message."""
    ids = local_ids(data_dir)
    listed = ", ".join(ids[:_MAX_LISTED]) or "no data sets"
    return listed + (f" and {len(ids) - _MAX_LISTED} more" if len(ids) > _MAX_LISTED else "")


def _not_found(dataset_id: str, data_dir: str | os.PathLike[str] | None) -> str:
    there = what_is_there(data_dir)
    return f"data set {dataset_id!r} is not in {root(data_dir)}, which holds {there}"


def check_id(dataset_id: str) -> None:
    """Raise InputError for an id that Minari wouldn't take."""
    _minari()
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError) as error:
        raise InputError(f"data set id {dataset_id!r}, expected e.g. namespace/name-v0") from error


def _check_metadata(metadata: Mapping[str, Any], name: str) -> None:
    try:
        same = json.loads(json.dumps(dict(metadata), allow_nan=False)) == dict(metadata)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: metadata ({error}), expected what JSON can hold") from error
    if not same:
        raise InputError(f"{name}: JSON would change the metadata, expected text keys and lists")


def _check_sizes(data: Path, name: str) -> None:
    """Refuse what would fill the memory: counts and shapes that no file of this size can have."""
    import h5py
    from minari.dataset.minari_storage import MinariStorage

    metadata = MinariStorage.read_raw_metadata(data)
    episodes, steps = metadata["total_episodes"], metadata["total_steps"]
    if not (type(episodes) is type(steps) is int and 0 <= episodes <= steps):
        raise InputError(
            f"{name}: metadata.json says {episodes!r} episodes of {steps!r} steps in all, expected "
            "a step or more for each episode"
        )

    if metadata["data_format"] == "hdf5":
        with h5py.File(data / "main_data.hdf5") as file:
            hdf5.check_sizes(file, name)


def _check_spaces(stored: Any, name: str) -> None:
    from gymnasium.spaces import Box

    for kind in ("observation", "action"):
        space = getattr(stored, f"{kind}_space")
        if not isinstance(space, Box):
            raise InputError(f"{name}: {kind} space is {space}, expected a Box")


def _episodes(stored: Any) -> Iterator[Any]:
    # The file is opened for a few at a time: HDF5 keeps 50 kB of each episode until it is closed.
    for first in range(0, len(stored), _AT_ONCE):
        yield from stored.iterate_episodes(stored.episode_indices[first : first + _AT_ONCE])


def _from_minari(episode: Any, is_ours: bool) -> Episode:
    infos = episode.infos or {}
    last_action = infos["last_action"][-1] if is_ours and "last_action" in infos else None
    is_known = not np.all(np.isnan(episode.rewards))
    success = infos.get("success", infos.get("is_success"))
    if success is not None and len(success) == len(episode.rewards) + 1:
        success = success[1:]  # the first belongs to the reset
    return Episode(
        observations=_flat(episode.observations),
        actions=_flat(episode.actions),
        rewards=episode.rewards if is_known else None,
        terminations=episode.terminations,
        truncations=episode.truncations,
        successes=success,
        last_action=None if last_action is None or np.isnan(last_action).all() else last_action,
    )


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _write(dataset: Dataset, path: Path, description: str) -> None:
    _minari()
    from gymnasium.spaces import Box
    from minari import __version__
    from minari.dataset.minari_storage import MinariStorage

    def box(array: np.ndarray, limit: float) -> Box:
        return Box(-limit, limit, array.shape[1:], np.float32)

    bounded = bool(np.abs(dataset.actions).max() <= 1)
    # The storage and not `create_dataset_from_buffers`: that one writes to its final place at once
    # and warns of an e-mail address and of a registered environment, which our data don't have.
    storage: Any = MinariStorage.new(
        path,
        observation_space=box(dataset.observations, np.inf),
        action_space=box(dataset.actions, 1.0 if bounded else np.inf),
        data_format="hdf5",
    )
    packages = dataset.metadata.get("packages", {})
    storage.update_metadata(
        {
            "dataset_id": dataset.id,
            "minari_version": __version__,
            "author": {"The appo-jax authors"},
            "code_permalink": f"appo-jax {importlib.metadata.version('appo-jax')}",
            "algorithm_name": str(dataset.metadata.get("recipe", "unknown")),
            "description": description or f"{dataset.num_episodes} episodes, {dataset.id}",
            "requirements": [f"{package}=={version}" for package, version in packages.items()],
            _KEY: {"metadata": dict(dataset.metadata), "digest": dataset.digest()},
        }
    )
    # In memory, and then written in one go: HDF5 crashes the process where the disk is full.
    file, storage._file_path = storage._file_path, io.BytesIO()
    storage.update_episodes(_to_minari(dataset))
    file.write_bytes(storage._file_path.getbuffer())
    storage.update_metadata({"dataset_size": storage.get_size()})  # in MB, as Minari has it


def _to_minari(dataset: Dataset) -> Iterator[Any]:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    unknown = np.full(len(dataset.observations), np.nan, np.float32)
    rewards = unknown if dataset.rewards is None else dataset.rewards
    has_last_action = dataset.has_last_action
    for index, (start, steps) in enumerate(
        zip(dataset.episode_starts, dataset.lengths, strict=True)
    ):
        rows = slice(start, start + steps)
        terminations = dataset.terminations[rows]
        truncations = np.zeros(steps, np.bool_)
        truncations[-1] = not terminations[-1]
        infos = {}
        if dataset.successes is not None:
            infos["success"] = np.concatenate([[False], dataset.successes[rows]])
        if has_last_action is not None:
            infos["last_action"] = np.full((steps + 1, dataset.action_dim), np.nan, np.float32)
            if has_last_action[index]:
                infos["last_action"][-1] = dataset.actions[start + steps]
        yield EpisodeBuffer(
            observations=dataset.observations[start : start + steps + 1],  # type: ignore[arg-type]
            actions=dataset.actions[rows],  # type: ignore[arg-type]
            rewards=rewards[rows],  # type: ignore[arg-type]
            terminations=terminations,  # type: ignore[arg-type]
            truncations=truncations,  # type: ignore[arg-type]
            infos=infos or None,
        )
