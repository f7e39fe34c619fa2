"""APPO, Adversarial Policy Optimization for offline preference-based RL, as pure functions.

The public modules are imported by name, `from appo_jax import appo`, so that each brings in only
what it needs; `load_policy` opens what a run has trained.
"""

from typing import Any

__all__ = ["load_policy"]


def __getattr__(name: str) -> Any:
    if name == "load_policy":  # imported when it is asked for: it brings in Orbax
        from appo_jax.policy import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
