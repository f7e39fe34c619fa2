"""Programs that are compiled once, or quickly."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

# For a process of its own; see `quick_compilation`.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """Compile in half the time to slower code, which may round otherwise in the last bit.

    For tests that hold within a tolerance, not for those of equal bits.
    """
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@contextlib.contextmanager
def compile_cache(folder: Path) -> Iterator[None]:
    """Keep compiled programs in `folder`, so that a second loop doesn't compile again."""
    names = {name.lower(): value for name, value in cache_variables(folder).items()}
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def cache_variables(folder: Path) -> dict[str, str]:
    """The same for a process of its own."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
