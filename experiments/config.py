"""What a run is: everything that changes a number, and, apart from it, what doesn't."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from appo_jax import appo, reward_model
from appo_jax.data import lire, minari_io
from appo_jax.envs import environment, meta_world
from appo_jax.types import InputError

COLLECTED_SIZE = 100_000  # transitions of a data set that is collected on the spot


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """Which data set a run trains on.

    requested: as on the command line. reason: why it led here. recipe: "medium-replay",
    "medium-expert" or "minari". source: "lire" (a folder of pickles), "minari" (a set on disk) or
    "collect" (made now, then a set on disk). id: under which people know it. size: transitions,
    None where the set decides.
    """

    requested: str
    reason: str
    recipe: str
    source: str
    id: str
    size: int | None
    data_seed: int


@dataclasses.dataclass(frozen=True)
class Experiment:
    """All that changes a number. `num_updates` too, but a longer run extends a shorter one."""

    algorithm: str
    task: str
    dataset: DatasetSpec
    reward: str
    num_feedback: int
    segment_length: int
    tie_threshold: float
    label_noise: float
    preferences_digest: str | None
    seed: int
    lam: float
    discount: float
    tau: float
    policy: appo.Config
    reward_model: reward_model.Config
    eval_interval: int
    eval_episodes: int
    eval_stop_at_success: bool
    num_updates: int

    def resolved(self) -> dict[str, Any]:
        """Every field, JSON-able."""
        return dataclasses.asdict(self)

    def identity(self) -> dict[str, Any]:
        """What two runs must share for one to go on where the other stopped."""
        resolved = self.resolved()
        del resolved["num_updates"]
        # A set that was collected by one start is found on disk by the next.
        resolved["dataset"] = {"id": self.dataset.id}
        return resolved

    def digest(self) -> str:
        """A short name for `identity`."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Local:
    """What changes no number: places, processes, and how runs and updates are cut into parts.

    batch_runs: "map", "vmap", or "auto", what suits the device. runs_per_batch: runs that train
    together, 0 for as many as fit into memory.
    """

    workdir: Path
    data_dir: Path
    preferences: Path | None
    num_workers: int
    chunk_updates: int
    batch_runs: str
    runs_per_batch: int


def digest(runs: Sequence[Experiment]) -> str:
    """A short name for one run, or for all the runs of a grid."""
    if len(runs) == 1:
        return runs[0].digest()
    return hashlib.sha256(" ".join(run.digest() for run in runs).encode()).hexdigest()[:12]


def resolve_dataset(
    requested: str, task: str, size: int | None, data_seed: int, data_dir: Path
) -> DatasetSpec:
    """Turn `--dataset` into one data set, looking at what lies in `data_dir`.

    Raises InputError, before any work, when there is no such data set and it can't be made.
    """
    if task not in meta_world.TASKS and requested in ("auto", "medium-replay", "medium-expert"):
        ids = ", ".join(minari_io.local_ids(data_dir)) or "none"
        raise InputError(
            f"--dataset={requested}: with --env={task} expected the id of a Minari data set in "
            f"{data_dir} (there: {ids})"
        )
    if requested in ("auto", "medium-replay"):
        found = _local_medium_replay(requested, task, size, data_seed, data_dir)
        if found:
            return found
        if requested == "medium-replay":
            collected = _id(task, "medium-replay", size, data_seed)
            raise InputError(
                f"--dataset=medium-replay: {data_dir} holds no folder {task} (or "
                f"{task.removesuffix('3')}2) of LiRE replay buffers"
                f"{f' and no data set {collected}' if collected else ''}; put the buffers there, "
                f"collect some (python -m experiments.collect --task={task.removesuffix('-v3')} "
                "--dataset=medium-replay, which takes hours) or use --dataset=medium-expert, which "
                "is collected on the spot"
            )
    if requested in ("auto", "medium-expert"):
        return _medium_expert(requested, task, size, data_seed, data_dir)
    if not minari_io.exists(requested, data_dir):
        ids = ", ".join(minari_io.local_ids(data_dir)) or "none"
        raise InputError(
            f"--dataset={requested}: expected auto, medium-replay, medium-expert or the id of a "
            f"Minari data set in {data_dir} (there: {ids})"
        )
    folder, expected = requested.split("/")[1:-1], environment.folder_name(task)
    ours = requested.startswith(("metaworld/", "gymnasium/"))
    if ours and folder != [expected]:
        raise InputError(
            f"--dataset={requested}: data of {'/'.join(folder)}, expected data of {expected}"
        )
    if size is not None:
        raise InputError(
            f"--dataset_size={size}: a Minari data set named by its id is taken whole, expected "
            "the flag to be left out"
        )
    reason = f"--dataset={requested} names it"
    return DatasetSpec(requested, reason, "minari", "minari", requested, None, data_seed)


def _medium_expert(
    requested: str, task: str, size: int | None, data_seed: int, data_dir: Path
) -> DatasetSpec:
    size = size or COLLECTED_SIZE
    if size % meta_world.HORIZON:
        raise InputError(
            f"--dataset_size={size}: expected a multiple of {meta_world.HORIZON}, the steps of an "
            "episode"
        )
    dataset_id = meta_world.dataset_id(task, "medium-expert", size, data_seed)
    exists = minari_io.exists(dataset_id, data_dir)
    reason = (
        f"{_why(requested, 'no', data_dir)}; medium-expert data "
        f"{'of an earlier collection are there' if exists else 'are collected now'}"
    )
    source = "minari" if exists else "collect"
    return DatasetSpec(requested, reason, "medium-expert", source, dataset_id, size, data_seed)


def _local_medium_replay(
    requested: str, task: str, size: int | None, data_seed: int, data_dir: Path
) -> DatasetSpec | None:
    reason = _why(requested, "a", data_dir)
    folder = lire.folder_of(data_dir, task)
    if folder:
        if size is None and task not in meta_world.PAPER_SIZES:
            raise InputError(
                f"--dataset={requested}: the paper gives no size for {task}, expected "
                f"--dataset_size, the transitions to take from the buffers in {folder}"
            )
        buffers = len(lire.buffer_files(folder))
        size = size or round(meta_world.PAPER_SIZES[task] * 1e5) * buffers
        if size % (lire.HORIZON * buffers):
            raise InputError(
                f"--dataset_size={size}: expected a multiple of {lire.HORIZON * buffers}, whole "
                f"episodes and as many from each of the {buffers} buffers in {folder}"
            )
        dataset_id = f"lire/{folder.name}/n{size}"
        return DatasetSpec(requested, reason, "medium-replay", "lire", dataset_id, size, data_seed)
    collected = _id(task, "medium-replay", size, data_seed)
    if collected and minari_io.exists(collected, data_dir):
        return DatasetSpec(requested, reason, "medium-replay", "minari", collected, size, data_seed)
    return None


def _why(requested: str, article: str, data_dir: Path) -> str:
    if requested != "auto":
        return f"--dataset={requested} asks for it"
    return f"--dataset=auto found {article} local medium-replay set in {data_dir}"


def _id(task: str, recipe: str, size: int | None, data_seed: int) -> str | None:
    size = size or meta_world.paper_size(task)
    return None if size is None else meta_world.dataset_id(task, recipe, size, data_seed)


def difference(found: Any, expected: Any) -> str | None:
    """The first field in which two identities differ, as words, or None.

    Fields of `found` alone count inside a field, not at the top. Either may come from a file, so
    that it is anything.
    """
    if not (isinstance(found, Mapping) and isinstance(expected, Mapping)):
        return None if found == expected else f"{found!r}, not {expected!r}"
    for field, value in expected.items():
        inner = found.get(field)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            differs = difference(inner, {**dict.fromkeys(inner), **value})
            if differs:
                return f"{field}: {differs}"
        elif inner != value:
            return f"{field} {inner!r}, not {value!r}"
    return None


def file_digest(path: Path) -> str:
    """SHA-256 of a file's contents. Raises InputError if it can't be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error
