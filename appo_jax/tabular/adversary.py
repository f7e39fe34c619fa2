"""The inner problem of Algorithms 1 and 2: the adversary's answer to a policy.

    minimise over x in [0, upper]^n:  cost . x + lambda * mean_i |D_i (K x - r_hat)|

with D_i the visits of the first trajectory of pair i minus those of the second. In Algorithm 1,
line 5, x is r and K the identity; in Algorithm 2, line 4, x is f and K maps f to its induced
reward. Both are linear programs; here ADMM solves them (Boyd et al. 2011, section 6.1, least
absolute deviations, with one more split for the box), warm-started from one policy to the next.
"""

import chex
import jax
import jax.numpy as jnp
from flax import struct

# Of the quadratic penalty, relative to lambda / upper (upper is R, in Algorithm 1 R / H). Found by
# trying 0.3 to 30: the objective after 100 steps from a cold start was lowest, over small and large
# lambda, near this.
PENALTY = 3.0


class PairTerm(struct.PyTreeNode):
    """The data of the trajectory-pair l1 loss.

    differences: D, `[N, n]`. gram: D^T D / N, `[n, n]`. rewards: r_hat, `[n]`.
    """

    differences: jax.Array
    gram: jax.Array
    rewards: jax.Array


class SolverState(struct.PyTreeNode):
    """Where ADMM stands: residuals z, their scaled multipliers, the boxed x, and its multipliers.

    residuals, residual_multipliers: `[N]`; solution, box_multipliers: `[n]`.
    """

    residuals: jax.Array
    residual_multipliers: jax.Array
    solution: jax.Array
    box_multipliers: jax.Array


def pair_term(differences: jax.Array, rewards: jax.Array) -> PairTerm:
    """The pair loss of `[N, n]` differences of visits, around the rewards r_hat `[n]`."""
    chex.assert_equal_shape([differences[0], rewards])
    gram = differences.T @ differences / len(differences)
    return PairTerm(differences=differences, gram=gram, rewards=rewards)


def start(pairs: PairTerm, solution: jax.Array) -> SolverState:
    """A cold start at a point `[n]` whose residuals are taken to be 0."""
    zeros = jnp.zeros_like(pairs.differences[:, 0])
    return SolverState(zeros, zeros, solution, jnp.zeros_like(solution))


def positive_inverse(matrix: jax.Array) -> jax.Array:
    """Inverse of a symmetric positive definite `[n, n]` matrix, by Gauss-Jordan elimination.

    Under `vmap` on a CPU this takes a third of the time of a Cholesky solve, whose batches go
    through LAPACK one by one. No pivots are needed.
    """

    def eliminate(k: jax.Array, matrix: jax.Array) -> jax.Array:
        pivot, column = matrix[k, k], matrix[:, k]
        row = matrix[k] / pivot
        reduced = matrix - column[:, None] * row
        return reduced.at[k].set(row).at[:, k].set(-column / pivot).at[k, k].set(1 / pivot)

    return jax.lax.fori_loop(0, len(matrix), eliminate, matrix)


def objective(
    pairs: PairTerm, cost: jax.Array, operator: jax.Array, lam: jax.Array | float, x: jax.Array
) -> jax.Array:
    """The objective above at x; scalar. cost, x: `[n]`; operator: K, `[n, n]`."""
    residuals = pairs.differences @ (operator @ x - pairs.rewards)
    return cost @ x + lam * jnp.mean(jnp.abs(residuals))


@jax.jit
def solve(
    pairs: PairTerm,
    cost: jax.Array,
    operator: jax.Array,
    lam: jax.Array | float,
    upper: float,
    state: SolverState,
    num_steps: jax.Array | int,
) -> tuple[SolverState, jax.Array]:
    """`num_steps` of ADMM from `state`; `state.solution` lies in the box.

    cost: `[n]`; operator: K, `[n, n]`; lam > 0. Also returns a certificate: an upper bound on how
    far the solution's objective is above the least, by weak duality; scalar, never negative.
    """
    chex.assert_equal_shape([cost, state.solution, pairs.rewards])
    differences, rewards = pairs.differences, pairs.rewards
    num_pairs = len(differences)
    penalty = PENALTY * lam / upper
    # Weighs the box like an average coordinate of the residuals.
    box = jnp.trace(pairs.gram) / len(cost)
    metric = operator.T @ pairs.gram @ operator + box * jnp.eye(len(cost), dtype=cost.dtype)
    inverse = positive_inverse(metric)
    constant = inverse @ (operator.T @ (pairs.gram @ rewards) - cost / penalty)
    pull = inverse @ operator.T / num_pairs

    def step(_: jax.Array, state: SolverState) -> SolverState:
        targets = state.residuals - state.residual_multipliers
        x = (
            constant
            + pull @ (targets @ differences)
            + box * (inverse @ (state.solution - state.box_multipliers))
        )
        shifted = differences @ (operator @ x - rewards) + state.residual_multipliers
        multipliers = jnp.clip(shifted, -lam / penalty, lam / penalty)
        solution = jnp.clip(x + state.box_multipliers, 0, upper)
        box_multipliers = state.box_multipliers + x - solution
        return SolverState(shifted - multipliers, multipliers, solution, box_multipliers)

    state = jax.lax.fori_loop(0, num_steps, step, state)
    # The clipped multipliers are feasible for the dual: |y_i| <= lambda / N.
    dual = penalty * (state.residual_multipliers @ differences) / num_pairs
    reduced_cost = cost + operator.T @ dual
    bound = upper * jnp.sum(jnp.minimum(reduced_cost, 0)) - dual @ rewards
    found = objective(pairs, cost, operator, lam, state.solution)
    return state, jnp.maximum(found - bound, 0)
