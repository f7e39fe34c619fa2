"""APPO, the practical version: Algorithm 4 of arXiv 2503.05306.

    state = appo.init(config, key, observation_dim, action_dim, lam=0.03)
    state, metrics = appo.update_step(config, state, batch)
    action = appo.act(config, state, observation)

All functions are pure and work under the caller's `jit`, `vmap` and `scan`. `Config` is static;
the numbers of `Swept` are arrays in the state, so that one compiled program serves all their values
and a leading axis makes many runs of one.

Symbols of the paper (section 5) to names here: phi `critics`, phi-bar `target_critic_params`, psi
`value`, theta `actor`, r_hat `rewards`, lambda `lam`, gamma `discount` (a `discounts` array is
gamma, or 0 where the step reached a terminal state), alpha `temperature`.
"""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from appo_jax import losses
from appo_jax.actors import squashed_gaussian
from appo_jax.data import sampling
from appo_jax.networks import MLP, Params, forward, forward_ensemble, init_ensemble, state_action
from appo_jax.settings import MAX_LAYERS, MAX_ROWS, MAX_UNITS, Settings, SweptSettings, setting
from appo_jax.trainable import Trainable
from appo_jax.types import InputError, Metrics, SegmentPairs, Store, Transitions, View

NUM_CRITICS = 2
_DUAL_LEARNING_RATE = 3e-4  # Adam's, of lambda's logarithm, as of the temperature's


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    """What shapes the program. Defaults are the paper's, or BUILD_NOTES.md where it is silent."""

    hidden_layers: int = setting(
        3, "hidden layers of critics, value network and actor", high=MAX_LAYERS
    )
    hidden_dim: int = setting(256, "units of each hidden layer", high=MAX_UNITS)
    negative_slope: float = setting(0.01, "slope of the LeakyReLU below zero", low=0, high=1)
    batch_size: int = setting(256, "transitions of one update", high=MAX_ROWS)
    num_pairs: int = setting(16, "pairs of segments of one update", high=MAX_ROWS)
    segment_length: int = setting(25, "steps of a segment", of_run=True)
    pairwise_error: bool = setting(
        True,
        "critics compare segments in pairs, as in the paper, not each with r_hat itself",
        with_terminations=False,
    )
    partial_segments: bool = setting(
        False,
        "segments begin at any step, and end with their episode where it is shorter: its end is "
        "seen as often as what comes before",
        with_terminations=True,
    )
    labelled_pairs: bool = setting(
        False, "the segments of the critics' error are the labelled pairs, not random ones"
    )
    squared_error: bool = setting(
        False, "critics pay for the square of their error, as PVO's do, not for its absolute value"
    )
    entropy_in_value: bool = setting(
        False, "V's target has the entropy term -alpha log pi, as in SAC, beside Q"
    )
    adversarial_target: float | None = setting(
        None,
        "standard deviations of Q by which the policy may be worth more than the data; lambda is "
        "adapted to it, from lam on, and stays if this is left out",
    )
    critic_learning_rate: float = setting(3e-4, "Adam's rate of the critics", above=0)
    value_learning_rate: float = setting(3e-4, "Adam's rate of the value network", above=0)
    actor_learning_rate: float = setting(3e-5, "Adam's rate of the actor", above=0)
    temperature_learning_rate: float = setting(3e-4, "Adam's rate of the temperature", above=0)
    initial_temperature: float = setting(1.0, "alpha at the start", above=0)
    log_std_min: float = setting(-20.0, "least log standard deviation of the actor")
    log_std_max: float = setting(2.0, "greatest log standard deviation of the actor")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log_std_min > self.log_std_max:
            raise InputError(
                f"log_std_min={self.log_std_min}: expected at most log_std_max={self.log_std_max}"
            )
        if self.labelled_pairs and self.partial_segments:
            raise InputError(
                "labelled_pairs and partial_segments: expected at most one of them, since labelled "
                "segments are whole"
            )


class Swept(SweptSettings):
    """The numbers that may differ between runs of one program."""

    lam: float = setting(0.03, "lambda, the weight of conservatism", low=0)
    discount: float = setting(0.99, "gamma", low=0, high=1)
    tau: float = setting(0.001, "Polyak rate of the target critics", above=0, high=1)


class Batch(struct.PyTreeNode):
    """What one update reads: B_tup and B_traj of Algorithm 4, line 4."""

    transitions: Transitions
    segment_pairs: SegmentPairs


class TrainState(struct.PyTreeNode):
    """All that training carries on, as arrays.

    The critics' parameters have a leading axis of two; `step` counts updates. log_lam_factor: of
    lambda over `swept.lam`, None where lambda stays.
    """

    actor: Trainable
    critics: Trainable
    target_critic_params: Params
    value: Trainable
    log_temperature: Trainable
    log_lam_factor: Trainable | None
    key: jax.Array
    step: jax.Array
    swept: Swept


def init(
    config: Config, key: jax.Array, observation_dim: int, action_dim: int, **swept: Any
) -> TrainState:
    """A fresh state: Algorithm 4, line 1.

    key: a typed PRNG key. swept: fields of `Swept` by name, numbers or (also traced) arrays.
    """
    actor_key, critic_key, value_key, state_key = jax.random.split(key, 4)
    observation, action = jnp.zeros(observation_dim), jnp.zeros(action_dim)
    actor_params = _network(config, 2 * action_dim).init(actor_key, observation)
    critic_params = init_ensemble(
        _network(config, 1), critic_key, NUM_CRITICS, state_action(observation, action)
    )
    log_temperature = jnp.log(jnp.float32(config.initial_temperature))
    return TrainState(
        actor=Trainable.create(actor_params, optax.adam(config.actor_learning_rate)),
        critics=Trainable.create(critic_params, optax.adam(config.critic_learning_rate)),
        # A copy: a state whose leaves share a buffer can't be donated.
        target_critic_params=jax.tree.map(jnp.copy, critic_params),
        value=Trainable.create(
            _network(config, 1).init(value_key, observation), optax.adam(config.value_learning_rate)
        ),
        log_temperature=Trainable.create(
            log_temperature, optax.adam(config.temperature_learning_rate)
        ),
        log_lam_factor=None
        if config.adversarial_target is None
        else Trainable.create(jnp.float32(0), optax.adam(_DUAL_LEARNING_RATE)),
        key=state_key,
        step=jnp.int32(0),
        swept=Swept(**swept).on_device(),
    )


def sample(config: Config, key: jax.Array, step: jax.Array, store: Store, view: View) -> Batch:
    """The data of update `step`, uniform with replacement: Algorithm 4, line 4."""
    transition_key, pair_key = jax.random.split(jax.random.fold_in(key, step))
    rows = sampling.draw_transition_rows(transition_key, store, view, config.batch_size)
    length, is_step = config.segment_length, None
    if config.labelled_pairs:
        pair_rows, _ = sampling.draw_labelled_pairs(pair_key, store, view, config.num_pairs)
        # A label may compare an episode's last action, of which nobody knows what followed.
        is_step = sampling.start_transitions(store, pair_rows[..., None] + jnp.arange(length))
    else:
        pair_rows, is_step = sampling.draw_segments(
            pair_key, store, view, (config.num_pairs, 2), length, config.partial_segments
        )
    return Batch(
        transitions=sampling.gather_transitions(store, view, rows),
        segment_pairs=sampling.gather_segment_pairs(store, view, pair_rows, length, is_step),
    )


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One pass through lines 5 to 8 of Algorithm 4.

    The action that the critics, the value and the actor look at is one sample for each state,
    shared by the three: the actor changes only at the end of the step. Returns the new state and
    scalar metrics. Raises AssertionError (chex) for arrays whose shapes don't fit together.
    """
    transitions = batch.transitions
    chex.assert_rank([transitions.observations, transitions.actions], 2)
    key, noise, critic_index = draw_noise(state.key, transitions.actions.shape)

    def sample_actions(actor_params: Params) -> tuple[jax.Array, jax.Array]:
        mean, log_std = _action_distribution(config, actor_params, transitions.observations)
        return squashed_gaussian(mean, log_std, noise)

    (actions, log_probs), actor_vjp = jax.vjp(sample_actions, state.actor.params)
    state, critic_metrics = _update_critics(config, state, batch, actions)  # line 5
    state, dual_metrics = _update_lam(config, state, critic_metrics)
    state = state.replace(
        target_critic_params=optax.incremental_update(  # line 6
            state.critics.params, state.target_critic_params, state.swept.tau
        )
    )
    state, value_metrics = _update_value(  # line 7
        config, state, transitions.observations, actions, log_probs
    )
    state, actor_metrics = _update_actor(  # line 8
        config, state, transitions.observations, actions, log_probs, actor_vjp, critic_index
    )
    state, temperature_metrics = _update_temperature(config, state, log_probs, actions.shape[-1])
    state = state.replace(key=key, step=state.step + 1)
    metrics = critic_metrics | dual_metrics | value_metrics | actor_metrics | temperature_metrics
    return state, metrics


@functools.partial(jax.jit, static_argnames="config")
def act(config: Config, state: TrainState, observations: jax.Array) -> jax.Array:
    """The policy's mean action tanh(mean).

    observations: `[..., observation_dim]`, normalised. Returns `[..., action_dim]` in [-1, 1].
    """
    mean, _ = _action_distribution(config, state.actor.params, observations)
    return jnp.tanh(mean)


def score(config: Config, state: TrainState, segments: SegmentPairs) -> jax.Array:
    """The return that Q and V imply: sum_l of Q(s_l, a_l) - gamma V(s_{l+1}), as in `pair_error`.

    The mean of both critics, `[pairs, 2]`.
    """
    network = _network(config, 1)
    inputs = state_action(segments.observations[:, :, :-1], segments.actions)
    q = jnp.mean(forward_ensemble(network, state.critics.params, inputs)[..., 0], axis=0)
    next_values = forward(network, state.value.params, segments.observations[:, :, 1:])[..., 0]
    discounts = state.swept.discount * (1 - segments.terminations)
    return losses.implied_returns(q, next_values, discounts, segments.is_step)


def draw_noise(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One update's randomness: the next key, standard normals of `shape`, and i ~ Unif{0, 1}."""
    key, noise_key, index_key = jax.random.split(key, 3)
    noise = jax.random.normal(noise_key, shape)
    return key, noise, jax.random.randint(index_key, (), 0, NUM_CRITICS)


def adversarial_loss(q_policy: jax.Array, q_data: jax.Array) -> jax.Array:
    """L_adv: mean of Q(s, pi(s)) - Q(s, a), eq. "practical q loss", first line.

    q_policy, q_data: `[batch]`, one critic at the policy's and at the data's actions.
    Returns a scalar.
    """
    chex.assert_rank([q_policy, q_data], 1)
    chex.assert_equal_shape([q_policy, q_data])
    return jnp.mean(q_policy - q_data)


def pair_error(
    q: jax.Array,
    next_values: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    squared: bool = False,
    is_step: jax.Array | None = None,
) -> jax.Array:
    """E: how far the segments' summed TD errors differ, eq. "practical q loss", second line.

    mean over pairs of |sum_l (Q(s_l, a_l) - gamma V(s_{l+1}) - r_hat(s_l, a_l)) of segment 0 minus
    the same of segment 1|, or, `squared`, of its square.

    q, next_values, rewards, discounts: `[pairs, 2, length]`; next_values are V(s_{l+1}).
    is_step: of `SegmentPairs`. Returns a scalar.
    """
    td_errors = losses.summed_td_errors(q, next_values, rewards, discounts, is_step)
    return _mean_size(td_errors[:, 0] - td_errors[:, 1], squared)


def segment_error(
    q: jax.Array,
    next_values: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    squared: bool = False,
    is_step: jax.Array | None = None,
) -> jax.Array:
    """Mean over segments of the same sum's size, for environments that can terminate.

    `pair_error` is the same for r_hat + c, and so leaves open whether going on is worth more than
    ending; this takes r_hat at its word. Not in the paper, whose episodes all have one length.
    Arguments as there.
    """
    td_errors = losses.summed_td_errors(q, next_values, rewards, discounts, is_step)
    return _mean_size(td_errors, squared)


def _mean_size(errors: jax.Array, squared: bool) -> jax.Array:
    return jnp.mean(jnp.square(errors) if squared else jnp.abs(errors))


def critic_loss(lam: jax.Array | float, adversarial: jax.Array, error: jax.Array) -> jax.Array:
    """The loss lambda L_adv + E. A small lambda is little conservatism.

    Algorithm 2 of the paper has lambda on the other term, and a sum over its H steps where this has
    a mean: H / lambda there does what lambda does here.
    """
    return lam * adversarial + error


def dual_loss(
    log_lam_factor: jax.Array, adversarial: jax.Array, target: jax.Array | float
) -> jax.Array:
    """Logarithm of lambda times (target - L_adv): lambda rises while L_adv is above its target.

    All scalars; only the first gets a gradient. Not in the paper, where lambda is tuned: as a dual
    variable of the constraint L_adv <= target, in the form of `temperature_loss`.
    """
    return log_lam_factor * jax.lax.stop_gradient(target - adversarial)


def value_loss(values: jax.Array, target_q: jax.Array) -> jax.Array:
    """Mean of (V(s) - min_i Q_target_i(s, pi(s)))^2, eq. "practical v loss".

    values: `[batch]`; target_q: `[critics, batch]`, no gradient. Returns a scalar.

    Differs from the paper: the equation prints the target at s_{h+1}; it is taken at the state
    whose value is regressed.
    """
    chex.assert_rank([values, target_q], [1, 2])
    chex.assert_equal_shape([values, target_q[0]])
    target = jax.lax.stop_gradient(jnp.min(target_q, axis=0))
    return jnp.mean(jnp.square(values - target))


def temperature_loss(
    log_temperature: jax.Array, log_probs: jax.Array, target_entropy: float
) -> jax.Array:
    """Mean of log alpha (-log pi - target entropy): entropy below its target raises alpha.

    log_temperature: scalar; log_probs: `[batch]`, no gradient. Returns a scalar. The form of SAC's
    code (Haarnoja et al. 2018), to which the paper refers for the entropy term; with alpha in
    place of its logarithm the gradient shrinks with alpha, which then falls more slowly.
    """
    chex.assert_rank([log_temperature, log_probs], [0, 1])
    return log_temperature * jax.lax.stop_gradient(jnp.mean(-log_probs) - target_entropy)


def _update_critics(
    config: Config, state: TrainState, batch: Batch, actions: jax.Array
) -> tuple[TrainState, Metrics]:
    transitions, pairs = batch.transitions, batch.segment_pairs
    chex.assert_equal_shape([pairs.actions[..., 0], pairs.rewards, pairs.terminations])
    chex.assert_equal_shape([pairs.observations[:, :, 1:, 0], pairs.rewards])
    network = _network(config, 1)
    next_values = forward(network, state.value.params, pairs.observations[:, :, 1:])[..., 0]
    discounts = state.swept.discount * (1 - pairs.terminations)
    lam = _lam(state)
    # One matrix product for the policy's actions, the data's actions and the segments.
    segments = state_action(pairs.observations[:, :, :-1], pairs.actions)
    inputs = jnp.concatenate(
        [
            state_action(transitions.observations, actions),
            state_action(transitions.observations, transitions.actions),
            segments.reshape(-1, segments.shape[-1]),
        ]
    )
    batch_size = len(actions)
    error_of = pair_error if config.pairwise_error else segment_error

    def loss(critic_params: Params) -> tuple[jax.Array, Metrics]:
        q = forward(network, critic_params, inputs)[:, 0]
        q_policy, q_data, q_segments = jnp.split(q, [batch_size, 2 * batch_size])
        adversarial = adversarial_loss(q_policy, q_data)
        error = error_of(
            q_segments.reshape(pairs.rewards.shape),
            next_values,
            pairs.rewards,
            discounts,
            config.squared_error,
            pairs.is_step,
        )
        total = critic_loss(lam, adversarial, error)
        metrics = {
            "critic/loss": total,
            "critic/adversarial": adversarial,
            f"critic/{error_of.__name__}": error,
            "critic/q_mean": jnp.mean(q_data),
            "critic/q_std": jnp.std(q_data),
        }
        return total, metrics

    grads, metrics = jax.vmap(jax.grad(loss, has_aux=True))(state.critics.params)
    critics = state.critics.step(grads, optax.adam(config.critic_learning_rate))
    return state.replace(critics=critics), jax.tree.map(jnp.mean, metrics)


def _update_lam(
    config: Config, state: TrainState, critic_metrics: Metrics
) -> tuple[TrainState, Metrics]:
    if state.log_lam_factor is None or config.adversarial_target is None:
        return state, {}
    # A policy whose Q is higher by L_adv in each step is worth L_adv / (1 - gamma) more.
    deviation = (1 - state.swept.discount) * critic_metrics["critic/q_std"]
    target = config.adversarial_target * deviation
    adversarial = critic_metrics["critic/adversarial"]
    grad = jax.grad(dual_loss)(state.log_lam_factor.params, adversarial, target)
    factor = state.log_lam_factor.step(grad, optax.adam(_DUAL_LEARNING_RATE))
    return state.replace(log_lam_factor=factor), {"critic/lam": _lam(state)}


def _lam(state: TrainState) -> Any:
    if state.log_lam_factor is None:
        return state.swept.lam
    return state.swept.lam * jnp.exp(state.log_lam_factor.params)


def _update_value(
    config: Config,
    state: TrainState,
    observations: jax.Array,
    actions: jax.Array,
    log_probs: jax.Array,
) -> tuple[TrainState, Metrics]:
    target_q = forward_ensemble(
        _network(config, 1), state.target_critic_params, state_action(observations, actions)
    )[..., 0]
    if config.entropy_in_value:
        target_q -= jnp.exp(state.log_temperature.params) * log_probs

    def loss(value_params: Params) -> jax.Array:
        values = forward(_network(config, 1), value_params, observations)[:, 0]
        return value_loss(values, target_q)

    loss_value, grads = jax.value_and_grad(loss)(state.value.params)
    value = state.value.step(grads, optax.adam(config.value_learning_rate))
    return state.replace(value=value), {"value/loss": loss_value}


def _update_actor(
    config: Config,
    state: TrainState,
    observations: jax.Array,
    actions: jax.Array,
    log_probs: jax.Array,
    actor_vjp: Any,
    critic_index: jax.Array,
) -> tuple[TrainState, Metrics]:
    critic_params = jax.tree.map(lambda leaf: leaf[critic_index], state.critics.params)
    temperature = jnp.exp(state.log_temperature.params)

    def loss(actions: jax.Array, log_probs: jax.Array) -> jax.Array:
        q = forward(_network(config, 1), critic_params, state_action(observations, actions))[:, 0]
        return losses.actor_loss(log_probs, q, temperature)

    loss_value, cotangents = jax.value_and_grad(loss, argnums=(0, 1))(actions, log_probs)
    (grads,) = actor_vjp(cotangents)
    actor = state.actor.step(grads, optax.adam(config.actor_learning_rate))
    metrics = {"actor/loss": loss_value, "actor/entropy": -jnp.mean(log_probs)}
    return state.replace(actor=actor), metrics


def _update_temperature(
    config: Config, state: TrainState, log_probs: jax.Array, action_dim: int
) -> tuple[TrainState, Metrics]:
    alpha = jnp.exp(state.log_temperature.params)
    loss_value, grad = jax.value_and_grad(temperature_loss)(
        state.log_temperature.params, log_probs, -float(action_dim)
    )
    optimiser = optax.adam(config.temperature_learning_rate)
    state = state.replace(log_temperature=state.log_temperature.step(grad, optimiser))
    return state, {"temperature/loss": loss_value, "temperature/alpha": alpha}


def _action_distribution(
    config: Config, actor_params: Params, observations: jax.Array
) -> tuple[jax.Array, jax.Array]:
    action_dim = actor_params["params"]["output"]["bias"].shape[-1] // 2
    output = forward(_network(config, 2 * action_dim), actor_params, observations)
    mean, log_std = jnp.split(output, 2, axis=-1)
    return mean, jnp.clip(log_std, config.log_std_min, config.log_std_max)


def _network(config: Config, output_dim: int) -> MLP:
    return MLP(config.hidden_layers, config.hidden_dim, output_dim, config.negative_slope)
