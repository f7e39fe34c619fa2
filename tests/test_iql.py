"""IQL's update by hand, where its gradients stop, and a problem whose solution is known.

Known answers of the expectile loss and of the weights are in `test_losses.py`, of the Gaussian in
`test_actors.py`; that every setting acts is in `test_learners.py`.

Most tests take networks that are constants: with all weights 0, ReLU is off and only the bias of
the last layer counts, and moves. Adam's first step is the learning rate, against the gradient.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import iql, losses, training
from appo_jax.data.dataset import Episode, from_episodes, to_device
from appo_jax.networks import forward, forward_ensemble, state_action
from appo_jax.types import Transitions

OBSERVATION_DIM, ACTION_DIM, BATCH = 3, 4, 5
RATE = 0.5  # so large that it shows whether V is the old one or the new one
# V = 1; target critics 3 and 1.5, so u = 1.5 - 1 = 0.5; critics 2 and 4.
V, TARGETS, CRITICS = 1.0, (3.0, 1.5), (2.0, 4.0)
REWARD, DISCOUNT, TAU = 1.0, 0.9, 0.25
ACTION = 0.5

# Adam's corrections of its moments are right to 1e-5 in float32.
close = functools.partial(pytest.approx, rel=1e-4, abs=1e-5)
jitted_init = jax.jit(iql.init, static_argnums=(0, 2, 3))
both_variants = pytest.mark.parametrize("variant", ["lire", "jax"])


def make_config(variant: str) -> iql.Config:
    """Of each setting one value with each variant: a config more is a program more to compile."""
    return iql.Config(
        variant=variant,
        hidden_layers=1,
        hidden_dim=4,
        critic_learning_rate=RATE,
        value_learning_rate=RATE,
        actor_learning_rate=RATE,
        actor_schedule="cosine" if variant == "lire" else "constant",
        follow_terminations=variant == "jax",
    )


@functools.cache
def zeros(config: iql.Config) -> iql.TrainState:
    state = jitted_init(config, jax.random.key(0), OBSERVATION_DIM, ACTION_DIM, **SWEPT)
    params = (state.actor, state.critics, state.value, state.target_critic_params)
    actor, critics, value, targets = jax.tree.map(jnp.zeros_like, params)
    return state.replace(actor=actor, critics=critics, value=value, target_critic_params=targets)


SWEPT = {
    "expectile": jnp.float32(0.7),
    "temperature": jnp.float32(3.0),
    "discount": jnp.float32(DISCOUNT),
    "tau": jnp.float32(TAU),
}


def with_bias(params: Any, value: Any) -> Any:
    output = params["params"]["output"]
    bias = jnp.broadcast_to(jnp.array(value).reshape(-1, 1), (np.size(value), 1))
    output = output | {"bias": bias.reshape(output["bias"].shape)}
    return {"params": params["params"] | {"output": output}}


def constant_state(
    config: iql.Config,
    critics: tuple[float, float] = CRITICS,
    targets: tuple[float, float] = TARGETS,
    value: float = V,
    log_std: float = 0.0,
    **swept: float,
) -> iql.TrainState:
    state = zeros(config)
    actor_params = state.actor.params | {"log_std": jnp.full(ACTION_DIM, log_std)}
    return state.replace(
        actor=state.actor.replace(params=actor_params),
        critics=state.critics.replace(params=with_bias(state.critics.params, critics)),
        value=state.value.replace(params=with_bias(state.value.params, value)),
        target_critic_params=with_bias(state.target_critic_params, targets),
        swept=state.swept.replace(**jax.tree.map(jnp.float32, swept)),
    )


def make_batch(terminations: bool = False) -> Transitions:
    keys = jax.random.split(jax.random.key(1), 2)
    return Transitions(
        observations=jax.random.normal(keys[0], (BATCH, OBSERVATION_DIM)),
        actions=jnp.full((BATCH, ACTION_DIM), ACTION),
        rewards=jnp.full(BATCH, REWARD),
        next_observations=jax.random.normal(keys[1], (BATCH, OBSERVATION_DIM)),
        terminations=jnp.full(BATCH, terminations),
    )


def bias_of(params: Any) -> list[float]:
    return np.asarray(params["params"]["output"]["bias"]).ravel().tolist()


def same(first: Any, second: Any) -> bool:
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(a, b) for a, b in leaves)


# (variant, critics' loss, advantage, weight).
BY_HAND = [
    # The old V = 1. Target 1 + 0.9 * 1 = 1.9; errors of the critics 0.1 and 2.1; their squares 0.01
    # and 4.41, on average 2.21. u = 0.5, weight exp(3 * 0.5).
    ("lire", 2.21, 0.5, 4.48169),
    # The new V = 1 + 0.5, as u > 0 pulls it up. Target 1 + 0.9 * 1.5 = 2.35; errors -0.35 and
    # 1.65; squares 0.1225 and 2.7225, their sum 2.845. u = 1.5 - 1.5 = 0, weight 1.
    ("jax", 2.845, 0.0, 1.0),
]


@pytest.mark.parametrize(("variant", "critic_loss", "advantage", "weight"), BY_HAND)
def test_an_update_by_hand(
    variant: str, critic_loss: float, advantage: float, weight: float
) -> None:
    config = make_config(variant)
    state, metrics = iql.update_step(config, constant_state(config), make_batch())
    # Expectile 0.7 of u = 0.5: 0.7 * 0.25. Four dimensions, half a deviation off, log pi = -4.17575
    # (`test_actors.py`), so the actor's loss is that times the weight.
    assert metrics == {
        "value/loss": close(0.175),
        "value/v_mean": close(V),
        "critic/loss": close(critic_loss),
        "critic/q_mean": close(3.0),
        "actor/loss": close(weight * 4.17575),
        "actor/advantage_mean": close(advantage),
        "actor/weight_mean": close(weight),
    }
    assert state.step == 1
    assert bias_of(state.value.params) == close([V + RATE])
    # The first critic is above its target (2 > 1.9) or below it (2 < 2.35), the second above.
    up = RATE if variant == "jax" else -RATE
    assert bias_of(state.critics.params) == close([2 + up, 4 - RATE])
    # 0.75 of the old target critics and 0.25 of the new critics.
    expected = [0.75 * 3 + 0.25 * (2 + up), 0.75 * 1.5 + 0.25 * (4 - RATE)]
    assert bias_of(state.target_critic_params) == close(expected)
    # The mean, tanh 0, moves towards the actions; half a deviation off, the deviation shrinks.
    assert bias_of(state.actor.params["mean"]) == close([RATE] * ACTION_DIM)
    assert state.actor.params["log_std"].tolist() == close([-RATE] * ACTION_DIM)


@both_variants
def test_value_regression_is_lopsided(variant: str) -> None:
    # u = 1.5 - 2 = -0.5, V falls: 0.3 * 0.25. With the expectile 0.9 it is 0.1 * 0.25.
    config = make_config(variant)
    for expectile, expected in ((0.7, 0.075), (0.9, 0.025)):
        before = constant_state(config, value=2.0, expectile=expectile)
        state, metrics = iql.update_step(config, before, make_batch())
        assert metrics["value/loss"] == close(expected)
        assert bias_of(state.value.params) == close([2 - RATE])


@both_variants
def test_large_advantages_weigh_a_hundred(variant: str) -> None:
    # u = 1.6 (lire) with exp(4.8) = 121.5; u = 1.6 - 0.5 = 1.1 of the new V (jax): exp(3.3).
    config = make_config(variant)
    before = constant_state(config, targets=(2.6, 2.6))
    _, metrics = iql.update_step(config, before, make_batch())
    expected = {"lire": 100.0, "jax": 27.1126}[variant]
    assert metrics["actor/weight_mean"] == close(expected)


def test_the_fixed_point_of_a_constant_reward() -> None:
    # 1 + 0.99 * 100 = 100 = 1 / (1 - 0.99): where V, Q and targets are 100, nothing moves.
    config = make_config("lire")
    before = constant_state(config, (100.0, 100.0), (100.0, 100.0), 100.0, discount=0.99)
    after, metrics = iql.update_step(config, before, make_batch())
    assert metrics["critic/loss"] == close(0.0)
    assert metrics["value/loss"] == 0
    assert bias_of(after.value.params) == [100.0]
    np.testing.assert_allclose(bias_of(after.target_critic_params), [100.0, 100.0], rtol=1e-6)


def test_a_termination_that_is_not_followed_changes_nothing() -> None:
    config = make_config("lire")
    one, other = (
        iql.update_step(config, constant_state(config), make_batch(ends)) for ends in (False, True)
    )
    assert same(one, other)


def test_a_followed_termination_leaves_the_reward() -> None:
    # The target is 1: squares 1 and 9, their sum 10.
    config = make_config("jax")
    _, metrics = iql.update_step(config, constant_state(config), make_batch(True))
    assert metrics["critic/loss"] == close(10.0)
    # Of one step alone: with Q = 1 its error is 0, the others' are 2.35 - 1, in both critics.
    batch = make_batch().replace(terminations=jnp.arange(BATCH) == 2)
    _, metrics = iql.update_step(config, constant_state(config, critics=(1.0, 1.0)), batch)
    assert metrics["critic/loss"] == close(2 * 1.35**2 * (BATCH - 1) / BATCH)


def test_polyak_by_hand() -> None:
    # 0.005 * 1; 0.995 * 0.005 + 0.005 = 0.009975. The critics stay: with no discount their target
    # is the reward, which they are.
    config = make_config("lire")
    state = constant_state(config, (REWARD, REWARD), (0.0, 0.0), discount=0.0, tau=0.005)
    for expected in (0.005, 0.009975):
        state, _ = iql.update_step(config, state, make_batch())
        assert bias_of(state.critics.params) == [REWARD, REWARD]
        assert bias_of(state.target_critic_params) == close([expected] * 2)


# (variant, updates done, share of the rate). cos(pi / 2) = 0, so half of it is left at half time:
# of the paper's 3e-4 at 125,000 updates 1.5e-4.
RATES = [("lire", 0, 1.0), ("lire", 125_000, 0.5), ("lire", 250_000, 0.0), ("jax", 250_000, 1.0)]


@pytest.mark.parametrize(("variant", "done", "share"), RATES)
def test_a_cosine_takes_the_actors_rate_to_0_over_the_run(
    variant: str, done: int, share: float
) -> None:
    config = make_config(variant)
    assert config.num_updates == 250_000
    state = constant_state(config)
    adam, counter = state.actor.optimiser
    if config.actor_schedule == "cosine":
        counter = counter._replace(count=jnp.int32(done))
    state = state.replace(actor=state.actor.replace(optimiser=(adam, counter)))
    after, _ = iql.update_step(config, state, make_batch())
    moved = bias_of(after.actor.params["mean"])
    np.testing.assert_allclose(moved, [share * RATE] * ACTION_DIM, rtol=1e-4, atol=1e-7)
    # The other networks' rates stay.
    assert bias_of(after.value.params) == close([V + RATE])


def test_a_horizon_is_told_where_there_is_one() -> None:
    assert iql.horizon(iql.Config(num_updates=7)) == 7
    assert iql.horizon(iql.Config(num_updates=7, actor_schedule="constant")) is None


# (variant, log_std, the one that counts).
BOUNDS = [
    ("lire", -6.0, -6.0),
    ("lire", -21.0, -20.0),
    ("jax", -6.0, -5.0),
    ("lire", 3.0, 2.0),
    ("jax", 3.0, 2.0),
]


@pytest.mark.parametrize(("variant", "log_std", "counts"), BOUNDS)
def test_the_deviation_is_bounded(variant: str, log_std: float, counts: float) -> None:
    config = make_config(variant)
    before = constant_state(config, log_std=log_std)
    after, metrics = iql.update_step(config, before, make_batch())
    # -log pi of four dimensions: 0.5 (0.5 / std)^2 + log std + log(2 pi) / 2 each.
    expected = 4 * (0.5 * (0.5 * np.exp(-counts)) ** 2 + counts + 0.918939)
    found = metrics["actor/loss"] / metrics["actor/weight_mean"]
    assert found == close(expected)
    # Beyond its bound it gets no gradient, and stays.
    stays = after.actor.params["log_std"].tolist() == [log_std] * ACTION_DIM
    assert stays == (log_std != counts)


# Where gradients go: networks that aren't constants.


@functools.cache
def fresh(variant: str) -> iql.TrainState:
    return jitted_init(
        make_config(variant), jax.random.key(2), OBSERVATION_DIM, ACTION_DIM, **SWEPT
    )


def updated(state: iql.TrainState, variant: str, batch: Transitions) -> iql.TrainState:
    return iql.update_step(make_config(variant), state, batch)[0]


@both_variants
def test_each_loss_moves_its_own_network_only(variant: str) -> None:
    state, batch = fresh(variant), make_batch()
    after = updated(state, variant, batch)
    assert not same(after.value, state.value)
    assert not same(after.critics, state.critics)
    assert not same(after.actor, state.actor)
    # Other rewards: only what learns from them moves elsewhere.
    other = updated(state, variant, batch.replace(rewards=-10 * batch.rewards))
    assert not same(other.critics.params, after.critics.params)
    assert same(other.value, after.value)
    assert same(other.actor, after.actor)
    # Another beta: the weights hold V as a constant.
    swept = state.swept.replace(temperature=jnp.float32(9.0))
    other = updated(state.replace(swept=swept), variant, batch)
    assert not same(other.actor.params, after.actor.params)
    assert same((other.value, other.critics), (after.value, after.critics))
    # Other critics: V and the policy look at the target critics.
    critics = jax.tree.map(lambda leaf: 2 * leaf, state.critics.params)
    other = updated(state.replace(critics=state.critics.replace(params=critics)), variant, batch)
    assert same((other.value, other.actor), (after.value, after.actor))
    # Other target critics: in LiRE's variant the critics learn from the old V.
    targets = jax.tree.map(lambda leaf: leaf + 0.3, state.target_critic_params)
    other = updated(state.replace(target_critic_params=targets), variant, batch)
    assert not same(other.value.params, after.value.params)
    assert same(other.critics, after.critics) == (variant == "lire")


@both_variants
def test_target_critics_follow_and_do_nothing_else(variant: str) -> None:
    state = fresh(variant)
    still = state.replace(swept=state.swept.replace(tau=jnp.float32(0.0)))
    after = updated(still, variant, make_batch())
    assert same(after.target_critic_params, state.target_critic_params)
    after = updated(state, variant, make_batch())
    expected = jax.tree.map(
        lambda old, new: 0.75 * old + 0.25 * new, state.target_critic_params, after.critics.params
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        after.target_critic_params,
        expected,
    )


def test_losses_by_hand() -> None:
    # -(2 * -1 + 0.5 * -4) / 2 = 2; d/dlog pi = -w / 2.
    log_probs, weights = jnp.array([-1.0, -4.0]), jnp.array([2.0, 0.5])
    assert losses.weighted_cloning_loss(log_probs, weights) == close(2.0)
    np.testing.assert_allclose(
        jax.grad(losses.weighted_cloning_loss)(log_probs, weights), [-1.0, -0.25]
    )
    # 1 + 0.99 * 100, and 1 alone where the discount is 0.
    found = iql.td_target(jnp.ones(2), jnp.full(2, 100.0), jnp.array([0.99, 0.0]))
    np.testing.assert_allclose(found, [100.0, 1.0])


def test_shapes_that_would_broadcast_raise() -> None:
    one, three = jnp.zeros(1), jnp.zeros(3)
    with pytest.raises(AssertionError):
        losses.weighted_cloning_loss(three, one)
    with pytest.raises(AssertionError):
        losses.weighted_cloning_loss(three[:, None], three[:, None])
    with pytest.raises(AssertionError):
        iql.td_target(three, one, 0.99)
    state, batch = fresh("lire"), make_batch()
    for broken in (
        batch.replace(rewards=batch.rewards[:, None]),
        batch.replace(rewards=batch.rewards[:1]),
        batch.replace(terminations=batch.terminations[:1]),
        batch.replace(next_observations=batch.next_observations[:1]),
        batch.replace(actions=batch.actions[:, 0]),
        batch.replace(observations=batch.observations[0]),
    ):
        with pytest.raises(AssertionError):
            updated(state, "lire", broken)


def test_default_networks_are_lires() -> None:
    init = functools.partial(iql.init, iql.Config(), observation_dim=39, action_dim=4)
    state = jax.eval_shape(init, jax.random.key(0))

    def count(params: Any) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(params))

    # Two hidden layers of 256: of each layer weights and biases; the actor's four log_std.
    inner = 256 * 256 + 256
    assert count(state.critics.params) == 2 * (43 * 256 + 256 + inner + 256 + 1)
    assert count(state.value.params) == 39 * 256 + 256 + inner + 256 + 1
    assert count(state.actor.params) == 39 * 256 + 256 + inner + 4 * 256 + 4 + 4
    assert vars(iql.Swept()) == {
        "expectile": 0.7,
        "temperature": 3.0,
        "discount": 0.99,
        "tau": 0.005,
    }


@both_variants
def test_where_networks_start(variant: str) -> None:
    state = fresh(variant)
    assert not state.actor.params["log_std"].any()
    assert same(state.critics.params, state.target_critic_params)
    layer = state.critics.params["params"]["hidden_0"]
    kernel, bias = np.asarray(layer["kernel"]), np.asarray(layer["bias"])
    assert not np.array_equal(kernel[0], kernel[1])
    if variant == "jax":  # orthogonal columns with gain sqrt(2)
        np.testing.assert_allclose(kernel[0].T @ kernel[0], 2 * np.eye(4), atol=1e-5)
        assert not bias.any()
    else:  # uniform
        bound = (OBSERVATION_DIM + ACTION_DIM) ** -0.5
        assert 0.8 * bound < np.abs(kernel).max() <= bound
        assert 0 < np.abs(bias).max() <= bound


def test_act_is_tanh_of_the_network() -> None:
    # A constant network of 0.5: its action is tanh(0.5) = 0.462117, whatever log_std is.
    config = make_config("lire")
    state = constant_state(config, log_std=2.0)
    mean = state.actor.params["mean"]["params"]
    output = mean["output"] | {"bias": jnp.full(ACTION_DIM, 0.5)}
    params = state.actor.params | {"mean": {"params": mean | {"output": output}}}
    state = state.replace(actor=state.actor.replace(params=params))
    actions = iql.act(config, state, jnp.ones((2, OBSERVATION_DIM)))
    np.testing.assert_allclose(actions, np.full((2, ACTION_DIM), 0.462117), rtol=1e-5)


@pytest.mark.parametrize("variant", ["lire", pytest.param("jax", marks=pytest.mark.slow)])
def test_two_actions_solved_by_hand(variant: Any) -> None:
    """One state, from which a = -1/2 leads back to itself for 0, and a = 1/2 for a reward of 1.

    Both are half of the data, gamma = 1/2. Let Q(-1/2) = q, so Q(1/2) = q + 1. The 0.7-expectile V
    of the two solves 0.7 (q + 1 - V) = 0.3 (V - q): V = q + 0.7. With q = V / 2 this is V = 1.4,
    and Q = 0.7 and 1.7. Advantages are -0.7 and 0.3, weights exp(3 A) = 0.122456 and 2.459603, of
    which the better action has the share p = 0.952574. The policy that imitates with these weights
    is the Gaussian with mean p / 2 - (1 - p) / 2 = 0.452574 and variance p (1 - p) = 0.045177.
    """
    steps = 200
    better = np.arange(steps) % 2
    episode = Episode(
        observations=np.ones((steps + 1, 1)),
        actions=better[:, None] - 0.5,
        rewards=better,
        terminations=np.zeros(steps, bool),
    )
    store, view = to_device(from_episodes([episode], "two actions"), 1)
    config = iql.Config(
        variant=variant,
        hidden_layers=1,
        hidden_dim=16,
        batch_size=32,
        critic_learning_rate=3e-3,
        value_learning_rate=3e-3,
        actor_learning_rate=1e-2,
        num_updates=3000,
    )
    state = jitted_init(config, jax.random.key(0), 1, 1, discount=0.5, tau=0.05)
    state, _ = training.train(
        iql, config, config.num_updates, state, jax.random.key(1), store, view
    )
    here = store.observations[:1]
    both = jnp.array([[-0.5], [0.5]])
    q = forward_ensemble(
        iql._network(config, 1), state.critics.params, state_action(jnp.tile(here, (2, 1)), both)
    )
    np.testing.assert_allclose(q[..., 0], [[0.7, 1.7]] * 2, atol=0.05)
    value = forward(iql._network(config, 1), state.value.params, here)
    np.testing.assert_allclose(value, [[1.4]], atol=0.05)
    np.testing.assert_allclose(iql.act(config, state, here), [[0.452574]], atol=0.03)
    deviation = np.exp(state.actor.params["log_std"])
    np.testing.assert_allclose(deviation, [0.045177**0.5], rtol=0.15)
