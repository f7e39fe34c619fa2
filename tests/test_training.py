"""The loops: chunks, the runs axis, keys, traces."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import appo, registry, reward_model, training
from appo_jax.types import InputError, LabelledPairs, Store, View

CONFIG = appo.Config(hidden_layers=1, hidden_dim=8, batch_size=8, num_pairs=2, segment_length=3)
ROWS = 40
LAMS = (0.03, 0.1, 1.0)


def make_store() -> Store:
    return Store(
        observations=jax.random.normal(jax.random.key(0), (ROWS, 4)),
        actions=jax.random.uniform(jax.random.key(1), (ROWS, 2), minval=-1),
        terminations=jnp.zeros(ROWS, bool),
        transition_rows=jnp.arange(ROWS - 5),
        segment_rows=jnp.arange(ROWS - 5),
        rewards=jax.random.uniform(jax.random.key(2), (len(LAMS) * ROWS,)),
    )


def make_views(runs: int) -> View:
    numbers = [jnp.full(runs, number, jnp.int32) for number in (0, ROWS - 5, 0, ROWS - 5, 0)]
    return View(*numbers, first_reward=ROWS * jnp.arange(runs, dtype=jnp.int32))


def make_states(runs: int = len(LAMS)) -> tuple[appo.TrainState, jax.Array]:
    states = [
        appo.init(CONFIG, jax.random.fold_in(jax.random.key(3), run), 4, 2, lam=LAMS[run])
        for run in range(runs)
    ]
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(4), jnp.arange(runs))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), keys


def train(num_updates: int, runs: int = 1, batch_runs: str = "map", chunks: int = 1) -> Any:
    (states, keys), metrics = make_states(runs), None
    for _ in range(chunks):
        states, metrics, _ = training.train_chunk(
            appo,
            CONFIG,
            num_updates,
            states,
            keys,
            make_store(),
            make_views(runs),
            batch_runs=batch_runs,
        )
    return states, metrics


def assert_equal(first: Any, second: Any) -> None:
    def compare(a: jax.Array, b: jax.Array) -> None:
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)

    jax.tree.map(compare, first, second)


def row(tree: Any, run: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[run : run + 1], tree)


def test_a_chunk_equals_single_updates() -> None:
    states, keys = make_states(1)
    state, store, view = (
        jax.tree.map(lambda leaf: leaf[0], tree)
        for tree in (states, {"s": make_store()}, make_views(1))
    )
    store = make_store()
    losses = []
    for step in range(6):
        batch = appo.sample(CONFIG, jax.random.fold_in(keys[0], step), store, view)
        state, metrics = appo.update_step(CONFIG, state, batch)
        losses.append(float(metrics["critic/loss"]))
    chunk, metrics = train(6)
    assert chunk.step.tolist() == [6]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-5, atol=1e-6),
        (state.actor_params, state.critic_params, state.value_params),
        (chunk.actor_params, chunk.critic_params, chunk.value_params),
    )
    np.testing.assert_allclose(metrics["critic/loss"], [np.mean(losses)], rtol=1e-5)


def test_parameters_do_not_depend_on_the_cut_into_chunks() -> None:
    whole = train(6)[0]
    assert_equal(whole, train(2, chunks=3)[0])
    assert_equal(whole, train(1, chunks=6)[0])


def test_under_map_a_run_is_bit_equal_to_itself_alone() -> None:
    together, metrics = train(6, runs=3)
    alone, alone_metrics = train(6, runs=1)
    assert_equal(row(together, 0), alone)
    assert_equal(row(metrics, 0), alone_metrics)
    assert not np.array_equal(metrics["critic/loss"][0], metrics["critic/loss"][1])


@pytest.mark.parametrize("batch_runs", ["map", "vmap"])
@pytest.mark.parametrize("broken", ["lambda", "parameter"])
def test_a_run_that_goes_wrong_keeps_its_last_good_state(batch_runs: Any, broken: str) -> None:
    def train(states: Any, keys: Any, runs: int) -> Any:
        return training.train_chunk(
            appo, CONFIG, 4, states, keys, make_store(), make_views(runs), batch_runs
        )

    states, keys = make_states(2)
    states, _, wrong = train(states, keys, 2)
    assert wrong.tolist() == [-1, -1]
    if broken == "lambda":
        states = states.replace(lam=states.lam.at[1].set(jnp.inf))
    else:  # in a target critic, which the critics' loss doesn't read
        key = "hidden_0"
        params = jax.tree.map(jnp.copy, states.target_critic_params)
        bias = params["params"][key]["bias"]
        params["params"][key]["bias"] = bias.at[1, 0, 3].set(-jnp.inf)
        states = states.replace(target_critic_params=params)
    before = jax.tree.map(np.array, states.replace(key=jax.random.key_data(states.key)))
    for _ in range(2):
        states, metrics, wrong = train(states, keys, 2)
        assert wrong[0] == -1
        name = training.leaf_names(metrics, states)[wrong[1]]
        assert not np.isfinite(metrics[name][1] if name in metrics else np.nan)
        assert states.step.tolist()[1] == 4
        after = states.replace(key=jax.random.key_data(states.key))
        assert_equal(row(after, 1), row(before, 1))
    assert states.step.tolist() == [12, 4]
    first, keys = make_states(2)
    for _ in range(3):
        first, _, _ = train(first, keys, 2)
    assert_equal(row(states, 0), row(first, 0))


def test_leaf_names_are_those_of_metrics_and_parameters() -> None:
    names = training.leaf_names({"critic/loss": jnp.zeros(1)}, make_states(1)[0])
    assert names[0] == "critic/loss"
    assert "critic_params.params.hidden_0.kernel" in names
    assert "log_temperature" in names


def test_vmap_and_map_agree() -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        train(6, runs=3, batch_runs="vmap")[1],
        train(6, runs=3)[1],
    )


def test_chunks_and_lambdas_share_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    original = appo.sample

    def counting(*arguments: Any) -> Any:
        traces.append(1)
        return original(*arguments)

    monkeypatch.setattr(appo, "sample", counting)
    states, keys = make_states(1)
    store, views = make_store(), make_views(1)
    states, _, _ = training.train_chunk(appo, CONFIG, 5, states, keys, store, views)
    once = len(traces)
    assert once > 0
    for lam in (0.5, 2.0):
        # A restored state: new arrays of the same shapes.
        states = jax.tree.map(jnp.copy, states).replace(lam=jnp.full(1, lam, jnp.float32))
        states, _, _ = training.train_chunk(appo, CONFIG, 5, states, keys, store, views)
    assert len(traces) == once


def test_the_store_is_an_argument_and_no_constant_of_the_program() -> None:
    states, keys = make_states(1)
    text = training.train_chunk.lower(
        appo, CONFIG, 2, states, keys, make_store(), make_views(1)
    ).as_text()
    assert f"tensor<{ROWS}x4xf32>" in text
    assert not any("constant" in line and f"tensor<{ROWS}x" in line for line in text.splitlines())


def test_reward_models_fit_beside_each_other_as_alone() -> None:
    config = reward_model.Config(hidden_dim=8, num_epochs=3, batch_size=4)
    keys = [jax.random.key(run) for run in range(2)]
    states = [reward_model.init(config, key, 4, 2, 6) for key in keys]
    pairs = [
        LabelledPairs(
            jax.random.randint(key, (6, 2), 0, ROWS - 5), jnp.float32(jnp.arange(6) % 2), length=3
        )
        for key in keys
    ]

    def fit(runs: list[int]) -> Any:
        stack = [
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *[trees[run] for run in runs])
            for trees in (states, pairs)
        ]
        fitted, _ = training.fit_reward(reward_model, config, stack[0], make_store(), stack[1])
        views = make_views(len(runs))
        return fitted, training.relabel(reward_model, config, fitted, make_store(), views, ROWS)

    together, alone = fit([0, 1]), fit([1])
    assert_equal(row(together[0], 1), alone[0])
    np.testing.assert_array_equal(together[1][1], alone[1][0])


def test_registry() -> None:
    assert registry.algorithm("appo").policy_learner is appo
    with pytest.raises(InputError, match="'appoo': expected one of appo"):
        registry.algorithm("appoo")
