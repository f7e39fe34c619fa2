"""Where data sets come from: a table, in the order in which a request is offered to its rows.

A source is a file beside this one, and a line here.
"""

from collections.abc import Mapping
from pathlib import Path

from appo_jax.data import minari_io
from appo_jax.envs import environment
from appo_jax.types import InputError
from experiments.runs.experiment import DatasetSpec
from experiments.runs.sources import collected, lire, minari
from experiments.runs.sources.source import Request, Source

SOURCES: Mapping[str, Source] = {"lire": lire, "minari": minari, "collected": collected}


def resolve(
    requested: str, env_name: str, size: int | None, data_seed: int, data_dir: Path
) -> DatasetSpec:
    """Turn `--dataset` into one data set, looking at what lies in `data_dir`.

    Raises InputError, before any work, when there is no such data set and it can't be made.
    """
    request = Request(requested, env_name, size, data_seed, data_dir)
    for source in SOURCES.values():
        found = source.find(request)
        if found is not None:
            return found
    recipes = "auto, medium-replay, medium-expert or the id"
    if environment.family(env_name).horizon is None:  # nothing is collected on the spot
        recipes = "the id"
    raise InputError(
        f"--dataset={requested}: for {env_name} expected {recipes} of a Minari data set in "
        f"{data_dir}, which holds {minari_io.what_is_there(data_dir)}"
    )
