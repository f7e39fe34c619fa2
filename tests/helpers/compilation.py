"""How programs are compiled in tests."""

import os
import platform
from pathlib import Path

import jax

# XLA's earlier emitter of loops compiles in less than half the time; without fused multiplications
# and additions its sums don't depend on what else is in a loop. A release that doesn't know a flag
# would abort, so only those that were tried get them.
_EARLIER_EMITTER = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_max_isa=AVX")
_KNOWN_TO = ((0, 10),)


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


def compile_quickly() -> None:
    """Compile in a third of the time to slower code, which may round otherwise in the last bits.

    Its operations don't know the lines that they come from. To be called before XLA is used.
    """
    _set(jax_disable_most_optimizations=True, jax_traceback_in_locations_limit=0)
    if jax.__version_info__[:2] in _KNOWN_TO and platform.machine() in ("x86_64", "AMD64"):
        os.environ.update(xla_flags(*_EARLIER_EMITTER))


def xla_flags(*more: str) -> dict[str, str]:
    """The variable that gives XLA these flags beside those that it has."""
    return {"XLA_FLAGS": " ".join([*os.environ.get("XLA_FLAGS", "").split(), *more])}
