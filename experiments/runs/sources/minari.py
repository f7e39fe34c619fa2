"""Minari data sets on disk: named by their id, or medium-replay sets that were collected here."""

from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.envs import environment, meta_world
from appo_jax.types import InputError
from experiments.runs.events import Report
from experiments.runs.experiment import DatasetSpec, Execution
from experiments.runs.sources.source import Request

_RECIPES = ("auto", "medium-replay", "medium-expert")


def find(request: Request) -> DatasetSpec | None:
    """The set of that id, or the collected medium-replay set of the size and seed asked for."""
    requested, seed = request.requested, request.data_seed
    if requested not in _RECIPES:
        return _named(request)
    id = None if requested == "medium-expert" else _medium_replay_id(request)
    if id is None or not minari_io.exists(id, request.data_dir):
        return None
    reason = request.reason("a")
    return DatasetSpec(requested, reason, "medium-replay", "minari", id, request.size, seed)


def _medium_replay_id(request: Request) -> str | None:
    name, size = request.env_name, request.size
    if size is None and meta_world.is_task(name):
        size = meta_world.paper_size(name)
    if size is None:
        return None
    return environment.dataset_id(name, "medium-replay", size, request.data_seed)


def _named(request: Request) -> DatasetSpec | None:
    requested = request.requested
    if not minari_io.exists(requested, request.data_dir):
        return None
    if request.size is not None:
        raise InputError(
            f"--dataset_size={request.size}: a Minari data set named by its id is taken whole, "
            "expected the flag to be left out"
        )
    reason = f"--dataset={requested} names it"
    return DatasetSpec(requested, reason, "minari", "minari", requested, None, request.data_seed)


def load(spec: DatasetSpec, env_name: str, execution: Execution, report: Report) -> Dataset:
    """Read the set."""
    return minari_io.load(spec.id, execution.data_dir)


def describe(spec: DatasetSpec, execution: Execution) -> str:
    """Where it lies."""
    return f"Minari data set in {execution.data_dir}"
