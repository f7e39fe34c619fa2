"""What is learned from data: the reward by maximum likelihood, the transition by counts.

The class of rewards is all r with r_h(s, a) in [0, R / H]: the largest class of functions of
(s, a), the same at each step, of which every combination over steps has 0 <= r(tau) <= R
(Assumption 1). Data are `Trajectories` of pairs, `[n, 2, H]`; a label is 1 where the second of
the pair is preferred. N and M count pairs.
"""

import functools
from typing import TypeAlias

import chex
import jax
import jax.numpy as jnp
from flax import struct

from appo_jax import losses
from appo_jax.tabular.mdp import MDP, Trajectories, returns, sample_trajectories

# Far below the curvature that one labelled pair among thousands adds (1 / 4 M), far above the
# rounding of float64: it decides between maximisers of the likelihood and nothing else.
RIDGE = 1e-8
LEAST_BARRIER = 1e-17  # so that a bound's multiplier and its slack never both round to 0
NEWTON_STEPS = 40

# The reward, R / H minus the reward, and the multipliers of their staying above 0; each `[H S A]`.
_InteriorPoint: TypeAlias = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


class OfflineData(struct.PyTreeNode):
    """What the learner sees.

    labelled: D_pref's pairs, `[M, 2, H]`; labels: `[M]`.
    unlabelled: D_traj's pairs, `[N, 2, H]`.
    """

    labelled: Trajectories
    labels: jax.Array
    unlabelled: Trajectories


def collect(
    mdp: MDP, reference: jax.Array, key: jax.Array, num_labelled: int, num_unlabelled: int
) -> OfflineData:
    """D_pref and D_traj from the reference policy, labels from the Bradley-Terry model."""
    labelled_key, label_key, unlabelled_key = jax.random.split(key, 3)
    labelled = sample_trajectories(mdp, reference, labelled_key, (num_labelled, 2))
    return OfflineData(
        labelled=labelled,
        labels=preference_labels(mdp.reward, labelled, label_key),
        unlabelled=sample_trajectories(mdp, reference, unlabelled_key, (num_unlabelled, 2)),
    )


@jax.jit
def preference_labels(reward: jax.Array, pairs: Trajectories, key: jax.Array) -> jax.Array:
    """Draw y ~ Bernoulli(sigmoid(r(tau^1) - r(tau^0))), `[n]` of 0 and 1."""
    scores = returns(reward, pairs)
    preferred = jax.random.bernoulli(key, jax.nn.sigmoid(scores[:, 1] - scores[:, 0]))
    return preferred.astype(reward.dtype)


def link_kappa(bound: float) -> jax.Array:
    """The constant 1 / inf over [-R, R] of the link's slope; for the sigmoid 2 + e^R + e^-R."""
    slope = jax.grad(jax.nn.sigmoid)
    return 1 / jnp.minimum(slope(jnp.asarray(bound, float)), slope(jnp.asarray(-bound, float)))


def features(trajectories: Trajectories, num_states: int, num_actions: int) -> jax.Array:
    """Visits of each (h, s, a), `[..., H]` to `[..., H * S * A]` of zeros and ones.

    `features(...) @ reward.ravel()` is the return.
    """
    chex.assert_equal_shape([trajectories.states, trajectories.actions])
    flat = trajectories.states * num_actions + trajectories.actions
    visits = jax.nn.one_hot(flat, num_states * num_actions)
    return visits.reshape(*flat.shape[:-1], -1)


def pair_features(pairs: Trajectories, num_states: int, num_actions: int) -> jax.Array:
    """Features of the first trajectory minus those of the second, `[n, 2, H]` to `[n, HSA]`."""
    visits = features(pairs, num_states, num_actions)
    return visits[:, 0] - visits[:, 1]


@functools.partial(jax.jit, static_argnames="num_steps")
def fit_reward(
    mdp: MDP, pairs: Trajectories, labels: jax.Array, num_steps: int = NEWTON_STEPS
) -> jax.Array:
    """r_hat = argmin of L_R over the class, `[H, S, A]`: Algorithms 1 and 2, line 2.

    Of several maximisers of the likelihood the one of the smallest norm (in the limit of a small
    ridge). A primal-dual interior-point method of `num_steps` Newton steps; meant for float64. Of
    `mdp` only the shape and R are read. pairs: `[M, 2, H]`, labels: `[M]`.
    """
    chex.assert_equal_shape([pairs.states[:, 0, 0], labels])
    horizon, num_states, num_actions = mdp.reward.shape
    # The second minus the first: the margin by which a label of 1 is explained.
    margins = -pair_features(pairs, num_states, num_actions).astype(mdp.reward.dtype)
    upper = mdp.bound / horizon

    def negative_log_likelihood_derivatives(reward: jax.Array) -> tuple[jax.Array, jax.Array]:
        probability = jax.nn.sigmoid(margins @ reward)
        gradient = (probability - labels) @ margins / len(labels)
        weights = probability * (1 - probability) / len(labels)
        return gradient, margins.T @ (weights[:, None] * margins)

    def newton_step(state: _InteriorPoint, _: None) -> tuple[_InteriorPoint, None]:
        reward, slack, low, high = state
        gradient, hessian = negative_log_likelihood_derivatives(reward)
        gradient = gradient + RIDGE * reward
        barrier = 0.2 * (reward @ low + slack @ high) / (2 * len(reward))
        barrier = jnp.maximum(barrier, LEAST_BARRIER)
        diagonal = low / reward + high / slack + RIDGE
        residual = gradient - barrier / reward + barrier / slack
        move = -jnp.linalg.solve(hessian + jnp.diag(diagonal), residual)
        low_move = (barrier - low * move) / reward - low
        high_move = (barrier + high * move) / slack - high
        primal = _step_length(jnp.concatenate([reward, slack]), jnp.concatenate([move, -move]))
        dual = _step_length(jnp.concatenate([low, high]), jnp.concatenate([low_move, high_move]))
        return (
            reward + primal * move,
            slack - primal * move,
            low + dual * low_move,
            high + dual * high_move,
        ), None

    middle = jnp.full(mdp.reward.size, upper / 2, mdp.reward.dtype)
    start = (middle, middle, jnp.ones_like(middle), jnp.ones_like(middle))
    (reward, _, _, _), _ = jax.lax.scan(newton_step, start, None, length=num_steps)
    return jnp.clip(reward, 0, upper).reshape(mdp.reward.shape)


def _step_length(values: jax.Array, moves: jax.Array) -> jax.Array:
    """The longest step up to 1 that keeps all values positive, with a margin."""
    limits = jnp.where(moves < 0, -values / jnp.where(moves < 0, moves, -1), jnp.inf)
    return jnp.minimum(1.0, 0.99 * jnp.min(limits))


@jax.jit
def preference_loss(reward: jax.Array, pairs: Trajectories, labels: jax.Array) -> jax.Array:
    """L_R(r): mean negative log-likelihood of the labels; scalar."""
    return jnp.mean(losses.preference_loss(returns(reward, pairs), labels))


@jax.jit
def transition_counts(mdp: MDP, trajectories: Trajectories) -> jax.Array:
    """How often (s, a) led to s' at each step, `[H, S, A, S]`; the last step's counts are 0."""
    horizon, num_states, num_actions = mdp.reward.shape
    states = trajectories.states.reshape(-1, horizon)
    actions = trajectories.actions.reshape(-1, horizon)
    counts = jnp.zeros_like(mdp.transition)
    steps = jnp.arange(horizon - 1)
    return counts.at[steps, states[:, :-1], actions[:, :-1], states[:, 1:]].add(1)


@jax.jit
def fit_transition(mdp: MDP, trajectories: Trajectories) -> jax.Array:
    """P_hat by maximum likelihood, `[H, S, A, S]`: relative frequencies.

    Where (h, s, a) was never seen every distribution maximises the likelihood; the uniform one is
    taken. Of `mdp` only the shape is read.
    """
    counts = transition_counts(mdp, trajectories)
    visits = jnp.sum(counts, axis=-1, keepdims=True)
    return jnp.where(visits > 0, counts / jnp.maximum(visits, 1), 1 / counts.shape[-1])


def split_half(pairs: Trajectories) -> tuple[Trajectories, Trajectories]:
    """The first half of the pairs, and the rest.

    P_hat comes from the first and the losses from the second, as the proof has it (appendix,
    remark on the optimisation error), so that they are independent.
    """
    half = len(pairs.states) // 2
    return jax.tree.map(lambda leaf: leaf[:half], pairs), jax.tree.map(
        lambda leaf: leaf[half:], pairs
    )
