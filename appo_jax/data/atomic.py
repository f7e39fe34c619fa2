"""Folders and files that appear whole or not at all, however their writer ends."""

import contextlib
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from appo_jax.types import InputError


def check_room(what: str, num_bytes: int, folder: Path) -> None:
    """Raise InputError where a folder's disk has less room than `what` takes; before the work."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise InputError(
            f"{what} takes about {num_bytes / 1e6:.0f} MB, {folder} has room for "
            f"{free / 1e6:.0f} MB, expected as much"
        )


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which becomes `target` when the block ends well.

    Until then it is a hidden sibling, on the same file system. It is deleted when the block raises,
    and by the next writer of the same target when this process was killed. Raises OSError when the
    folder can't be made or `target` has come into being meanwhile. When the block has ended all of
    it is on the disk: what it was made of may be deleted.
    """
    prefix = f".{target.name}.partial-{platform.node()}-"
    partial = target.with_name(f"{prefix}{os.getpid()}-{uuid.uuid4().hex}")
    target.parent.mkdir(parents=True, exist_ok=True)
    for other in target.parent.iterdir():
        # The whole name: another host's may begin with this one's.
        ours = re.fullmatch(rf"{re.escape(prefix)}(\d+)-[0-9a-f]{{32}}", other.name)
        if ours and not _is_running(int(ours[1])):
            shutil.rmtree(other, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        for path in partial.rglob("*"):
            _sync(path)
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a file to write, which takes `path`'s place when the block ends well.

    When the block raises it is deleted.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        _sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems can't write a folder's entries at once
            raise
    finally:
        os.close(descriptor)


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as somebody else
    return True
