"""Docstrings as they are written here, brought into reStructuredText for autodoc.

A docstring is plain text: code is in backquotes or indented, arguments and fields begin with their
name and a colon, in a line of their own or behind a full stop.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

from appo_jax import settings

_IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
# Behind the last argument.
_CLOSING = re.compile(r"(?<=[.:]) (?=(?:Returns?|Raises?|Also returns|Arguments) )")


def _process(_: Sphinx, what: str, __: str, described: Any, ___: Any, lines: list[str]) -> None:
    names = _names(what, described)
    blocks = re.split(r"\n\s*\n", "\n".join(lines).strip())
    lines[:] = [line for block in blocks for line in (*_block(block, names), "")]
    if what == "class" and _has_settings(described):
        lines += _table_of_settings(described)


def _names(what: str, described: Any) -> set[str]:
    """Those of the arguments of a function, or of the fields of a class."""
    if what == "class":
        return set(getattr(described, "__annotations__", {}))
    try:
        return set(inspect.signature(described).parameters)
    except (TypeError, ValueError):
        return set()


def _block(block: str, names: set[str]) -> Iterator[str]:
    if block.startswith("    "):
        yield from ("::", "", *block.splitlines())
    elif names and (entries := _entries(" ".join(block.split()), names)):
        before, *entries = entries
        if before:
            yield from (_inline(before), "")
        *entries, last = entries
        last, *closing = _CLOSING.split(last, maxsplit=1)
        for entry in (*entries, last):
            name, text = entry.split(": ", maxsplit=1)
            yield f"- **{_inline(name)}**: {_inline(text)}"
        for text in closing:
            yield from ("", _inline(text))
    else:
        yield from _inline(block).splitlines()


def _entries(text: str, names: set[str]) -> list[str]:
    """A paragraph cut where arguments begin, what is before them first; [] without any."""
    either = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    begins = re.compile(rf"(?:^|(?<=[.;] ))(?=(?:{either})(?:, (?:{either}))*: )")
    places = [match.start() for match in begins.finditer(text)]
    if not places:
        return []
    cuts = [0, *places, len(text)]
    return [text[a:b].strip().rstrip(";") for a, b in zip(cuts, cuts[1:], strict=False)]


def _inline(text: str) -> str:
    """Escape what would be markup, and make links of names in backquotes."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd one
        return re.sub(r"([\\*|_`])", r"\\\1", text)
    for place, part in enumerate(parts):
        if place % 2 == 0:
            escaped = re.sub(r"([\\*|_])", r"\\\1", part)
            parts[place] = rf"\ {escaped}" if place and part[:1].isalnum() else escaped
        elif _IDENTIFIER.fullmatch(part):
            parts[place] = f":py:obj:`{part}`"
        else:
            parts[place] = f"``{part}``"
    return "".join(parts)


def _has_settings(described: Any) -> bool:
    fields = dataclasses.fields(described) if dataclasses.is_dataclass(described) else ()
    return any("setting" in field.metadata for field in fields)


def _table_of_settings(cls: Any) -> Iterator[str]:
    yield from (".. list-table::", "   :header-rows: 1", "")
    rows = [("field", "default", "what it is", "values")]
    for field in settings.fields(cls):
        default = "the run's" if field.setting.of_run else f"``{field.default!r}``"
        if field.setting.with_terminations is not None:
            default += f", with ``--env`` ``{field.setting.with_terminations!r}``"
        expected = settings.expectation(field).removesuffix(" that float32 can hold")
        rows.append((f"``{field.name}``", default, _inline(field.setting.help), expected))
    for row in rows:
        yield from (f"   {'*' if not place else ' '} - {cell}" for place, cell in enumerate(row))
    yield ""


def _signature(_: Sphinx, what: str, __: str, described: Any, *___: Any) -> tuple[str, str] | None:
    """None of settings, which have a table."""
    return ("", "") if what == "class" and _has_settings(described) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Take part in autodoc."""
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
