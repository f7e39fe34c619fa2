"""The networks: a multilayer perceptron, and what is built from it.

They start from PyTorch's default initialisation of a linear layer, as the codebases that the paper
follows do: weight and bias uniform in +-1 / sqrt(fan_in). SAC's start orthogonal.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

Params: TypeAlias = Any


def uniform_fan_in(fan_in: int) -> Callable[..., jax.Array]:
    """Initialiser: uniform in +-1 / sqrt(fan_in), for a weight or a bias."""
    bound = fan_in**-0.5

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def orthogonal(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype = jnp.float32) -> jax.Array:
    """Initialiser: a uniformly random matrix with orthonormal rows or columns, whichever are fewer.

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
    return matrix if shape[0] >= shape[1] else matrix.T


# With so many rows, a network's matrices have their rows last. One of a layer's three products is
# over the first axes of two matrices, which XLA is slow at on a CPU: with rows first it is the
# gradient of the weights, with rows last the forward product, where one of the two is small.
_ROWS_LAST = 512


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


class _Linear(nn.Module):
    """A linear layer, `[rows, input_dim]` to `[rows, features]`, or both transposed."""

    features: int
    orthogonal: bool
    rows_last: bool

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        input_dim = inputs.shape[0 if self.rows_last else 1]
        if self.orthogonal:
            kernel_init, bias_init = orthogonal, nn.initializers.zeros
        else:
            kernel_init = bias_init = uniform_fan_in(input_dim)
        kernel = self.param("kernel", kernel_init, (input_dim, self.features))
        bias = self.param("bias", bias_init, (self.features,))
        return kernel.T @ inputs + bias[:, None] if self.rows_last else inputs @ kernel + bias


class MLP(nn.Module):
    """`hidden_layers` layers of `hidden_dim` with LeakyReLU, then a linear layer.

    `[..., input_dim]` to `[..., output_dim]`. A slope of 0 makes it a ReLU network. `orthogonal`
    networks start with orthogonal weights of gain 1 and biases of 0.
    """

    hidden_layers: int
    hidden_dim: int
    output_dim: int
    negative_slope: float = 0.01
    orthogonal: bool = False

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Apply the network."""
        hidden = inputs.reshape(-1, inputs.shape[-1])
        rows_last = len(hidden) >= _ROWS_LAST
        linear = functools.partial(_Linear, orthogonal=self.orthogonal, rows_last=rows_last)
        hidden = hidden.T if rows_last else hidden
        for layer in range(self.hidden_layers):
            hidden = linear(self.hidden_dim, name=f"hidden_{layer}")(hidden)
            hidden = leaky_relu(hidden, self.negative_slope)
        outputs = linear(self.output_dim, name="output")(hidden)
        outputs = outputs.T if rows_last else outputs
        return outputs.reshape(*inputs.shape[:-1], self.output_dim)


def forward(network: MLP, params: Params, inputs: jax.Array) -> jax.Array:
    """Apply a network to `[..., input_dim]`, giving `[..., output_dim]`."""
    return cast(jax.Array, network.apply(params, inputs))


def forward_ensemble(network: MLP, params: Params, inputs: jax.Array) -> jax.Array:
    """Apply members with parameters `[members, ...]` to the same input: `[members, ..., out]`."""
    return jax.vmap(lambda member: forward(network, member, inputs))(params)


def state_action(observations: jax.Array, actions: jax.Array) -> jax.Array:
    """The input of a critic or a reward network, `[..., observation_dim + action_dim]`."""
    return jnp.concatenate([observations, actions], axis=-1)


def squashed_gaussian(
    mean: jax.Array, log_std: jax.Array, noise: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A sample of tanh(Normal(mean, exp(log_std))) by reparameterisation, with its log-density.

    All arguments `[..., action_dim]`, `noise` standard normal. Returns actions
    `[..., action_dim]` in [-1, 1] and log-densities `[...]`, summed over dimensions, with
    gradients to mean and log_std.
    """
    pre_tanh = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - log_std - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(u)^2), written so that it stays finite where tanh(u) rounds to 1.
    log_slope = 2 * (jnp.log(2.0) - pre_tanh - jax.nn.softplus(-2 * pre_tanh))
    return jnp.tanh(pre_tanh), jnp.sum(log_normal - log_slope, axis=-1)
