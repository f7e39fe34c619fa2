"""The JAX update against an independent PyTorch version of the same algorithm.

Both start from the same parameters and see the same batch and noise. JAX's gradients are read from
the real `appo.update_step`: after one update, Adam's first moment is 0.1 times the gradient.

Two things about the function itself, not about either implementation, decide which data such a
comparison can use.

Kinks. |.| and LeakyReLU have a jump in their slope. Where the argument is smaller than its own
rounding error (about 3e-8 for a pre-activation), the two sides may stand on different sides of it,
and both are right. There are two million pre-activations in an update of the paper's size, so this
happens in one update of seven or so and moves a gradient by up to 5e-3 of its norm. Batches are
therefore drawn again until every pre-activation of the update is at least 2e-7 from zero. The
argument of |.| is far from zero by the choice of rewards: the segments of a pair differ by at least
five, in either direction, and Q and V of fresh networks make up less than one.

The level of Q. A constant on Q cancels from the critic loss (also from the error of each segment:
the rewards make as many of them positive as negative), so the gradient of the critic's output
bias is zero, and so is that of a last hidden unit's bias where the unit is active on every row.
Where a rounding error of 1e-9 is left of such a zero, Adam makes a step of a tenth of the learning
rate or more from it: noise that the losses after the critics' step would see. With a power of two
for lambda and for the sizes, the first sum is exact in any order; starting the critics' output
weights at a sixteenth of their usual size makes the second noise, and its effect on Q, too small to
matter. Gradients then agree to 2e-6.

Two log standard deviations start beyond the ends of their range, where fresh ones never are.
"""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import appo
from appo_jax.appo import Batch
from appo_jax.types import SegmentPairs, Transitions

torch = pytest.importorskip("torch", reason="the PyTorch reference needs the extra `torch`")

from experiments.benchmarks import torch_appo  # noqa: E402 (needs torch)
from tests.helpers.torch_networks import (  # noqa: E402
    assert_same_moves,
    by_layer,
    copy_params,
    nearest_to_kink,
    relative_error,
    to_tensor,
)

OBSERVATION_DIM, ACTION_DIM = 11, 3
# Not the defaults, so that a constant in place of an argument shows.
NUMBERS = {"lam": 1 / 4, "discount": 0.9, "tau": 0.1}
CONFIG = appo.Config()
TOLERANCE = 1e-5
# Of the distance that a network has moved. Adam's step hardly depends on the size of a gradient, so
# the few weights whose gradient is rounding noise may step in opposite directions: each of them is
# 0.004 of the distance that the 271,362 weights of the critics move. Seen: 0.0003.
PARAMETER_TOLERANCE = 1e-2
KINK_MARGIN = 2e-7
NETWORKS = ("critic", "value", "actor")
PARTS = (*NETWORKS, "target_critic")


def draw_batch(rng: np.random.Generator) -> Batch:
    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    def action(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, (*shape, ACTION_DIM)).astype(np.float32)

    steps = (CONFIG.num_pairs, 2, CONFIG.segment_length)
    better = np.where(np.arange(CONFIG.num_pairs) % 2, 1, -1)[:, None] * np.array([1, -1])
    return Batch(
        Transitions(
            observations=normal(CONFIG.batch_size, OBSERVATION_DIM),
            actions=action(CONFIG.batch_size),
            # APPO reads them of segments alone.
            rewards=np.full(CONFIG.batch_size, np.nan, np.float32),
            next_observations=np.full((CONFIG.batch_size, OBSERVATION_DIM), np.nan, np.float32),
            terminations=np.ones(CONFIG.batch_size, bool),
        ),
        SegmentPairs(
            observations=normal(*steps[:2], steps[2] + 1, OBSERVATION_DIM),
            actions=action(*steps),
            rewards=(better[..., None] * rng.uniform(0.1, 0.2, steps)).astype(np.float32),
            terminations=rng.random(steps) < 0.1,
        ),
    )


PLACES = {"actor": "actor", "critic": "critics", "value": "value"}  # in our state


def params_of(state: appo.TrainState, name: str) -> Any:
    """The parameters of a network of the reference in our state."""
    return (
        state.target_critic_params
        if name == "target_critic"
        else getattr(state, PLACES[name]).params
    )


def to_torch_batch(batch: Batch) -> Any:
    transitions = batch.transitions
    fields = {"observations": transitions.observations, "actions": transitions.actions} | {
        f"segment_{name}": value
        for name, value in vars(batch.segment_pairs).items()
        if value is not None  # is_step: all are
    }
    return torch_appo.Batch(**{name: to_tensor(value) for name, value in fields.items()})


def make_reference(state: appo.TrainState, cls: type, numbers: dict[str, float]) -> Any:
    """The PyTorch version with the parameters of `state`."""
    reference = cls(OBSERVATION_DIM, ACTION_DIM, **numbers)
    for name in PARTS:
        params = params_of(state, name)["params"]
        copy_params(getattr(reference, name), params)
    return reference


def draw_batch_off_kinks(reference: Any, rng: np.random.Generator, noise: Any, i: int) -> Batch:
    """A batch with which the update meets no pre-activation within `KINK_MARGIN` of zero."""
    while True:
        batch = draw_batch(rng)
        if nearest_to_kink(reference, PARTS, to_torch_batch(batch), noise, i) > KINK_MARGIN:
            return batch


@functools.cache
def run_jax(
    seed: int, critic_index: int, updates: int = 1, pairwise_error: bool = True
) -> tuple[Any, ...]:
    """The real update: first state, last state, the last metrics, and what each update saw."""
    config = dataclasses.replace(CONFIG, pairwise_error=pairwise_error)
    numbers = NUMBERS | {"pairwise_error": pairwise_error}
    keys = (jax.random.key(1000 * seed + k) for k in itertools.count())
    shape = (CONFIG.batch_size, ACTION_DIM)
    key = next(key for key in keys if appo.draw_noise(key, shape)[2] == critic_index)
    init = jax.jit(appo.init, static_argnums=(0, 2, 3))
    first = init(config, jax.random.key(seed), OBSERVATION_DIM, ACTION_DIM, **NUMBERS)
    output = first.critics.params["params"]["output"]
    output["kernel"] = output["kernel"] / 16
    output = first.actor.params["params"]["output"]
    output["bias"] = output["bias"].at[ACTION_DIM : ACTION_DIM + 2].set(jnp.array([3.0, -22.0]))
    target_critic_params = jax.tree.map(jnp.copy, first.critics.params)
    first = first.replace(key=key, target_critic_params=target_critic_params)

    rng = np.random.default_rng(seed)
    follower = make_reference(first, torch_appo.APPO, numbers)
    state, metrics, inputs = first, None, []
    for _ in range(updates):
        _, noise, i = appo.draw_noise(state.key, shape)
        noise, i = to_tensor(noise), int(i)
        batch = draw_batch_off_kinks(follower, rng, noise, i)
        follower.update(to_torch_batch(batch), noise, i)
        state, metrics = appo.update_step(config, state, batch)
        inputs.append((batch, noise, i))
    return first, state, metrics, inputs


def assert_same_gradients(
    seed: int,
    critic_index: int,
    cls: type = torch_appo.APPO,
    change_input: Callable[..., tuple[Any, ...]] = lambda *arguments: arguments,
    pairwise_error: bool = True,
    **changed_numbers: float,
) -> None:
    """Raise AssertionError unless all losses and gradients of one update agree."""
    first, state, metrics, [(batch, noise, i)] = run_jax(
        seed, critic_index, pairwise_error=pairwise_error
    )
    numbers = NUMBERS | {"pairwise_error": pairwise_error} | changed_numbers
    reference = make_reference(first, cls, numbers)
    losses = reference.update(*change_input(to_torch_batch(batch), noise, i))

    for name, loss in losses.items():
        # JAX reports the mean over the two critics.
        expected = float(loss) / (2 if name == "critic" else 1)
        error = abs(float(metrics[f"{name}/loss"]) - expected)
        assert error <= TOLERANCE * abs(expected), f"loss {name}: {error} of {expected}"
    for name in NETWORKS:
        moment = getattr(state, PLACES[name]).optimiser[0].mu["params"]
        for layer, leaf, expected in by_layer(getattr(reference, name), "grad"):
            found = np.asarray(moment[layer][leaf]) / np.float32(0.1)
            if (name, layer, leaf) == ("critic", "output", "bias"):
                assert not found.any(), f"gradient {name} {layer} {leaf}: {found}"
                assert not expected.any(), f"gradient {name} {layer} {leaf}: {expected}"
                continue
            error = relative_error(found, expected)
            assert error <= TOLERANCE, f"gradient {name} {layer} {leaf}: relative error {error}"
    expected = reference.log_temperature.grad.item()
    error = abs(float(state.log_temperature.optimiser[0].mu) / 0.1 - expected)
    assert error <= TOLERANCE * abs(expected), f"gradient temperature: {error} of {expected}"


def assert_same_parameters(
    seed: int, critic_index: int, updates: int, cls: type = torch_appo.APPO
) -> None:
    """Raise AssertionError unless the parameters agree after updates on the same data."""
    first, state, _, inputs = run_jax(seed, critic_index, updates)
    reference = make_reference(first, cls, NUMBERS)
    for batch, noise, i in inputs:
        reference.update(to_torch_batch(batch), noise, i)

    for name in PARTS:
        before, after = (params_of(one, name)["params"] for one in (first, state))
        assert_same_moves(getattr(reference, name), before, after, PARAMETER_TOLERANCE, name)
    expected = reference.log_temperature.item()
    error = abs(float(state.log_temperature.params) - expected)
    assert error <= PARAMETER_TOLERANCE * abs(expected), f"temperature: {error} of {expected}"


def assert_same_first_steps(cls: type = torch_appo.APPO) -> None:
    """Raise AssertionError unless both Adams make the same of each element of one gradient.

    That of JAX, for both: the step of a small element depends on epsilon, and would on its rounding
    error.
    """
    first, state, _, _ = run_jax(0, 1)
    reference = make_reference(first, cls, NUMBERS)
    for name in NETWORKS:
        before, after = (params_of(one, name)["params"] for one in (first, state))
        moment = getattr(state, PLACES[name]).optimiser[0].mu["params"]
        grads = jax.tree.map(lambda leaf: leaf / 0.1, moment)
        copy_params(getattr(reference, name), grads, "grad")
        optimiser = getattr(reference, f"{name}_optimizer")
        optimiser.step()
        for layer, leaf, expected in by_layer(getattr(reference, name), "data"):
            step = np.asarray(after[layer][leaf]) - np.asarray(before[layer][leaf])
            error = np.abs(step - (expected - np.asarray(before[layer][leaf]))).max()
            rounding = 2 * np.spacing(np.abs(expected).max())
            limit = 1e-3 * optimiser.param_groups[0]["lr"] + rounding
            assert error <= limit, f"{name}: a step of {layer} {leaf} is {error} off"


CASES = [
    (0, 1),
    pytest.param(0, 0, marks=pytest.mark.slow),
    pytest.param(1, 0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("seed", "critic_index"), CASES)
def test_losses_and_gradients(seed: int, critic_index: int) -> None:
    assert_same_gradients(seed, critic_index)


@pytest.mark.parametrize(
    ("seed", "critic_index", "updates"), [(1, 0, 3), pytest.param(0, 1, 2, marks=pytest.mark.slow)]
)
def test_parameters_after_updates(seed: int, critic_index: int, updates: int) -> None:
    assert_same_parameters(seed, critic_index, updates)


@pytest.mark.slow  # by hand in test_appo_losses.py
def test_losses_and_gradients_of_the_error_of_each_segment() -> None:
    assert_same_gradients(0, 1, pairwise_error=False)


def test_first_steps() -> None:
    assert_same_first_steps()


def test_defaults() -> None:
    state = appo.init(CONFIG, jax.random.key(0), OBSERVATION_DIM, ACTION_DIM)
    reference = torch_appo.APPO(OBSERVATION_DIM, ACTION_DIM)
    for name in NUMBERS:
        assert float(getattr(state.swept, name)) == pytest.approx(getattr(reference, name))
    assert float(state.log_temperature.params) == reference.log_temperature.item()


class CriticLossMovesValue(torch_appo.APPO):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        parameters = [*self.critic.parameters(), *self.value.parameters()]
        self.critic_optimizer = torch_appo.adam(parameters, 3e-4)

    def next_values(self, observations: Any) -> Any:
        return self.value(observations).squeeze(-1)


class TargetLast(torch_appo.APPO):
    """The value looks at the target critics before their step."""

    def update_target(self) -> None:
        pass

    def value_loss(self, *args: Any) -> Any:
        loss = super().value_loss(*args)
        super().update_target()
        return loss


class TargetsBeforeTheirCritics(torch_appo.APPO):
    def critic_loss(self, *args: Any) -> Any:
        super().update_target()
        return super().critic_loss(*args)

    def update_target(self) -> None:
        pass


class ValueOfOneCritic(torch_appo.APPO):
    def value_loss(self, observations: Any, policy_input: Any) -> Any:
        target = self.target_critic[0](policy_input).detach()
        return torch.nn.functional.mse_loss(self.value(observations), target)


class ActorSeesOldCritics(torch_appo.APPO):
    def update(self, *args: Any) -> Any:
        self.old_critic = copy.deepcopy(self.critic)
        return super().update(*args)

    def actor_loss(self, *args: Any) -> Any:
        new, self.critic = self.critic, self.old_critic
        loss = super().actor_loss(*args)
        self.critic = new
        return loss


class HigherLogStd(torch_appo.APPO):
    log_std_range = (-20.0, 2.01)


class LowerLogStd(torch_appo.APPO):
    log_std_range = (-20.01, 2.0)


class PairwiseAlways(torch_appo.APPO):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | {"pairwise_error": True}))


MUTATIONS: dict[str, dict[str, Any]] = {
    "lambda": {"lam": 0.26},
    "discount": {"discount": 0.99},
    "tau": {"tau": 0.2},
    "sign of r_hat": {
        "change_input": lambda b, *rest: (b._replace(segment_rewards=-b.segment_rewards), *rest)
    },
    "terminations ignored": {
        "change_input": lambda b, *rest: (
            b._replace(segment_terminations=torch.zeros_like(b.segment_terminations)),
            *rest,
        )
    },
    "other noise": {"change_input": lambda b, noise, i: (b, noise.flip(0), i)},
    "other critic": {"change_input": lambda b, noise, i: (b, noise, 1 - i)},
    "critic loss moves V": {"cls": CriticLossMovesValue},
    "target after V": {"cls": TargetLast},
    "target before critics": {"cls": TargetsBeforeTheirCritics},
    "V of one critic": {"cls": ValueOfOneCritic},
    "actor sees old critics": {"cls": ActorSeesOldCritics},
    "higher log std": {"cls": HigherLogStd},
    "lower log std": {"cls": LowerLogStd},
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_change_on_one_side_is_seen(mutation: str) -> None:
    with pytest.raises(AssertionError, match="^(loss|gradient) "):
        assert_same_gradients(0, 1, **MUTATIONS[mutation])


@pytest.mark.slow
def test_the_other_error_is_seen() -> None:
    with pytest.raises(AssertionError, match="^loss critic"):
        assert_same_gradients(0, 1, cls=PairwiseAlways, pairwise_error=False)


def adam_with(network: str, **options: Any) -> type:
    """The reference with another Adam for one of its networks."""

    class OtherAdam(torch_appo.APPO):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            getattr(self, f"{network}_optimizer").param_groups[0].update(options)

    return OtherAdam


@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("critic", {"lr": 3.1e-4}),
        ("value", {"lr": 3.1e-4}),
        ("actor", {"lr": 3.1e-5}),
        ("temperature", {"lr": 3.1e-4}),
        ("critic", {"betas": (0.7, 0.999)}),
        ("critic", {"betas": (0.9, 0.5)}),
    ],
)
def test_another_adam_is_seen(network: str, options: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=f"^{network}: "):
        assert_same_parameters(0, 1, 2, cls=adam_with(network, **options))


@pytest.mark.parametrize("network", NETWORKS)
def test_another_epsilon_is_seen(network: str) -> None:
    with pytest.raises(AssertionError, match=f"^{network}: a step of "):
        assert_same_first_steps(adam_with(network, eps=1e-7))
