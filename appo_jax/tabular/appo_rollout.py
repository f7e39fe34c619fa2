"""Algorithm 1, APPO-rollout: the adversary picks a reward; rollouts in the true MDP are free."""

import functools

import jax
import jax.numpy as jnp

from appo_jax.tabular import adversary, policy_evaluation
from appo_jax.tabular.appo_with_model import Run, improve, inner_steps, step_size, visit_frequencies
from appo_jax.tabular.estimation import pair_features
from appo_jax.tabular.mdp import MDP, Trajectories, sample_trajectories, uniform_policy


@functools.partial(
    jax.jit, static_argnames=("num_iterations", "num_rollouts", "num_evaluations", "num_steps")
)
def optimise(
    mdp: MDP,
    reward: jax.Array,
    reference: jax.Array,
    unlabelled: Trajectories,
    lam: jax.Array | float,
    key: jax.Array,
    *,
    num_iterations: int,
    num_rollouts: int,
    num_evaluations: int,
    num_steps: int = 10,
) -> Run:
    """Algorithm 1, lines 3 to 8.

    mdp: the true one; its reward is not read. reward: r_hat, `[H, S, A]`. unlabelled: D_traj,
    `[N, 2, H]`. num_rollouts, num_evaluations: K_1 and K_2. `num_steps` of the inner solver for
    each iteration, warm-started. `answers` of the result are r^t, `scores` the estimates Q-bar^t.
    """
    shape = reward.shape
    upper = mdp.bound / shape[0]
    frequencies = visit_frequencies(unlabelled, *shape[1:]).astype(reward.dtype)
    differences = pair_features(unlabelled, *shape[1:]).astype(reward.dtype)
    term = adversary.pair_term(differences, reward.ravel())
    identity = jnp.eye(reward.size, dtype=reward.dtype)
    eta = step_size(mdp.bound, shape[-1], num_iterations)

    def iterate(
        carry: tuple[jax.Array, adversary.SolverState], inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, adversary.SolverState], Run]:
        log_policy, state = carry
        key, num_steps = inputs
        policy = jnp.exp(log_policy)
        rollout_key, evaluation_key = jax.random.split(key)
        rollouts = sample_trajectories(mdp, policy, rollout_key, (num_rollouts, 1))  # line 4
        cost = visit_frequencies(rollouts, *shape[1:]).astype(reward.dtype) - frequencies
        state, gap = adversary.solve(  # line 5
            term, cost.ravel(), identity, lam, upper, state, num_steps
        )
        pessimistic = mdp.replace(reward=state.solution.reshape(shape))
        scores = policy_evaluation.evaluate(  # line 6
            pessimistic, reference, policy, evaluation_key, num_evaluations
        )
        step = Run(
            policies=policy,
            answers=pessimistic.reward,
            scores=scores,
            gaps=gap,
            lams=jnp.asarray(lam, reward.dtype),
        )
        return (improve(log_policy, eta, scores), state), step  # line 7

    first = uniform_policy(mdp).astype(reward.dtype)
    start = adversary.start(term, reward.ravel())
    inputs = (jax.random.split(key, num_iterations), inner_steps(num_iterations, num_steps))
    return jax.lax.scan(iterate, (jnp.log(first), start), inputs)[1]
