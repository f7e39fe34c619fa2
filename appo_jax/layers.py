"""Layers and their initialisers: what networks are built from.

Linear layers start from PyTorch's default, as the codebases that the paper follows do: weight and
bias uniform in +-1 / sqrt(fan_in). SAC's start orthogonal.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp


def uniform_fan_in(fan_in: int) -> Callable[..., jax.Array]:
    """Initialiser: uniform in +-1 / sqrt(fan_in), for a weight or a bias."""
    bound = fan_in**-0.5

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def orthogonal(
    key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype = jnp.float32, gain: float = 1.0
) -> jax.Array:
    """Initialiser: `gain` times a uniformly random matrix with orthonormal rows.

    Or with orthonormal columns, where it has fewer columns than rows.

    Stewart, "The efficient generation of random orthogonal matrices" (1980): a product of
    reflections of Gaussian vectors. Flax's initialiser has the same distribution, but with jaxlib
    0.10.2 two QR decompositions in one program can wait for each other for ever on a CPU.
    """
    long, short = max(shape), min(shape)
    vectors = jnp.tril(jax.random.normal(key, (long, short), dtype))
    signs = jnp.where(jnp.diagonal(vectors) < 0, -1, 1).astype(dtype)

    def reflect(index: jax.Array, matrix: jax.Array) -> jax.Array:
        column = short - 1 - index
        vector = vectors[:, column]
        vector = vector.at[column].add(signs[column] * jnp.linalg.norm(vector))
        return matrix - jnp.outer(2 / (vector @ vector) * vector, vector @ matrix)

    matrix = jax.lax.fori_loop(0, short, reflect, jnp.eye(long, short, dtype=dtype)) * -signs
    return gain * (matrix if shape[0] >= shape[1] else matrix.T)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def leaky_relu(inputs: jax.Array, negative_slope: float) -> jax.Array:
    """`inputs` where positive, elsewhere `negative_slope` times them.

    The gradient at 0 is that of the negative side, as PyTorch's.
    """
    return jnp.where(inputs > 0, inputs, negative_slope * inputs)


@leaky_relu.defjvp
def _leaky_relu_jvp(
    negative_slope: float, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # Signs are read off the outputs, so that the inputs needn't be kept for the way back.
    outputs = leaky_relu(*primals, negative_slope)
    return outputs, tangents[0] * jnp.where(outputs > 0, 1, negative_slope)


def dropout(key: jax.Array, inputs: jax.Array, rate: float) -> jax.Array:
    """Each number 0 with probability `rate`, which is below 1, else divided by 1 - rate."""
    is_kept = jax.random.bernoulli(key, 1 - rate, inputs.shape)
    return jnp.where(is_kept, inputs / (1 - rate), 0.0)


class Dense(nn.Module):
    """A linear layer, `[rows, input_dim]` to `[rows, features]`, or both transposed."""

    features: int
    orthogonal_gain: float | None
    rows_last: bool

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Apply the layer."""
        input_dim = inputs.shape[0 if self.rows_last else 1]
        kernel_init: Callable[..., jax.Array] = uniform_fan_in(input_dim)
        bias_init: Callable[..., jax.Array] = kernel_init
        if self.orthogonal_gain is not None:
            kernel_init = functools.partial(orthogonal, gain=self.orthogonal_gain)
            bias_init = nn.initializers.zeros
        kernel = self.param("kernel", kernel_init, (input_dim, self.features))
        bias = self.param("bias", bias_init, (self.features,))
        return kernel.T @ inputs + bias[:, None] if self.rows_last else inputs @ kernel + bias
