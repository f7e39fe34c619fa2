"""Any Minari data set with Box spaces, wherever it lies."""

import dataclasses

from appo_jax.data import minari_io
from appo_jax.data.formats.format import Imported, Request
from appo_jax.types import InputError


def read(request: Request) -> Imported:
    """The set of a folder that holds `data/metadata.json`, under its new id."""
    folder = request.source.absolute()
    if not (folder / "data" / "metadata.json").is_file():
        raise InputError(f"{folder}: no data/metadata.json, expected the folder of a Minari set")
    found = minari_io.load(folder.name, folder.parent)
    return Imported(dataclasses.replace(found, id=request.id))
