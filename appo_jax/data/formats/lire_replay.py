"""LiRE's replay buffers of Meta-World; `appo_jax.data.lire` reads them."""

from appo_jax.data import lire
from appo_jax.data.formats.format import Imported, Request
from appo_jax.types import InputError

_DATA = (".pkl", ".npz", ".npy", ".hdf5", ".h5")


def read(request: Request) -> Imported:
    """The first transitions of each agent, all of them where no size is given."""
    folder = request.source
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder, expected one of buffers of agents")
    buffers = {path.name for path in lire.buffer_files(folder)}
    others = sorted(
        path.name for path in folder.iterdir() if path.suffix in _DATA and path.name not in buffers
    )
    if others:
        raise InputError(
            f"{folder}: holds {', '.join(others)[:100]} beside {len(buffers)} buffers, expected "
            "buffers alone"
        )
    return Imported(lire.load(folder, request.size, request.id))
