"""LiRE's published replay buffers, in a folder named after the task."""

from appo_jax.data import lire
from appo_jax.data.dataset import Dataset
from appo_jax.envs import meta_world
from appo_jax.types import InputError
from experiments.runs.events import Report
from experiments.runs.experiment import DatasetSpec, Execution
from experiments.runs.sources.source import Request


def find(request: Request) -> DatasetSpec | None:
    """The buffers of the task, for `auto` and `medium-replay`."""
    name, size = request.env_name, request.size
    if request.requested not in ("auto", "medium-replay") or not meta_world.is_task(name):
        return None
    folder = lire.folder_of(request.data_dir, name)
    if folder is None:
        return None
    if size is None and name not in meta_world.PAPER_SIZES:
        raise InputError(
            f"--dataset={request.requested}: the paper gives no size for {name}, expected "
            f"--dataset_size, the transitions to take from the buffers in {folder}"
        )
    buffers = len(lire.buffer_files(folder))
    size = size or round(meta_world.PAPER_SIZES[name] * 1e5) * buffers
    if size % (lire.HORIZON * buffers):
        raise InputError(
            f"--dataset_size={size}: expected a multiple of {lire.HORIZON * buffers}, whole "
            f"episodes and as many from each of the {buffers} buffers in {folder}"
        )
    id = f"lire/{folder.name}/n{size}"
    reason, seed = request.reason("a"), request.data_seed
    return DatasetSpec(request.requested, reason, "medium-replay", "lire", id, size, seed)


def load(spec: DatasetSpec, env_name: str, execution: Execution, report: Report) -> Dataset:
    """Read the buffers."""
    folder = lire.folder_of(execution.data_dir, env_name)
    if folder is None or spec.size is None:
        raise InputError(f"{execution.data_dir}: no buffers of {env_name}, expected a folder")
    return lire.load(folder, spec.size)


def describe(spec: DatasetSpec, execution: Execution) -> str:
    """Where they lie."""
    return f"LiRE replay buffers in {execution.data_dir}"
