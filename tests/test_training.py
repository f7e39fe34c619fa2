"""The loop's own business; `test_learners.py` tests what it makes of every learner."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest

from appo_jax import appo, iql, reward_model, training
from appo_jax.types import InputError, Store, View

CONFIG = iql.Config(hidden_layers=1, hidden_dim=8, batch_size=8)
ROWS = 40


def make_store() -> Store:
    return Store(
        observations=jax.random.normal(jax.random.key(0), (ROWS, 4)),
        actions=jax.random.uniform(jax.random.key(1), (ROWS, 2), minval=-1),
        terminations=jnp.zeros(ROWS, bool),
        transition_rows=jnp.arange(ROWS - 5),
        segment_rows=jnp.arange(ROWS - 5),
        rewards=jax.random.uniform(jax.random.key(2), (ROWS,)),
        pair_rows=jnp.zeros((0, 2), jnp.int32),
        pair_labels=jnp.zeros(0),
        segment_length=1,
    )


def make_view() -> View:
    return View(*(jnp.int32(number) for number in (0, ROWS - 5, 0, ROWS - 5, 0, 0, 0, 0)))


def make_state() -> iql.TrainState:
    return jax.jit(iql.init, static_argnums=(0, 2, 3))(CONFIG, jax.random.key(3), 4, 2)


def one_run(tree: Any) -> Any:
    return training.stack_runs([tree])


def chunk(state: iql.TrainState, key: jax.Array, num_updates: int) -> Any:
    return training.train_chunk(
        iql,
        CONFIG,
        num_updates,
        one_run(state),
        key[None],
        make_store(),
        (one_run(make_view()),),
    )


def test_training_one_run_is_a_chunk_of_one() -> None:
    key = jax.random.key(4)
    state, metrics = training.train(iql, CONFIG, 3, make_state(), key, make_store(), make_view())
    states, expected, broken = chunk(make_state(), key, 3)
    assert broken.tolist() == [-1]
    assert state.step == 3
    chex.assert_trees_all_equal(one_run((state, metrics)), (states, expected))


def test_a_run_that_goes_wrong_alone_is_an_error_that_names_what() -> None:
    state = make_state()
    state = state.replace(swept=state.swept.replace(discount=jnp.float32(jnp.inf)))
    with pytest.raises(FloatingPointError, match="^actor/advantage_mean is not finite within"):
        training.train(iql, CONFIG, 3, state, jax.random.key(4), make_store(), make_view())


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("jax_debug_nans", True), ("jax_debug_infs", True), ("jax_disable_jit", True)),
        *(("jax_enable_x64", True), ("jax_threefry_partitionable", False)),
        *(("jax_numpy_rank_promotion", "raise"), ("jax_numpy_dtype_promotion", "strict")),
        ("jax_random_seed_offset", 1),
    ],
)
def test_jax_set_to_other_numbers_is_refused(name: str, other: object) -> None:
    training.check_jax()
    before = jax.config.values[name]
    jax.config.update(name, other)
    try:
        with pytest.raises(InputError, match=f"^{name.upper()} is {other}, expected {before}"):
            training.check_jax()
    finally:
        jax.config.update(name, before)


def test_leaf_names_are_those_of_metrics_and_parameters() -> None:
    names = training.leaf_names({"critic/loss": jnp.zeros(1)}, make_state())
    assert names[0] == "critic/loss"
    assert "critics.params.params.hidden_0.kernel" in names
    assert "swept.discount" in names


def test_the_store_is_an_argument_and_no_constant_of_the_program() -> None:
    text = training.train_chunk.lower(
        iql,
        CONFIG,
        2,
        one_run(make_state()),
        jax.random.split(jax.random.key(4), 1),
        make_store(),
        (one_run(make_view()),),
    ).as_text()
    assert f"tensor<{ROWS}x4xf32>" in text
    assert not any("constant" in line and f"tensor<{ROWS}x" in line for line in text.splitlines())


def test_a_learner_without_a_horizon_can_always_be_extended() -> None:
    assert training.horizon(appo, appo.Config()) is None
    assert training.horizon(iql, iql.Config(num_updates=7)) == 7
    assert training.horizon(iql, iql.Config(actor_schedule="constant")) is None


def test_runs_are_worked_off_as_the_device_likes() -> None:
    on_cpu = jax.default_backend() == "cpu"
    assert training.choose_runs_axis() == ("map" if on_cpu else "vmap")
    assert training.choose_runs_axis("vmap") == "vmap"
    assert training.choose_runs_axis("map") == "map"


def test_a_whole_fit_is_as_many_updates_as_the_epochs_have() -> None:
    config = reward_model.Config(num_epochs=3, batch_size=4)
    # 10 pairs in batches of 4, 4 and 2; with 3 pairs one batch holds all.
    assert reward_model.num_updates(config, 10) == 9
    assert reward_model.num_updates(config, 3) == 3
