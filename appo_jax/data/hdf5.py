"""HDF5 files of others."""

import functools
import itertools
from pathlib import Path
from typing import Any

from appo_jax.types import InputError

# The library keeps what it has read of an open file, some 40 kB of each group: files of many groups
# are opened anew after so many.
GROUPS_AT_ONCE = 200
_MAX_COMPRESSION = 1032  # of deflate; Minari's arrays aren't compressed


def check_sizes(path: Path, name: str) -> None:
    """Refuse what would fill the memory: arrays whose shape no file of this size can have."""
    import h5py

    def check(key: str, stored: Any) -> None:
        held = stored.id.get_storage_size() if isinstance(stored, h5py.Dataset) else None
        if held is not None and stored.nbytes > _MAX_COMPRESSION * held:
            raise InputError(
                f"{name}: array {key} has shape {stored.shape}, but the file holds {held} bytes of "
                "it, expected all"
            )

    def check_inner(group: str, key: str, stored: Any) -> None:
        check(f"{group}/{key}", stored)

    with h5py.File(path) as file:
        keys = iter(list(file))
    while some := list(itertools.islice(keys, GROUPS_AT_ONCE)):
        with h5py.File(path) as file:
            for key in some:
                stored = file[key]
                check(key, stored)
                if isinstance(stored, h5py.Group):
                    stored.visititems(functools.partial(check_inner, key))
