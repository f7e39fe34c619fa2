"""What somebody else's module holds, found by a name on the command line."""

import importlib
from collections.abc import Iterable
from typing import Any

from appo_jax.types import InputError


def find(kind: str, name: str, known: Iterable[str]) -> Any:
    """What `module:name` names: imports `module` and takes its attribute `name`.

    kind: what is looked for, and known: names of it that need no module, both for the error.
    Raises InputError for a name of another form, and for a module that there isn't, or that has no
    such attribute.
    """
    module, _, attribute = name.partition(":")
    if not module or module.startswith(".") or not attribute:
        raise InputError(
            f"{kind} {name!r:.60}: expected {', '.join(known)}, or module:name of your own"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{kind} {name!r}: {error}, expected a module that has it") from error
