"""Reading pickles of plain NumPy arrays that others made, damaged or malicious ones too.

Nothing that a pickle names is imported: the few names that arrays are written with stand for the
classes below. NumPy's own are not used, since damaged bytes in their place crash the process.
"""

import math
import pickle
import struct
import types
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


_InPython: Any = pickle._Unpickler


class _Unpickler(_InPython):
    """Python's own: C's fills the memory where damaged bytes give a large place in its memo."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _NAMES[module, name]

    def load_bytearray8(self) -> None:
        # The original makes one of the size that the file names, and looks for its bytes then.
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))

    dispatch = _InPython.dispatch | {pickle.BYTEARRAY8[0]: load_bytearray8}


def load(path: Path) -> Any:
    """What a file holds, its arrays NumPy's, wherever in dicts, lists and tuples they are.

    Raises InputError for a file that isn't a whole pickle, or one of more than arrays, numbers,
    text and Python's containers.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size  # asked for more, a file makes room for it first
            bounded = types.SimpleNamespace(
                read=lambda count: file.read(min(count, size)), readline=file.readline
            )
            return _with_arrays(_Unpickler(bounded).load(), {})
    except Exception as error:  # a damaged pickle makes `load` raise anything
        raise InputError(
            f"{path}: not a pickle of plain NumPy arrays: {type(error).__name__} {error}"
        ) from error


def _with_arrays(value: Any, done: dict[int, Any]) -> Any:
    """A copy of containers in which arrays stand for what they were read as.

    done: what has become of each container, by its id: one may lie in several places, or in itself.
    """
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, _Dtype):
        return value.resolve()
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, dict):
        named: dict[Any, Any] = {}
        done[id(value)] = named
        named.update((_with_arrays(k, done), _with_arrays(v, done)) for k, v in value.items())
    elif isinstance(value, list):
        listed: list[Any] = []
        done[id(value)] = listed
        listed.extend(_with_arrays(inner, done) for inner in value)
    elif isinstance(value, tuple | set | frozenset):
        done[id(value)] = type(value)(_with_arrays(inner, done) for inner in value)
    return done.get(id(value), value)
