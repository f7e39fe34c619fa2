"""What APPO is compared with on the same data: no pessimism, and the confidence-set optimum.

Greedy is `optimal_policy(model)` of the estimated MDP. FREEHAND-transition (Zhan et al., "Provable
offline preference-based RL") is computed by brute force over finite classes, so only for MDPs with
a handful of states and steps.
"""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import losses
from appo_jax.tabular.appo_with_model import visit_frequencies
from appo_jax.tabular.estimation import OfflineData, features, transition_counts
from appo_jax.tabular.mdp import MDP, occupancy


def deterministic_policies(horizon: int, num_states: int, num_actions: int) -> jax.Array:
    """All of them, `[A^(H S), H, S, A]`."""
    choices = list(itertools.product(range(num_actions), repeat=horizon * num_states))
    table = np.eye(num_actions)[np.array(choices)]
    return jnp.asarray(table.reshape(-1, horizon, num_states, num_actions), float)


def transition_loss(transition: jax.Array, counts: jax.Array, num_trajectories: int) -> jax.Array:
    """-mean over trajectories of sum_h log P_h(s_{h+1} | s_h, a_h); scalar.

    counts: `[H, S, A, S]`. Differs from the paper: it prints the loss without its minus sign.
    """
    seen = jnp.where(counts > 0, counts * jnp.log(jnp.where(counts > 0, transition, 1)), 0)
    return -jnp.sum(seen) / num_trajectories


@jax.jit
def freehand(
    mdp: MDP,
    data: OfflineData,
    rewards: jax.Array,
    transitions: jax.Array,
    reward_width: jax.Array | float,
    transition_width: jax.Array | float,
) -> jax.Array:
    """The argmax over pi of min over plausible r and P of V^pi_{r, P} - V^mu_r, `[H, S, A]`.

    Plausible are the r of `rewards` `[n, H, S, A]` with L_R(r) at most `reward_width` (zeta) above
    the least in the class, and the P of `transitions` `[k, H, S, A, S]` likewise. The policy is the
    best deterministic one; a randomised one can have a better worst case. V^mu_r is the mean of r
    over D_traj. Of `mdp` only the initial distribution and the shapes are read.
    """
    chex.assert_equal_shape_prefix([rewards[0], transitions[0]], 3)
    policies = deterministic_policies(*mdp.reward.shape)
    visits = features(data.labelled, *mdp.reward.shape[1:])
    scores = jnp.einsum("mif,nf->nmi", visits, rewards.reshape(len(rewards), -1))
    labels = jnp.broadcast_to(data.labels, scores.shape[:-1])
    reward_losses = jnp.mean(losses.preference_loss(scores, labels), axis=-1)
    counts = transition_counts(mdp, data.unlabelled)
    num_trajectories = 2 * len(data.unlabelled.states)
    transition_losses = jax.vmap(lambda p: transition_loss(p, counts, num_trajectories))(
        transitions
    )
    occupancies = jax.vmap(
        lambda policy: jax.vmap(lambda p: occupancy(mdp.replace(transition=p), policy))(transitions)
    )(policies)
    frequencies = visit_frequencies(data.unlabelled, *mdp.reward.shape[1:])
    advantages = jnp.einsum("pkhsa,nhsa->pkn", occupancies - frequencies, rewards)
    plausible = (transition_losses <= jnp.min(transition_losses) + transition_width)[:, None] & (
        reward_losses <= jnp.min(reward_losses) + reward_width
    )
    worst = jnp.min(jnp.where(plausible, advantages, jnp.inf), axis=(1, 2))
    return policies[jnp.argmax(worst)]
