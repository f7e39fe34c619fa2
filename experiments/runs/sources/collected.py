"""Medium-expert sets of Meta-World's scripted policies, collected where there is none."""

from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.envs import environment, meta_world
from appo_jax.types import InputError
from experiments.collecting import scripted_collection
from experiments.runs.events import Counter, Report
from experiments.runs.experiment import DatasetSpec, Execution
from experiments.runs.sources.source import Request

DEFAULT_SIZE = 100_000  # transitions


def find(request: Request) -> DatasetSpec | None:
    """The set of the size and seed asked for, there or to be made."""
    name = request.env_name
    if not meta_world.is_task(name):
        return None
    if request.requested == "medium-replay":
        raise InputError(_no_medium_replay(request))
    if request.requested not in ("auto", "medium-expert"):
        return None
    size = request.size or DEFAULT_SIZE
    if size % meta_world.HORIZON:
        raise InputError(
            f"--dataset_size={size}: expected a multiple of {meta_world.HORIZON}, the steps of an "
            "episode"
        )
    id = environment.dataset_id(name, "medium-expert", size, request.data_seed)
    there = minari_io.exists(id, request.data_dir)
    reason = (
        f"{request.reason('no')}; medium-expert data "
        f"{'of an earlier collection are there' if there else 'are collected now'}"
    )
    source = "minari" if there else "collected"
    return DatasetSpec(
        request.requested, reason, "medium-expert", source, id, size, request.data_seed
    )


def load(spec: DatasetSpec, env_name: str, execution: Execution, report: Report) -> Dataset:
    """Collect the set and keep it."""
    assert spec.size is not None
    stage = f"{env_name} {spec.recipe}"
    return scripted_collection.collect_and_save(
        env_name,
        spec.recipe,
        spec.size,
        spec.data_seed,
        str(execution.data_dir),
        execution.num_workers,
        Counter(report, stage, "steps"),
    )


def describe(spec: DatasetSpec, execution: Execution) -> str:
    """How it is made."""
    workers = execution.num_workers
    return f"to be kept in {execution.data_dir}, collected by {workers} workers"


def _no_medium_replay(request: Request) -> str:
    name, data_dir = request.env_name, request.data_dir
    size = request.size or meta_world.paper_size(name)
    id = size and environment.dataset_id(name, "medium-replay", size, request.data_seed)
    return (
        f"--dataset=medium-replay: {data_dir} holds no folder {name} (or {name.removesuffix('3')}2)"
        f" of LiRE replay buffers{f' and no data set {id}' if id else ''}; put the buffers there, "
        f"collect some (python -m experiments.collect --task={name.removesuffix('-v3')} "
        "--dataset=medium-replay, which takes hours) or use --dataset=medium-expert, which is "
        "collected on the spot"
    )
