"""Vmapped runs and runs in turn, in float64; test_grid.py runs this in a process of its own."""

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import appo, training
from appo_jax.types import Store, View

ROWS, RUNS = 40, 3
config = appo.Config(hidden_layers=2, hidden_dim=16, batch_size=8, num_pairs=4, segment_length=3)
keys = jax.random.split(jax.random.key(0), 4)
store = Store(
    observations=jax.random.normal(keys[0], (ROWS, 4)),
    actions=jax.random.uniform(keys[1], (ROWS, 2), minval=-1),
    terminations=jnp.zeros(ROWS, bool),
    transition_rows=jnp.arange(ROWS - 5, dtype=jnp.int32),
    segment_rows=jnp.arange(ROWS - 5, dtype=jnp.int32),
    rewards=jax.random.uniform(keys[2], (ROWS,)),
    pair_rows=jnp.zeros((0, 2), jnp.int32),
    pair_labels=jnp.zeros(0),
    segment_length=config.segment_length,
)
numbers = (0, ROWS - 5, 0, ROWS - 5, 0, 0, 0, 0)
views = View(*(jnp.full(RUNS, number, jnp.int32) for number in numbers))


def train(runs_axis: str) -> dict[str, np.ndarray]:
    """Metrics and parameters after ten updates."""
    states = training.stack_runs(
        [appo.init(config, jax.random.key(run), 4, 2, lam=0.1 * run) for run in range(RUNS)]
    )
    states = jax.tree.map(
        lambda leaf: leaf.astype(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        states,
    )
    run_keys = jax.random.split(keys[3], RUNS)
    states, metrics, _ = training.train_chunk(
        appo, config, 10, states, run_keys, store, (views,), runs_axis
    )
    named = jax.tree_util.tree_leaves_with_path((states.replace(key=states.step), metrics))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in named}


together, in_turn = train("vmap"), train("map")
assert in_turn["[0].critics.params['params']['hidden_0']['kernel']"].dtype == float
for name, leaf in in_turn.items():
    np.testing.assert_allclose(together[name], leaf, rtol=1e-9, atol=1e-9, err_msg=name)
