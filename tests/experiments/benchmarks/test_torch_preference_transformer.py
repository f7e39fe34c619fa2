"""Preference Transformer's update, with both heads, against an independent PyTorch version.

Both sides start from the same parameters and see the same pairs; JAX's gradients are read from
AdamW's first moment after a real `preference_transformer.update_step`. Without dropout, whose draws
differ. PyTorch's version has the biases that ours leaves out: their gradient is 0.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import preference_transformer, transformer
from appo_jax.transformer import Pairs, Windows
from tests.helpers.tabular import x64

torch = pytest.importorskip("torch", reason="the PyTorch reference needs the extra `torch`")

from experiments.benchmarks import torch_preference_transformer as reference  # noqa: E402
from tests.helpers.torch_networks import relative_error  # noqa: E402

OBSERVATION_DIM, ACTION_DIM, LENGTH, NUM_PAIRS, NUM_EPOCHS = 7, 3, 6, 5, 20
LABELS = [0.0, 1.0, 0.5, 1.0, 0.2]
TOLERANCE = 1e-5
# Of the distance that a parameter has moved: Adam's step hardly depends on a gradient's size.
PARAMETER_TOLERANCE = 1e-3
both_heads = pytest.mark.parametrize(
    "attention", [True, pytest.param(False, marks=pytest.mark.slow)]
)


def make_config(attention: bool) -> preference_transformer.Config:
    return preference_transformer.Config(
        preference_attention=attention,
        dropout=0.0,
        held_out=0.0,
        num_epochs=NUM_EPOCHS,
        segment_length=LENGTH,
    )


@functools.cache
def start(attention: bool) -> preference_transformer.TrainState:
    init = jax.jit(preference_transformer.init, static_argnums=(0, 2, 3, 4))
    dims = OBSERVATION_DIM, ACTION_DIM
    return init(make_config(attention), jax.random.key(0), *dims, NUM_PAIRS)


@functools.cache
def draw_batch(seed: int) -> preference_transformer.Batch:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    def pairs(count: int) -> Pairs:
        shape = (count, 2, LENGTH)
        windows = Windows(normal(*shape, OBSERVATION_DIM), normal(*shape, ACTION_DIM))
        return Pairs(windows, jnp.array(LABELS[:count]), jnp.ones(count))

    return preference_transformer.Batch(pairs(NUM_PAIRS), pairs(0), jax.random.key(seed))


def to_tensor(array: Any) -> Any:
    return torch.tensor(np.asarray(array, np.float64))  # the rounding compared is ours alone


def to_torch(batch: preference_transformer.Batch) -> Any:
    segments = batch.pairs.segments
    arrays = segments.observations, segments.actions, batch.pairs.labels
    return reference.Batch(*map(to_tensor, arrays))


def both(network: Any, params: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, ours, a function of an array that gives the same part of PyTorch's)."""
    body, (block,) = params["body"], network.blocks

    def part(index: int) -> slice:
        return slice(index * reference.WIDTH, (index + 1) * reference.WIDTH)

    table = network.embed_timestep.weight
    yield "place", body["place"]["embedding"], (table, lambda w: w[1 : LENGTH + 1])
    joint = block.query_key_value
    for index, name in enumerate(("query_0", "key_0", "value_0")):
        rows = part(index)
        yield name, body[name]["kernel"], (joint.weight, lambda w, rows=rows: w[rows].T)
        if name != "key_0":
            yield f"{name} bias", body[name]["bias"], (joint.bias, lambda b, rows=rows: b[rows])
    modules = {
        "action": network.embed_action,
        "observation": network.embed_state,
        "mixed_0": block.projection,
        "hidden_0": block.up,
        "output_0": block.down,
        "norm": network.norm_tokens,
        "norm_attention_0": block.norm_1,
        "norm_hidden_0": block.norm_2,
        "norm_output": network.norm_out,
    }
    heads = {"reward": network.value}
    if network.weighted_sum:
        heads |= {"query": network.query, "key": network.key}
    else:
        heads["hidden"] = network.head
    found = {name: (body[name], module) for name, module in modules.items()}
    for name, (own, module) in (found | {n: (params[n], m) for n, m in heads.items()}).items():
        kernel = own.get("kernel", own.get("scale"))
        yield name, kernel, (module.weight, lambda w: w.T if w.ndim > 1 else w)
        if "bias" in own:
            yield f"{name} bias", own["bias"], (module.bias, lambda b: b)


def make_learner(attention: bool, network: type = reference.PreferenceTransformer) -> Any:
    """PyTorch's learner with our first parameters, and zeros for what we leave out."""
    made = network(OBSERVATION_DIM, ACTION_DIM, attention).double()
    with torch.no_grad():
        for module in made.modules():
            if isinstance(module, torch.nn.Linear):
                module.bias.zero_()
        for _, ours, (theirs, view) in both(made, start(attention).model.params["params"]):
            view(theirs).copy_(to_tensor(ours))
    return reference.Learner(made, NUM_EPOCHS)


def _in_double(leaf: Any) -> Any:
    return jnp.float64(leaf) if leaf.dtype == jnp.float32 else leaf


@functools.cache
def run_jax(attention: bool, updates: int, double: bool = True) -> tuple[Any, Any]:
    """The state after so many updates; with `double` their rounding depends on no flag of XLA's."""
    state = start(attention)
    with x64() if double else contextlib.nullcontext():
        for seed in range(updates):
            batch = draw_batch(seed)
            if double:
                batch = jax.tree.map(_in_double, batch)
            state, metrics = preference_transformer.update_step(
                make_config(attention), state, batch
            )
    return state, metrics


def assert_same_gradients(
    attention: bool, network: type = reference.PreferenceTransformer, double: bool = True
) -> dict[str, Any]:
    """Raise AssertionError unless the loss and all gradients of one update agree."""
    state, metrics = run_jax(attention, 1, double)
    learner = make_learner(attention, network)
    loss = float(learner.update(to_torch(draw_batch(0))))
    assert float(metrics["reward/loss"]) == pytest.approx(loss, rel=TOLERANCE), "loss"
    _, unravel = jax.flatten_util.ravel_pytree(state.model.params)
    moments = unravel(state.model.optimiser[0].mu)["params"]
    for name, moment, (parameter, view) in both(learner.network, moments):
        expected = view(parameter.grad).numpy()
        error = relative_error(np.asarray(moment) / np.float32(0.1), expected)
        assert error <= TOLERANCE, f"gradient {name}: relative error {error}"
    return learner


@both_heads
def test_losses_and_gradients(attention: bool) -> None:
    learner = assert_same_gradients(attention)
    network = learner.network
    left_out = [network.value.bias.grad]
    left_out.append(
        network.blocks[0].query_key_value.bias.grad[reference.WIDTH :][: reference.WIDTH]
    )
    if attention:
        left_out.append(network.key.bias.grad)
    for gradient in left_out:
        assert gradient.abs().max() < 1e-6


@pytest.mark.slow  # the code that users get; the quick code rounds a gradient by 1.1e-5
@both_heads
def test_losses_and_gradients_in_single_precision(attention: bool) -> None:
    assert_same_gradients(attention, double=False)


@both_heads
def test_parameters_after_updates(attention: bool) -> None:
    state, _ = run_jax(attention, 4)
    learner = make_learner(attention)
    for seed in range(4):
        learner.update(to_torch(draw_batch(seed)))
    before = start(attention).model.params["params"]
    after = state.model.params["params"]
    for (name, first, _), (_, ours, (theirs, view)) in zip(
        both(learner.network, before), both(learner.network, after), strict=True
    ):
        expected = view(theirs.detach()).numpy()
        moved = np.linalg.norm(expected - np.asarray(first))
        error = np.linalg.norm(expected - np.asarray(ours))
        assert error <= PARAMETER_TOLERANCE * moved, f"{name}: {error} of {moved}"


def test_learning_rates() -> None:
    learner = make_learner(True)
    for done in range(NUM_EPOCHS):
        found = transformer.learning_rate(make_config(True), jnp.int32(NUM_EPOCHS), jnp.int32(done))
        assert found == pytest.approx(learner.rate(done), rel=1e-5)


@both_heads
def test_rewards_of_short_histories(attention: bool) -> None:
    """What relabelling reads, of bare steps, padded ones, and PyTorch's padded ones."""
    config, state = make_config(attention), start(attention)
    network = preference_transformer.Network(config)
    segments = jax.tree.map(lambda leaf: leaf[0, 0], draw_batch(0).pairs.segments)
    learner = make_learner(attention)
    last_rewards = jax.jit(functools.partial(network.apply, method="last_rewards"))
    for count in (1, LENGTH - 2):
        steps = [each[:count] for each in (segments.observations, segments.actions)]
        padded = [jnp.pad(each, ((LENGTH - count, 0), (0, 0)))[None] for each in steps]
        is_real = jnp.arange(LENGTH) >= LENGTH - count
        windows = Windows(*padded, is_real[None]), Windows(*(each[None] for each in steps))
        ours = [float(last_rewards(state.model.params, each)[0]) for each in windows]
        theirs = learner.network.last_reward(*map(to_tensor, steps), LENGTH).item()
        assert ours == pytest.approx([theirs, theirs], rel=1e-4, abs=1e-5)


class StateFirst(reference.PreferenceTransformer):
    def outputs(self, states: Any, actions: Any, timesteps: Any) -> Any:
        self.embed_state, self.embed_action = self.embed_action, self.embed_state
        found = super().outputs(actions, states, timesteps)
        self.embed_state, self.embed_action = self.embed_action, self.embed_state
        return found


class BothWays(reference.PreferenceTransformer):
    def outputs(self, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reference.Block, "sees", lambda _, n: torch.ones(n, n, dtype=torch.bool))
            return super().outputs(*args)


class OtherHeads(reference.PreferenceTransformer):
    def outputs(self, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reference, "HEADS", 2)
            return super().outputs(*args)


class Sum(reference.PreferenceTransformer):
    def scores(self, *args: Any) -> Any:
        return LENGTH * super().scores(*args)


class NoAttention(reference.PreferenceTransformer):
    def scores(self, states: Any, actions: Any) -> Any:
        timesteps = torch.arange(1, LENGTH + 1).expand(states.shape[:2])
        return self.rewards(self.outputs(states, actions, timesteps)).mean(dim=1)


@pytest.mark.parametrize("change", [StateFirst, BothWays, OtherHeads, Sum, NoAttention])
def test_a_change_on_one_side_is_seen(change: type) -> None:
    with pytest.raises(AssertionError, match=r"^(loss|gradient)"):
        assert_same_gradients(True, change)
