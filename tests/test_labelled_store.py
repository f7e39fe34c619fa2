"""Labelled pairs in the store, and whole transitions: rows carry their own number."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import appo
from appo_jax.data import dataset, sampling
from appo_jax.types import LabelledPairs

LENGTH = 2
jitted_sample = jax.jit(appo.sample, static_argnums=0)


def pairs_at(rows: list[list[int]], labels: list[float]) -> LabelledPairs:
    return LabelledPairs(jnp.array(rows, jnp.int32), jnp.array(labels, jnp.float32), LENGTH)


# A label tells its pair: 1/100 of the first row.
FIRST = pairs_at([[1, 0], [6, 7], [8, 15]], [0.01, 0.06, 0.08])
SECOND = pairs_at([[20, 28], [26, 34]], [0.20, 0.26])


@pytest.fixture
def two_sets(numbered: Callable[..., dataset.Dataset]) -> list[dataset.Dataset]:
    """Rows 0 to 18 and 19 to 37 of one store."""
    first = numbered()
    return [first, numbered(id="tiny/other-v0", first_row=len(first.observations))]


def test_each_view_has_its_own_pairs(two_sets: list[dataset.Dataset]) -> None:
    store, views = dataset.to_device_together(two_sets, LENGTH)
    assert store.pair_rows.shape == (0, 2)
    assert store.pair_labels.shape == (0,)
    assert [int(view.num_pairs) for view in views] == [0, 0]
    full, with_own = dataset.with_pairs(store, views, [FIRST, SECOND])
    np.testing.assert_array_equal(full.pair_rows, [*FIRST.rows, *SECOND.rows])
    np.testing.assert_array_equal(full.pair_labels, [*FIRST.labels, *SECOND.labels])
    assert [int(view.first_pair) for view in with_own] == [0, 3]
    assert [int(view.num_pairs) for view in with_own] == [3, 2]
    # The rest stays: of the views, and of the store.
    for before, after in zip(views, with_own, strict=True):
        assert before == after.replace(first_pair=before.first_pair, num_pairs=before.num_pairs)
    assert full.replace(pair_rows=store.pair_rows, pair_labels=store.pair_labels) == store


def test_pairs_that_several_views_share_lie_in_the_store_once(
    two_sets: list[dataset.Dataset],
) -> None:
    store, (one, other) = dataset.to_device_together(two_sets, LENGTH)
    equal = pairs_at(FIRST.rows.tolist(), FIRST.labels.tolist())  # but not the same object
    full, views = dataset.with_pairs(store, [one, other, one, one], [FIRST, SECOND, FIRST, equal])
    assert len(full.pair_labels) == 3 + 2 + 3
    assert [int(view.first_pair) for view in views] == [0, 3, 0, 5]
    assert [int(view.num_pairs) for view in views] == [3, 2, 3, 3]


def test_pairs_are_replaced_and_not_added_to(two_sets: list[dataset.Dataset]) -> None:
    store, views = dataset.to_device_together(two_sets, LENGTH)
    store, views = dataset.with_pairs(store, views, [FIRST, FIRST])
    store, views = dataset.with_pairs(store, views, [SECOND, SECOND])
    np.testing.assert_array_equal(store.pair_labels, SECOND.labels)
    assert [int(view.first_pair) for view in views] == [0, 0]


def test_every_view_needs_pairs(two_sets: list[dataset.Dataset]) -> None:
    store, views = dataset.to_device_together(two_sets, LENGTH)
    with pytest.raises(ValueError, match="shorter"):
        dataset.with_pairs(store, views, [FIRST])


def test_drawn_pairs_are_the_views_own_with_their_labels(
    two_sets: list[dataset.Dataset],
) -> None:
    store, views = dataset.to_device_together(two_sets, LENGTH)
    store, views = dataset.with_pairs(store, views, [FIRST, SECOND])
    draw = jax.jit(sampling.draw_labelled_pairs, static_argnums=3)
    for view, own in zip(views, (FIRST, SECOND), strict=True):
        rows, labels = map(np.asarray, draw(jax.random.key(0), store, view, 3000))
        assert rows.shape == (3000, 2)
        assert labels.shape == (3000,)
        np.testing.assert_allclose(labels, rows[:, 0] / 100, rtol=1e-6)
        partner = dict(np.asarray(own.rows).tolist())
        np.testing.assert_array_equal(rows[:, 1], [partner[row] for row in rows[:, 0].tolist()])
        counts = [np.mean(rows[:, 0] == row) for row in partner]
        # Uniform: each within five standard deviations, 5 sqrt(p (1 - p) / 3000) < 0.046.
        np.testing.assert_allclose(counts, 1 / len(own.labels), atol=0.046)
        again, _ = draw(jax.random.key(0), store, view, 3000)
        np.testing.assert_array_equal(again, rows)
        other, _ = draw(jax.random.key(1), store, view, 3000)
        assert (np.asarray(other) != rows).any()


def test_a_segment_of_a_drawn_pair_has_its_rows(two_sets: list[dataset.Dataset]) -> None:
    store, views = dataset.to_device_together(two_sets, LENGTH)
    store, (_, view) = dataset.with_pairs(store, views, [FIRST, SECOND])
    rows, _ = sampling.draw_labelled_pairs(jax.random.key(0), store, view, 8)
    segments = sampling.gather_segment_pairs(store, view, rows, LENGTH)
    # `numbered`: the action of row i is i + 1/4, its reward i + 1/2.
    steps = np.asarray(rows)[..., None] + np.arange(LENGTH)
    np.testing.assert_array_equal(segments.actions[..., 0], steps + 0.25)
    np.testing.assert_array_equal(segments.rewards, steps + 0.5)


def test_appo_may_compare_the_labelled_pairs(two_sets: list[dataset.Dataset]) -> None:
    store, views = dataset.to_device_together(two_sets, LENGTH)
    store, (_, view) = dataset.with_pairs(store, views, [FIRST, SECOND])
    config = appo.Config(batch_size=1, num_pairs=50, segment_length=LENGTH, labelled_pairs=True)
    pairs = jitted_sample(config, jax.random.key(0), jnp.int32(0), store, view).segment_pairs
    rows = np.asarray(pairs.rewards[:, :, 0] - 0.5)  # `numbered`, as above
    assert set(map(tuple, rows.astype(int).tolist())) == {(20, 28), (26, 34)}
    assert pairs.is_step is not None
    assert np.asarray(pairs.is_step).all()


def test_a_labelled_last_action_has_no_part_in_appos_error(
    numbered: Callable[..., dataset.Dataset],
) -> None:
    """Nobody knows what followed it: the row behind it is another episode's, or none."""
    store, (view,) = dataset.to_device_together([numbered()], LENGTH)
    store, (view,) = dataset.with_pairs(store, [view], [pairs_at([[2, 17]], [1.0])])
    config = appo.Config(batch_size=1, num_pairs=1, segment_length=LENGTH, labelled_pairs=True)
    pairs = jitted_sample(config, jax.random.key(0), jnp.int32(0), store, view).segment_pairs
    assert np.asarray(pairs.is_step).tolist() == [[[True, False]] * 2]
    np.testing.assert_array_equal(pairs.actions[0, :, 0, 0], [2.25, 17.25])


def test_transitions_are_whole(two_sets: list[dataset.Dataset]) -> None:
    """Every transition of a store of two data sets, each array from the row it belongs to."""
    store, views = dataset.to_device_together(two_sets, LENGTH)
    for view, own in zip(views, two_sets, strict=True):
        offset = int(view.first_row)
        rows = own.transition_rows() + offset
        found = sampling.gather_transitions(store, view, jnp.asarray(rows))
        normalise = own.normaliser()

        def numbers_of(observations: jax.Array, normalise: dataset.Normaliser = normalise) -> list:
            raw = np.asarray(observations) * normalise.std + normalise.mean
            return np.round(raw[:, 0]).astype(int).tolist()

        assert numbers_of(found.observations) == rows.tolist()
        assert numbers_of(found.next_observations) == (rows + 1).tolist()
        np.testing.assert_array_equal(found.actions[:, 0], rows + 0.25)
        np.testing.assert_array_equal(found.rewards, rows + 0.5)
        # Episodes of 3, 1, 7 and 4 steps; the first and the third end in a termination.
        ends = np.array([2, 4 + 2 + 6]) + offset
        np.testing.assert_array_equal(found.terminations, np.isin(rows, ends))


def test_rewards_of_another_model_are_those_of_the_view(two_sets: list[dataset.Dataset]) -> None:
    store, (_, view) = dataset.to_device_together(two_sets, LENGTH)
    rows_of_second = len(two_sets[1].observations)
    learned = jnp.arange(rows_of_second) + 0.125  # by the row inside the data set
    store = store.replace(rewards=jnp.concatenate([store.rewards, learned]))
    view = view.replace(first_reward=jnp.int32(len(store.rewards) - rows_of_second))
    rows = jnp.array([19, 21, 30])
    found = sampling.gather_transitions(store, view, rows)
    np.testing.assert_array_equal(found.rewards, np.array([0, 2, 11]) + 0.125)
    np.testing.assert_array_equal(found.actions[:, 0], rows + 0.25)
