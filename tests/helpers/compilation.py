"""Programs that are compiled once, or quickly."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import jax

# For a process of its own; see `quick_compilation`.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@contextlib.contextmanager
def quick_compilation(quick: bool = True) -> Iterator[None]:
    """Compile in half the time to slower code, which may round otherwise in the last bit.

    For tests that hold within a tolerance, and of equal bits where a long check repeats them with
    all optimisations (not quick).
    """
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", quick)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def keep_compiled(folder: Path) -> None:
    """Compile a program once for this process and all that it starts from now on."""
    for name, value in {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)
