"""The networks: a multilayer perceptron, and how one or several are applied."""

import functools
from typing import Any, TypeAlias, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from appo_jax.layers import Dense, dropout, leaky_relu

Params: TypeAlias = Any

# With so many rows, a network's matrices have their rows last. One of a layer's three products is
# over the first axes of two matrices, which XLA is slow at on a CPU: with rows first it is the
# gradient of the weights, with rows last the forward product, where one of the two is small.
_ROWS_LAST = 512


class MLP(nn.Module):
    """`hidden_layers` layers of `hidden_dim` with LeakyReLU, then a linear layer.

    `[..., input_dim]` to `[..., output_dim]`. A slope of 0 makes it a ReLU network. With an
    `orthogonal_gain` weights start orthogonal and biases at 0. A call with a key drops that share
    `dropout` of each hidden layer's units, before the LeakyReLU; one without drops none.
    """

    hidden_layers: int
    hidden_dim: int
    output_dim: int
    negative_slope: float = 0.01
    orthogonal_gain: float | None = None
    dropout: float = 0.0

    @nn.compact
    def __call__(self, inputs: jax.Array, dropout_key: jax.Array | None = None) -> jax.Array:
        """Apply the network."""
        hidden = inputs.reshape(-1, inputs.shape[-1])
        rows_last = len(hidden) >= _ROWS_LAST
        linear = functools.partial(Dense, orthogonal_gain=self.orthogonal_gain, rows_last=rows_last)
        hidden = hidden.T if rows_last else hidden
        for layer in range(self.hidden_layers):
            hidden = linear(self.hidden_dim, name=f"hidden_{layer}")(hidden)
            if dropout_key is not None:
                layer_key = jax.random.fold_in(dropout_key, layer)
                hidden = dropout(layer_key, hidden, self.dropout)
            hidden = leaky_relu(hidden, self.negative_slope)
        outputs = linear(self.output_dim, name="output")(hidden)
        outputs = outputs.T if rows_last else outputs
        return outputs.reshape(*inputs.shape[:-1], self.output_dim)


def forward(
    network: MLP, params: Params, inputs: jax.Array, dropout_key: jax.Array | None = None
) -> jax.Array:
    """Apply a network to `[..., input_dim]`, giving `[..., output_dim]`."""
    return cast(jax.Array, network.apply(params, inputs, dropout_key))


def init_ensemble(network: MLP, key: jax.Array, members: int, inputs: jax.Array) -> Params:
    """Parameters of `members` networks, each with a key of its own: `[members, ...]`."""
    return jax.vmap(network.init, (0, None))(jax.random.split(key, members), inputs)


def forward_ensemble(network: MLP, params: Params, inputs: jax.Array) -> jax.Array:
    """Apply members with parameters `[members, ...]` to the same input: `[members, ..., out]`."""
    return jax.vmap(lambda member: forward(network, member, inputs))(params)


def state_action(observations: jax.Array, actions: jax.Array) -> jax.Array:
    """The input of a critic or a reward network, `[..., observation_dim + action_dim]`."""
    return jnp.concatenate([observations, actions], axis=-1)
