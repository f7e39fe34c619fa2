"""The JAX updates of BC, CPL and DPPO against independent PyTorch versions.

Both sides start from the same parameters and see the same batches; JAX's gradients are read from
Adam's first moment after a real `update_step`, as in `test_torch_appo.py`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from appo_jax import bc, cpl, dppo
from appo_jax.types import SegmentPairs, Transitions

torch = pytest.importorskip("torch", reason="the PyTorch reference needs the extra `torch`")

from experiments.benchmarks import torch_direct  # noqa: E402 (needs torch)
from tests.helpers.torch_networks import (  # noqa: E402
    assert_same_moves,
    by_layer,
    copy_params,
    relative_error,
    to_tensor,
)

OBSERVATION_DIM, ACTION_DIM, WIDTH, ROWS, LENGTH = 11, 3, 32, 12, 5
# CPL clones for four of ten updates, and its rate rises from a fifth of an update on: at once. Of
# 200 it clones 80, and rises over four.
SHORT, LONG = 10, 200
TOLERANCE = 1e-5
# Of the distance that the network has moved: where a gradient is rounding noise, Adam steps
# elsewhere. Seen: 2e-5.
PARAMETER_TOLERANCE = 1e-4


def tensors(*arrays: Any) -> list[Any]:
    return [to_tensor(array) for array in arrays]


def draw(rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations and actions."""
    observations = rng.standard_normal((*shape, OBSERVATION_DIM), np.float32)
    return observations, rng.uniform(-1, 1, (*shape, ACTION_DIM)).astype(np.float32)


def bc_batch(rng: np.random.Generator) -> tuple[Any, Any]:
    observations, actions = draw(rng, ROWS)
    weights = rng.choice(np.float32([0, 0.4, 1]), ROWS)
    transitions = Transitions(
        observations=observations,
        actions=actions,
        rewards=np.full(ROWS, np.nan, np.float32),  # nobody reads these
        next_observations=observations,
        terminations=np.zeros(ROWS, bool),
    )
    ours = bc.Batch(transitions=transitions, weights=weights)
    return ours, torch_direct.Transitions(*tensors(observations, actions, weights))


def cpl_batch(rng: np.random.Generator) -> tuple[Any, Any]:
    observations, actions = draw(rng, ROWS, 2, LENGTH + 1)
    actions = actions[:, :, :-1]
    labels = rng.choice(np.float32([0, 0.5, 0.8, 1]), ROWS)
    pairs = SegmentPairs(
        observations=observations,
        actions=actions,
        rewards=np.full(actions.shape[:-1], np.nan, np.float32),
        terminations=np.zeros(actions.shape[:-1], bool),
    )
    ours = cpl.Batch(segment_pairs=pairs, labels=labels)
    return ours, torch_direct.Pairs(*tensors(observations[:, :, :-1], actions, labels))


def dppo_batch(rng: np.random.Generator) -> tuple[Any, Any]:
    observations, actions = draw(rng, ROWS, LENGTH)
    scores = rng.choice(np.float32([-1, 0.2, 0.3, 2, 5, 6, 7]), ROWS)  # some are equal
    ours = dppo.Batch(observations=observations, actions=actions, scores=scores)
    return ours, torch_direct.Windows(*tensors(observations, actions, scores))


CPL_NUMBERS = {"alpha": 0.3, "bias": 0.7, "bc_coefficient": 0.2}
DPPO_NUMBERS = {"lam": 0.7, "temperature": 0.2}
CASES: dict[str, tuple[Any, Any, dict[str, float], Callable[..., Any], Callable[..., Any]]] = {
    "bc": (bc, bc.Config(hidden_dim=WIDTH), {}, bc_batch, torch_direct.BC),
    "dppo": (dppo, dppo.Config(hidden_dim=WIDTH), DPPO_NUMBERS, dppo_batch, torch_direct.DPPO),
} | {
    f"cpl of {updates}": (
        cpl,
        cpl.Config(hidden_dim=WIDTH, dropout=0.0, num_updates=updates),
        CPL_NUMBERS,
        cpl_batch,
        functools.partial(torch_direct.CPL, dropout=0.0, num_updates=updates),
    )
    for updates in (SHORT, LONG)
}
CONTRASTIVE = {f"cpl of {updates}": updates * 2 // 5 for updates in (SHORT, LONG)}


def check(name: str, updates: int, since: int = 0, **changed: Any) -> None:
    """Raise AssertionError unless losses, the first gradient and the last parameters agree.

    since: the count of updates from which both sides begin.
    """
    learner, config, numbers, draw_batch, reference_of = CASES[name]
    init = jax.jit(learner.init, static_argnums=(0, 2, 3))
    state = init(config, jax.random.key(0), OBSERVATION_DIM, ACTION_DIM, **numbers)
    reference = reference_of(OBSERVATION_DIM, ACTION_DIM, WIDTH, **numbers | changed)
    copy_params(reference.actor, state.actor.params["params"])
    if since:
        state = state.replace(step=state.step + since)
        reference.updates_done = since
    first = state.actor.params["params"]
    rng = np.random.default_rng(1)
    for update in range(updates):
        ours, theirs = draw_batch(rng)
        state, metrics = learner.update_step(config, state, ours)
        loss = float(reference.update(theirs))
        error = abs(float(metrics["actor/loss"]) - loss)
        # The first loss knows nothing of the steps; later ones are those of nearly equal networks.
        assert error <= (TOLERANCE if update == 0 else 1e-4) * abs(loss), f"loss {update}: {error}"
        if update == 0:
            moments = state.actor.optimiser[0].mu["params"]
            for layer, leaf, expected in by_layer(reference.actor, "grad"):
                error = relative_error(moments[layer][leaf] / np.float32(0.1), expected)
                assert error <= TOLERANCE, f"gradient {layer} {leaf}: {error}"
    assert_same_moves(reference.actor, first, state.actor.params["params"], PARAMETER_TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_losses_gradients_and_parameters(name: str) -> None:
    check(name, updates=4)


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_the_phase_that_compares(name: str) -> None:
    check(name, updates=6, since=CONTRASTIVE[name])


def test_from_one_phase_to_the_other() -> None:
    check("cpl of 10", updates=8)


SEEN: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dppo's lambda": ("dppo", 0, {"lam": 0.71}),
    "dppo's temperature": ("dppo", 0, {"temperature": 0.21}),
    "alpha": ("cpl of 10", 4, {"alpha": 0.31}),
    "bias": ("cpl of 10", 4, {"bias": 0.71}),
    "cloning beside": ("cpl of 10", 4, {"bc_coefficient": 0.21}),
}


@pytest.mark.parametrize("mutation", SEEN)
def test_a_change_on_one_side_is_seen(mutation: str) -> None:
    name, since, change = SEEN[mutation]
    with pytest.raises(AssertionError, match="^(loss|gradient)"):
        check(name, updates=1, since=since, **change)


@pytest.mark.parametrize("attribute", ["clone_until", "rises_over"])
def test_another_schedule_is_seen(monkeypatch: pytest.MonkeyPatch, attribute: str) -> None:
    monkeypatch.setattr(torch_direct.CPL, attribute, property(lambda _: 81, lambda *_: None), False)
    with pytest.raises(AssertionError, match="^(loss|gradient|parameters)"):
        check("cpl of 200", updates=3, since=80)


def test_a_memory_that_goes_on_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def first_one(reference: Any) -> Any:
        made.append(torch.optim.Adam(reference.actor.parameters(), lr=1e-4))
        return made[0]

    monkeypatch.setattr(torch_direct.CPL, "fresh_optimizer", first_one)
    with pytest.raises(AssertionError, match="^(loss|parameters)"):
        check("cpl of 10", updates=8)
    assert len(made) == 2


@pytest.mark.parametrize("name", ["bc", "cpl of 10", "dppo"])
def test_defaults(name: str) -> None:
    """The same numbers, the same sizes, and the same distribution of parameters to begin with."""
    learner, _, _, _, _ = CASES[name]
    reference = {bc: torch_direct.BC, cpl: torch_direct.CPL, dppo: torch_direct.DPPO}[learner](
        OBSERVATION_DIM, ACTION_DIM
    )
    swept = learner.Swept()
    for number in ("alpha", "bias", "bc_coefficient", "lam", "temperature"):
        if hasattr(swept, number):
            assert getattr(swept, number) == getattr(reference, number)
    if learner is cpl:
        config = cpl.Config()
        assert cpl.cloning_updates(config) == reference.clone_until
        assert config.warmup_share * config.num_updates == reference.rises_over
    assert reference.optimizer.param_groups[0]["lr"] == getattr(
        swept, "learning_rate", getattr(learner.Config(), "learning_rate", None)
    )
    state = learner.init(learner.Config(), jax.random.key(0), OBSERVATION_DIM, ACTION_DIM)
    for layer, leaf, other in by_layer(reference.actor, "data"):
        found = np.asarray(state.actor.params["params"][layer][leaf])
        assert found.shape == other.shape
        assert found.any() == other.any()
        if other.size > 200:
            assert found.std() == pytest.approx(other.std(), rel=0.2)
