"""The layout of episodes on the host and on the device."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.data import dataset as datasets
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.types import InputError

Make = Callable[..., Dataset]


def test_layout_of_ragged_episodes() -> None:
    episodes = [
        Episode(
            observations=np.array([[1.0], [2.0], [3.0]]),
            actions=np.array([[10.0], [20.0]]),
            rewards=np.array([0.1, 0.2]),
            terminations=np.array([False, True]),
            successes=np.array([True, False]),
        ),
        Episode(
            observations=np.array([[4.0], [5.0]]),
            actions=np.array([[40.0]]),
            rewards=np.array([0.4]),
            terminations=np.array([False]),
            successes=np.array([False]),
        ),
    ]
    dataset = from_episodes(episodes, "tiny/two-v0", {"recipe": "by hand"})
    np.testing.assert_array_equal(dataset.observations[:, 0], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(dataset.actions[:, 0], [10, 20, 0, 40, 0])
    np.testing.assert_array_equal(dataset.rewards, np.float32([0.1, 0.2, 0, 0.4, 0]))
    np.testing.assert_array_equal(dataset.terminations, [0, 1, 0, 0, 0])
    np.testing.assert_array_equal(dataset.lengths, [2, 1])
    np.testing.assert_array_equal(dataset.episode_starts, [0, 3])
    np.testing.assert_array_equal(dataset.transition_rows(), [0, 1, 3])
    assert (dataset.num_episodes, dataset.num_transitions) == (2, 3)
    assert (dataset.observation_dim, dataset.action_dim) == (1, 1)
    assert dataset.metadata == {"recipe": "by hand"}
    assert dataset.success_rate() == 0.5  # at any step, not at the last
    for array in (dataset.observations, dataset.actions, dataset.rewards):
        assert array.dtype == np.float32
    assert dataset.terminations.dtype == np.bool_
    assert dataset.successes is not None


def test_without_successes_the_success_rate_is_unknown(numbered: Make) -> None:
    assert numbered().successes is None
    assert numbered().success_rate() is None


def test_the_next_observation_is_the_next_row(numbered: Make) -> None:
    dataset = numbered()
    rows = dataset.transition_rows()
    assert len(rows) == dataset.num_transitions == 15
    now, after = dataset.observations[rows], dataset.observations[rows + 1]
    np.testing.assert_array_equal(after[:, 0], now[:, 0] + 1)
    np.testing.assert_array_equal(after[:, 1], now[:, 1])  # the episode stays


def test_segments_of_25_in_an_episode_of_500_start_at_0_to_475(numbered: Make) -> None:
    dataset = numbered((500,))
    np.testing.assert_array_equal(dataset.segment_rows(25), np.arange(476))
    np.testing.assert_array_equal(numbered((500, 500)).segment_rows(25)[476:], np.arange(501, 977))


@pytest.mark.parametrize("length", range(1, 8))
def test_segments_are_all_that_stay_inside_an_episode(numbered: Make, length: int) -> None:
    dataset = numbered()
    episode_of = dataset.observations[:, 1]
    expected = [
        row
        for row in range(len(episode_of) - length)
        if episode_of[row] == episode_of[row + length]  # row + length: the last next observation
    ]
    found = dataset.segment_rows(length)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int32


def test_a_segment_longer_than_all_episodes(numbered: Make) -> None:
    with pytest.raises(InputError, match=r"numbered-v0.*4 episodes has 7 steps.*length 8"):
        numbered().segment_rows(8)
    with pytest.raises(InputError, match="length 8"):
        datasets.to_device(numbered(), 8)


def test_sets_of_other_widths_share_no_store(numbered: Make) -> None:
    wide = from_episodes(
        [Episode(np.zeros((4, 3)), np.zeros((3, 1)), np.zeros(3), np.zeros(3, bool))], "wide"
    )
    with pytest.raises(InputError, match=r"data sets tiny/numbered-v0, wide have .* the same in"):
        datasets.to_device_together([numbered(), wide], 2)


def test_normaliser_is_over_the_observations_that_start_a_transition() -> None:
    episode = Episode(
        observations=np.array([[1.0, 7.0], [3.0, 7.0], [1000.0, 7.0]]),
        actions=np.zeros((2, 1)),
        rewards=np.zeros(2),
        terminations=np.zeros(2, bool),
    )
    normaliser = from_episodes([episode], "tiny/one-v0").normaliser()
    # Mean of 1 and 3 is 2, population std 1; the second column doesn't vary: its std is the floor.
    np.testing.assert_allclose(normaliser.mean, [2, 7])
    np.testing.assert_allclose(normaliser.std, [1.001, 0.001], rtol=1e-6)
    assert normaliser.mean.dtype == normaliser.std.dtype == np.float32
    np.testing.assert_allclose(normaliser(np.array([3.0, 7.0])), [1 / 1.001, 0], rtol=1e-6)


def test_the_store_is_normalised_and_finite(numbered: Make) -> None:
    dataset = numbered((5,))  # one episode: the second column is constant
    store, view = datasets.to_device(dataset, 2)
    np.testing.assert_array_equal(
        store.observations, dataset.normaliser()(dataset.observations).astype(np.float32)
    )
    assert np.isfinite(np.asarray(store.observations)).all()
    np.testing.assert_array_equal(store.observations[:, 1], 0)
    np.testing.assert_array_equal(store.rewards, dataset.rewards)
    assert store.observations.dtype == store.actions.dtype == store.rewards.dtype == jnp.float32
    assert store.transition_rows.dtype == store.segment_rows.dtype == jnp.int32


def test_a_set_that_is_not_normalised(numbered: Make) -> None:
    dataset = dataclasses.replace(numbered((5,)), is_normalised=False)
    np.testing.assert_array_equal(
        datasets.to_device(dataset, 2)[0].observations, dataset.observations
    )
    np.testing.assert_array_equal(dataset.normaliser()(np.array([3.0, 7.0])), [3, 7])
    assert dataset.digest() == numbered((5,)).digest()


def test_normaliser_of_many_values_far_from_zero() -> None:
    observations = np.float32(1000) + np.tile(np.float32([[0.0], [0.25]]), (50_000, 1))
    episode = Episode(
        observations=np.concatenate([observations, observations[:1]]),
        actions=np.zeros((100_000, 1)),
        rewards=np.zeros(100_000),
        terminations=np.zeros(100_000, bool),
    )
    normaliser = from_episodes([episode], "tiny/far-v0").normaliser()
    assert normaliser.mean[0] == 1000.125
    np.testing.assert_allclose(normaliser.std[0], 0.126, rtol=1e-6)


def good() -> Episode:
    return Episode(
        observations=np.zeros((4, 5)),
        actions=np.zeros((3, 2)),
        rewards=np.zeros(3),
        terminations=np.zeros(3, bool),
        successes=np.zeros(3, bool),
    )


@pytest.mark.parametrize(
    ("field", "shape", "message"),
    [
        ("observations", (3, 5), r"observations have shape \(3, 5\), expected \(4, 5\)"),
        ("observations", (4, 6), r"observations have shape \(4, 6\), expected \(4, 5\)"),
        ("actions", (3, 1), r"actions have shape \(3, 1\), expected \(3, 2\)"),
        ("actions", (0, 2), "no steps, expected at least one"),
        ("observations", (4, 0), r"observations have shape \(4, 0\), expected \(4, 5\)"),
        ("actions", (), "no steps, expected at least one"),
        ("rewards", (3, 2), r"rewards have shape \(3, 2\), expected \(3,\)"),
        ("rewards", (1, 3), r"rewards have shape \(1, 3\), expected \(3,\)"),
        ("terminations", (4,), r"terminations have shape \(4,\), expected \(3,\)"),
        ("successes", (2,), r"successes have shape \(2,\), expected \(3,\)"),
    ],
)
def test_errors_name_the_episode_and_the_field(
    field: str, shape: tuple[int, ...], message: str
) -> None:
    bad = dataclasses.replace(good(), **{field: np.zeros(shape)})
    with pytest.raises(InputError, match=f"data set tiny/bad-v0, episode 1: {message}"):
        from_episodes([good(), bad], "tiny/bad-v0")


def test_observations_and_actions_must_be_vectors() -> None:
    flat = dataclasses.replace(good(), observations=np.zeros(4))
    with pytest.raises(InputError, match=r"observations have shape \(4,\), expected \(4, 1\)"):
        from_episodes([flat], "tiny/bad-v0")
    nothing = dataclasses.replace(good(), observations=np.zeros((4, 0)))
    with pytest.raises(InputError, match=r"observations have shape \(4, 0\), expected \(4, 1\)"):
        from_episodes([nothing], "tiny/bad-v0")
    images = dataclasses.replace(good(), observations=np.zeros((4, 8, 8)))
    with pytest.raises(InputError, match=r"observations have shape \(4, 8, 8\)"):
        from_episodes([images], "tiny/bad-v0")
    flat = dataclasses.replace(good(), actions=np.zeros(3))
    with pytest.raises(InputError, match=r"actions have shape \(3,\), expected \(3, 1\)"):
        from_episodes([flat], "tiny/bad-v0")


def test_what_is_accepted_and_converted() -> None:
    lists: dict[str, Any] = {
        "observations": [[1, 2], [3, 4], [5, 6]],
        "actions": [[0], [1]],
        "rewards": [1, 2],
        "terminations": [0, 1],
        "successes": [False, True],
    }
    expected = from_episodes([Episode(**lists)], "tiny/one-v0")
    np.testing.assert_array_equal(expected.observations, [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(expected.rewards, [1, 2, 0])
    for dtype in (np.float64, np.float16, np.int8, np.uint64, np.longdouble):
        arrays = {name: np.array(values, dtype) for name, values in lists.items()}
        for name in ("rewards", "terminations", "successes"):
            arrays[name] = arrays[name].reshape(2, 1)
        found = from_episodes([Episode(**arrays)], "tiny/one-v0")
        for field in ("observations", "actions", "rewards", "terminations", "successes"):
            left, right = getattr(found, field), getattr(expected, field)
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
        assert found.digest() == expected.digest()
    too_fine = dataclasses.replace(good(), rewards=np.array([0.1, 1 + 1e-12, 1e-60]))
    np.testing.assert_array_equal(
        from_episodes([too_fine], "tiny/one-v0").rewards, np.float32([0.1, 1, 0, 0])
    )


@pytest.mark.parametrize(
    ("field", "place", "value", "message"),
    [
        ("observations", (3, 4), np.nan, "observations hold nan in row 3, column 4, expected fin"),
        ("actions", (1, 0), np.inf, "actions hold inf in row 1, column 0, expected finite"),
        ("rewards", (2,), -np.inf, "rewards hold -inf in row 2, expected finite"),
        ("rewards", (0,), 1e39, r"rewards hold 1e\+39 in row 0, expected finite .*float32"),
        ("terminations", (1,), np.nan, "terminations hold nan in row 1, expected finite"),
        ("terminations", (1,), 0.5, "terminations hold 0.5 in row 1, expected 0 or 1"),
        ("terminations", (1,), 1e-60, "terminations hold 1e-60 in row 1, expected 0 or 1"),
        ("successes", (2,), 2, r"successes hold 2.0 in row 2, expected 0 or 1"),
    ],
)
def test_values_that_are_refused(
    field: str, place: tuple[int, ...], value: float, message: str
) -> None:
    array = getattr(good(), field).astype(np.float64)
    array[place] = value
    bad = dataclasses.replace(good(), **{field: array})
    with pytest.raises(InputError, match=f"data set tiny/bad-v0, episode 2: {message}"):
        from_episodes([good(), good(), bad], "tiny/bad-v0")


@pytest.mark.parametrize("field", ["observations", "actions", "terminations"])
def test_an_array_that_is_missing(field: str) -> None:
    bad: Any = dataclasses.replace(good(), **{field: None})
    with pytest.raises(InputError, match=f"episode 0: {field} are missing, expected an array"):
        from_episodes([bad], "tiny/bad-v0")


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "terminations"])
def test_what_is_no_array_of_numbers(field: str) -> None:
    shape = getattr(good(), field).shape
    for values, message in (
        (np.full(shape, "1"), "have dtype <U1, expected numbers"),
        (np.full(shape, None), "have dtype object, expected numbers"),
        (np.full(shape, 1j), "have dtype complex128, expected numbers"),
        (np.full(shape, 0, "M8[s]"), r"have dtype datetime64\[s\], expected numbers"),
        ([[1, 2], [3]], r"are no array \(.*\), expected numbers"),
        ({"x": 1}, "have dtype object, expected numbers"),
    ):
        bad: Any = dataclasses.replace(good(), **{field: values})
        with pytest.raises(InputError, match=f"tiny/bad-v0, episode 0: {field} {message}"):
            from_episodes([bad], "tiny/bad-v0")


@pytest.mark.parametrize("field", ["terminations", "truncations"])
def test_an_episode_that_goes_on_behind_its_end(field: str) -> None:
    for flags in ([0, 1, 0], [1, 0, 1]):
        bad = dataclasses.replace(good(), **{field: np.array(flags)})
        row = flags.index(1)
        with pytest.raises(
            InputError,
            match=f"episode 1: {field} hold 1 in row {row} of 3, expected an episode to end in its",
        ):
            from_episodes([good(), bad], "tiny/bad-v0")
    ended = dataclasses.replace(good(), **{field: np.array([0, 0, 1])})
    assert from_episodes([ended], "tiny/one-v0").terminations.any() == (field == "terminations")
    wrong: Any = dataclasses.replace(good(), **{field: np.array([0, 0, 7])})
    with pytest.raises(InputError, match=f"episode 0: {field} hold 7 in row 2, expected 0 or 1"):
        from_episodes([wrong], "tiny/bad-v0")


@pytest.mark.parametrize("field", ["rewards", "successes"])
def test_arrays_that_only_some_episodes_have(field: str) -> None:
    without: Any = dataclasses.replace(good(), **{field: None})
    for pair, found in (((good(), without), "missing"), ((without, good()), "there")):
        with pytest.raises(
            InputError, match=f"episode 1: {field} are {found}, expected in all episodes or in"
        ):
            from_episodes(pair, "tiny/bad-v0")


def test_rewards_that_nobody_knows() -> None:
    without = dataclasses.replace(good(), rewards=None)
    dataset = from_episodes([without, without], "tiny/own-v0")
    assert dataset.rewards is None
    assert dataset.returns() is None
    assert dataset.digest() != from_episodes([good(), good()], "tiny/own-v0").digest()
    with pytest.raises(InputError, match="tiny/own-v0: has no rewards, expected them for labels"):
        dataset.known_rewards("labels")
    store, _ = datasets.to_device(dataset, 2)
    np.testing.assert_array_equal(store.rewards, np.zeros(8))


def test_segments_out_of_longer_episodes() -> None:
    cut = dataclasses.replace(good(), last_action=np.array([0.5, -0.5]))
    dataset = from_episodes([good(), cut], "tiny/cut-v0")
    np.testing.assert_array_equal(dataset.actions[[3, 7]], [[0, 0], [0.5, -0.5]])
    np.testing.assert_array_equal(dataset.lengths, [3, 3])
    np.testing.assert_array_equal(dataset.label_lengths, [3, 4])
    np.testing.assert_array_equal(dataset.transition_rows(), [0, 1, 2, 4, 5, 6])
    np.testing.assert_array_equal(dataset.action_rows(), [0, 1, 2, 4, 5, 6, 7])
    whole = from_episodes([good()], "tiny/one-v0")
    np.testing.assert_array_equal(whole.label_lengths, whole.lengths)
    np.testing.assert_array_equal(whole.action_rows(), whole.transition_rows())
    bad = dataclasses.replace(good(), last_action=np.zeros(3))
    with pytest.raises(InputError, match=r"last_action have shape \(3,\), expected \(2,\)"):
        from_episodes([bad], "tiny/bad-v0")


def test_no_episodes() -> None:
    with pytest.raises(InputError, match="tiny/empty-v0: no episodes, expected at least one"):
        from_episodes([], "tiny/empty-v0")


def test_the_digest_is_that_of_what_training_reads(numbered: Make) -> None:
    dataset = numbered()
    assert dataset.digest() == numbered(id="another/name-v0").digest()
    digests = {dataset.digest()}
    for field in ("observations", "actions", "rewards", "terminations"):
        array = getattr(dataset, field).copy()
        array[-2] = ~array[-2] if array.dtype == np.bool_ else np.nextafter(array[-2], np.inf)
        digests.add(dataclasses.replace(dataset, **{field: array}).digest())
    digests.add(dataclasses.replace(dataset, lengths=np.array([3, 1, 4, 7])).digest())
    assert len(digests) == 6
