"""Algorithm 2, APPO with an estimated transition model, in the tabular case.

    run = optimise(model, unlabelled_half, lam, num_iterations=1024)
    suboptimality = value(mdp, optimal) - mixture_value(mdp, run.policies)

Here lambda multiplies the pair loss; the lambda of the practical Algorithm 4 multiplies the other
term and corresponds to H / lambda (docs/theory.md, last section).
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import struct

from appo_jax.tabular import adversary
from appo_jax.tabular.estimation import features, pair_features
from appo_jax.tabular.mdp import (
    MDP,
    Trajectories,
    induced_reward,
    q_values,
    uniform_policy,
    value,
)

COLD_STEPS = 200  # of the inner solver at the first iteration, which has nobody to start from


class Run(struct.PyTreeNode):
    """What the T iterations leave.

    policies: pi^t, `[T, H, S, A]`. answers: f^t (Algorithm 2) or r^t (Algorithm 1), `[T, H, S, A]`.
    scores: what the policy update looked at, f^t or Q-bar^t, `[T, H, S, A]`. gaps: `[T]`, bound on
    how far the answer's empirical objective is above the least. lams: `[T]`, lambda.
    """

    policies: jax.Array
    answers: jax.Array
    scores: jax.Array
    gaps: jax.Array
    lams: jax.Array


def step_size(bound: float, num_actions: int, num_iterations: int) -> float:
    """The theorems' eta = sqrt(2 log|A| / (R^2 T))."""
    return math.sqrt(2 * math.log(num_actions) / (bound**2 * num_iterations))


def inner_steps(num_iterations: int, num_steps: int) -> jax.Array:
    """Steps of the inner solver at each iteration, `[T]`."""
    return jnp.full(num_iterations, num_steps).at[0].set(max(num_steps, COLD_STEPS))


def improve(log_policy: jax.Array, eta: float, scores: jax.Array) -> jax.Array:
    """pi^{t+1} proportional to pi^t exp(eta f), in log space; `[..., A]` each.

    Algorithm 2, line 5, and Algorithm 1, line 7.
    """
    return jax.nn.log_softmax(log_policy + eta * scores, axis=-1)


def visit_frequencies(pairs: Trajectories, num_states: int, num_actions: int) -> jax.Array:
    """How often the data visit (s, a) at each step, `[n, 2, H]` to `[H, S, A]`; steps sum to 1."""
    visits = jnp.mean(features(pairs, num_states, num_actions), axis=(0, 1))
    return visits.reshape(-1, num_states, num_actions)


def advantage_cost(frequencies: jax.Array, policy: jax.Array) -> jax.Array:
    """The vector c of sum_h E_D[f_h o pi_h(s_h) - f_h(s_h, a_h)] = <c, f>, `[H, S, A]`."""
    return jnp.sum(frequencies, axis=-1, keepdims=True) * policy - frequencies


@jax.jit
def reward_operator(transition: jax.Array, policy: jax.Array) -> jax.Array:
    """The matrix of f -> r^pi_{P, f}, `[HSA, HSA]`, unit upper triangular in blocks of steps."""
    size = policy.size

    def column(f: jax.Array) -> jax.Array:
        return induced_reward(transition, f.reshape(policy.shape), policy).ravel()

    return jax.vmap(column, out_axes=1)(jnp.eye(size, dtype=policy.dtype))


@functools.partial(jax.jit, static_argnames=("num_iterations", "num_steps", "dual_rate"))
def optimise(
    model: MDP,
    pairs: Trajectories,
    lam: jax.Array | float,
    *,
    num_iterations: int,
    num_steps: int = 10,
    dual_rate: float = 0.0,
) -> Run:
    """Algorithm 2, lines 3 to 6.

    model: P_hat and r_hat in the place of the MDP's own. pairs: the half of D_traj that P_hat was
    not fitted to, `[n, 2, H]`. lam: above 0, above C_TR for the theorem. `num_steps` of the inner
    solver for each iteration, warm-started. The algorithm returns the uniform mixture of
    `policies`.

    dual_rate: not in the paper; above 0 it is the idea of Algorithm 4's `adversarial_target=0`
    here, with a bound and without Adam. `lam` is where lambda begins, and the greatest; its
    logarithm falls by so much times sum_h E_D[f^t_h o pi^t_h - f^t_h] (over R), so that pessimism
    grows as long as the answer says that pi^t is better than the data.
    """
    shape = model.reward.shape
    frequencies = visit_frequencies(pairs, *shape[1:]).astype(model.reward.dtype)
    differences = pair_features(pairs, *shape[1:]).astype(model.reward.dtype)
    term = adversary.pair_term(differences, model.reward.ravel())
    eta = step_size(model.bound, shape[-1], num_iterations)

    def iterate(
        carry: tuple[jax.Array, adversary.SolverState, jax.Array], num_steps: jax.Array
    ) -> tuple[tuple[jax.Array, adversary.SolverState, jax.Array], Run]:
        log_policy, state, lam = carry
        policy = jnp.exp(log_policy)
        cost = advantage_cost(frequencies, policy).ravel()
        operator = reward_operator(model.transition, policy)
        state, gap = adversary.solve(term, cost, operator, lam, model.bound, state, num_steps)
        f = state.solution.reshape(shape)
        step = Run(policies=policy, answers=f, scores=f, gaps=gap, lams=lam)
        if dual_rate:
            falls = dual_rate * (cost @ state.solution) / model.bound
            lam = jnp.minimum(lam * jnp.exp(-falls), greatest)
        return (improve(log_policy, eta, f), state, lam), step

    first, greatest = uniform_policy(model), jnp.asarray(lam, model.reward.dtype)
    start = adversary.start(term, q_values(model, first).ravel())
    begin = (jnp.log(first), start, greatest)
    return jax.lax.scan(iterate, begin, inner_steps(num_iterations, num_steps))[1]


@jax.jit
def mixture_value(mdp: MDP, policies: jax.Array) -> jax.Array:
    """Exact value of the uniform mixture of `[T, H, S, A]` policies; one is drawn an episode."""
    return jnp.mean(jax.vmap(lambda policy: value(mdp, policy))(policies))
