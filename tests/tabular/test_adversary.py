"""The inner problem against a linear program, and written with loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.tabular import adversary
from appo_jax.tabular.mdp import mix
from tests.helpers.tabular import inner_problem, instance, linear_program, random_policy

EXACT = 1e-9
pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("lam", [0.3, 2.0, 10.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_inner_problem_against_the_linear_program(seed: int, lam: float) -> None:
    found = instance(seed)
    policy = random_policy(jax.random.key(seed), found.mdp)
    term, cost, operator = inner_problem(found, policy)
    least, where = linear_program(cost, term.differences, operator, term.rewards, lam, 1.0)
    at_oracle = adversary.objective(term, cost, operator, lam, where)
    np.testing.assert_allclose(at_oracle, least, atol=1e-8)
    begin = adversary.start(term, jnp.full(32, 0.5))
    gaps = []
    for num_steps in (30, 3000):
        state, certificate = adversary.solve(term, cost, operator, lam, 1.0, begin, num_steps)
        assert jnp.all((state.solution >= 0) & (state.solution <= 1))
        gap = adversary.objective(term, cost, operator, lam, state.solution) - least
        # The certificate needs no oracle, and never promises too much.
        assert -1e-9 <= gap <= certificate + 1e-9
        gaps.append((gap, certificate))
    assert gaps[0][0] > 1e-4  # so that the next lines see the solver work
    assert gaps[1][0] < 1e-4
    assert gaps[1][1] < 1e-3


def test_objective_is_the_paper_s() -> None:
    # Line 4 of Algorithm 2, written with loops over the data instead of matrices.
    found = instance(4)
    policy = random_policy(jax.random.key(4), found.mdp)
    f = jax.random.uniform(jax.random.key(5), policy.shape)
    term, cost, operator = inner_problem(found, policy)
    states, actions = np.asarray(found.pairs.states), np.asarray(found.pairs.actions)
    table, values = np.asarray(f), np.asarray(mix(f, policy))
    transition, rewards = np.asarray(found.model.transition), np.asarray(found.model.reward)
    advantage, deviation = 0.0, 0.0
    for pair in range(len(states)):
        sums = []
        for side in range(2):
            total = 0.0
            for h in range(4):
                s, a = states[pair, side, h], actions[pair, side, h]
                advantage += (values[h, s] - table[h, s, a]) / (2 * len(states))
                ahead = transition[h, s, a] @ values[h + 1] if h < 3 else 0.0
                total += table[h, s, a] - ahead - rewards[h, s, a]
            sums.append(total)
        deviation += abs(sums[0] - sums[1]) / len(states)
    objective = adversary.objective(term, cost, operator, 3.0, f.ravel())
    np.testing.assert_allclose(objective, advantage + 3 * deviation, atol=EXACT)
