"""The body: what sees what, short windows, the batches of an epoch, the learning rate."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import transformer
from appo_jax.data.dataset import to_device
from appo_jax.transformer import Body, Windows
from appo_jax.types import InputError, LabelledPairs

LENGTH = 5
CONFIG = transformer.Config(num_layers=2, num_heads=2, head_dim=4, segment_length=LENGTH)


@functools.cache
def windows() -> Windows:
    keys = jax.random.split(jax.random.key(0))
    return Windows(
        jax.random.normal(keys[0], (3, LENGTH, 4)), jax.random.normal(keys[1], (3, LENGTH, 2))
    )


@functools.cache
def params_of(causal: bool) -> Any:
    return jax.jit(Body(CONFIG, causal).init)(jax.random.key(1), windows())


@functools.partial(jax.jit, static_argnames=("causal", "last_only"))
def apply(params: Any, of: Windows, causal: bool, key: Any, last_only: bool) -> Any:
    return Body(CONFIG, causal).apply(params, of, key, last_only)


def outputs(of: Windows, causal: bool = True, key: Any = None, last_only: bool = False) -> Any:
    return apply(params_of(causal), of, causal, key, last_only)


def test_a_step_sees_itself_and_in_a_causal_body_none_after_it() -> None:
    for name in ("observations", "actions"):
        later = getattr(windows(), name).at[:, 3].add(1.0)
        changed = windows().replace(**{name: later})
        difference = jnp.abs(outputs(changed) - outputs(windows())).max(axis=(0, 2))
        np.testing.assert_array_equal(difference[:3], 0)
        assert (difference[3:] > 1e-3).all()
        difference = jnp.abs(outputs(changed, causal=False) - outputs(windows(), causal=False))
        assert (difference.max(axis=(0, 2)) > 1e-3).all()


def test_the_same_steps_at_another_place_are_others() -> None:
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:, :1], leaf.shape), windows())
    found = outputs(same, causal=False)
    assert np.abs(found[:, 0] - found[:, 1]).max() > 1e-3


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_short_window_is_what_its_steps_alone_are(causal: bool, count: int) -> None:
    is_real = jnp.broadcast_to(jnp.arange(LENGTH) >= LENGTH - count, (3, LENGTH))
    bare = jax.tree.map(lambda leaf: leaf[:, :count], windows())
    missing = [(0, 0), (LENGTH - count, 0), (0, 0)]
    padded = jax.tree.map(lambda leaf: jnp.pad(leaf, missing), bare).replace(is_real=is_real)
    expected = outputs(bare, causal)
    np.testing.assert_allclose(outputs(padded, causal)[:, LENGTH - count :], expected, atol=1e-5)
    last = outputs(padded, causal, last_only=True)
    np.testing.assert_allclose(last, expected[:, -1:], atol=1e-5)


def test_attention_is_an_average_of_what_is_seen() -> None:
    keys = jax.random.split(jax.random.key(2), 3)
    queries, seen, values = (10 * jax.random.normal(key, (3, LENGTH, 8)) for key in keys)
    mask = jnp.arange(LENGTH) > 1
    weights, by_heads = transformer.attention(queries, seen, values, mask, num_heads=2)
    assert weights.shape == (3, 2, LENGTH, LENGTH)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    assert weights[..., :2].max() < 1e-6
    np.testing.assert_array_equal(by_heads.reshape(values.shape), values)
    # One head's weights by hand: scores over the root of its 4 units.
    scores = np.einsum("qd,kd->qk", queries[0, :, 4:], seen[0, :, 4:]) / 2
    scores[:, :2] = -np.inf
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights[0, 1], expected, atol=1e-5)


def test_dropout_follows_its_key() -> None:
    keys = jax.random.split(jax.random.key(3))
    first, again, other = (outputs(windows(), key=key) for key in (keys[0], keys[0], keys[1]))
    np.testing.assert_array_equal(first, again)
    for different in (other, outputs(windows())):
        assert np.abs(first - different).max() > 1e-2


def test_longer_windows_than_it_has_places_for_are_refused() -> None:
    longer = jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, 0), (0, 1), (0, 0)]), windows())
    with pytest.raises(AssertionError, match="longer than the segments"):
        outputs(longer)


def test_parameter_count() -> None:
    config = transformer.Config()
    window = Windows(jnp.zeros((1, 25, 39)), jnp.zeros((1, 25, 4)))
    shapes = jax.eval_shape(Body(config, True).init, jax.random.key(0), window)
    # Linear layers of actions (4 x 256 + 256), observations (39 x 256 + 256), 25 places; queries
    # and values with biases (2 x 65,792), keys without (65,536), their mixture (65,792), 256 to
    # 1,024 (263,168) and back (262,400); four LayerNorms of 512.
    expected = 1_280 + 10_240 + 6_400 + 131_584 + 65_536 + 65_792 + 263_168 + 262_400 + 2_048
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected


def test_histories_begin_with_their_episode(numbered: Any) -> None:
    data = numbered((3, 4))  # rows 0 to 3 and 4 to 8
    store, _ = to_device(data, 1)
    store = store.replace(observations=jnp.asarray(data.observations))
    rows, counts = jnp.array([2, 4, 6, 7]), jnp.array([3, 1, 3, 4])
    found = transformer.gather_histories(store, rows, counts, 3)
    assert found.observations[..., 0].tolist() == [[0, 1, 2], [0, 0, 4], [4, 5, 6], [5, 6, 7]]
    assert found.actions[..., 0].tolist() == [
        *([0.25, 1.25, 2.25], [0, 0, 4.25], [4.25, 5.25, 6.25], [5.25, 6.25, 7.25])
    ]
    assert found.is_real.tolist() == [[True] * 3, [False, False, True], [True] * 3, [True] * 3]


@pytest.mark.parametrize(
    ("count", "batch_size", "sizes"),
    [
        (512, 256, [256, 256]),  # as many as two batches: no third one, which would be empty
        (450, 256, [225, 225]),
        (10, 4, [4, 4, 2]),  # 3 batches of 4 at most
        (227, 256, [227]),  # a prime number: 15 parts of 16 and 13 weights of 0
        (450, 17, [18] * 25),  # 27 batches of 17 at most would be filled to 18: the last two empty
        (2100, 100, [105] * 20),  # 21 of 100, filled to 105
        (1, 256, [1]),
    ],
)
def test_an_epoch_shows_every_pair_once(
    numbered: Any, count: int, batch_size: int, sizes: list[int]
) -> None:
    config = transformer.Config(batch_size=batch_size)
    store, _ = to_device(numbered(), 1)
    # One more pair than the epochs go through.
    pairs = LabelledPairs(jnp.zeros((count + 1, 2), jnp.int32), jnp.arange(count + 1.0), 1)
    draw = jax.jit(
        lambda step: transformer.draw_pairs(config, jax.random.key(0), step, store, pairs, count)
    )
    assert transformer.updates_per_epoch(config, count) == len(sizes)
    orders = []
    for epoch in range(2):
        batches = [draw(jnp.int32(epoch * len(sizes) + update)) for update in range(len(sizes))]
        assert [int(batch.weights.sum()) for batch in batches] == sizes
        shown = [np.asarray(batch.labels)[np.asarray(batch.weights) > 0] for batch in batches]
        orders.append(np.concatenate(shown).tolist())
        assert sorted(orders[-1]) == list(range(count))
    assert orders[0] != orders[1] or count == 1


@pytest.mark.parametrize(
    ("length", "lengths", "message"),
    [
        (5, [[5, 3]], "of 5 steps or fewer for a store .* have 5, "),
        (7, None, "of 7 steps for a st"),
    ],
)
def test_labels_that_are_no_windows_of_the_store_are_refused(
    numbered: Any, length: int, lengths: Any, message: str
) -> None:
    store, _ = to_device(numbered((9, 9)), LENGTH)
    lengths = None if lengths is None else jnp.array(lengths)
    pairs = LabelledPairs(jnp.array([[0, 11]]), jnp.ones(1), length, lengths)
    with pytest.raises(InputError, match=f"labelled pairs of segments {message}.*expected equally"):
        transformer.draw_pairs(CONFIG, jax.random.key(0), jnp.int32(0), store, pairs, 1)


def test_gradients_of_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    params, values = jnp.array([1.0, -2.0]), jax.random.normal(jax.random.key(4), (12, 2))

    def loss(params: jax.Array, part: jax.Array, key: jax.Array) -> Any:
        del key
        each = jnp.square(part @ params) / 12
        return each.sum(), part.sum(axis=0)

    found = []
    for at_once in (16, 5, 1):  # parts of 12, 4 and 1
        monkeypatch.setattr(transformer, "_PAIRS_AT_ONCE", at_once)
        found.append(transformer.sum_of_gradients(loss, params, values, jax.random.key(5)))
    expected = jax.value_and_grad(loss, has_aux=True)(params, values, None)
    for each in found:
        chex.assert_trees_all_close(each, expected, rtol=1e-5, atol=1e-6)


def test_parts_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "_PAIRS_AT_ONCE", 1)

    def loss(params: jax.Array, part: jax.Array, key: jax.Array) -> Any:
        draw = jax.random.uniform(key)
        return params * draw, jnp.where(jnp.arange(3) == part, draw, 0.0)

    arguments = (jnp.float32(1), jnp.arange(3), jax.random.key(6))
    (total, draws), _ = transformer.sum_of_gradients(loss, *arguments)
    assert len(set(draws.tolist())) == 3
    assert total == pytest.approx(draws.sum())


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 1e-4),
        (50, 5.5e-4),  # half of the way up
        (100, 1e-3),  # a tenth of 1,000
        (550, 5.5e-4),  # half of the way down
        (1000, 1e-4),
    ],
)
def test_learning_rate_warms_up_and_falls_along_a_cosine(step: int, expected: float) -> None:
    rate = transformer.learning_rate(transformer.Config(), jnp.int32(1000), jnp.int32(step))
    assert rate == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("num_updates", [1, 2, 9])
def test_a_fit_of_few_updates_has_finite_rates(num_updates: int) -> None:
    rates = [
        float(transformer.learning_rate(transformer.Config(), jnp.int32(num_updates), step))
        for step in range(num_updates + 1)
    ]
    assert rates[0] == pytest.approx(1e-4)
    assert np.isfinite(rates).all()
