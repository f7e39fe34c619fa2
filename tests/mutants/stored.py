"""Mutants of plain pickles, of what a set says of its environment, and of checkpoints."""

import dataclasses
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from appo_jax import checkpoint
from appo_jax.data import plain_pickle
from appo_jax.envs import origin
from tests.mutants.core import JSON_VALUES, Draw, mutate_bytes, outcome, pick
from tests.mutants.data import mutate_array, valid_set

# As the labels of people are published: bare arrays of first steps, and bare lists of labels.
INDICES = np.array([3, 0, 12, 7], np.int32)
LEAVES = (None, True, -1, 0.5, "text", b"bytes", (), 10**30)


def is_plain(value: Any) -> bool:
    """Whether nothing is left of what stands for an array while a pickle is read."""
    if isinstance(value, dict):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_plain, value))
    return not type(value).__module__.startswith("appo_jax")


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray | np.generic):
        if expected.dtype.hasobject:
            return found.dtype == object and found.shape == expected.shape
        alike = (found.shape, found.dtype) == (expected.shape, expected.dtype)
        return alike and np.array_equal(found, expected, equal_nan=expected.dtype.kind in "fc")
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[k], v) for k, v in expected.items())
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and found == expected


def pickle_mutant(draw: Draw, folder: Path, _: Path) -> str:
    content: Any = pick(draw, (INDICES, [0, 1, -1, 1]))
    for _ in range(draw(st.integers(0, 3))):
        match pick(draw, ("array", "array", "leaf", "list", "dict", "tuple", "call")):
            case "array" if isinstance(content, np.ndarray):
                content = mutate_array(draw, content)
            case "leaf" if isinstance(content, list):
                content = [*content, pick(draw, LEAVES)]
            case "list":
                content = [content, content]
            case "dict":
                content = {"labels": content, 7: INDICES[0]}
            case "tuple":
                content = (content, INDICES)
            case "call":
                content = [content, pick(draw, (print, Path("x"), np.ma.masked_array([1])))]
    written = pickle.dumps(content, draw(st.integers(2, 5)))
    calls = any(name in written for name in (b"print", b"pathlib", b"numpy.ma"))
    mutated = draw(st.integers(0, 2)) == 0
    path = folder / "labels"
    path.write_bytes(mutate_bytes(draw, written) if mutated else written)
    found, refusal = outcome(lambda: plain_pickle.load(path), str(path))
    if not mutated:
        assert (refusal is None) == (not calls), refusal
        assert refusal or same(found, content), (found, content)
    assert refusal or is_plain(found)
    return "refused" if refusal else "accepted"


NAMES = ("Hopper-v5", "Hopper-v4", "Hopper", "mine:Hopper-v5", "Walker2d-v5", "ns/Hopper-v5", "-v5")
NAMES = (*NAMES, "sweep-v3", "sweep-v2", "sweep-into-v3", "sweep-v3-goal-hidden", "Meta-World/MT1")


def base_and_version(name: str) -> list[str]:
    """For the names above, of which each has one version at most."""
    base, _, version = name.split(":")[-1].rpartition("-v")
    return [base, version] if base and version.isdigit() else [name.split(":")[-1], ""]


def environment_mutant(draw: Draw, *_: Path) -> str:
    """What metadata say of the environment, in either place, in any form."""
    metadata: dict[str, Any] = {}
    values = (*NAMES, *JSON_VALUES)
    if draw(st.booleans()):
        metadata["environment_id"] = pick(draw, values)
    name, spec = pick(draw, values), None
    if draw(st.booleans()):
        spec = {"id": name, "kwargs": pick(draw, ({}, {"env_name": pick(draw, values)}, None, 7))}
        metadata["minari"] = {"env_spec": json.dumps(spec)}
    elif draw(st.booleans()):
        spec = pick(draw, JSON_VALUES)
        metadata["minari"] = pick(draw, ({"env_spec": spec}, spec))
        in_place = isinstance(metadata["minari"], dict) and "env_spec" in metadata["minari"]
        spec = None if not in_place or spec is None else "damaged"
    rewards = metadata["reward_function_version"] = pick(draw, (None, "v1", "v2", 7, []))
    dataset = dataclasses.replace(valid_set(), metadata=metadata)
    used = pick(draw, ("Hopper-v5", "sweep-v3"))
    found, refusal = outcome(lambda: origin.about(dataset, used), dataset.id)

    own = metadata.get("environment_id")
    if own is None and isinstance(spec, dict):
        own = spec["id"]
        if own == "Meta-World/MT1":
            kwargs = spec["kwargs"] if isinstance(spec["kwargs"], dict) else {}
            own = str(kwargs.get("env_name")).removesuffix("-goal-hidden")
        refused = not isinstance(own, str)
    else:
        refused = spec == "damaged" or not isinstance(own, str | None)
    assert (refusal is not None) == refused, refusal
    if refused:
        return "refused"
    told = [
        *["environment"] * (own is not None and origin.is_other(own, used)),
        *["version"] * (own is not None and not origin.is_other(own, used)),
    ]
    if own is not None and base_and_version(own) == base_and_version(used):
        told = []
    if own is not None:
        other = base_and_version(own)[0] != base_and_version(used)[0]
        assert origin.is_other(own, used) == other
    told += ["reward function"] * (used == "sweep-v3" and bool(rewards) and rewards != "v2")
    assert len(found) == len(told)
    assert all(kind in one for kind, one in zip(told, found, strict=True)), found
    return "warned of" if told else "accepted"


ARRAYS = {"a": jnp.arange(3.0), "b": jnp.int32(7)}
ABOUT = {"runs": [{"seed": 0}], "rows": 2, "name": "two\nlines"}


def checkpoint_mutant(draw: Draw, folder: Path, shared: Path) -> str:
    original = shared / "checkpoints"
    if not original.exists():
        checkpoint.save(original, 5, ARRAYS, ABOUT)
    shutil.copytree(original, folder / "checkpoints")
    place = folder / "checkpoints" / "5"
    path = place / "metadata" / "metadata"
    metadata = json.loads(path.read_text())
    changed = False
    kinds = ("none", "order", "order", "order", "json", "whole", "delete", "bytes", "any file")
    match pick(draw, kinds):
        case "order":
            path.write_text(json.dumps(dict(sorted(metadata.items(), reverse=True)), indent=3))
        case "json":
            key = pick(draw, sorted(metadata))
            value = pick(draw, JSON_VALUES)
            changed = metadata[key] != value
            path.write_text(json.dumps(metadata | {key: value}))
        case "whole":
            value, changed = pick(draw, JSON_VALUES), True
            path.write_text(json.dumps(value))
        case "delete":
            key, changed = pick(draw, sorted(metadata)), True
            del metadata[key]
            path.write_text(json.dumps(metadata))
        case "bytes":
            path.write_bytes(mutate_bytes(draw, path.read_bytes()))
            changed = None  # type: ignore[assignment] # white space is no change
        case "any file":
            file = pick(draw, sorted(p for p in place.rglob("*") if p.is_file()))
            file.write_bytes(mutate_bytes(draw, file.read_bytes()))
            changed = None  # type: ignore[assignment] # some files nobody reads
    found, refusal = outcome(
        lambda: checkpoint.restore(folder / "checkpoints", 5, ARRAYS), str(place)
    )
    if changed is not None:
        assert (refusal is not None) == changed, refusal
    if refusal:
        return "refused"
    arrays, about = found
    assert {name: about[name] for name in ABOUT} == ABOUT
    assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
    return "accepted"
