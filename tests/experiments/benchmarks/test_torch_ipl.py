"""The JAX update of IPL against an independent PyTorch version.

As `test_torch_iql.py` does for IQL: both sides start from the same parameters and see the same
batches, JAX's gradients are read from Adam's first moment after a real `ipl.update_step`, and
batches are drawn again until every pre-activation of the update is off ReLU's kink by more than its
rounding error.
"""

import copy
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import ipl
from appo_jax.types import SegmentPairs, Transitions

torch = pytest.importorskip("torch", reason="the PyTorch reference needs the extra `torch`")

from experiments.benchmarks import torch_ipl  # noqa: E402 (needs torch)
from tests.helpers.torch_networks import (  # noqa: E402
    assert_same_moves,
    by_layer,
    copy_params,
    nearest_to_kink,
    relative_error,
    to_tensor,
)

OBSERVATION_DIM, ACTION_DIM, PAIRS, REPLAY = 11, 3, 4, 64
# Not the defaults, so that a constant in place of an argument shows. Weights on both sides of their
# bound of 100 and clipped targets need more than fresh networks give: a small beta, target critics
# that start higher and wider apart, a V that starts higher, and a small range, 1 / (9 * 0.1).
C, W, EXPECTILE, BETA, DISCOUNT, TAU = 9.0, 0.3, 0.8, 0.1, 0.9, 0.1
TARGETS_START, TARGETS_SCALE, VALUES_START = 1.3, 10.0, 1.1
LOG_STD = [0.3, -0.5, 2.5]  # the last one is beyond its bound
TOLERANCE = 1e-5
# Of the distance that a network has moved, as in `test_torch_iql.py`. Seen: 7e-4.
PARAMETER_TOLERANCE = 2e-3
KINK_MARGIN = 2e-7
NETWORKS = ("critic", "value", "actor")
PARTS = (*NETWORKS, "target_critic")

Case = tuple[bool, bool]  # with a replay batch, target clipping
CASES: list[Case] = [(True, False), (False, True)]
BOTH, CLIPPED = CASES


def make_config(case: Case) -> ipl.Config:
    has_replay, target_clipping = case
    replay_batch = REPLAY if has_replay else 0
    return ipl.Config(num_pairs=PAIRS, replay_batch=replay_batch, target_clipping=target_clipping)


def draw_batch(config: ipl.Config, rng: np.random.Generator) -> ipl.Batch:
    steps, pairs = config.crop_rows - 1, config.num_pairs

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((*shape, OBSERVATION_DIM), dtype=np.float32)

    def rest(*shape: int) -> dict[str, np.ndarray]:
        return {
            "actions": rng.uniform(-1, 1, (*shape, ACTION_DIM)).astype(np.float32),
            "rewards": np.full(shape, np.nan, np.float32),  # nobody reads them
            "terminations": rng.random(shape) < 0.2,
        }

    replay = None
    if config.replay_batch:
        n = config.replay_batch
        replay = Transitions(observations=normal(n), next_observations=normal(n), **rest(n))
    return ipl.Batch(
        segment_pairs=SegmentPairs(
            observations=normal(pairs, 2, steps + 1), **rest(pairs, 2, steps)
        ),
        labels=rng.permutation(np.resize(np.float32([0, 0.5, 1]), pairs)),
        replay=replay,
    )


def to_torch(batch: ipl.Batch) -> Any:
    pairs, replay = batch.segment_pairs, batch.replay

    def steps(observations: Any, actions: Any, following: Any, terminations: Any) -> Any:
        return torch_ipl.Steps(*map(to_tensor, (observations, actions, following, terminations)))

    first, second = (
        steps(
            pairs.observations[:, side, :-1],
            pairs.actions[:, side],
            pairs.observations[:, side, 1:],
            pairs.terminations[:, side],
        )
        for side in (0, 1)
    )
    of_replay = replay and steps(
        replay.observations, replay.actions, replay.next_observations, replay.terminations
    )
    return torch_ipl.Batch(first, second, to_tensor(batch.labels), of_replay)


def params_of(state: ipl.TrainState, name: str, of: str = "params") -> Any:
    """A network's parameters by layer, or their first moments; the actor's without log_std."""
    if name == "target_critic":
        return state.target_critic_params["params"]
    trainable = state.critics if name == "critic" else getattr(state, name)
    tree = trainable.params if of == "params" else trainable.optimiser[0].mu
    return (tree["mean"] if name == "actor" else tree)["params"]


def make_reference(state: ipl.TrainState, case: Case, cls: type, **changed: Any) -> Any:
    """The PyTorch version with the parameters of `state`."""
    numbers = {
        "c": C,
        "w": W,
        "expectile": EXPECTILE,
        "beta": BETA,
        "discount": DISCOUNT,
        "polyak": TAU,
        "target_clipping": case[1],
    }
    reference = cls(OBSERVATION_DIM, ACTION_DIM, **numbers | changed)
    for name in PARTS:
        params = params_of(state, name)
        copy_params(getattr(reference, name), params)
    reference.log_std.data.copy_(to_tensor(state.actor.params["log_std"]))
    return reference


def draw_batch_off_kinks(reference: Any, config: ipl.Config, rng: np.random.Generator) -> ipl.Batch:
    """A batch with which the update meets no pre-activation within `KINK_MARGIN` of zero."""
    while True:
        batch = draw_batch(config, rng)
        if nearest_to_kink(reference, PARTS, to_torch(batch)) > KINK_MARGIN:
            return batch


jitted_init = jax.jit(ipl.init, static_argnums=(0, 2, 3))


@functools.cache
def start() -> ipl.TrainState:
    state = jitted_init(
        ipl.Config(),
        jax.random.key(0),
        OBSERVATION_DIM,
        ACTION_DIM,
        regularisation=C,
        replay_weight=W,
        expectile=EXPECTILE,
        temperature=1 / BETA,
        discount=DISCOUNT,
        tau=TAU,
    )
    targets = state.target_critic_params["params"]["output"]
    targets["kernel"] = TARGETS_SCALE * targets["kernel"]
    targets["bias"] = targets["bias"] + TARGETS_START
    values = state.value.params["params"]["output"]
    values["bias"] = values["bias"] + VALUES_START
    state.actor.params["log_std"] = jnp.array(LOG_STD)
    return state


@functools.cache
def run_jax(case: Case, updates: int) -> tuple[Any, ...]:
    """The real update: first state, last state, the last metrics, and the batches."""
    config = make_config(case)
    first = start()
    rng = np.random.default_rng(CASES.index(case))
    follower = make_reference(first, case, torch_ipl.IPL)
    state, metrics, batches = first, None, []
    for _ in range(updates):
        batch = draw_batch_off_kinks(follower, config, rng)
        follower.update(to_torch(batch))
        state, metrics = ipl.update_step(config, state, batch)
        batches.append(batch)
    return first, state, metrics, batches


def assert_same_gradients(case: Case, cls: type = torch_ipl.IPL, **changed: Any) -> None:
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
    case: Case, updates: int, cls: type = torch_ipl.IPL, **changed: Any
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
@pytest.mark.parametrize("case", CASES)
def test_parameters_after_updates(case: Case, updates: int) -> None:
    assert_same_parameters(case, updates)


@pytest.mark.parametrize("case", CASES)
def test_the_data_meet_every_branch(case: Case) -> None:
    first, _, _, (batch,) = run_jax(case, 1)
    reference = make_reference(first, case, torch_ipl.IPL)
    steps = to_torch(batch).first
    with torch.no_grad():
        advantage = reference.lower_target(steps) - reference.value(steps.observations)[..., 0]
        following = reference.value(steps.next_observations)
    weights = torch.exp(advantage / BETA)
    assert 0.05 < (advantage < 0).float().mean() < 0.8
    assert 0.02 < (weights > torch_ipl.LARGEST_WEIGHT).float().mean() < 0.9
    assert 0.05 < (following > 1 / (C * (1 - DISCOUNT))).float().mean() < 0.9
    assert 0.1 < np.mean(batch.segment_pairs.terminations) < 0.3
    assert set(np.asarray(batch.labels).tolist()) == {0.0, 0.5, 1.0}


def test_defaults() -> None:
    reference = torch_ipl.IPL(OBSERVATION_DIM, ACTION_DIM)
    swept = ipl.Swept()
    assert (swept.regularisation, swept.replay_weight) == (reference.c, reference.w)
    assert (swept.expectile, swept.discount) == (reference.expectile, reference.discount)
    assert swept.temperature == pytest.approx(1 / reference.beta)
    assert swept.tau == reference.polyak
    assert ipl.Config().target_clipping == reference.target_clipping
    # The same distribution to start from: equal second moments, and zeros where the other has them.
    fresh = jitted_init(ipl.Config(), jax.random.key(0), OBSERVATION_DIM, ACTION_DIM)
    for name in NETWORKS:
        params = params_of(fresh, name)
        for layer, leaf, expected in by_layer(getattr(reference, name), "data"):
            found = np.asarray(params[layer][leaf])
            assert found.shape == expected.shape
            if expected.size > 200:
                assert found.std() == pytest.approx(expected.std(), rel=0.2)
            assert found.any() == expected.any()


class OldValue(torch_ipl.IPL):
    """Critics and policy read the V from before its step."""

    def update(self, batch: Any) -> Any:
        old = copy.deepcopy(self.value)
        losses = {}
        for name, loss in (("value", self.value_loss), ("critic", self.critic_loss)):
            new, self.value = self.value, (self.value if name == "value" else old)
            total = loss(batch)
            parameters = self.optimizers[name].param_groups[0]["params"]
            for p, g in zip(parameters, torch.autograd.grad(total, parameters), strict=True):
                p.grad = g
            self.optimizers[name].step()
            self.value = new
            losses[name] = total.detach()
        return losses


class OneTargetCritic(torch_ipl.IPL):
    def lower_target(self, steps: Any) -> Any:
        with torch.no_grad():
            return self.q(self.target_critic, steps)[0]


class SumOfCritics(torch_ipl.IPL):
    def critic_loss(self, batch: Any) -> Any:
        return 2 * super().critic_loss(batch)


class EverythingAlike(torch_ipl.IPL):
    """Replay and segments are one batch."""

    def mixture(self, of: Any, batch: Any) -> Any:
        parts = (batch.first, batch.second, batch.replay)
        return torch.cat([of(part).flatten() for part in parts]).mean()


class FirstIsBetter(torch_ipl.IPL):
    def critic_loss(self, batch: Any) -> Any:
        return super().critic_loss(batch._replace(labels=1 - batch.labels))


class OtherBound(torch_ipl.IPL):
    def actor_loss(self, batch: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_ipl, "LARGEST_WEIGHT", 99.0)
            return super().actor_loss(batch)


class NoBoundOfLogStd(torch_ipl.IPL):
    def actor_loss(self, batch: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_ipl, "LOG_STD_RANGE", (-5.0, 3.0))
            return super().actor_loss(batch)


class NoTerminations(torch_ipl.IPL):
    def implied(self, critic: int, steps: Any) -> Any:
        none = torch.zeros_like(steps.terminations)
        return super().implied(critic, steps._replace(terminations=none))


SEEN: dict[str, tuple[Case, dict[str, Any]]] = {
    "c": (BOTH, {"c": 8.1}),
    "w": (BOTH, {"w": 0.31}),
    "expectile": (BOTH, {"expectile": 0.75}),
    "beta": (BOTH, {"beta": 0.051}),
    "discount": (BOTH, {"discount": 0.91}),
    "clipping": (CLIPPED, {"target_clipping": False}),
    "no clipping": (BOTH, {"target_clipping": True}),
    "order": (BOTH, {"cls": OldValue}),
    "V of one critic": (BOTH, {"cls": OneTargetCritic}),
    "sum of the critics": (BOTH, {"cls": SumOfCritics}),
    "weights of the replay batch": (BOTH, {"cls": EverythingAlike}),
    "labels": (CLIPPED, {"cls": FirstIsBetter}),
    "another bound of the weights": (BOTH, {"cls": OtherBound}),
    "no bound of log_std": (BOTH, {"cls": NoBoundOfLogStd}),
    "terminations": (BOTH, {"cls": NoTerminations}),
}


@pytest.mark.parametrize("mutation", SEEN)
def test_a_change_on_one_side_is_seen(mutation: str) -> None:
    case, change = SEEN[mutation]
    with pytest.raises(AssertionError, match="^(loss|gradient) "):
        assert_same_gradients(case, **change)


def test_another_rate_of_the_targets_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"^target_critic: "):
        assert_same_parameters(BOTH, 1, polyak=0.11)
