"""What is drawn from a store, and the arrays that are gathered."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import appo, bc, dppo, pvo
from appo_jax.data import dataset as datasets
from appo_jax.data import sampling
from appo_jax.data.dataset import Dataset
from appo_jax.types import InputError, LabelledPairs, Store, View

Make = Callable[..., Dataset]
jitted_draw_partial = jax.jit(sampling.draw_partial_segments, static_argnums=(3, 4))
jitted_gather_pairs = jax.jit(sampling.gather_segment_pairs, static_argnums=3)


def on_device(dataset: Dataset, segment_length: int) -> tuple[Store, View]:
    """As `to_device`, with observations left as they are so that they show their row."""
    store, view = datasets.to_device(dataset, segment_length)
    return store.replace(observations=jnp.asarray(dataset.observations)), view


def test_gathered_transitions(numbered: Make) -> None:
    store, view = on_device(numbered(), 2)
    rows = jnp.array([0, 2, 4, 6])
    transitions = sampling.gather_transitions(store, view, rows)
    np.testing.assert_array_equal(transitions.observations[:, 0], rows)
    np.testing.assert_array_equal(transitions.actions[:, 0], rows + 0.25)


def test_gathered_segment_pairs(numbered: Make) -> None:
    dataset = numbered()  # episodes start at rows 0, 4, 6 and 14
    store, view = on_device(dataset, 3)
    rows = jnp.array([[0, 6], [10, 15]])
    pairs = jitted_gather_pairs(store, view, rows, 3)
    assert pairs.observations.shape == (2, 2, 4, 2)
    assert pairs.actions.shape == (2, 2, 3, 1)
    steps = np.asarray(rows)[..., None] + np.arange(3)
    np.testing.assert_array_equal(pairs.observations[..., :3, 0], steps)
    np.testing.assert_array_equal(pairs.observations[..., 3, 0], rows + 3)
    np.testing.assert_array_equal(pairs.actions[..., 0], steps + 0.25)
    np.testing.assert_array_equal(pairs.rewards, steps + 0.5)
    # Rows 2 and 12 are the last steps of the first and the third episode.
    expected = [[[0, 0, 1], [0, 0, 0]], [[0, 0, 1], [0, 0, 0]]]
    np.testing.assert_array_equal(pairs.terminations, expected)


def test_labelled_pairs_end_where_their_segments_do(numbered: Make) -> None:
    store, view = on_device(numbered(), 3)
    pairs = LabelledPairs(jnp.array([[0, 6]]), jnp.array([1.0]), 3, jnp.array([[2, 3]]))
    found = sampling.gather_labelled_pairs(store, view, pairs)
    np.testing.assert_array_equal(found.is_step, [[[1, 1, 0], [1, 1, 1]]])
    np.testing.assert_array_equal(found.actions[..., 0], [[[0.25, 1.25, 0.25], [6.25, 7.25, 8.25]]])
    whole = sampling.gather_labelled_pairs(store, view, pairs.replace(lengths=None))
    assert whole.is_step is None
    np.testing.assert_array_equal(whole.actions[0, 0, :, 0], [0.25, 1.25, 2.25])


def test_longer_segments_than_the_stores_are_refused(numbered: Make) -> None:
    store, view = datasets.to_device(numbered((60, 60)), 8)
    rows = jnp.array([[0, 52]])  # 52 is the last start of 8 steps, and not one of 25
    sampling.gather_segment_pairs(store, view, rows, 7)
    for length in (9, 25):
        with pytest.raises(
            InputError, match=f"segments of {length} steps asked of a store whose .* have 8, expec"
        ):
            sampling.gather_segment_pairs(store, view, rows, length)
    for learner in (appo, bc, dppo):
        with pytest.raises(InputError, match="segments of 25 steps asked of a store"):
            learner.sample(learner.Config(), jax.random.key(0), jnp.int32(0), store, view)
    pairs = LabelledPairs(rows, jnp.ones(1), length=9)
    with pytest.raises(InputError, match="pairs of segments of 9 steps for a store .* have 8"):
        datasets.with_pairs(store, [view], [pairs])
    pairs = LabelledPairs(rows, jnp.ones(1), 8, jnp.array([[8, 3]]))
    with pytest.raises(InputError, match="of 8 steps or fewer for a store .* have 8, expected the"):
        datasets.with_pairs(store, [view], [pairs])


def test_segment_pairs_have_the_rewards_of_the_view(numbered: Make) -> None:
    store, view = on_device(numbered(), 2)
    store = store.replace(rewards=jnp.concatenate([store.rewards, -store.rewards]))
    view = view.replace(first_reward=jnp.int32(len(store.actions)))
    pairs = jitted_gather_pairs(store, view, jnp.array([[6, 8]]), 2)
    np.testing.assert_array_equal(pairs.rewards, [[[-6.5, -7.5], [-8.5, -9.5]]])


def assert_uniform(found: jax.Array, expected: np.ndarray) -> None:
    rows, counts = np.unique(found, return_counts=True)
    np.testing.assert_array_equal(rows, expected)  # each is drawn, the last too, and no other
    share = 1 / len(expected)
    deviation = np.sqrt(found.size * share * (1 - share))
    assert np.abs(counts - found.size * share).max() < 5 * deviation


def test_draws_are_uniform_over_all_starts(numbered: Make) -> None:
    dataset = numbered()
    store, view = on_device(dataset, 3)
    key = jax.random.key(0)
    transitions = sampling.draw_transition_rows(key, store, view, 20_000)
    assert transitions.shape == (20_000,)
    assert_uniform(transitions, dataset.transition_rows())
    segments = sampling.draw_segment_rows(key, store, view, (10_000, 2))
    assert segments.shape == (10_000, 2)
    assert_uniform(segments, dataset.segment_rows(3))
    other = sampling.draw_transition_rows(jax.random.key(1), store, view, 20_000)
    assert np.any(np.asarray(other) != np.asarray(transitions))


def test_partial_segments_begin_anywhere_and_end_with_their_episode(numbered: Make) -> None:
    dataset = numbered((3, 1, 5))  # rows 0 to 2, 4, and 6 to 10 start transitions
    store, views = datasets.to_device_together([dataset, numbered((2, 4))], 3)
    store = store.replace(observations=jnp.arange(20.0)[:, None])
    rows, is_step = jitted_draw_partial(jax.random.key(0), store, views[0], (5000, 2), 3)
    assert_uniform(rows, dataset.transition_rows())
    steps_left = {0: 3, 1: 2, 2: 1, 4: 1, 6: 3, 7: 3, 8: 3, 9: 2, 10: 1}
    left = np.vectorize(steps_left.get)(rows)
    np.testing.assert_array_equal(is_step, np.arange(3) < left[..., None])
    pairs = jitted_gather_pairs(store, views[0], rows, 3, is_step)
    rows = np.asarray(rows)
    expected = np.where(is_step, rows[..., None] + np.arange(3), rows[..., None])
    observed = np.asarray(pairs.observations)
    np.testing.assert_array_equal(observed[:, :, 1:, 0], expected + 1)
    np.testing.assert_array_equal(observed[:, :, 0, 0], rows)
    np.testing.assert_array_equal(pairs.is_step, is_step)
    # The store's last transitions, behind which there is no row.
    rows, is_step = jitted_draw_partial(jax.random.key(0), store, views[1], (500,), 3)
    left = np.asarray(is_step).sum(-1)
    assert set(zip(np.asarray(rows).tolist(), left.tolist(), strict=True)) == {
        *((12, 2), (13, 1), (15, 3), (16, 3), (17, 2), (18, 1))
    }


def test_partial_segments_at_the_end_of_a_store(numbered: Make) -> None:
    """The last transition, of row 22, comes twice where segments of row 19 ask for it."""
    store, view = on_device(numbered((10, 10, 1)), 5)
    rows, is_step = jitted_draw_partial(jax.random.key(0), store, view, (500,), 5)
    rows = np.asarray(rows)
    left = np.where(rows < 10, 10 - rows, np.where(rows < 21, 21 - rows, 1))
    assert {19, 20, 22} < set(rows.tolist())
    np.testing.assert_array_equal(is_step, np.arange(5) < left[:, None])


@pytest.mark.parametrize("learner", [appo, pvo])
def test_only_partial_segments_reach_short_episodes(numbered: Make, learner: Any) -> None:
    store, view = on_device(numbered((4, 2)), 3)  # rows 5 and 6 are shorter than a segment
    config = learner.Config(batch_size=2, num_pairs=200, segment_length=3)
    reached = {}
    for partial in (False, True):
        config = dataclasses.replace(config, partial_segments=partial)
        sample = jax.jit(learner.sample, static_argnums=0)
        pairs = sample(config, jax.random.key(0), jnp.int32(0), store, view).segment_pairs
        assert (pairs.is_step is not None) == partial
        reached[partial] = set(np.unique(np.asarray(pairs.observations)[:, :, 0, 0]).astype(int))
    assert reached == {False: {0, 1}, True: {0, 1, 2, 3, 5, 6}}


def test_a_view_of_a_shared_store_draws_its_own_rows(numbered: Make) -> None:
    first = numbered((3, 5))
    second = numbered((4, 2, 6), first_row=len(first.rewards))
    rows = len(first.rewards)
    store, views = datasets.to_device_together([first, second], 3)
    plain = np.concatenate([first.observations, second.observations])
    normalised = [dataset.normaliser()(dataset.observations) for dataset in (first, second)]
    np.testing.assert_array_equal(store.observations, np.concatenate(normalised))
    store = store.replace(observations=jnp.asarray(plain))
    views = jax.tree.map(lambda *leaves: jnp.stack(leaves), *views)

    def draw(view: View) -> tuple[jax.Array, jax.Array]:
        key = jax.random.key(0)
        return (
            sampling.draw_transition_rows(key, store, view, 5000),
            sampling.draw_segment_rows(key, store, view, (5000,)),
        )

    transitions, segments = jax.vmap(draw)(views)
    assert_uniform(transitions[0], first.transition_rows())
    assert_uniform(transitions[1], second.transition_rows() + rows)
    assert_uniform(segments[0], first.segment_rows(3))
    assert_uniform(segments[1], second.segment_rows(3) + rows)
    view = jax.tree.map(lambda leaf: leaf[1], views)
    observed = sampling.gather_transitions(store, view, transitions[1]).observations[:, 0]
    np.testing.assert_array_equal(observed, transitions[1])
    pairs = jitted_gather_pairs(
        store.replace(rewards=jnp.arange(100.0)),
        jax.tree.map(lambda leaf: leaf[1], views).replace(first_reward=jnp.int32(50)),
        jnp.array([[rows, rows + 8]]),
        3,
    )
    np.testing.assert_array_equal(pairs.rewards, [[[50, 51, 52], [58, 59, 60]]])


def test_an_epochs_batches_are_a_permutation() -> None:
    draw = jax.jit(
        lambda key, batch: sampling.draw_batch_of_epoch(key, batch, num_pairs=7, batch_size=3)
    )
    orders = []
    for seed in range(2):
        drawn = [draw(jax.random.key(seed), jnp.int32(batch)) for batch in range(3)]
        assert [weights.tolist() for _, weights in drawn] == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
        order = np.concatenate([indices[weights > 0] for indices, weights in drawn])
        assert sorted(order) == list(range(7))
        orders.append(order.tolist())
    assert orders[0] != orders[1]
    assert sampling.batches_of_epoch(7, 3) == 3
    assert sampling.batches_of_epoch(6, 3) == 2


def test_shifted_segments_stay_in_their_episode(numbered: Make) -> None:
    # Segments of 2 start at rows 0, 1 (first episode), 6 to 11 (third), 14 to 16 (last).
    store, _ = on_device(numbered(), 2)
    rows = jnp.array([0, 1, 0, 1, 8, 8, 8, 8, 14, 16])
    shifts = jnp.array([1, 1, -1, -5, 0, 2, -2, 40, -9, 1])
    found = sampling.shift_segment_rows(store, rows, shifts)
    assert found.tolist() == [1, 1, 0, 0, 8, 10, 6, 11, 14, 16]
    # With its episode's last row a label's segment starts no segment: rows 2, 12 and 17.
    behind = jnp.array([2, 12, 17])
    assert sampling.shift_segment_rows(store, behind, jnp.array([-1, 1, 0])).tolist() == [2, 12, 17]


def test_rows_that_start_a_transition(numbered: Make) -> None:
    store, _ = on_device(numbered(), 2)
    found = sampling.start_transitions(store, jnp.arange(21).reshape(3, 7))
    last = [3, 5, 13, 18]  # of each episode; rows 19 and 20 don't exist
    assert found.ravel().tolist() == [row < 19 and row not in last for row in range(21)]
