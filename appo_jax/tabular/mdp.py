"""Finite-horizon tabular MDPs, with everything about them exact.

Symbols of the paper (arXiv 2503.05306, section 2) to names here: P `transition`, r `reward`, R
`bound`, pi `policy` and mu `reference` (arrays `[H, S, A]` of probabilities), f `f`, d^pi_h(s, a)
`occupancy`, tau a row of `Trajectories`, C_TR and C_ST `trajectory_` and `step_concentrability`.

All functions are of one MDP, pure, in the dtype they are given; `vmap` makes batches. For another
reward or transition model they take `mdp.replace(reward=...)`. They raise AssertionError (chex) for
policies that don't have the reward's shape.
"""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


class MDP(struct.PyTreeNode):
    """An episodic MDP with H steps, S states and A actions.

    transition: `[H, S, A, S]`, P_h(s' | s, a). Nothing depends on the last step's, but
        `q_values`, `occupancy` and sampling multiply by it: it must be finite.
    reward: `[H, S, A]`; the true one lies in [0, R / H].
    initial: `[S]`, distribution of s_1.
    bound: R, the bound on a trajectory's return (static).
    """

    transition: jax.Array
    reward: jax.Array
    initial: jax.Array
    bound: float = struct.field(pytree_node=False, default=1.0)


class Trajectories(struct.PyTreeNode):
    """states, actions: `[..., H]`, integers."""

    states: jax.Array
    actions: jax.Array


@jax.jit
def q_values(mdp: MDP, policy: jax.Array) -> jax.Array:
    """Q^pi_h(s, a) by the Bellman equation, `[H, S, A]`."""
    chex.assert_equal_shape([mdp.reward, policy])

    def step(
        value: jax.Array, inputs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        transition, reward, policy = inputs
        q = reward + transition @ value
        return jnp.sum(policy * q, axis=-1), q

    inputs = (mdp.transition, mdp.reward, policy)
    _, q = jax.lax.scan(
        step, jnp.zeros_like(mdp.reward[0, :, 0]), inputs, reverse=True, unroll=True
    )
    return q


def mix(f: jax.Array, policy: jax.Array) -> jax.Array:
    """The mean f o pi over the policy's actions, `[..., S, A]` to `[..., S]`."""
    return jnp.sum(f * policy, axis=-1)


@jax.jit
def value(mdp: MDP, policy: jax.Array) -> jax.Array:
    """V^pi_1, averaged over the initial distribution; scalar."""
    return mdp.initial @ mix(q_values(mdp, policy)[0], policy[0])


@jax.jit
def occupancy(mdp: MDP, policy: jax.Array) -> jax.Array:
    """d^pi_h(s, a), `[H, S, A]`; each step sums to 1."""
    chex.assert_equal_shape([mdp.reward, policy])

    def step(states: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        transition, policy = inputs
        pairs = states[:, None] * policy
        return jnp.einsum("sa,sat->t", pairs, transition), pairs

    return jax.lax.scan(step, mdp.initial, (mdp.transition, policy), unroll=True)[1]


@jax.jit
def optimal_policy(mdp: MDP) -> jax.Array:
    """A deterministic optimal policy, `[H, S, A]` of 0 and 1; ties go to the first action."""

    def step(value: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        transition, reward = inputs
        q = reward + transition @ value
        best = jax.nn.one_hot(jnp.argmax(q, axis=-1), q.shape[-1], dtype=q.dtype)
        return jnp.max(q, axis=-1), best

    inputs = (mdp.transition, mdp.reward)
    start = jnp.zeros_like(mdp.reward[0, :, 0])
    return jax.lax.scan(step, start, inputs, reverse=True, unroll=True)[1]


def uniform_policy(mdp: MDP) -> jax.Array:
    """Unif(A) at each step and state, `[H, S, A]`."""
    return jnp.full_like(mdp.reward, 1 / mdp.reward.shape[-1])


@jax.jit
def induced_reward(transition: jax.Array, f: jax.Array, policy: jax.Array) -> jax.Array:
    """r^pi_{P, f} = f_h - P_h (f_{h+1} o pi_{h+1}), Definition 1; `[H, S, A]`.

    The reward under which f is the action-value function of the policy: the inverse of `q_values`.
    """
    chex.assert_equal_shape([f, policy])
    next_values = mix(f, policy)[1:]
    continuation = jnp.einsum("hsat,ht->hsa", transition[:-1], next_values)
    return f.at[:-1].add(-continuation)


@jax.jit
def performance_difference(mdp: MDP, policy: jax.Array, other: jax.Array) -> jax.Array:
    """sum_h E_{s ~ d^policy_h} <Q^other_h(s, .), policy - other>, the performance difference lemma.

    Equals `value(mdp, policy) - value(mdp, other)`.
    """
    states = jnp.sum(occupancy(mdp, policy), axis=-1)
    return jnp.sum(states[..., None] * q_values(mdp, other) * (policy - other))


@jax.jit
def trajectory_concentrability(mdp: MDP, policy: jax.Array, reference: jax.Array) -> jax.Array:
    """C_TR = sup_tau d^policy(tau) / d^reference(tau), by a max-product recursion; scalar.

    The transitions cancel, so it is the greatest product of pi(a|s) / mu(a|s) over the paths that
    the MDP allows. Infinite where the policy goes and the reference does not.
    """
    ratio = _ratio(policy, reference)

    def step(best: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        transition, ratio = inputs
        ahead = jnp.max(jnp.where(transition > 0, best, 0), axis=-1)
        return jnp.max(jnp.where(ratio > 0, ratio * ahead, 0), axis=-1), None

    last = jnp.max(ratio[-1], axis=-1)
    earlier = (mdp.transition[:-1], ratio[:-1])
    best, _ = jax.lax.scan(step, last, earlier, reverse=True, unroll=True)
    return jnp.max(jnp.where(mdp.initial > 0, best, 0))


@jax.jit
def step_concentrability(mdp: MDP, policy: jax.Array, reference: jax.Array) -> jax.Array:
    """C_ST = max over h, s, a of d^policy_h(s, a) / d^reference_h(s, a); scalar."""
    return jnp.max(_ratio(occupancy(mdp, policy), occupancy(mdp, reference)))


def _ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    return jnp.where(numerator > 0, numerator / denominator, 0)


def all_trajectories(horizon: int, num_states: int, num_actions: int) -> Trajectories:
    """Every trajectory, `[(S A)^H, H]`: 4,096 with the default sizes."""
    pairs = list(itertools.product(range(num_states * num_actions), repeat=horizon))
    flat = jnp.asarray(np.array(pairs, np.int32))
    return Trajectories(states=flat // num_actions, actions=flat % num_actions)


@jax.jit
def trajectory_probabilities(mdp: MDP, policy: jax.Array, trajectories: Trajectories) -> jax.Array:
    """d^pi(tau) of each trajectory, `[..., H]` to `[...]`."""
    states, actions = trajectories.states, trajectories.actions
    steps = jnp.arange(states.shape[-1])
    chosen = jnp.prod(policy[steps, states, actions], axis=-1)
    moves = mdp.transition[steps[:-1], states[..., :-1], actions[..., :-1], states[..., 1:]]
    return mdp.initial[states[..., 0]] * chosen * jnp.prod(moves, axis=-1)


def returns(reward: jax.Array, trajectories: Trajectories) -> jax.Array:
    """r(tau) = sum_h r_h(s_h, a_h), `[...]`."""
    steps = jnp.arange(trajectories.states.shape[-1])
    return jnp.sum(reward[steps, trajectories.states, trajectories.actions], axis=-1)


@functools.partial(jax.jit, static_argnames="shape")
def sample_trajectories(
    mdp: MDP, policy: jax.Array, key: jax.Array, shape: tuple[int, ...]
) -> Trajectories:
    """Independent trajectories of the policy, `[*shape, H]`."""
    chex.assert_equal_shape([mdp.reward, policy])
    horizon = len(policy)
    uniforms = jax.random.uniform(key, (2 * horizon, *shape), policy.dtype)

    def step(
        states: jax.Array, inputs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        uniform, policy, transition = inputs
        actions = _draw(policy[states], uniform[0])
        return _draw(transition[states, actions], uniform[1]), (states, actions)

    # The uniform that would draw s_{H+1}, of which nobody asks, draws s_1.
    first = _draw(jnp.broadcast_to(mdp.initial, (*shape, len(mdp.initial))), uniforms[-1])
    inputs = (uniforms.reshape(horizon, 2, *shape), policy, mdp.transition)
    _, (states, actions) = jax.lax.scan(step, first, inputs)
    return Trajectories(states=jnp.moveaxis(states, 0, -1), actions=jnp.moveaxis(actions, 0, -1))


def _draw(probabilities: jax.Array, uniform: jax.Array) -> jax.Array:
    """Indices by inverse CDF; `[..., n]` and `[...]` to `[...]`. Never one of probability 0."""
    cumulative = jnp.cumsum(probabilities, axis=-1)
    # Relative to the rounded total, which may fall short of 1.
    return jnp.sum(
        uniform[..., None] * cumulative[..., -1:] >= cumulative, axis=-1, dtype=jnp.int32
    )
