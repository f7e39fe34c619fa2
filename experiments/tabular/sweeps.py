"""One setting of the theory's figures: random MDPs, their data, a run, and what is measured of it.

Everything measured is exact given the data: values, occupancies and the pair loss are computed, not
sampled. All MDPs have R = 1.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from appo_jax.tabular import (
    analysis,
    appo_rollout,
    appo_with_model,
    comparators,
    estimation,
    generators,
    policy_evaluation,
)
from appo_jax.tabular.mdp import (
    MDP,
    Trajectories,
    occupancy,
    optimal_policy,
    q_values,
    step_concentrability,
    trajectory_concentrability,
    value,
)

Measured = dict[str, np.ndarray]  # quantity to its value in each MDP

FAMILIES: dict[str, Callable[[jax.Array], MDP]] = {
    "garnet": generators.garnet,
    "chain": lambda _: generators.chain(),
    "lock": generators.combination_lock,
    "lure": lambda _: generators.lure(),
}
SHARE = {"garnet": 0.3, "chain": 0.3, "lock": 0.3, "lure": 0.96}  # of `mixture_reference`
CHUNK = 25  # MDPs of one vmap: all of them at once would not fit the caches
CHECKED_ITERATIONS = 16  # of a run, at which the bounds on (II) and of PE are checked
FAILURE = 0.1  # delta in the width of FREEHAND's confidence sets
FREEHAND_UNLABELLED = 512


@dataclasses.dataclass(frozen=True)
class Setting:
    """One point of a figure. num_labelled, num_unlabelled: M and N, pairs; num_iterations: T.

    lam_factor: lambda / C_TR. dual_rate: of a lambda that adapts, from there on; 0 for a fixed one.
    share: of `mixture_reference`. known: "reward" or "transition" puts the truth in the estimate's
    place. rollouts: K_1 and K_2 of Algorithm 1; 0 is Algorithm 2.
    """

    family: str = "garnet"
    num_labelled: int = 2048
    num_unlabelled: int = 1024
    num_iterations: int = 256
    lam_factor: float = 1.5
    dual_rate: float = 0.0
    share: float | None = None
    known: str = ""
    rollouts: int = 0


class Problem(struct.PyTreeNode):
    """An MDP, what the proof knows of it, and what the learner estimated."""

    mdp: MDP
    reference: jax.Array
    optimal: jax.Array
    concentrability: jax.Array
    model: MDP
    data: estimation.OfflineData
    pairs: Trajectories


def chunked(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function` of one problem over a leading axis, in chunks of `CHUNK`."""
    size = len(jax.tree.leaves(arguments)[0])
    places = [slice(begin, begin + CHUNK) for begin in range(0, size, CHUNK)]
    parts = [jax.vmap(function)(*jax.tree.map(lambda a, p=p: a[p], arguments)) for p in places]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def make_problem(
    mdp: MDP,
    reference: jax.Array,
    key: jax.Array,
    *,
    num_labelled: int,
    num_unlabelled: int,
    known: str = "",
) -> Problem:
    """Data of the reference policy, and the estimates."""
    optimal = optimal_policy(mdp)
    data = estimation.collect(mdp, reference, key, num_labelled, num_unlabelled)
    first, second = estimation.split_half(data.unlabelled)
    reward, transition = mdp.reward, mdp.transition
    if known != "reward":
        reward = estimation.fit_reward(mdp, data.labelled, data.labels)
    if known != "transition":
        transition = estimation.fit_transition(mdp, first)
    return Problem(
        mdp=mdp,
        reference=reference,
        optimal=optimal,
        concentrability=trajectory_concentrability(mdp, optimal, reference),
        model=mdp.replace(reward=reward, transition=transition),
        data=data,
        pairs=second,
    )


@functools.partial(jax.jit, static_argnames=("num_iterations", "rollouts", "dual_rate"))
def optimise(
    problem: Problem,
    lam_factor: jax.Array,
    key: jax.Array,
    *,
    num_iterations: int,
    rollouts: int,
    dual_rate: float,
) -> appo_with_model.Run:
    """Algorithm 2, or 1 if there are rollouts; in float32, which is twice as fast."""
    single = functools.partial(
        jax.tree.map, lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf
    )
    problem, lam = single(problem), single(lam_factor * problem.concentrability)
    if not rollouts:
        return appo_with_model.optimise(
            problem.model,
            problem.pairs,
            lam,
            num_iterations=num_iterations,
            dual_rate=dual_rate,
        )
    return appo_rollout.optimise(
        problem.mdp,
        problem.model.reward,
        problem.reference,
        problem.data.unlabelled,
        lam,
        key,
        num_iterations=num_iterations,
        num_rollouts=rollouts,
        num_evaluations=rollouts,
    )


@functools.partial(jax.jit, static_argnames="rollouts")
def measure(problem: Problem, run: appo_with_model.Run, *, rollouts: int) -> dict[str, jax.Array]:
    """All quantities of one run, in float64, each a scalar. `docs/theory.md` says what they are."""
    mdp, optimal, reference = problem.mdp, problem.optimal, problem.reference
    learned, c_tr = problem.model.reward, problem.concentrability
    run = jax.tree.map(lambda leaf: leaf.astype(float), run)
    best = value(mdp, optimal)
    suboptimality = best - appo_with_model.mixture_value(mdp, run.policies)
    greedy = best - value(mdp, optimal_policy(problem.model))
    of_reference = best - value(mdp, reference)

    rewards = run.answers if rollouts else analysis.induced_rewards(mdp, run)
    parts = analysis.decompose(mdp, optimal, reference, learned, rewards, run.policies)
    total = parts.mle + parts.optimisation + parts.regret
    estimated_regret = analysis.estimated_regret(mdp, optimal, run)
    horizon, _, num_actions = mdp.reward.shape
    num_iterations = len(run.policies)
    bound = analysis.regret_bound(mdp.bound, horizon, num_actions, num_iterations)

    # What needs enumeration, at some iterations.
    every = slice(None, None, max(1, num_iterations // CHECKED_ITERATIONS))
    lams, rewards = run.lams[every], rewards[every]
    policies, scores = run.policies[every], run.scores[every]

    def check(
        lam: jax.Array, reward: jax.Array, policy: jax.Array, scores: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        pessimistic = mdp.replace(reward=reward)
        # f^t; of Algorithm 1 that of which r^t is the induced reward.
        f = q_values(pessimistic, policy) if rollouts else scores
        return (
            analysis.optimisation_gap(mdp, reference, learned, lam, f, policy),
            analysis.pair_loss(mdp, reference, reward, learned),
            policy_evaluation.squared_error(pessimistic, reference, policy, scores),
        )

    gap, answer_error, squared = jax.vmap(check)(lams, rewards, policies, scores)
    error = analysis.pair_loss(mdp, reference, mdp.reward, learned)
    optimisation, optimisation_bound = parts.optimisation[every], lams * error + gap
    c_st = step_concentrability(mdp, optimal, reference)
    pe_regret = jnp.abs(parts.regret - estimated_regret)[every]
    pe_bound = 2 * jnp.sum(jnp.sqrt(2 * c_st * squared), axis=-1)
    rate = estimation.link_kappa(mdp.bound) * jnp.sqrt(horizon / len(problem.data.labels))
    missed = jnp.sum(jnp.abs(problem.model.transition - mdp.transition)[:-1], axis=-1)
    at_reference = occupancy(mdp, reference)
    variation = jnp.sum(jnp.abs(run.policies[-1] - reference), axis=-1) / 2
    return {
        "suboptimality": suboptimality,
        "last_iterate": parts.suboptimality[-1],
        "greedy": greedy,
        "reference": of_reference,
        "above_greedy": suboptimality - greedy,
        "above_reference": suboptimality - of_reference,
        "last_above_greedy": parts.suboptimality[-1] - greedy,
        "last_above_reference": parts.suboptimality[-1] - of_reference,
        "distance_to_reference": jnp.sum(jnp.sum(at_reference, axis=-1) * variation) / horizon,
        "mle": parts.mle,
        "optimisation": jnp.mean(parts.optimisation),
        "regret": jnp.mean(parts.regret),
        "decomposition_residual": jnp.max(jnp.abs(total - parts.suboptimality)),
        "reward_error": error,
        "reward_error_over_rate": error / rate,
        "transition_error": jnp.sum(at_reference[:-1] * missed),
        "optimisation_checked": jnp.mean(optimisation),
        "optimisation_bound": jnp.mean(optimisation_bound),
        "optimisation_excess": jnp.max(optimisation - optimisation_bound),
        "answer_error": jnp.mean(answer_error),
        "solver_certificate": jnp.mean(run.gaps),
        "regret_over_bound": jnp.sum(estimated_regret) / bound,
        "pe_squared_error": jnp.mean(squared),
        "pe_regret": jnp.mean(pe_regret),
        "pe_bound": jnp.mean(pe_bound),
        "pe_excess": jnp.max(pe_regret - pe_bound),
        "c_tr": c_tr,
        "lam_over_c_tr": run.lams[-1] / c_tr,
        "c_st_over_c_tr": c_st / c_tr,
    }


def run_setting(setting: Setting, keys: jax.Array) -> Measured:
    """All quantities of one setting in each MDP."""
    share = SHARE[setting.family] if setting.share is None else setting.share

    def draw(keys: jax.Array, share: jax.Array) -> Problem:
        mdp = FAMILIES[setting.family](keys[0])
        return make_problem(
            mdp,
            generators.mixture_reference(mdp, share),
            keys[1],
            num_labelled=setting.num_labelled,
            num_unlabelled=setting.num_unlabelled,
            known=setting.known,
        )

    def both(problem: Problem, factor: jax.Array, key: jax.Array) -> dict[str, jax.Array]:
        run = optimise(
            problem,
            factor,
            key,
            num_iterations=setting.num_iterations,
            rollouts=setting.rollouts,
            dual_rate=setting.dual_rate,
        )
        return measure(problem, run, rollouts=setting.rollouts)

    keys = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
    shares, factors = (jnp.full(len(keys), number) for number in (share, setting.lam_factor))
    found = chunked(both, chunked(draw, keys, shares), factors, keys[:, 2])
    return {name: np.asarray(values) for name, values in found.items()}


def finite_classes() -> tuple[jax.Array, jax.Array]:
    """All rewards with values 0, R / 2 H and R / H, and all transitions with chances 0.2 and 0.8.

    For two steps, states and actions and R = 1: `[6561, 2, 2, 2]` and `[16, 2, 2, 2, 2]`.
    """
    levels = np.array(np.meshgrid(*[[0.0, 0.25, 0.5]] * 8)).reshape(8, -1).T
    chances = np.array(np.meshgrid(*[[0.2, 0.8]] * 4)).reshape(4, -1).T
    first = np.stack([chances, 1 - chances], axis=-1).reshape(-1, 1, 2, 2, 2)
    transitions = np.concatenate([first, np.full_like(first, 0.5)], axis=1)
    return jnp.asarray(levels.reshape(-1, 2, 2, 2)), jnp.asarray(transitions)


@functools.partial(jax.jit, static_argnames=("num_labelled", "num_iterations"))
def _freehand_trial(
    key: jax.Array,
    rewards: jax.Array,
    transitions: jax.Array,
    num_labelled: int,
    num_iterations: int,
) -> dict[str, jax.Array]:
    reward_key, transition_key, share_key, data_key = jax.random.split(key, 4)
    mdp = MDP(
        transition=jax.random.choice(transition_key, transitions),
        reward=jax.random.choice(reward_key, rewards),
        initial=jnp.array([1.0, 0.0]),
    )
    # mu prefers the wrong action in half of the states, or its mode alone would be optimal.
    right = jax.random.bernoulli(share_key, shape=(*mdp.reward.shape[:2], 1))
    share = jnp.where(right, SHARE["garnet"], -SHARE["garnet"])
    reference = generators.mixture_reference(mdp, share)
    problem = make_problem(
        mdp,
        reference,
        data_key,
        num_labelled=num_labelled,
        num_unlabelled=FREEHAND_UNLABELLED,
    )
    pessimist = comparators.freehand(
        mdp,
        problem.data,
        rewards,
        transitions,
        jnp.log(len(rewards) / FAILURE) / num_labelled,
        jnp.log(len(transitions) / FAILURE) / (2 * FREEHAND_UNLABELLED),
    )
    lam = 1.5 * problem.concentrability
    run = appo_with_model.optimise(problem.model, problem.pairs, lam, num_iterations=num_iterations)
    mode = jax.nn.one_hot(jnp.argmax(reference, axis=-1), 2, dtype=reference.dtype)
    best = value(mdp, problem.optimal)
    return {
        "suboptimality": best - appo_with_model.mixture_value(mdp, run.policies),
        "last_iterate": best - value(mdp, run.policies[-1]),
        "greedy": best - value(mdp, optimal_policy(problem.model)),
        "freehand": best - value(mdp, pessimist),
        "reference": best - value(mdp, reference),
        "reference_mode": best - value(mdp, mode),
    }


def run_freehand(num_labelled: int, num_iterations: int, keys: jax.Array) -> Measured:
    """The three algorithms on the same data of MDPs drawn from the finite classes."""
    rewards, transitions = finite_classes()

    @jax.jit
    def all_keys(keys: jax.Array) -> dict[str, jax.Array]:
        # One after another: the table of all policies, models and rewards is large.
        return jax.lax.map(
            lambda key: _freehand_trial(key, rewards, transitions, num_labelled, num_iterations),
            keys,
        )

    return {name: np.asarray(values) for name, values in all_keys(keys).items()}
