"""The networks' shapes and initialisation."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import iql, networks
from appo_jax.collect import sac
from appo_jax.layers import dropout, leaky_relu, orthogonal
from appo_jax.networks import MLP


def test_initialisation_is_uniform_in_one_over_root_fan_in() -> None:
    params = jax.jit(MLP(2, 256, 3).init)(jax.random.key(0), jnp.zeros(16))["params"]
    for name, fan_in in (("hidden_0", 16), ("hidden_1", 256), ("output", 256)):
        bound = fan_in**-0.5
        for leaf in params[name].values():
            assert np.abs(leaf).max() <= bound
        kernel = np.asarray(params[name]["kernel"])
        # A uniform on +-b has standard deviation b / sqrt(3).
        assert kernel.std() == pytest.approx(bound / 3**0.5, rel=0.1)
        assert np.abs(params[name]["bias"]).max() > 0


@pytest.mark.parametrize("shape", [(256, 256), (42, 256), (256, 4), (1, 5), (1, 1)])
def test_orthogonal_matrices_are_orthonormal(shape: tuple[int, int]) -> None:
    matrix = np.asarray(orthogonal(jax.random.key(0), shape))
    assert matrix.shape == shape
    product = matrix @ matrix.T if shape[0] < shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, np.eye(min(shape)), atol=2e-6)


@pytest.mark.parametrize("shape", [(3, 3), (3, 2), (2, 4)])
def test_orthogonal_matrices_are_uniform(shape: tuple[int, int]) -> None:
    draw = jax.jit(jax.vmap(lambda key: orthogonal(key, shape)))
    entries = draw(jax.random.split(jax.random.key(0), 20_000))
    # A coordinate of a uniform point on a sphere in n dimensions: moments 0, 1/n, 3/(n (n + 2)).
    n = max(shape)
    np.testing.assert_allclose(np.mean(entries, axis=0), 0, atol=0.02)
    np.testing.assert_allclose(np.mean(entries**2, axis=0), 1 / n, atol=0.01)
    np.testing.assert_allclose(np.mean(entries**4, axis=0), 3 / (n * (n + 2)), atol=0.01)
    np.testing.assert_allclose(np.mean(entries[:, 0, 0] * entries[:, 1, 1]), 0, atol=0.02)


@pytest.mark.parametrize(
    ("init", "config"), [(sac.init, sac.Config()), (iql.init, iql.Config(variant="jax"))]
)
def test_initialisation_calls_no_lapack(init: Any, config: Any) -> None:
    # Two decompositions in one program can hang on a CPU (`orthogonal`).
    program = jax.jit(init, static_argnums=(0, 2, 3)).lower(config, jax.random.key(0), 3, 1)
    assert "lapack" not in program.as_text()


def test_an_orthogonal_gain_scales_weights_and_zeroes_biases() -> None:
    init = jax.jit(MLP(1, 8, 3, orthogonal_gain=2.0).init)
    params = init(jax.random.key(0), jnp.zeros(5))["params"]
    for layer in params.values():
        kernel = np.asarray(layer["kernel"])
        product = kernel @ kernel.T if kernel.shape[0] < kernel.shape[1] else kernel.T @ kernel
        np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)
        assert not layer["bias"].any()


def test_hidden_layers_are_leaky() -> None:
    network = MLP(1, 1, 1, negative_slope=0.25)
    params = {
        "params": {
            "hidden_0": {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)},
            "output": {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)},
        }
    }
    np.testing.assert_allclose(network.apply(params, jnp.array([[-2.0], [2.0]])), [[-0.5], [2.0]])


@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_the_slope_at_zero_is_the_negative_sides(slope: float) -> None:
    inputs = jnp.array([-3.0, -1e-30, 0.0, 1e-30, 3.0])
    gradients = jax.vmap(jax.grad(lambda x: leaky_relu(x, slope)))(inputs)
    np.testing.assert_array_equal(gradients, [slope, slope, slope, 1, 1])
    _, tangents = jax.jvp(lambda x: leaky_relu(x, slope), (inputs,), (2 * jnp.ones(5),))
    np.testing.assert_array_equal(tangents, 2 * gradients)


@pytest.mark.parametrize("shape", [(3,), (5, 3), (0, 3), (2, 4, 3)])
def test_many_rows_are_what_few_are(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = MLP(2, 16, 4)

    def loss(params: Any, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = network.apply(params, inputs)
        return jnp.sum(jnp.sin(outputs)), outputs

    @jax.jit
    def both_ways(inputs: jax.Array) -> Any:
        outcomes = []
        for rows_last in (1000, 0):
            monkeypatch.setattr(networks, "_ROWS_LAST", rows_last)
            params = network.init(jax.random.key(0), inputs)
            gradients, outputs = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, inputs)
            outcomes.append((params, outputs, gradients))
        return outcomes

    first, last = both_ways(jax.random.normal(jax.random.key(1), shape))
    assert first[1].shape == last[1].shape == (*shape[:-1], 4)
    chex.assert_trees_all_equal(first[0], last[0])
    chex.assert_trees_all_close(first, last, rtol=1e-5, atol=1e-6)


def test_dropout_keeps_the_mean() -> None:
    found = np.asarray(dropout(jax.random.key(0), jnp.full((200, 100), 3.0), 0.25))
    assert set(found.ravel().tolist()) == {0, 4}  # 3 / (1 - 0.25)
    # Of 20,000 a quarter, give or take three deviations of 0.003.
    assert np.mean(found == 0) == pytest.approx(0.25, abs=0.01)
    np.testing.assert_array_equal(dropout(jax.random.key(0), jnp.ones(9), 0.0), np.ones(9))


@pytest.mark.parametrize("rows", [40, 600])
def test_a_key_drops_hidden_units_of_every_layer_and_row(rows: int) -> None:
    """A network that counts: each of two layers of 16 units hands on the mean of those before."""
    network = MLP(2, 16, 1, dropout=0.5)
    counting = {name: {"bias": jnp.zeros(16)} for name in ("hidden_0", "hidden_1")}
    counting["hidden_0"]["kernel"] = jnp.ones((1, 16))
    counting["hidden_1"]["kernel"] = jnp.full((16, 16), 1 / 16)
    counting["output"] = {"kernel": jnp.full((16, 1), 1 / 16), "bias": jnp.zeros(1)}
    params = {"params": counting}
    apply = functools.partial(networks.forward, network, params, jnp.ones((rows, 1)))
    np.testing.assert_array_equal(apply(), np.ones((rows, 1)))
    first, again, other = (apply(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    # The kept units of both layers, k1 and k2 of 16, each doubled: k1 k2 / 64, on average 1.
    counts = np.asarray(first).ravel() * 64
    np.testing.assert_array_equal(counts, np.round(counts))
    assert len(set(counts.tolist())) > 5
    assert np.asarray(first).mean() == pytest.approx(1, abs=0.3)
