"""HDF5 files of others."""

from typing import Any

from appo_jax.types import InputError

_MAX_COMPRESSION = 1032  # of deflate


def check_sizes(file: Any, name: str) -> None:
    """Refuse what would fill the memory: arrays whose shape no file of this size can have."""
    import h5py

    def check(key: str, stored: Any) -> None:
        held = stored.id.get_storage_size() if isinstance(stored, h5py.Dataset) else None
        if held is not None and stored.nbytes > _MAX_COMPRESSION * held:
            raise InputError(
                f"{name}: array {key} has shape {stored.shape}, but the file holds {held} bytes of "
                "it, expected all"
            )

    file.visititems(check)
