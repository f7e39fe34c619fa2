"""FREEHAND against loops over its classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.tabular import comparators, estimation, generators
from appo_jax.tabular.mdp import optimal_policy, returns, value

SIZES = {"horizon": 2, "num_states": 2}


pytestmark = pytest.mark.usefixtures("float64")


def test_all_deterministic_policies() -> None:
    policies = np.asarray(comparators.deterministic_policies(2, 2, 2))
    assert policies.shape == (16, 2, 2, 2)
    assert len(np.unique(policies.reshape(16, -1), axis=0)) == 16
    np.testing.assert_array_equal(policies.sum(-1), 1)


def test_transition_loss_by_hand() -> None:
    # Two trajectories of two steps: one move had chance 1/4, the other 1/2.
    transition = jnp.full((2, 2, 2, 2), 0.5).at[0, 0, 1].set(jnp.array([0.25, 0.75]))
    counts = jnp.zeros((2, 2, 2, 2)).at[0, 0, 1, 0].set(1).at[0, 0, 0, 1].set(1)
    found = comparators.transition_loss(transition, counts, 2)
    np.testing.assert_allclose(found, np.log(8) / 2, rtol=1e-9)
    impossible = transition.at[0, 0, 1].set(jnp.array([0.0, 1.0]))
    assert comparators.transition_loss(impossible, counts, 2) == jnp.inf


@pytest.mark.parametrize("seed", range(6))
def test_freehand_against_loops(seed: int) -> None:
    keys = jax.random.split(jax.random.key(seed), 7)
    models = [generators.garnet(key, **SIZES) for key in keys[:6]]
    mdp = models[0]
    reference = generators.mixture_reference(mdp, 0.0)
    data = estimation.collect(mdp, reference, keys[6], 40, 30)
    rewards = jnp.stack([model.reward for model in models])
    transitions = jnp.stack([model.transition for model in models[:3]])
    # Widths that let some of the classes in.
    losses = [estimation.preference_loss(r, data.labelled, data.labels) for r in rewards]
    counts = estimation.transition_counts(mdp, data.unlabelled)
    fits = [comparators.transition_loss(p, counts, 60) for p in transitions]
    reward_width = float(sorted(losses)[2] - min(losses)) + 1e-9
    transition_width = 0.0 if seed % 2 else float("inf")

    best, chosen = -np.inf, None
    for policy in comparators.deterministic_policies(2, 2, 2):
        worst = np.inf
        for r, loss in zip(rewards, losses, strict=True):
            for p, fit in zip(transitions, fits, strict=True):
                if loss <= min(losses) + reward_width and fit <= min(fits) + transition_width:
                    gain = value(mdp.replace(reward=r, transition=p), policy)
                    gain -= jnp.mean(returns(r, data.unlabelled))
                    worst = min(worst, float(gain))
        if worst > best + 1e-12:
            best, chosen = worst, policy
    found = comparators.freehand(mdp, data, rewards, transitions, reward_width, transition_width)
    reached = [value(mdp, policy) for policy in (found, chosen)]
    np.testing.assert_allclose(*reached, atol=1e-9)


def test_without_width_the_likeliest_model_decides() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    mdp, other = (generators.garnet(key, **SIZES) for key in keys[:2])
    reference = generators.mixture_reference(mdp, 0.0)
    data = estimation.collect(mdp, reference, keys[2], 20_000, 5000)
    rewards = jnp.stack([other.reward, mdp.reward])
    transitions = jnp.stack([other.transition, mdp.transition])
    found = comparators.freehand(mdp, data, rewards, transitions, 0.0, 0.0)
    best = value(mdp, optimal_policy(mdp))
    np.testing.assert_allclose(value(mdp, found), best, atol=1e-9)
