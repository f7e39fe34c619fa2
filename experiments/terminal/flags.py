"""Flags made from dataclasses of settings, and settings read from flags.

A flag's default is None: what the command line doesn't name keeps the default of its field, which
is said in the flag's help.
"""

import os
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from appo_jax import settings
from appo_jax.types import InputError


class _Several(tuple[Any, ...]):
    """The values of a flag, and the text that they were."""

    text: str


class _ListParser(flags.ArgumentParser):
    """One value or several, with commas between them."""

    def __init__(self, parser: flags.ArgumentParser):
        self.parser = parser
        self.syntactic_help = f"{parser.syntactic_help}, or several with commas between them"

    def parse(self, argument: Any) -> tuple[Any, ...]:
        words = argument.split(",") if isinstance(argument, str) else argument
        found = _Several(self._one(word) for word in words)
        found.text = ",".join(map(str, words))
        if len(set(found)) < len(found):
            raise ValueError("holds a value twice, expected each once")
        return found

    def _one(self, word: Any) -> Any:
        try:
            return self.parser.parse(word)
        except ValueError as error:
            raise ValueError(
                f"{word!r} is not {self.parser.syntactic_help}, expected one, or several with "
                "commas between them, like 0,1,2"
            ) from error


class _PathParser(flags.ArgumentParser):
    """A path as text; `~` is the home folder also behind `=`, where shells leave it alone."""

    syntactic_help = "a path (behind ~ nothing, or a user)"

    def parse(self, argument: Any) -> str:
        path = os.path.expanduser(argument)
        if not path:
            raise ValueError("is empty")
        if path.startswith("~"):
            raise ValueError("no such home folder is known; ./~ is a folder of that name")
        return path


_PARSERS = {
    int: flags.IntegerParser,
    float: flags.FloatParser,
    str: flags.ArgumentParser,
    Path: _PathParser,
}


def define(
    values: flags.FlagValues,
    name: str,
    type: type,
    help: str,
    group: str,
    default: Any = None,
    several: bool = False,
) -> None:
    """Define one flag, in a group of the help. several: it takes a list with commas.

    The value of a `Path` is text, or None.
    """
    if type is bool:
        flags.DEFINE_boolean(name, default, help, values, module_name=group)
        return
    parser = _PARSERS[type]()
    serializer: Any = flags.ArgumentSerializer()
    if several:
        parser, serializer = _ListParser(parser), flags.CsvListSerializer(",")
    flags.DEFINE(parser, name, default, help, values, serializer, module_name=group)


def define_settings(
    values: flags.FlagValues,
    cls: Any,
    group: str,
    prefix: str = "",
    several: Sequence[str] = (),
    names: Sequence[str] | None = None,
    defaults: Mapping[str, str] = types.MappingProxyType({}),
) -> None:
    """Define a flag for each setting of a class, or for those of `names`; the run's own aside.

    defaults: by field, what a command takes that isn't told, where it isn't the field's own.
    """
    for field in settings.fields(cls):
        if field.setting.of_run or (names is not None and field.name not in names):
            continue
        default = defaults.get(field.name, _default(field))
        help = field.setting.help + (f" (default: {default})" if default else "")
        define(values, prefix + field.name, field.type, help, group, None, field.name in several)


def decimal_commas(values: flags.FlagValues) -> list[str]:
    """A sentence for each flag whose two values may be one number, written with a comma."""
    found = {
        name: value.text
        for name in values
        if isinstance(value := values[name].value, _Several) and isinstance(value[0], float)
    }
    return [
        f"--{name}={text} has two values, which are a grid; one number is written with a point, "
        f"--{name}={text.replace(',', '.')}"
        for name, text in found.items()
        if re.fullmatch(r"-?\d+,\d+", text)
    ]


def _default(field: settings.Field) -> str:
    if field.default is None:
        return ""
    if field.setting.with_terminations is not None:
        return f"{_word(field.default)}, with --env {_word(field.setting.with_terminations)}"
    return _word(field.default)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def given(values: flags.FlagValues, cls: Any, prefix: str = "") -> dict[str, Any]:
    """The settings of a class that the command line names, by field.

    Raises InputError, naming the flag, for a value that the field can't have.
    """
    found: dict[str, Any] = {}
    for field in settings.fields(cls):
        name = prefix + field.name
        if field.setting.of_run or name not in values or values[name].value is None:
            continue
        value = found[field.name] = values[name].value
        for one in value if isinstance(value, tuple) else (value,):
            with_flag(prefix, settings.check_value, field, one)
    return found


def with_flag(prefix: str, function: Any, *arguments: Any, **named: Any) -> Any:
    """Call a function; what it says of a setting `name=value` it says of `--<prefix>name=value`."""
    try:
        return function(*arguments, **named)
    except InputError as error:
        raise InputError(f"--{prefix}{error}") from error
