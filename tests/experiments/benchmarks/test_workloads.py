"""Workloads take turns, and the products that are timed are those of an update."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from appo_jax import bc, cpl, dppo, ipl, preference_transformer
from experiments.benchmarks import workloads


def test_workloads_take_turns_and_the_first_call_is_not_counted() -> None:
    calls: list[str] = []
    turns = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    seconds = workloads.interleave(turns, rounds=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert {name: len(found) for name, found in seconds.items()} == {"a": 2, "b": 2}


def test_matrix_products_of_an_update_by_hand() -> None:
    """Forward, weights and inner gradients of a network of widths m, 256, 256, 256, n."""
    inner = 2 * 256 * 256
    critic = 1312 * (3 * (inner + 256) + 2 * 43 * 256)
    others = (
        2 * 256 * (43 * 256 + inner + 256)  # target critics
        + 800 * (39 * 256 + inner + 256)  # V of the next states
        + 256 * (3 * (inner + 256) + 2 * 39 * 256)  # V
        + 256 * (3 * (inner + 256 * 8) + 2 * 39 * 256)  # actor
        + 256 * 2 * (43 * 256 + inner + 256)  # Q of the actor loss, to its input
    )
    products = workloads.matrix_products()
    assert sum(m * k * n for m, k, n in products) == 2 * critic + others
    assert sum(2 * m * k * n for m, k, n in products) == 3_127_410_688


def test_the_products_of_an_update_are_those_of_the_program() -> None:
    """What XLA counts of the update, elementwise work included, is little more."""
    store, view = workloads.random_store(1000)
    counted = workloads.lower_chunk(store, workloads.runs_of(view, 1), 1).cost_analysis()["flops"]
    assert 3.127e9 < counted < 1.1 * 3.127e9


def shapes(tree: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in jax.tree.leaves(tree)]


def test_pytorch_gets_batches_of_the_same_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from experiments.benchmarks import torch_direct, torch_ipl, torch_preference_transformer

    seen: list[Any] = []
    direct = torch_direct.BC, torch_direct.CPL, torch_direct.DPPO
    for owner in (torch_ipl.IPL, torch_preference_transformer.Learner, *direct):
        monkeypatch.setattr(owner, "update", lambda _, batch: seen.append(batch))
    store, view = workloads.random_store(1000)
    key, step = jax.random.key(0), jnp.int32(0)
    workloads.torch_ipl_workload(store, 1)()
    ours = jax.eval_shape(
        functools.partial(ipl.sample, workloads.IPL_CONFIG), key, step, store, view
    )
    assert shapes(seen[0].first)[1] == (*ours.segment_pairs.actions.shape[::2], 4)
    assert shapes(seen[0].second) == shapes(seen[0].first)
    assert shapes(seen[0].replay)[0] == ours.replay.observations.shape
    workloads.torch_transformer_workload(store, 1)()
    ours = jax.eval_shape(
        functools.partial(preference_transformer.sample, workloads.TRANSFORMER_CONFIG),
        *(key, step, store, view, workloads.labels_of(store)),
    )
    assert seen[1].actions.shape == ours.pairs.segments.actions.shape
    cases: list[tuple[Any, Any, Any]] = [
        (bc, workloads.torch_bc_workload, lambda b: (b.transitions.actions, b.weights)),
        (cpl, workloads.torch_cpl_workload, lambda b: (b.segment_pairs.actions, b.labels)),
        (dppo, workloads.torch_dppo_workload, lambda b: (b.actions, b.scores)),
    ]
    for learner, workload, actions_and_last in cases:
        workload(store, 1)()
        config = learner.Config()
        ours = jax.eval_shape(functools.partial(learner.sample, config), key, step, store, view)
        theirs = seen.pop()
        actions, last = actions_and_last(ours)
        assert shapes(theirs)[1:] == [actions.shape, last.shape]
        assert shapes(theirs)[0][:-1] == actions.shape[:-1]


@pytest.mark.slow
def test_the_products_of_a_transformers_gradient_are_those_of_the_program() -> None:
    num_pairs = 2
    config = preference_transformer.Config(held_out=0.0, batch_size=num_pairs)
    store, view = workloads.random_store(1000)
    pairs = jax.tree.map(lambda leaf: leaf[:num_pairs], workloads.labels_of(store))
    dims = workloads.OBSERVATION_DIM, workloads.ACTION_DIM
    state = preference_transformer.init(config, jax.random.key(0), *dims, num_pairs)
    batch = preference_transformer.sample(config, jax.random.key(0), state.step, store, view, pairs)
    update = preference_transformer.update_step.lower(config, state, batch)
    of_products = sum(2 * math.prod(one) for one in workloads.transformer_products(num_pairs))
    assert of_products < update.cost_analysis()["flops"] < 1.1 * of_products
