"""Orbax checkpoints that hold all that a run, or its policy alone, needs to go on.

Beside the arrays lies a JSON of what they belong to, with the format's version and a digest of
the leaves: Orbax restores a flipped bit without a word.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from appo_jax.types import InputError

FORMAT_VERSION = 1


def updates(folder: Path) -> list[int]:
    """The updates of which `folder` holds a whole checkpoint, ascending."""
    if not folder.is_dir():
        return []
    with _manager(folder) as manager:
        return sorted(manager.all_steps())


def save(folder: Path, update: int, arrays: Any, metadata: Mapping[str, Any]) -> None:
    """Write a checkpoint; it appears whole or not at all.

    arrays: a pytree of arrays, typed keys included. metadata: JSON-able. Raises RuntimeError when
    Orbax declines, as it does for an update that is there already.
    """
    described = {
        **metadata,
        "format_version": FORMAT_VERSION,
        "update": update,
        "leaves": _leaves(arrays),
        "digest": digest(arrays),
    }
    with _manager(folder) as manager:
        written = manager.save(
            update,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(arrays), metadata=ocp.args.JsonSave(described)
            ),
        )
    if not written:
        raise RuntimeError(f"{folder}: Orbax declined to save update {update}")


def restore(folder: Path, update: int, template: Any) -> tuple[Any, dict[str, Any]]:
    """The arrays and the metadata of a checkpoint.

    template: a pytree of arrays or `jax.ShapeDtypeStruct`s of the shapes to expect. Raises
    InputError for a newer format, for arrays of other shapes, and for contents that differ from
    what was saved.
    """
    name = f"checkpoint {folder}/{update}"
    with _manager(folder) as manager:
        metadata = manager.restore(
            update, args=ocp.args.Composite(metadata=ocp.args.JsonRestore())
        )["metadata"]
        if metadata["format_version"] > FORMAT_VERSION:
            raise InputError(
                f"{name}: format version {metadata['format_version']}, expected at most "
                f"{FORMAT_VERSION}"
            )
        _check_leaves(metadata["leaves"], _leaves(template), name)
        arrays = manager.restore(
            update, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(template))
        )["arrays"]
    if digest(arrays) != metadata["digest"]:
        raise InputError(f"{name}: damaged, its arrays differ from those that were saved")
    return arrays, metadata


def delete(folder: Path, update: int) -> None:
    """Remove one checkpoint."""
    with _manager(folder) as manager:
        manager.delete(update)


def digest(arrays: Any) -> str:
    """SHA-256 over the leaves of a pytree, their places, shapes and dtypes."""
    hasher = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        hasher.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def _manager(folder: Path) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=None,  # the caller knows which checkpoints an evaluation still needs
        enable_async_checkpointing=False,
    )
    handlers = {"arrays": ocp.StandardCheckpointHandler(), "metadata": ocp.JsonCheckpointHandler()}
    return ocp.CheckpointManager(folder.absolute(), options=options, item_handlers=handlers)


def _leaves(tree: Any) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _check_leaves(found: Mapping[str, str], expected: Mapping[str, str], name: str) -> None:
    for path in sorted(expected.keys() | found.keys()):
        if found.get(path) != expected.get(path):
            raise InputError(
                f"{name}: {path} is {found.get(path, 'missing')}, "
                f"expected {expected.get(path, 'nothing of that name')}"
            )
