"""Reading `.npz` and `.npy` files that others made: arrays of numbers, and nothing else.

NumPy makes room for an array of whatever shape a file names, and unpickles objects where it is
let; here a shape is compared with the bytes that are there first, and objects are refused.
"""

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from appo_jax.types import InputError


def load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by name, or those of a folder of `.npy` files.

    Raises InputError for a path that isn't there, a file that isn't whole, and objects.
    """
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        if not files:
            raise InputError(f"{path}: a folder without .npy files, expected such, or a .npz file")
        return {file.stem: _array(_bytes(file), str(file)) for file in files}
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            contents = {name: archive.read(name) for name in names if name.endswith(".npy")}
    except Exception as error:  # damaged bytes make Python's reader raise anything
        raise InputError(
            f"{path}: not a whole .npz file ({type(error).__name__}: {error})"
        ) from error
    if not contents:
        raise InputError(f"{path}: holds {', '.join(names)[:100] or 'nothing'}, expected arrays")
    return {
        name.removesuffix(".npy"): _array(content, f"{path}: {name.removesuffix('.npy')}")
        for name, content in contents.items()
    }


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error


def _array(content: bytes, where: str) -> np.ndarray:
    file = io.BytesIO(content)
    header: Any = {(1, 0): np.lib.format.read_array_header_1_0}
    header[(2, 0)] = np.lib.format.read_array_header_2_0
    try:
        shape, is_fortran, dtype = header[np.lib.format.read_magic(file)](file)
    except Exception as error:  # damaged bytes make NumPy raise anything
        raise InputError(f"{where}: not a NumPy array ({type(error).__name__}: {error})") from error
    if dtype.hasobject:
        raise InputError(f"{where}: an array of objects, expected numbers")
    found, expected = len(content) - file.tell(), dtype.itemsize * math.prod(shape)
    if found != expected:
        raise InputError(
            f"{where}: {found:,} bytes for an array {list(shape)} of {dtype}, expected {expected:,}"
        )
    array = np.frombuffer(content, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if is_fortran else "C")
