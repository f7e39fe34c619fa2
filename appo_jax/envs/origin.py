"""Which environment a data set says that it is from, beside the one that it is used for."""

import json
import re
from collections.abc import Mapping
from typing import Any

from appo_jax.data.dataset import Dataset
from appo_jax.envs import meta_world
from appo_jax.types import InputError

_NAME = re.compile(r"(?:[^:]*:)?(?P<base>.+?)(?:-v(?P<version>\d+))?")


def environment_of(dataset: Dataset) -> str | None:
    """The name that a data set's metadata give, None where they give none.

    Sets collected here say `environment_id`, those of others have Gymnasium's spec in Minari's
    `env_spec`; of Meta-World's ids there, which serve many tasks, it is the task. Raises InputError
    for a name that isn't text, and a spec without one.
    """
    metadata = dataset.metadata
    name = metadata.get("environment_id")
    if name is None and (spec := _spec(dataset)) is not None:
        name = spec.get("id")
        if isinstance(name, str) and name.startswith("Meta-World/"):
            name = re.sub("-goal-(hidden|observable)$", "", str(_arguments(spec).get("env_name")))
        if name is None:
            raise InputError(f"data set {dataset.id}: its env_spec has no id, expected a spec's")
    if name is not None and not isinstance(name, str):
        raise InputError(
            f"data set {dataset.id}: its metadata say environment {name!r:.60}, expected a name"
        )
    return name


def is_other(found: str, env_name: str) -> bool:
    """Whether two names are of different environments, and not just of different versions."""
    return _parts(found)[0] != _parts(env_name)[0]


def about(dataset: Dataset, env_name: str) -> list[str]:
    """What a data set's metadata say of its environment that isn't so in `env_name`."""
    warnings = []
    found = environment_of(dataset)
    if found is not None and _parts(found) != _parts(env_name):
        other = "environment" if is_other(found, env_name) else "version"
        warnings.append(
            f"it is from {found} and used for {env_name}: another {other}, whose states and "
            "rewards may differ"
        )
    spec = _spec(dataset)
    rewards = dataset.metadata.get("reward_function_version")
    rewards = rewards or _arguments(spec or {}).get("reward_function_version")
    expected = meta_world.REWARD_FUNCTION_VERSION
    if meta_world.is_task(env_name) and rewards not in (None, expected):
        warnings.append(
            f"its rewards are of reward function {rewards!r:.60}, expected {expected!r}: labels "
            "made from them, and their tie threshold, mean something else"
        )
    return warnings


def _parts(name: str) -> tuple[str, str | None]:
    """What comes before the version, without the module that registers it, and the version."""
    match = _NAME.fullmatch(name)
    return (match["base"], match["version"]) if match else (name, None)


def _spec(dataset: Dataset) -> Mapping[str, Any] | None:
    minari = dataset.metadata.get("minari")
    spec = minari.get("env_spec") if isinstance(minari, Mapping) else None
    if spec is None:
        return None
    try:
        found = json.loads(spec)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise InputError(
            f"data set {dataset.id}: its env_spec is {spec!r:.60}, expected Gymnasium's, as JSON"
        )
    return found


def _arguments(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found = spec.get("kwargs")
    return found if isinstance(found, Mapping) else {}
