"""APPO, Adversarial Policy Optimization for offline preference-based RL, as pure functions.

The public modules are imported by name, `from appo_jax import appo`, so that each brings in only
what it needs.
"""
