"""How programs are compiled in tests."""

import os
from pathlib import Path

import jax


def _set(**values: str | int) -> None:
    """Set JAX's options here and for all processes that are started from now on."""
    for name, value in values.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)


def keep_compiled(folder: Path) -> None:
    """Compile a program once for this process and all that it starts from now on."""
    _set(
        jax_compilation_cache_dir=str(folder),
        jax_persistent_cache_min_compile_time_secs=0,
        jax_persistent_cache_min_entry_size_bytes=-1,
    )


def compile_quickly(quickly: bool = True) -> None:
    """Compile in half the time to slower code, which may round otherwise in the last bit.

    Its operations don't know the lines that they come from.
    """
    _set(
        jax_disable_most_optimizations=quickly,
        jax_traceback_in_locations_limit=0 if quickly else 10,
    )
