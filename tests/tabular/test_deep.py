"""The practical losses and the tabular expressions meet, on a deterministic MDP with discount 1.

The networks are tables: their hidden units are indicators of (h, s, a), or of (h, s).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import appo
from appo_jax.appo import Batch
from appo_jax.tabular import adversary, appo_with_model, estimation, generators
from appo_jax.tabular.mdp import MDP, Trajectories, mix, sample_trajectories, uniform_policy
from appo_jax.types import SegmentPairs, Transitions

HORIZON, STATES, ACTIONS = SHAPE = (3, 3, 2)
SIGNS = np.array([-1.0, 1.0])  # the continuous actions that stand for 0 and 1
NUM_PAIRS = 20
CONFIG = appo.Config(
    hidden_layers=1,
    hidden_dim=HORIZON * STATES * ACTIONS,
    negative_slope=0.0,
    segment_length=HORIZON,
    num_pairs=NUM_PAIRS,
    batch_size=2 * NUM_PAIRS * HORIZON,
)

INIT = jax.jit(appo.init, static_argnums=(0, 2, 3))


def _network(hidden_kernel: np.ndarray, hidden_bias: float, output: np.ndarray) -> Any:
    return {
        "params": {
            "hidden_0": {
                "kernel": jnp.asarray(hidden_kernel, jnp.float32),
                "bias": jnp.full(hidden_kernel.shape[1], hidden_bias),
            },
            "output": {
                "kernel": jnp.asarray(output, jnp.float32),
                "bias": jnp.zeros(output.shape[1]),
            },
        }
    }


def critic_table(f: jax.Array) -> Any:
    """Units o + (sign(a) action - 1) / 2, after ReLU 1 at their own (h, s, a) and 0 elsewhere."""
    observed = np.repeat(np.eye(HORIZON * STATES), ACTIONS, axis=1)
    acted = np.tile(SIGNS / 2, HORIZON * STATES)[None]
    return _network(np.concatenate([observed, acted]), -0.5, np.asarray(f).reshape(-1, 1))


def state_table(table: np.ndarray) -> Any:
    """`[H S, outputs]` looked up by the one-hot observation."""
    padding = ((0, 0), (0, HORIZON * STATES * (ACTIONS - 1)))
    kernel = np.pad(np.eye(HORIZON * STATES), padding)
    return _network(kernel, 0.0, np.pad(table, padding[::-1]))


def setup(seed: int) -> tuple[MDP, Trajectories, jax.Array, jax.Array, jax.Array]:
    """The MDP, pairs, r_hat, a deterministic policy, and two tables f."""
    keys = jax.random.split(jax.random.key(seed), 5)
    mdp = generators.garnet(keys[0], *SHAPE, branching=1)
    pairs = sample_trajectories(mdp, uniform_policy(mdp), keys[1], (NUM_PAIRS, 2))
    reward = jax.random.uniform(keys[2], SHAPE)
    policy = jax.nn.one_hot(jax.random.randint(keys[3], SHAPE[:2], 0, ACTIONS), ACTIONS)
    return mdp, pairs, reward, policy, jax.random.uniform(keys[4], (2, *SHAPE))


def batch_of(pairs: Trajectories, reward: jax.Array) -> Batch:
    steps = np.arange(HORIZON)
    states, actions = np.asarray(pairs.states), np.asarray(pairs.actions)
    observations = np.eye(HORIZON * STATES)[steps * STATES + states]
    after = np.zeros_like(observations[:, :, :1])
    continuous = SIGNS[actions][..., None]
    last = np.broadcast_to(steps == HORIZON - 1, states.shape)
    return Batch(
        transitions=Transitions(
            observations=jnp.asarray(observations.reshape(-1, HORIZON * STATES), jnp.float32),
            actions=jnp.asarray(continuous.reshape(-1, 1), jnp.float32),
            # APPO reads them of segments alone.
            rewards=jnp.full(states.size, jnp.nan),
            next_observations=jnp.full((states.size, HORIZON * STATES), jnp.nan),
            terminations=jnp.zeros(states.size, bool),
        ),
        segment_pairs=SegmentPairs(
            observations=jnp.asarray(np.concatenate([observations, after], 2), jnp.float32),
            actions=jnp.asarray(continuous, jnp.float32),
            rewards=reward[steps, states, actions],
            terminations=jnp.asarray(last),
        ),
    )


def metrics_of(
    f: jax.Array, values: jax.Array, policy: jax.Array, batch: Batch, lam: float
) -> dict[str, float]:
    """What `appo.update_step` reports, with the tables for networks."""
    state = INIT(CONFIG, jax.random.key(0), HORIZON * STATES, 1, lam=lam, discount=1.0, tau=0.0)
    critics = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(critic_table(one) for one in f))
    chosen = SIGNS[np.argmax(np.asarray(policy), axis=-1)].reshape(-1, 1)
    actor = np.concatenate([20 * chosen, np.full_like(chosen, -20)], axis=1)
    state = state.replace(
        critics=state.critics.replace(params=critics),
        target_critic_params=jax.tree.map(jnp.copy, critics),
        value=state.value.replace(params=state_table(np.asarray(values).reshape(-1, 1))),
        actor=state.actor.replace(params=state_table(actor)),
    )
    return {name: float(x) for name, x in appo.update_step(CONFIG, state, batch)[1].items()}


@pytest.mark.parametrize("lam", [0.5, 4.0])
@pytest.mark.parametrize("seed", range(3))
def test_critic_loss(seed: int, lam: float) -> None:
    mdp, pairs, reward, policy, tables = setup(seed)
    f = tables[0]
    # The practical lambda is the reciprocal of Algorithm 2's, whose first term sums over steps
    # what the other averages.
    found = metrics_of(
        jnp.stack([f, f]), mix(f, policy), policy, batch_of(pairs, reward), HORIZON / lam
    )
    differences = estimation.pair_features(pairs, STATES, ACTIONS)
    term = adversary.pair_term(differences, reward.ravel())
    cost = appo_with_model.advantage_cost(
        appo_with_model.visit_frequencies(pairs, STATES, ACTIONS), policy
    ).ravel()
    operator = appo_with_model.reward_operator(mdp.transition, policy)
    advantage = cost @ f.ravel()
    objective = adversary.objective(term, cost, operator, lam, f.ravel())
    assert found["critic/adversarial"] == pytest.approx(float(advantage) / HORIZON, abs=1e-5)
    error = float(objective - advantage) / lam
    assert error > 0.1
    assert found["critic/pair_error"] == pytest.approx(error, abs=1e-5)
    assert found["critic/loss"] == pytest.approx(float(objective) / lam, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_value_regression(seed: int) -> None:
    _, pairs, reward, policy, tables = setup(seed)
    targets = jnp.min(mix(tables, policy), axis=0)
    visits = jnp.sum(appo_with_model.visit_frequencies(pairs, STATES, ACTIONS), axis=-1)
    batch = batch_of(pairs, reward)
    for values in (jnp.full(SHAPE[:2], 0.3), targets):
        found = metrics_of(tables, values, policy, batch, 1.0)
        expected = float(jnp.sum(visits * (values - targets) ** 2)) / HORIZON
        assert found["value/loss"] == pytest.approx(expected, abs=1e-5)
    assert expected == 0  # the regression's solution is min_i f_i o pi
