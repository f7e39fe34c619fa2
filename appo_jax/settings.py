"""Settings: dataclass fields that carry their default, help and bounds, so that each is said once.

    @dataclasses.dataclass(frozen=True)
    class Config(Settings):
        hidden_dim: int = setting(256, "units of each hidden layer", low=1)

Construction checks every value, so a library call and a flag (`experiments/terminal/flags.py` makes
flags of the fields) are refused by the same sentence. What shapes the program goes into a static
`Settings`; numbers that people sweep go into a `SweptSettings`, whose fields become arrays of the
state.
"""

import dataclasses
import functools
import math
import typing
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from appo_jax.types import InputError

MAX_INT = 2**31 - 1  # int32's
# Of a batch, of a layer's units, and of layers: the numbers in an array, and XLA counts with int32
# here and there, stay far below that.
MAX_ROWS, MAX_UNITS, MAX_LAYERS = 2**20, 2**16, 1000
# As Python's numbers, which compare with any whole number and without rounding.
_FLOAT_MIN, _FLOAT_MAX = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is known of a field beside its name, type and default.

    help: for a person. low, high: bounds, included; above: a bound, excluded. of_run: the run has a
    setting of this name, whose value this one takes. with_terminations: the default in environments
    that can terminate, where it is another one.
    """

    help: str
    low: float | None = None
    above: float | None = None
    high: float | None = None
    of_run: bool = False
    with_terminations: Any = None


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a settings class. choices: the values that a `Literal` allows, else empty."""

    name: str
    type: type
    optional: bool
    choices: tuple[Any, ...]
    default: Any
    setting: Setting


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    of_run: bool = False,
    with_terminations: Any = None,
) -> Any:
    """A dataclass field with a `Setting`."""
    found = Setting(help, low, above, high, of_run, with_terminations)
    return dataclasses.field(default=default, metadata={"setting": found})


class Settings:
    """Base of frozen dataclasses of settings: construction raises InputError for a bad value."""

    def __post_init__(self) -> None:
        check(self)


class SweptSettings(struct.PyTreeNode):
    """Base of the numbers that may be swept, a pytree: Python numbers are checked.

    What else a pytree may hold in their place (arrays, tracers, names of leaves) isn't.
    """

    def __post_init__(self) -> None:
        for field in fields(type(self)):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, int | float):
                check_value(field, value)

    def on_device(self) -> Self:
        """The same as float32 arrays, for a state to carry."""
        return jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), self)


@functools.cache
def fields(cls: Any) -> tuple[Field, ...]:
    """The fields of a class that are settings."""
    hints = typing.get_type_hints(cls)
    return tuple(
        Field(field.name, *_type(hints[field.name]), field.default, field.metadata["setting"])
        for field in dataclasses.fields(cls)
        if "setting" in field.metadata
    )


def _type(hint: Any) -> tuple[type, bool, tuple[Any, ...]]:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return type(arguments[0]), False, arguments
    if type(None) in arguments:
        inner = next(argument for argument in arguments if argument is not type(None))
        return inner, True, ()
    return hint, False, ()


def build(
    cls: Any,
    given: Mapping[str, Any],
    of_run: Mapping[str, Any],
    with_terminations: bool = False,
) -> Any:
    """An instance: values that were given, else the run's own, else defaults.

    with_terminations: take the defaults for environments that can terminate.
    """
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name in given:
            values[field.name] = given[field.name]
        elif field.setting.of_run and field.name in of_run:
            values[field.name] = of_run[field.name]
        elif with_terminations and field.setting.with_terminations is not None:
            values[field.name] = field.setting.with_terminations
    return cls(**values)


def check(settings: Any) -> None:
    """Raise InputError for the first field whose value isn't as its type and bounds say."""
    for field in fields(settings.__class__):
        check_value(field, getattr(settings, field.name))


def check_value(field: Field, value: Any) -> None:
    """Raise InputError if a setting can't have this value, as `name=value: expected ...`."""
    if value is None and field.optional:
        return
    if not _fits(field, value):
        raise InputError(f"{field.name}={value}: expected {expectation(field)}")


def _fits(field: Field, value: Any) -> bool:
    if field.choices:
        return value in field.choices
    if field.type is bool or field.type is str:
        return isinstance(value, field.type)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (field.type is float and isinstance(value, float))):
        return False
    if field.type is float and not _is_float32(value):
        return False
    low, high = _bounds(field)
    above = field.setting.above
    return low <= value <= high and (above is None or value > above)


def _is_float32(value: float) -> bool:
    # Smaller ones are 0 on the device.
    return value == 0 or _FLOAT_MIN <= abs(value) <= _FLOAT_MAX


def _bounds(field: Field) -> tuple[float, float]:
    unbounded = (1, MAX_INT) if field.type is int else (-math.inf, math.inf)
    low, high = field.setting.low, field.setting.high
    return (unbounded[0] if low is None else low), (unbounded[1] if high is None else high)


def expectation(field: Field) -> str:
    """What a value must be, in words."""
    if field.choices:
        *others, last = map(str, field.choices)
        return f"{', '.join(others)} or {last}"
    if field.type is bool:
        return "true or false"
    if field.type is str:
        return "text"
    low, high = _bounds(field)
    if field.type is int:
        return f"a whole number from {low} to {high}"
    parts = []
    if field.setting.above is not None:
        parts.append(f"above {field.setting.above:g}")
    if low > -math.inf:
        parts.append(f"from {low:g}")
    if high < math.inf:
        parts.append(f"to {high:g}")
    return " ".join(["a number", *parts, "that float32 can hold"])
