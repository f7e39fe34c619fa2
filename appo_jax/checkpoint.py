"""Orbax checkpoints that hold all that a run, or its policy alone, needs to go on.

Beside the arrays lies a JSON of what they belong to, with the format's version and digests of
the leaves and of itself: Orbax restores a flipped bit without a word.
"""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from appo_jax.types import InputError, first_line

FORMAT_VERSION = 2
_DELETED = ".deleted"  # where a checkpoint goes before its files do
# Orbax takes the first four for patterns and a colon at the end of a name for a bucket; what is no
# Unicode text (lone surrogates stand for it) it can't pass on.
_NO_PLACE = re.compile(r"[\[*?\\]|:/|[\ud800-\udfff]")


class Damaged(InputError):
    """A checkpoint whose contents can't be read or differ from what was saved."""


def check_place(folder: Path) -> None:
    """Raise InputError for a folder in which Orbax couldn't find again what it wrote."""
    found = _NO_PLACE.search(f"{folder.absolute()}/")
    if found:
        raise InputError(
            f"{folder.absolute()}: {found.group()!r} in the path, expected a path of text without "
            "any of [ * ? \\ and without a colon at the end of a name, to keep checkpoints there"
        )


def updates(folder: Path) -> list[int]:
    """The updates of which `folder` holds a whole checkpoint, ascending."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))


def save(folder: Path, update: int, arrays: Any, metadata: Mapping[str, Any]) -> None:
    """Write a checkpoint; it appears whole or not at all.

    arrays: a pytree of arrays, typed keys included. metadata: JSON-able. Raises RuntimeError when
    Orbax declines, as it does for an update that is there already, and OSError when the files can't
    be written (a full disk) or read back; the checkpoints that were there are as they were.
    """
    check_place(folder)
    described = {
        **metadata,
        "format_version": FORMAT_VERSION,
        "update": update,
        "leaves": _leaves(arrays),
        "digest": digest(arrays),
    }
    described["metadata_digest"] = _metadata_digest(described)
    try:
        with _manager(folder, cleanup_tmp_directories=True) as manager:
            written = manager.save(
                update,
                args=ocp.args.Composite(
                    arrays=ocp.args.StandardSave(arrays), metadata=ocp.args.JsonSave(described)
                ),
            )
    except Exception as error:  # what can't be written makes Orbax raise anything
        raise OSError(
            f"{folder}/{update}: the checkpoint can't be written ({first_line(error)}), expected "
            "room on the disk and the right to write; the earlier ones are whole"
        ) from error
    if not written:
        raise RuntimeError(f"{folder}: Orbax declined to save update {update}")
    try:
        restore(folder, update, arrays)
    except Damaged as error:
        delete(folder, update)
        raise OSError(
            f"{error}, right after it was saved; expected a place whose files can be read back"
        ) from error


def restore(folder: Path, update: int, template: Any) -> tuple[Any, dict[str, Any]]:
    """The arrays and the metadata of a checkpoint.

    template: a pytree of arrays or `jax.ShapeDtypeStruct`s of the shapes to expect. Raises
    InputError for a checkpoint that isn't there, for another format and for arrays of other shapes,
    Damaged for contents that make no sense or differ from what was saved, OSError for files that
    can't be opened.
    """
    name = f"checkpoint {folder}/{update}"
    metadata = read_metadata(folder, update)
    _check_leaves(metadata["leaves"], _leaves(template), name)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    template = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), template
    )
    with _manager(folder) as manager:
        arrays = _restore_item(manager, update, name, "arrays", ocp.args.StandardRestore(template))
    if digest(arrays) != metadata["digest"]:
        raise Damaged(f"{name}: damaged, its arrays differ from those that were saved")
    return arrays, metadata


def read_metadata(folder: Path, update: int) -> dict[str, Any]:
    """The metadata of a checkpoint alone; raises what `restore` raises."""
    name = f"checkpoint {folder}/{update}"
    present = updates(folder)
    if update not in present:
        there = ", ".join(map(str, present)) or "none"
        raise InputError(f"{name}: no such checkpoint, expected one of those there: {there}")
    with _manager(folder) as manager:
        metadata = _restore_item(manager, update, name, "metadata", ocp.args.JsonRestore())
    if not isinstance(metadata, dict):
        raise Damaged(f"{name}: damaged, its metadata are no JSON object")
    version = metadata.get("format_version")
    if isinstance(version, int) and version != FORMAT_VERSION:
        other = "a newer" if version > FORMAT_VERSION else "an earlier"
        raise InputError(
            f"{name}: format version {version} of {other} appo-jax, expected {FORMAT_VERSION}; use "
            "the release that wrote it, or train again in another folder"
        )
    if metadata.pop("metadata_digest", None) != _metadata_digest(metadata):
        raise Damaged(f"{name}: damaged, its metadata differ from those that were saved")
    return metadata


def set_aside(folder: Path, update: int) -> Path:
    """Move a damaged checkpoint out of the way, into a sibling folder, and return its new place.

    Raises OSError where a fresh one can't be read back either: the fault isn't the checkpoint's.
    """
    probe = folder.with_name(f".{folder.name}-probe")
    shutil.rmtree(probe, ignore_errors=True)
    try:
        save(probe, 0, {"probe": np.zeros(2, np.float32)}, {})
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    target = folder.with_name(f"{folder.name}-damaged") / f"{update}-{time.time_ns()}"
    target.parent.mkdir(exist_ok=True)
    return (folder / str(update)).rename(target)


def _restore_item(
    manager: ocp.CheckpointManager, update: int, name: str, item: str, args: Any
) -> Any:
    try:
        return manager.restore(update, args=ocp.args.Composite(**{item: args}))[item]
    except Exception as error:  # damaged files make Orbax raise anything, down to AttributeError
        for path in (Path(manager.directory) / str(update)).rglob("*"):
            if path.is_file():
                path.open("rb").close()
        raise Damaged(
            f"{name}: damaged, Orbax can't read its {item} ({type(error).__name__})"
        ) from error


def delete(folder: Path, update: int) -> None:
    """Remove one checkpoint; killed meanwhile, it leaves none that is half there."""
    with _manager(folder) as manager:
        manager.delete(update)  # moves it
    shutil.rmtree(folder / _DELETED)


def digest(arrays: Any) -> str:
    """SHA-256 over the leaves of a pytree, their places, shapes and dtypes."""
    hasher = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        # Of a key its own type, not that of its data: a damaged one comes back as plain numbers.
        hasher.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}".encode())
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    return hasher.hexdigest()


def _metadata_digest(metadata: Mapping[str, Any]) -> str:
    text = json.dumps(json.loads(json.dumps(metadata)), sort_keys=True)  # as it reads after JSON
    return hashlib.sha256(text.encode()).hexdigest()


def _manager(folder: Path, cleanup_tmp_directories: bool = False) -> ocp.CheckpointManager:
    check_place(folder)
    options = ocp.CheckpointManagerOptions(
        max_to_keep=None,  # the caller knows which checkpoints an evaluation still needs
        enable_async_checkpointing=False,
        cleanup_tmp_directories=cleanup_tmp_directories,
        todelete_subdir=_DELETED,
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
