"""The JAX IQL update, in both variants, against an independent PyTorch version.

As `test_torch_appo.py` does for APPO: both sides start from the same parameters and see the same
batches, JAX's gradients are read from Adam's first moment after a real `iql.update_step`, and
batches are drawn again until every pre-activation of the update is off ReLU's kink by more than its
rounding error, where both slopes are right.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import iql
from appo_jax.types import Transitions

torch = pytest.importorskip("torch", reason="the PyTorch reference needs the extra `torch`")

from experiments.benchmarks import torch_iql  # noqa: E402 (needs torch)
from tests.helpers.torch_networks import (  # noqa: E402
    assert_same_moves,
    by_layer,
    copy_params,
    nearest_to_kink,
    relative_error,
    to_tensor,
)

OBSERVATION_DIM, ACTION_DIM = 11, 3
# Not the defaults, so that a constant in place of an argument shows. Fresh networks are small and
# the lower of two critics is mostly below V: a large beta, and targets that start higher, make
# advantages of both signs and weights on both sides of their bound of 100.
EXPECTILE, DISCOUNT, TAU = 0.8, 0.9, 0.1
BETA = {"lire": 60.0, "jax": 10.0}
TARGETS_START = 0.3
LOG_STD = [0.3, -0.5, 2.5]  # the last one is beyond its bound
NUM_UPDATES = 8  # so few that the actor's rate falls visibly from one update to the next
TOLERANCE = 1e-5
# Of the distance that a network has moved. Adam's step hardly depends on the size of a gradient, so
# a few weights whose gradient is rounding noise step elsewhere. Seen: 8e-5.
PARAMETER_TOLERANCE = 3e-4
KINK_MARGIN = 2e-7
NETWORKS = ("critic", "value", "actor")
PARTS = (*NETWORKS, "target_critic")

Case = tuple[str, bool]  # variant, follow_terminations
CASES: list[Case] = [("lire", False), ("lire", True), ("jax", True)]


def draw_batch(rng: np.random.Generator, size: int) -> Transitions:
    def normal() -> np.ndarray:
        return rng.standard_normal((size, OBSERVATION_DIM), dtype=np.float32)

    return Transitions(
        observations=normal(),
        actions=rng.uniform(-1, 1, (size, ACTION_DIM)).astype(np.float32),
        rewards=rng.random(size, dtype=np.float32),
        next_observations=normal(),
        terminations=rng.random(size) < 0.2,
    )


def to_torch(batch: Transitions) -> Any:
    return torch_iql.Batch(**{name: to_tensor(value) for name, value in vars(batch).items()})


def params_of(state: iql.TrainState, name: str, of: str = "params") -> Any:
    """A network's parameters by layer, or their first moments; the actor's without log_std."""
    if name == "target_critic":
        return state.target_critic_params["params"]
    trainable = state.critics if name == "critic" else getattr(state, name)
    tree = trainable.params if of == "params" else trainable.optimiser[0].mu
    return (tree["mean"] if name == "actor" else tree)["params"]


def make_reference(state: iql.TrainState, case: Case, cls: type, **changed: Any) -> Any:
    """The PyTorch version with the parameters of `state`."""
    variant, follow_terminations = case
    numbers = {
        "variant": variant,
        "expectile": EXPECTILE,
        "temperature": BETA[variant],
        "discount": DISCOUNT,
        "polyak": TAU,
        "follow_terminations": follow_terminations,
        "num_updates": NUM_UPDATES,
    }
    reference = cls(OBSERVATION_DIM, ACTION_DIM, **numbers | changed)
    for name in PARTS:
        params = params_of(state, name)
        copy_params(getattr(reference, name), params)
    reference.log_std.data.copy_(to_tensor(state.actor.params["log_std"]))
    return reference


def draw_batch_off_kinks(reference: Any, rng: np.random.Generator, size: int) -> Transitions:
    """A batch with which the update meets no pre-activation within `KINK_MARGIN` of zero."""
    while True:
        batch = draw_batch(rng, size)
        if nearest_to_kink(reference, PARTS, to_torch(batch)) > KINK_MARGIN:
            return batch


@functools.cache
def start(variant: str) -> iql.TrainState:
    init = jax.jit(iql.init, static_argnums=(0, 2, 3))
    state = init(
        iql.Config(variant=variant),
        jax.random.key(0),
        OBSERVATION_DIM,
        ACTION_DIM,
        expectile=EXPECTILE,
        temperature=BETA[variant],
        discount=DISCOUNT,
        tau=TAU,
    )
    output = state.target_critic_params["params"]["output"]
    output["bias"] = output["bias"] + TARGETS_START
    state.actor.params["log_std"] = jnp.array(LOG_STD)
    return state


@functools.cache
def run_jax(case: Case, updates: int) -> tuple[Any, ...]:
    """The real update: first state, last state, the last metrics, and the batches."""
    variant, follow_terminations = case
    config = iql.Config(
        variant=variant, follow_terminations=follow_terminations, num_updates=NUM_UPDATES
    )
    first = start(variant)
    rng = np.random.default_rng(CASES.index(case))
    follower = make_reference(first, case, torch_iql.IQL)
    state, metrics, batches = first, None, []
    for _ in range(updates):
        batch = draw_batch_off_kinks(follower, rng, config.batch_size)
        follower.update(to_torch(batch))
        state, metrics = iql.update_step(config, state, batch)
        batches.append(batch)
    return first, state, metrics, batches


def assert_same_gradients(case: Case, cls: type = torch_iql.IQL, **changed: Any) -> None:
    """Raise AssertionError unless all losses and gradients of one update agree."""
    first, state, metrics, (batch,) = run_jax(case, 1)
    reference = make_reference(first, case, cls, **changed)
    for name, loss in reference.update(to_torch(batch)).items():
        error = abs(float(metrics[f"{name}/loss"]) - float(loss))
        assert error <= TOLERANCE * abs(float(loss)), f"loss {name}: {error} of {float(loss)}"
    for name in NETWORKS:
        moment = params_of(state, name, "moment")
        for layer, leaf, expected in by_layer(getattr(reference, name), "grad"):
            error = relative_error(np.asarray(moment[layer][leaf]) / np.float32(0.1), expected)
            assert error <= TOLERANCE, f"gradient {name} {layer} {leaf}: relative error {error}"
    found = np.asarray(state.actor.optimiser[0].mu["log_std"]) / np.float32(0.1)
    error = relative_error(found, reference.log_std.grad.numpy())
    assert error <= TOLERANCE, f"gradient log_std: relative error {error}"


def assert_same_parameters(
    case: Case, updates: int, cls: type = torch_iql.IQL, **changed: Any
) -> None:
    """Raise AssertionError unless the parameters agree after updates on the same data."""
    first, state, _, batches = run_jax(case, updates)
    reference = make_reference(first, case, cls, **changed)
    for batch in batches:
        reference.update(to_torch(batch))
    for name in PARTS:
        before, after = params_of(first, name), params_of(state, name)
        assert_same_moves(getattr(reference, name), before, after, PARAMETER_TOLERANCE, name)
    expected = reference.log_std.detach().numpy()
    error = relative_error(np.asarray(state.actor.params["log_std"]), expected)
    assert error <= TOLERANCE, f"log_std: relative error {error}"


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients(case: Case) -> None:
    assert_same_gradients(case)


@pytest.mark.parametrize("updates", [1, 4])
@pytest.mark.parametrize("case", [("lire", False), ("jax", True)])
def test_parameters_after_updates(case: Case, updates: int) -> None:
    assert_same_parameters(case, updates)


@pytest.mark.parametrize("variant", ["lire", "jax"])
def test_the_data_meet_every_branch(variant: str) -> None:
    first, _, _, (batch,) = run_jax((variant, True), 1)
    reference = make_reference(first, (variant, True), torch_iql.IQL)
    advantage = reference.advantage(to_torch(batch)).detach()
    weights = torch.exp(BETA[variant] * advantage)
    assert 0.05 < (advantage < 0).float().mean() < 0.8
    assert 0.02 < (weights > torch_iql.LARGEST_WEIGHT).float().mean() < 0.9
    assert 0.1 < np.mean(batch.terminations) < 0.3


@pytest.mark.parametrize("variant", ["lire", "jax"])
def test_defaults(variant: str) -> None:
    config = iql.Config(variant=variant)
    reference = torch_iql.IQL(OBSERVATION_DIM, ACTION_DIM, variant)
    swept = iql.Swept()
    for name in ("expectile", "temperature", "discount"):
        assert getattr(swept, name) == getattr(reference, name)
    assert swept.tau == reference.polyak
    assert config.num_updates == reference.num_updates
    assert config.follow_terminations == reference.follow_terminations
    # The same distribution to start from: equal second moments, and zeros where the other has them.
    for name in NETWORKS:
        params = params_of(start(variant), name)
        for layer, leaf, expected in by_layer(getattr(reference, name), "data"):
            found = np.asarray(params[layer][leaf])
            assert found.shape == expected.shape
            if expected.size > 200:
                assert found.std() == pytest.approx(expected.std(), rel=0.2)
            assert found.any() == expected.any()


class OtherOrder(torch_iql.IQL):
    """The order of the other variant, the rest as before."""

    def update(self, batch: Any) -> Any:
        return self.update_as_jax(batch) if self.variant == "lire" else self.update_as_lire(batch)


class CriticLossMovesValue(torch_iql.IQL):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        parameters = [*self.critic.parameters(), *self.value.parameters()]
        self.critic_optimizer = torch_iql.adam(parameters)

    def next_value(self, batch: Any) -> Any:
        return self.value(batch.next_observations).squeeze(1)


class OneTargetCritic(torch_iql.IQL):
    def advantage(self, batch: Any) -> Any:
        targets, self.target_critic = self.target_critic, [self.target_critic[0]] * 2
        advantage = super().advantage(batch)
        self.target_critic = targets
        return advantage


class ValueOfTheWrongState(torch_iql.IQL):
    def next_value(self, batch: Any) -> Any:
        return super().next_value(batch._replace(next_observations=batch.observations))


class OtherBound(torch_iql.IQL):
    def actor_loss(self, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_iql, "LARGEST_WEIGHT", 99.0)
            return super().actor_loss(*args)


class NoBoundOfLogStd(torch_iql.IQL):
    def actor_loss(self, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(torch_iql.LOG_STD_RANGE, self.variant, (-20.0, 3.0))
            return super().actor_loss(*args)


class NoTanh(torch_iql.IQL):
    def actor_loss(self, batch: Any, advantage: Any) -> Any:
        network = self.actor
        self.actor = lambda observations: network(observations).clamp(-0.99, 0.99).atanh()
        loss = super().actor_loss(batch, advantage)
        self.actor = network
        return loss


class TargetsFirst(torch_iql.IQL):
    """The target critics step before their critics."""

    def critic_loss(self, *args: Any) -> Any:
        super().update_target()
        return super().critic_loss(*args)

    def update_target(self) -> None:
        pass


LIRE, JAX = ("lire", False), ("jax", True)
SEEN_IN_GRADIENTS: dict[str, tuple[Case, dict[str, Any]]] = {
    "expectile": (LIRE, {"expectile": 0.7}),
    "temperature": (LIRE, {"temperature": 59.0}),
    "discount": (LIRE, {"discount": 0.91}),
    "terminations ignored": (JAX, {"follow_terminations": False}),
    "terminations followed": (LIRE, {"follow_terminations": True}),
    "order, lire": (LIRE, {"cls": OtherOrder}),
    "order, jax": (JAX, {"cls": OtherOrder}),
    "critic loss moves V": (JAX, {"cls": CriticLossMovesValue}),
    "V of one critic": (LIRE, {"cls": OneTargetCritic}),
    "V of the wrong state": (LIRE, {"cls": ValueOfTheWrongState}),
    "another bound of the weights": (LIRE, {"cls": OtherBound}),
    "no bound of log_std": (LIRE, {"cls": NoBoundOfLogStd}),
    "no tanh": (LIRE, {"cls": NoTanh}),
}


@pytest.mark.parametrize("mutation", SEEN_IN_GRADIENTS)
def test_a_change_on_one_side_is_seen(mutation: str) -> None:
    case, change = SEEN_IN_GRADIENTS[mutation]
    with pytest.raises(AssertionError, match="^(loss|gradient) "):
        assert_same_gradients(case, **change)


@pytest.mark.parametrize(
    ("network", "updates", "change"),
    [
        ("target_critic", 1, {"polyak": 0.11}),
        ("target_critic", 1, {"cls": TargetsFirst}),
        ("actor", 4, {"num_updates": 9}),
    ],
)
def test_a_change_is_seen_in_parameters(network: str, updates: int, change: Any) -> None:
    with pytest.raises(AssertionError, match=f"^{network}: "):
        assert_same_parameters(LIRE, updates, **change)


@pytest.mark.parametrize("network", NETWORKS)
def test_another_adam_is_seen(network: str) -> None:
    class OtherAdam(torch_iql.IQL):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            optimizer = getattr(self, f"{network}_optimizer")
            optimizer.param_groups[0]["betas"] = (0.9, 0.5)

    with pytest.raises(AssertionError, match="^(critic|value|actor): "):
        assert_same_parameters(LIRE, 4, cls=OtherAdam)
