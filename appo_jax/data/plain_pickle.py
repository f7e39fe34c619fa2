"""Reading pickles of plain NumPy arrays that others made, damaged or malicious ones too.

Nothing that a pickle names is imported: the few names that arrays are written with stand for the
classes below. NumPy's own are not used, since damaged bytes in their place crash the process.
"""

import math
import pickle
from _codecs import encode
from pathlib import Path
from typing import Any

import numpy as np

from appo_jax.types import InputError


class _Dtype:
    """`numpy.dtype`."""

    __slots__ = ("_name", "_order")

    def __init__(self, name: str, *_: Any):
        self._name, self._order = name, "="

    def __setstate__(self, state: Any) -> None:
        self._order = state[1]

    def resolve(self) -> np.dtype:
        return np.dtype(f"{self._order}{self._name}")


class _Array:
    """`numpy._core.multiarray._reconstruct`: an array whose contents are given afterwards."""

    __slots__ = ("value",)

    def __init__(self, *_: Any):
        self.value = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        self.value = _make(content, dtype, shape, "F" if is_fortran else "C")


class _Buffer(_Array):
    """`numpy._core.numeric._frombuffer`: an array given whole, from protocol 5 on."""

    __slots__ = ()

    def __init__(self, content: Any, dtype: _Dtype, shape: Any, order: Any, *_: Any):
        self.value = _make(content, dtype, shape, order)


class _Scalar(_Array):
    """`numpy._core.multiarray.scalar`."""

    __slots__ = ()

    def __init__(self, dtype: _Dtype, content: Any):
        self.value = _make(content, dtype, (), "C")


class _NoBytes:
    """`bytes`, which protocol 2 calls where there are none."""

    __slots__ = ()

    def __new__(cls) -> Any:
        return b""


def _make(content: Any, dtype: _Dtype, shape: Any, order: Any) -> np.ndarray:
    resolved = dtype.resolve()
    if resolved.hasobject:  # its contents are of no use, its type and shape are, in a message
        if len(content) != math.prod(shape):
            raise ValueError(f"{len(content)} objects for an array of shape {shape}")
        return np.empty(shape, object)
    return np.frombuffer(content, resolved).reshape(shape, order=order)


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): encode,  # how protocol 2 writes bytes
    ("__builtin__", "bytes"): _NoBytes,
}
for _core in ("numpy.core", "numpy._core"):  # of NumPy 1 and 2
    _NAMES |= {
        (f"{_core}.multiarray", "_reconstruct"): _Array,
        (f"{_core}.multiarray", "scalar"): _Scalar,
        (f"{_core}.numeric", "_frombuffer"): _Buffer,
    }


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _NAMES[module, name]


def load(path: Path) -> Any:
    """What a file holds; if that is a dict, its values that are arrays are NumPy's.

    Raises InputError for a file that isn't a whole pickle, or one of more than arrays, numbers,
    text and Python's containers.
    """
    try:
        with path.open("rb") as file:
            content = _Unpickler(file).load()
        if isinstance(content, dict):
            content = {k: v.value if isinstance(v, _Array) else v for k, v in content.items()}
    except Exception as error:  # a damaged pickle makes `load` raise anything
        raise InputError(
            f"{path}: not a pickle of plain NumPy arrays: {type(error).__name__} {error}"
        ) from error
    return content
