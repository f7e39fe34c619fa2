"""Families of small MDPs: random ones, a chain, a combination lock, and a lure.

Each function returns one `MDP` with rewards in [0, R / H]; `mixture_reference` makes the reference
policy mu that collects the data.
"""

import functools

import jax
import jax.numpy as jnp

from appo_jax.tabular.mdp import MDP, optimal_policy, uniform_policy

_SIZES = ("horizon", "num_states", "num_actions", "bound")


@functools.partial(jax.jit, static_argnames=(*_SIZES, "branching"))
def garnet(
    key: jax.Array,
    horizon: int = 4,
    num_states: int = 4,
    num_actions: int = 2,
    branching: int = 2,
    bound: float = 1.0,
) -> MDP:
    """A random MDP: each (h, s, a) leads to `branching` random states; rewards uniform.

    The weights of the successors are uniform on the simplex. Episodes start in state 0.
    """
    support_key, weight_key, reward_key = jax.random.split(key, 3)
    shape = (horizon, num_states, num_actions)
    scores = jax.random.uniform(support_key, (*shape, num_states))
    support = jnp.argsort(jnp.argsort(scores, axis=-1), axis=-1) < branching
    weights = jnp.where(support, jax.random.exponential(weight_key, (*shape, num_states)), 0.0)
    reward = jax.random.uniform(reward_key, shape) * bound / horizon
    return MDP(
        transition=weights / jnp.sum(weights, axis=-1, keepdims=True),
        reward=reward,
        initial=jax.nn.one_hot(0, num_states, dtype=reward.dtype),
        bound=bound,
    )


@functools.partial(jax.jit, static_argnames=_SIZES)
def chain(
    horizon: int = 4,
    num_states: int = 4,
    num_actions: int = 2,
    slip: float = 0.1,
    bound: float = 1.0,
) -> MDP:
    """Walk along a line: action 0 steps back, all others forward; `slip` is the chance to stay.

    Reward R / H in the last state, and half of that for stepping back in the first.
    """
    states = jnp.arange(num_states)
    moves = jnp.where(jnp.arange(num_actions) == 0, -1, 1)
    ends = jnp.clip(states[:, None] + moves, 0, num_states - 1)
    transition = (1 - slip) * jax.nn.one_hot(ends, num_states) + slip * jax.nn.one_hot(
        states, num_states
    )[:, None]
    reward = jnp.zeros((num_states, num_actions)).at[-1].set(1.0).at[0, 0].set(0.5)
    return _stationary(transition, reward * bound / horizon, horizon, bound)


@functools.partial(jax.jit, static_argnames=_SIZES)
def combination_lock(
    key: jax.Array,
    horizon: int = 4,
    num_states: int = 4,
    num_actions: int = 2,
    bound: float = 1.0,
) -> MDP:
    """One secret action at each step keeps the lock turning; any other leads out for good.

    State 0 is the lock; the others, into which a wrong action leads, are alike. The whole
    combination earns R / H at the last step, a wrong action half of that at once.
    """
    secret = jax.random.randint(key, (horizon,), 0, num_actions)
    right = jax.nn.one_hot(secret, num_actions)  # [H, A]
    outside = jnp.full(num_states, 1 / (num_states - 1)).at[0].set(0.0)
    stays = jax.nn.one_hot(0, num_states)
    from_lock = right[..., None] * stays + (1 - right[..., None]) * outside
    shape = (horizon, num_states, num_actions, num_states)
    transition = jnp.broadcast_to(outside, shape).at[:, 0].set(from_lock)
    unlocks = right * (jnp.arange(horizon) == horizon - 1)[:, None]
    reward = jnp.zeros(shape[:-1]).at[:, 0].set(unlocks + 0.5 * (1 - right))
    return MDP(transition=transition, reward=reward * bound / horizon, initial=stays, bound=bound)


@functools.partial(jax.jit, static_argnames=_SIZES)
def lure(
    horizon: int = 4,
    num_states: int = 4,
    num_actions: int = 2,
    safe_reward: float = 0.6,
    bound: float = 1.0,
) -> MDP:
    """A road with good rewards, and at each step exits to which the data hardly ever go.

    State 0 is the road: action 0 stays on it and earns `safe_reward` R / H, any other leaves it,
    at step h for state 1 + h (modulo the number of such states), from which nothing leads back and
    where nothing is earned. Each exit has its own few labels, so the greatest of their learned
    rewards comes out too high.
    """
    exits = 1 + jnp.arange(horizon) % (num_states - 1)
    shape = (horizon, num_states, num_actions, num_states)
    stay = jnp.broadcast_to(jnp.eye(num_states)[:, None], shape[1:])
    transition = jnp.broadcast_to(stay, shape)
    transition = transition.at[:, 0, 1:].set(jax.nn.one_hot(exits, num_states)[:, None])
    reward = jnp.zeros(shape[:-1]).at[:, 0, 0].set(safe_reward * bound / horizon)
    return MDP(
        transition=transition,
        reward=reward,
        initial=jax.nn.one_hot(0, num_states, dtype=reward.dtype),
        bound=bound,
    )


@jax.jit
def mixture_reference(mdp: MDP, share: jax.Array | float) -> jax.Array:
    """The reference policy mu = share pi* + (1 - share) Unif(A), `[H, S, A]`.

    share, at least -1 / (A - 1): a number, or an array that broadcasts against `[H, S, A]`. Below 0
    the optimal action is the rarest. For a number C_TR is (share + (1 - share) / A)^-H.
    """
    return share * optimal_policy(mdp) + (1 - share) * uniform_policy(mdp)


def _stationary(transition: jax.Array, reward: jax.Array, horizon: int, bound: float) -> MDP:
    return MDP(
        transition=jnp.broadcast_to(transition, (horizon, *transition.shape)),
        reward=jnp.broadcast_to(reward, (horizon, *reward.shape)),
        initial=jax.nn.one_hot(0, len(reward), dtype=reward.dtype),
        bound=bound,
    )
