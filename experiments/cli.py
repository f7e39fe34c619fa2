"""What the commands share: their flags are parsed in one way, and errors are one sentence."""

import hashlib
import os
import platform
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import flags


def available_cores() -> int:
    """Cores that this process may use; fewer than the machine's under taskset or in a container."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone has it
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, unless JAX was told of another place.

    A folder for each kind of processor and device: a program compiled for one may not run on
    another.
    """
    if jax.config.values["jax_compilation_cache_dir"]:
        return
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    device = jax.devices()[0].device_kind
    can = cpuinfo("flags") or cpuinfo("Features") or platform.processor()
    machine = hashlib.sha256(f"{can} {device}".encode()).hexdigest()[:12]
    jax.config.update("jax_compilation_cache_dir", str(caches / "appo-jax" / machine))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def cpuinfo(field: str) -> str | None:
    """What Linux says of the first processor under `field`, such as `flags`, if it does."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(field))
    return next(values, None)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parse flags; a bad one ends the process with one sentence that says what was expected."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see experiments/__init__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        named = re.match(r"flag --(\w+)=", str(error))
        expected = f", expected: {flags.FLAGS[named.group(1)].help}" if named else ""
        sys.exit(" ".join(f"{error}{expected}".splitlines()))
    if rest[1:]:
        sys.exit(
            f"found {' '.join(rest[1:])!r} after the flags, expected flags only (--task=sweep)"
        )
    return rest
