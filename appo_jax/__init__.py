"""APPO, Adversarial Policy Optimization for offline preference-based RL, as pure functions."""
