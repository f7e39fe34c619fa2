"""Where compiled programs are kept, a folder for each kind of processor."""

import hashlib
import os
import platform
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, unless JAX was told of another place.

    A folder for each kind of processor and device: a program compiled for one may not run on
    another.
    """
    if jax.config.values["jax_compilation_cache_dir"]:
        return
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(caches):  # there is no home
        return
    device = jax.devices()[0].device_kind
    can = cpuinfo("flags") or cpuinfo("Features") or platform.processor()
    machine = hashlib.sha256(f"{can} {device}".encode()).hexdigest()[:12]
    jax.config.update("jax_compilation_cache_dir", str(Path(caches, "appo-jax", machine)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def cpuinfo(field: str) -> str | None:
    """What Linux says of the first processor under `field`, such as `flags`, if it does."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(field))
    return next(values, None)
