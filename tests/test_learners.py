"""What every learner keeps to. One joins by being registered.

Names of learners stand here only where their programs take too long to repeat a test in CI.

The store holds a stranger's data beside the runs' own, and everything of it, like the dummy action
behind an episode's last step, is NaN: whatever reads it shows.
"""

import dataclasses
import functools
import re
import types
from collections.abc import Collection
from typing import Any

import chex
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

from appo_jax import iql, registry, training, transformer
from appo_jax.settings import Field, fields, setting
from appo_jax.trainable import snapshot
from appo_jax.types import LabelledPairs, SegmentPairs, Store, View

OBSERVATION_DIM, ACTION_DIM, LENGTH, NUM_PAIRS = 4, 2, 3, 6
NUM_LABELS = 10  # of a reward learner; with one held out, no multiple of a batch
RUNS = 2
# Whatever of these a config has.
SMALL = {
    "hidden_layers": 1,
    "hidden_dim": 8,
    "ensemble_size": 2,
    "batch_size": 4,
    "num_pairs": 2,
    "segment_length": LENGTH,
    "num_epochs": 3,
    "num_heads": 2,
    "head_dim": 4,
    "num_updates": 50,
    "crop_rows": 2,
    "replay_batch": 4,
    "cloning_share": 0.02,  # one update: the next one begins the other phase
}
FOREIGN, STEPS, EPISODES = 10, 14, 2  # rows of the stranger; the runs' own episodes
ROWS = EPISODES * (STEPS + 1)


def distinct(learners: list[Any]) -> dict[str, Any]:
    return {learner.__name__.split(".")[-1]: learner for learner in learners if learner}


POLICY_LEARNERS = distinct([found.policy_learner for found in registry.ALGORITHMS.values()])
REWARD_LEARNERS = distinct([found.reward_learner for found in registry.ALGORITHMS.values()])
LEARNERS = POLICY_LEARNERS | REWARD_LEARNERS
JUDGES = [name for name, learner in LEARNERS.items() if hasattr(learner, "score")]


def for_each(slow: Collection[str] = ()) -> pytest.MarkDecorator:
    marked = [pytest.param(name, marks=[pytest.mark.slow] * (name in slow)) for name in LEARNERS]
    return pytest.mark.parametrize("name", marked)


for_each_learner = for_each()
# For tests of what no learner does itself; the others' programs take long to compile.
LARGE = ("ipl", "pvo", "preference_transformer", "preference_predictor")
for_each_small_learner = for_each(slow=LARGE)
# Most settings of these learners are read by the code of another.
LIKE = {"pvo": iql, "preference_predictor": transformer}
# A program of DPPO's predictor is that of Preference Transformer, but for its loss.
for_each_distinct_learner = for_each(slow=["preference_predictor"])
for_each_policy = pytest.mark.parametrize("name", POLICY_LEARNERS)
for_each_reward = pytest.mark.parametrize("name", REWARD_LEARNERS)


def small_config(learner: Any) -> Any:
    names = {field.name for field in fields(learner.Config)}
    return learner.Config(**{name: value for name, value in SMALL.items() if name in names})


def own_rows(steps: int) -> np.ndarray:
    """The rows that start so many steps inside one of the runs' own episodes."""
    starts = FOREIGN + (STEPS + 1) * np.arange(EPISODES)
    return (starts[:, None] + np.arange(STEPS - steps + 1)).ravel()


@functools.cache
def make_store() -> Store:
    draw = np.random.default_rng(0)

    def with_foreign(own: np.ndarray) -> jax.Array:
        return jnp.asarray(np.concatenate([np.full_like(own[:FOREIGN], np.nan), own]))

    actions = draw.uniform(-1, 1, (ROWS, ACTION_DIM)).astype(np.float32)
    actions[STEPS :: STEPS + 1] = np.nan
    foreign = np.arange(FOREIGN - LENGTH)
    return Store(
        observations=with_foreign(draw.standard_normal((ROWS, OBSERVATION_DIM), np.float32)),
        actions=with_foreign(actions),
        terminations=jnp.arange(FOREIGN + ROWS) % (STEPS + 1) == FOREIGN + STEPS - 16,
        transition_rows=jnp.int32(np.concatenate([foreign, own_rows(1)])),
        segment_rows=jnp.int32(np.concatenate([foreign, own_rows(LENGTH)])),
        rewards=with_foreign(draw.random(RUNS * ROWS, np.float32)),
        pair_rows=jnp.int32(np.concatenate([[[0, 1]], draw.choice(own_rows(LENGTH), (6, 2))])),
        pair_labels=jnp.array([jnp.nan, 0.0, 1.0, 0.5, 1.0, 0.0, 1.0]),
        segment_length=LENGTH,
    )


def make_view(run: int) -> View:
    numbers = {
        "first_transition": FOREIGN - LENGTH,
        "num_transitions": len(own_rows(1)),
        "first_segment": FOREIGN - LENGTH,
        "num_segments": len(own_rows(LENGTH)),
        "first_row": FOREIGN,
        "first_reward": FOREIGN + run * ROWS,
        "first_pair": 1,
        "num_pairs": NUM_PAIRS,
    }
    return View(**{name: jnp.int32(number) for name, number in numbers.items()})


def make_data(name: str, run: int) -> tuple[Any, ...]:
    """What `sample` gets of one run beside the store."""
    if name in POLICY_LEARNERS:
        return (make_view(run),)
    draw = np.random.default_rng(run)
    rows = draw.choice(own_rows(LENGTH), (NUM_LABELS, 2))
    labels = draw.integers(0, 2, NUM_LABELS)
    return make_view(run), LabelledPairs(jnp.int32(rows), jnp.float32(labels), LENGTH)


def init(name: str, config: Any, key: jax.Array, swept: dict[str, Any] | None = None) -> Any:
    learner = LEARNERS[name]
    if name in POLICY_LEARNERS:
        return learner.init(config, key, OBSERVATION_DIM, ACTION_DIM, **swept or {})
    return learner.init(config, key, OBSERVATION_DIM, ACTION_DIM, NUM_LABELS)


jitted_init = jax.jit(init, static_argnames=("name", "config"))


def swept_of(name: str, run: int) -> dict[str, jax.Array]:
    """Numbers that differ between the runs."""
    if name in REWARD_LEARNERS:
        return {}
    found = fields(LEARNERS[name].Swept)
    return {field.name: jnp.float32(field.default * (1 - run / 10)) for field in found}


def batch_key(run: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(4), run)


@functools.partial(jax.jit, static_argnames="name")
def sample(name: str, key: jax.Array, step: jax.Array, store: Store, data: Any) -> Any:
    return LEARNERS[name].sample(small_config(LEARNERS[name]), key, step, store, *data)


def start(name: str, runs: int, **swept: Any) -> tuple[Any, jax.Array, Any]:
    """States, keys and data of the first so many runs."""
    config = small_config(LEARNERS[name])
    states = [
        jitted_init(name, config, jax.random.key(run), swept_of(name, run) | swept)
        for run in range(runs)
    ]
    keys = jnp.stack([batch_key(run) for run in range(runs)])
    return training.stack_runs(states), keys, stack_data(name, runs)


def stack_data(name: str, runs: int) -> Any:
    return training.stack_runs([make_data(name, run) for run in range(runs)])


def chunk(
    name: str, states: Any, keys: jax.Array, data: Any, num_updates: int, runs_axis: Any
) -> Any:
    config = small_config(LEARNERS[name])
    return training.train_chunk(
        LEARNERS[name], config, num_updates, states, keys, make_store(), data, runs_axis
    )


@functools.cache
def trained(
    name: str, runs: int = 1, num_updates: int = 2, chunks: int = 1, runs_axis: str = "map"
) -> Any:
    """States and the last metrics, on the host."""
    states, keys, data = start(name, runs)
    for _ in range(chunks):
        states, metrics, broken = chunk(name, states, keys, data, num_updates, runs_axis)
        assert broken.tolist() == [-1] * runs
    return on_host(states), on_host(metrics)


def on_host(tree: Any) -> Any:
    """Copies as numpy arrays, keys as their data."""

    def copy(leaf: Any) -> np.ndarray:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.array(leaf)

    return jax.tree.map(copy, tree)


def one_row(tree: Any, run: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[run : run + 1], tree)


def floating(tree: Any) -> list[np.ndarray]:
    return [leaf for leaf in jax.tree.leaves(on_host(tree)) if leaf.dtype.kind == "f"]


def assert_close(first: Any, second: Any) -> None:
    # Adam's step hardly depends on the size of a gradient, so rounding may move a parameter by a
    # part of the learning rate, 1e-3 at most.
    chex.assert_trees_all_close(first, second, rtol=1e-3, atol=1e-4)


# Settings.


def another(field: Field, value: Any) -> Any:
    """Another value that the field allows."""
    if field.choices:
        return next(choice for choice in field.choices if choice != value)
    if field.type is bool:
        return not value
    if field.type is int:
        return (value or 0) + 1
    return value / 2 if value else 0.5


def live_program(name: str, learner: Any, config: Any) -> str:
    """All that a learner computes, without what no result depends on."""
    store, data = make_store(), make_data(name, 0)
    store = store.replace(segment_length=LENGTH + 1)  # nothing is run, and a config may have more

    def run(key: jax.Array) -> Any:
        state = init(name, config, key)
        batch = learner.sample(config, key, state.step, store, *data)
        after, metrics = learner.update_step(config, state, batch)
        if name in POLICY_LEARNERS:
            return after, metrics, learner.act(config, state, store.observations)
        return after, metrics, learner.relabel(config, state, store, *data[:1], ROWS)

    jaxpr = jax.make_jaxpr(run)(jax.random.key(0)).jaxpr
    live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    length = "" if name in POLICY_LEARNERS else learner.num_updates(config, NUM_LABELS)
    return f"{live} {length}"


def init_program(name: str, config: Any) -> str:
    jaxpr = jax.make_jaxpr(lambda key: init(name, config, key))(jax.random.key(0)).jaxpr
    return str(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0])


@functools.cache
def usual_init_program(name: str) -> str:
    return init_program(name, small_config(LEARNERS[name]))


@functools.cache
def usual_program(name: str) -> str:
    return live_program(name, LEARNERS[name], small_config(LEARNERS[name]))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        pytest.param(
            name,
            field,
            id=f"{name}-{field.name}",
            marks=[pytest.mark.slow] * (name in LIKE and field in fields(LIKE[name].Config)),
        )
        for name, learner in LEARNERS.items()
        for field in fields(learner.Config)
    ],
)
def test_every_config_field_acts(name: str, field: Field) -> None:
    config = small_config(LEARNERS[name])
    changed = {field.name: another(field, getattr(config, field.name))}
    config = dataclasses.replace(config, **changed)
    # Another state is another program, and much less to trace.
    assert init_program(name, config) != usual_init_program(name) or (
        live_program(name, LEARNERS[name], config) != usual_program(name)
    )


@for_each_learner
def test_every_config_field_is_a_setting_and_equal_configs_are_equal_programs(name: str) -> None:
    learner = LEARNERS[name]
    assert len(fields(learner.Config)) == len(dataclasses.fields(learner.Config))
    assert init_program(name, small_config(learner)) == usual_init_program(name)
    assert live_program(name, learner, small_config(learner)) == usual_program(name)


def test_a_dead_use_of_a_field_is_seen() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config(iql.Config):
        idle: float = setting(1.0, "nothing")

    def update_step(config: Any, state: Any, batch: Any) -> Any:
        _ = config.idle * jnp.sum(batch.rewards)
        return iql.update_step.__wrapped__(config, state, batch)

    learner = types.SimpleNamespace(**vars(iql) | {"update_step": update_step})
    one, two = (live_program("iql", learner, Config(idle=idle)) for idle in (1.0, 2.0))
    assert one == two


@pytest.mark.parametrize(
    ("name", "field"),
    [
        pytest.param(name, field, id=f"{name}-{field.name}")
        for name, learner in POLICY_LEARNERS.items()
        for field in fields(learner.Swept)
    ],
)
def test_every_swept_number_acts_without_another_trace(name: str, field: Field) -> None:
    before, metrics = trained(name)
    traces = training.train_chunk._cache_size()
    changed = {field.name: jnp.float32(another(field, field.default))}
    states, metrics_then, _ = chunk(name, *start(name, 1, **changed), 2, "map")
    assert training.train_chunk._cache_size() == traces
    after = states.replace(swept=before.swept)
    assert any(
        (one != two).any()
        for one, two in zip(
            floating((before, metrics)), floating((after, metrics_then)), strict=True
        )
    )


# The loop.


@for_each_small_learner
def test_chunks_and_a_restored_state_share_one_trace(name: str) -> None:
    states, keys, data = start(name, 1)
    states, _, _ = chunk(name, states, keys, data, 2, "map")
    traces = training.train_chunk._cache_size()
    states, _, _ = chunk(name, states, keys, data, 2, "map")
    saved = on_host(states)

    def restore(saved: np.ndarray, like: jax.Array) -> jax.Array:
        if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(saved))
        return jnp.asarray(saved)

    states = jax.tree.map(restore, saved, states)
    states, _, _ = chunk(name, states, keys, data, 2, "map")
    assert training.train_chunk._cache_size() == traces
    assert states.step.tolist() == [6]


@for_each_small_learner
def test_a_chunk_equals_single_updates(name: str) -> None:
    learner = LEARNERS[name]
    config = small_config(learner)
    state, store, data = one_state(name), make_store(), make_data(name, 0)
    losses = []
    for step in range(2):
        batch = sample(name, batch_key(0), jnp.int32(step), store, data)
        state, metrics = learner.update_step(config, state, batch)
        losses.append(on_host(metrics))
    states, means = trained(name)
    assert_close(on_host(state), jax.tree.map(lambda leaf: leaf[0], states))
    expected = jax.tree.map(lambda *each: np.mean(each), *losses)
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[0], means), expected, rtol=1e-3)


def one_state(name: str, run: int = 0) -> Any:
    config = small_config(LEARNERS[name])
    return jitted_init(name, config, jax.random.key(run), swept_of(name, run))


@for_each_small_learner
def test_a_caller_may_jit_vmap_and_scan(name: str) -> None:
    """Traced, not run: what comes out has to look like what `train_chunk` gives."""
    learner, store = LEARNERS[name], make_store()
    config = small_config(learner)

    @jax.jit
    @jax.vmap
    def train(key: jax.Array, swept: dict[str, jax.Array], batches: jax.Array, data: Any) -> Any:
        def body(state: Any, _: None) -> Any:
            batch = learner.sample(config, batches, state.step, store, *data)
            return learner.update_step(config, state, batch)

        return jax.lax.scan(body, init(name, config, key, swept), length=2)

    keys = jnp.stack([jax.random.key(run) for run in range(RUNS)])
    swept = training.stack_runs([swept_of(name, run) for run in range(RUNS)])
    batches = jnp.stack([batch_key(run) for run in range(RUNS)])
    states, metrics = jax.eval_shape(train, keys, swept, batches, stack_data(name, RUNS))
    expected = jax.eval_shape(lambda: start(name, RUNS)[0])
    chex.assert_trees_all_equal_shapes_and_dtypes(states, expected)
    assert {key: leaf.shape for key, leaf in metrics.items()} == dict.fromkeys(
        trained(name, RUNS)[1], (RUNS, 2)
    )


@for_each_distinct_learner
def test_parameters_do_not_depend_on_the_cut_into_chunks(name: str) -> None:
    whole, _ = trained(name, num_updates=2, chunks=2)
    single, _ = trained(name, num_updates=1, chunks=4)
    chex.assert_trees_all_equal(whole, single)


@for_each_distinct_learner
def test_under_map_a_run_is_bit_equal_to_itself_alone(name: str) -> None:
    together, alone = trained(name, RUNS), trained(name, 1)
    chex.assert_trees_all_equal(one_row(together, 0), alone)
    first, second = (floating(one_row(together, run)) for run in range(2))
    assert any((one != two).any() for one, two in zip(first, second, strict=True))


@pytest.mark.slow
@for_each_learner
def test_the_same_with_all_optimisations(name: str) -> None:
    assert not jax.config.values["jax_disable_most_optimizations"]
    test_parameters_do_not_depend_on_the_cut_into_chunks(name)
    test_under_map_a_run_is_bit_equal_to_itself_alone(name)


# Preference Transformer has a branch, of which vmap makes a choice.
@for_each(slow=set(LARGE) - {"preference_transformer"})
def test_vmap_agrees(name: str) -> None:
    assert_close(trained(name, RUNS, runs_axis="vmap"), trained(name, RUNS))


# The programs of large learners take long to compile, and the check is no learner's own.
@pytest.mark.parametrize("runs_axis", ["map", "vmap"])
@for_each_small_learner
def test_a_run_that_goes_wrong_keeps_its_last_good_state(name: str, runs_axis: Any) -> None:
    good, _ = trained(name, RUNS, runs_axis=runs_axis)
    states, keys, data = start(name, RUNS)
    states, _, _ = chunk(name, states, keys, data, 2, runs_axis)
    leaves, tree = jax.tree.flatten(states)
    places = [at for at, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert len(places) > 10
    twice = None
    for place in places:  # whatever it is that goes wrong: a parameter, a moment, a swept number
        wrong = [jnp.copy(leaf) for leaf in leaves]
        wrong[place] = wrong[place].at[(1, *[0] * (wrong[place].ndim - 1))].set(jnp.nan)
        before = on_host(jax.tree.unflatten(tree, wrong))
        after, metrics, broken = chunk(
            name, jax.tree.unflatten(tree, wrong), keys, data, 2, runs_axis
        )
        assert broken[0] == -1
        leaf_name = training.leaf_names(metrics, after)[broken[1]]
        if leaf_name in metrics:
            assert np.isfinite(metrics[leaf_name]).tolist() == [True, False]
        chex.assert_trees_all_equal(one_row(on_host(after), 1), one_row(before, 1))
        assert after.step.tolist() == [4, 2]
        twice = twice or one_row(on_host(after), 0)
        chex.assert_trees_all_equal(one_row(on_host(after), 0), twice)
    chex.assert_trees_all_equal(one_row(before, 0), one_row(good, 0))
    if runs_axis == "map":
        chex.assert_trees_all_equal(twice, one_row(trained(name, chunks=2)[0], 0))


@for_each_learner
def test_no_two_leaves_share_a_buffer(name: str) -> None:
    # Such a state couldn't be donated. In the program of `init` they would be one variable.
    config = small_config(LEARNERS[name])
    program = jax.make_jaxpr(lambda key: init(name, config, key))(jax.random.key(0))
    found = [out for out in program.jaxpr.outvars if not isinstance(out, jax.extend.core.Literal)]
    assert len(found) > 10
    assert len({id(out) for out in found}) == len(found)


@for_each_learner
def test_a_batch_follows_from_key_and_step(name: str) -> None:
    store, data = make_store(), make_data(name, 0)
    first, again, next_step, other_key = (
        on_host(sample(name, batch_key(run), jnp.int32(step), store, data))
        for run, step in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    chex.assert_trees_all_equal(first, again)
    for other in (next_step, other_key):
        assert any(
            (one != two).any() for one, two in zip(floating(first), floating(other), strict=True)
        )
    assert all(np.isfinite(leaf).all() for leaf in floating(first))


# What is made with a learner.


@for_each_policy
def test_act_reads_the_actor_alone_and_stays_in_the_unit_box(name: str) -> None:
    learner = LEARNERS[name]
    config = small_config(learner)
    state = one_state(name)
    # Beside usual observations some far away, where actions are at their bounds.
    observations = jax.random.normal(jax.random.key(3), (7, 2, OBSERVATION_DIM))
    observations = observations * jnp.array([1.0, 1e6])[:, None]
    actions = learner.act(config, state, observations)
    assert actions.shape == (7, 2, ACTION_DIM)
    assert np.abs(actions).max() <= 1
    assert np.abs(actions[:, 1]).max() > 0.99
    np.testing.assert_allclose(
        learner.act(config, state, observations[3, 0]), actions[3, 0], rtol=1e-5, atol=1e-6
    )
    small = snapshot(state)
    np.testing.assert_array_equal(learner.act(config, small, observations), actions)
    assert len(jax.tree.leaves(small)) == len(jax.tree.leaves(state.actor.params))


@for_each_reward
def test_rewards_are_the_runs_own(name: str) -> None:
    learner = LEARNERS[name]
    config = small_config(learner)
    store = make_store()
    rows = [(one_state(name, run), make_view(run)) for run in range(RUNS)]
    found = {}
    for runs, runs_axis in ((RUNS, "map"), (1, "map"), (RUNS, "vmap")):
        states, views = training.stack_runs(rows[:runs])
        rewards = training.relabel(learner, config, states, store, views, ROWS, runs_axis)
        found[runs, runs_axis] = np.asarray(rewards)
    together = found[RUNS, "map"]
    assert together.shape == (RUNS, ROWS)
    np.testing.assert_array_equal(together[:1], found[1, "map"])
    np.testing.assert_allclose(found[RUNS, "vmap"], together, atol=1e-5)
    starts = own_rows(1) - FOREIGN
    assert np.isfinite(together).all()
    assert together[:, starts].std(axis=1).min() > 0
    assert not np.delete(together, starts, axis=1).any()


def segments_of(is_step: jax.Array | None = None) -> SegmentPairs:
    return SegmentPairs(
        observations=jax.random.normal(jax.random.key(5), (5, 2, LENGTH + 1, OBSERVATION_DIM)),
        actions=jnp.zeros((5, 2, LENGTH, ACTION_DIM)),
        rewards=jnp.full((5, 2, LENGTH), jnp.nan),
        terminations=jnp.zeros((5, 2, LENGTH), bool),
        is_step=is_step,
    )


@pytest.mark.parametrize("name", JUDGES)
def test_score_tells_what_labels_compare(name: str) -> None:
    score = jax.jit(functools.partial(LEARNERS[name].score, small_config(LEARNERS[name])))
    segments = segments_of()
    scores = np.asarray(score(one_state(name), segments))
    assert scores.shape == (5, 2)
    assert np.isfinite(scores).all()
    swapped = jax.tree.map(lambda leaf: leaf[:, ::-1], segments)
    np.testing.assert_allclose(
        score(one_state(name), swapped), scores[:, ::-1], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", [name for name in JUDGES if name in POLICY_LEARNERS])
def test_the_score_of_a_policy_learner_is_the_return_that_q_and_v_imply(name: str) -> None:
    learner = LEARNERS[name]
    config, state = small_config(learner), one_state(name)
    state = state.replace(swept=state.swept.replace(discount=jnp.float32(0.9)))
    params = jax.tree.map(jnp.zeros_like, (state.critics.params, state.value.params))
    for found, bias in zip(params, ([[5.0], [7.0]], [2.0]), strict=True):
        found["params"]["output"]["bias"] = jnp.array(bias)  # Q is 5 and 7, in the mean 6, V is 2
    state = state.replace(
        critics=state.critics.replace(params=params[0]), value=state.value.replace(params=params[1])
    )
    segments = segments_of(jnp.arange(LENGTH) < jnp.array([[2, LENGTH]] * 5)[..., None])
    found = learner.score(config, state, segments)
    np.testing.assert_allclose(found, [[2 * (6 - 0.9 * 2), 3 * (6 - 0.9 * 2)]] * 5, rtol=1e-5)
    # A last step that ends in a terminal state is followed by nothing, where ends are followed.
    ending = segments.replace(terminations=segments.terminations.at[:, 1, -1].set(True))
    follows = getattr(config, "follow_terminations", True)
    expected = 3 * 6 - (2 if follows else 3) * 0.9 * 2
    np.testing.assert_allclose(learner.score(config, state, ending)[:, 1], expected, rtol=1e-5)


# Other devices. To lower a program for a device doesn't need one.

PLATFORMS = ("cuda", "tpu")


def custom_calls(text: str) -> set[str]:
    """What a program asks of the platform's libraries, which may lack it or be slow at it."""
    found = set(re.findall(r"custom_call\s*@(\w+)", text))
    return found | set(re.findall(r'call_target_name\s*=\s*"(\w+)"', text))


@pytest.mark.parametrize("runs_axis", ["vmap", pytest.param("map", marks=pytest.mark.slow)])
@for_each_learner
def test_training_lowers_for_other_devices(name: str, runs_axis: Any) -> None:
    states, keys, data = start(name, RUNS)
    config = small_config(LEARNERS[name])
    traced = training.train_chunk.trace(
        LEARNERS[name], config, 2, states, keys, make_store(), data, runs_axis
    )
    for platform in PLATFORMS:
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.dot_general" in text
        assert not custom_calls(text)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_custom_call_is_seen(platform: str) -> None:
    traced = jax.jit(jnp.linalg.qr).trace(jnp.eye(3))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert custom_calls(text)
