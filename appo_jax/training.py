"""The loop, written once for every learner: over updates, and over one more axis for many runs.

Every array of a state, a view or a set of labelled pairs has a leading `runs` axis here; the store
has none, all runs share it. `runs_axis` says how the axis is worked off: "vmap" trains the runs
together, which fills an accelerator; "map" trains them one after another inside the same program,
which keeps each run bit-equal to itself alone.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from appo_jax.data import sampling
from appo_jax.types import InputError, LabelledPairs, Metrics, SegmentPairs, Store, View

RunsAxis = Literal["map", "vmap"]
RUNS = "runs"  # the mesh axis
_JAX: dict[str, Any] = {
    "jax_enable_x64": False,
    "jax_disable_jit": False,
    "jax_debug_nans": False,  # raises where a run's numbers go wrong, and ends the others with it
    "jax_debug_infs": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
}


class Learner(Protocol):
    """What every learner's module offers. Its state has a field `step` that counts updates."""

    # What shapes its program (a `settings.Settings`).
    Config: Any
    # (config, key, step, store, and one run's data) to the data of update `step`. The data are a
    # policy learner's view, a reward learner's view and labelled pairs.
    sample: Callable[..., Any]

    def update_step(self, config: Any, state: Any, batch: Any) -> tuple[Any, Metrics]:
        """One update."""


class Judge(Protocol):
    """What a module offers whose state says how good a segment is."""

    def score(self, config: Any, state: Any, segments: SegmentPairs) -> jax.Array:
        """What the labels compare, of each segment, `[pairs, 2]`."""


class PolicyLearner(Learner, Protocol):
    """What a policy learner's module offers beside. Its state's `actor` is a `Trainable`.

    A learner whose program has a schedule over the whole run says so with a function `horizon`
    (config to updates, or to None where this config has no such schedule): see `horizon` here. One
    whose Q and V imply a reward is a `Judge` too: by it policies can be chosen without a simulator.
    """

    # The numbers that may differ between runs (a `settings.SweptSettings`).
    Swept: Any
    # (config, key, observation_dim, action_dim, and the swept numbers by name) to a fresh state.
    init: Callable[..., Any]

    def act(self, config: Any, state: Any, observations: jax.Array) -> jax.Array:
        """The policy's action, deterministic; reads `state.actor.params` and nothing else."""


class RewardLearner(Learner, Judge, Protocol):
    """What a reward learner's module offers beside."""

    def init(
        self,
        config: Any,
        key: jax.Array,
        observation_dim: int,
        action_dim: int,
        num_pairs: int,
    ) -> Any:
        """A fresh state."""

    def num_updates(self, config: Any, num_pairs: int) -> int:
        """Updates of a whole fit."""

    def relabel(
        self, config: Any, state: Any, store: Store, view: View, num_rows: int
    ) -> jax.Array:
        """The reward of each of the rows of the view's data set.

        For an algorithm `of_windows` the score of the window that ends there: see the registry.
        """


def horizon(learner: PolicyLearner, config: Any) -> int | None:
    """The updates that a run has to have, for a schedule over all of it; None: it can be extended.

    A learner's own `horizon` decides; one without has no such schedule.
    """
    own = getattr(learner, "horizon", None)
    return None if own is None else own(config)


def check_jax() -> None:
    """Raise InputError where JAX is set, by a variable or in code, to compute otherwise."""
    for name, expected in _JAX.items():
        found = jax.config.values.get(name, expected)
        if found != expected:
            raise InputError(
                f"{name.upper()} is {found}, expected {expected}, with which all numbers here are "
                "computed"
            )


def choose_runs_axis(wanted: str = "auto") -> RunsAxis:
    """What is wanted; for "auto" `map` on a CPU, where `vmap` gains nothing, else `vmap`."""
    if wanted == "auto":
        return "map" if jax.default_backend() == "cpu" else "vmap"
    return cast(RunsAxis, wanted)


def runs_mesh() -> Mesh | None:
    """All processes' devices in a row, to spread runs over; None where there is but one."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(devices), (RUNS,)) if len(devices) > 1 else None


def spread(mesh: Mesh | None, tree: Any, shared: bool = False) -> Any:
    """Put runs on the devices of a mesh, or, with `shared`, a copy of everything on each.

    Where the mesh has devices of several processes, each of them gives the same whole tree, and its
    own devices take their part.
    """
    if mesh is None:
        return tree
    sharding = NamedSharding(mesh, PartitionSpec() if shared else PartitionSpec(RUNS))
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__), tree
    )


def stack_runs(runs: Sequence[Any]) -> Any:
    """States, views or keys of single runs, made one pytree with a leading runs axis."""
    return _stacked(*runs)


@jax.jit  # one program, not one for each leaf
def _stacked(*runs: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs)


@jax.jit
def take_runs(states: Any, numbers: Any) -> Any:
    """One run of stacked ones, or, by an array of numbers, several."""
    return jax.tree.map(lambda leaf: leaf[numbers], states)


def over_runs(function: Callable[..., Any], runs_axis: RunsAxis) -> Callable[..., Any]:
    """`function` of one run, made one of all runs, by arguments with a leading axis."""
    if runs_axis == "vmap":
        return jax.vmap(function)
    return lambda *arguments: jax.lax.map(lambda one: function(*one), arguments)


def train(
    learner: Learner,
    config: Any,
    num_updates: int,
    state: Any,
    key: jax.Array,
    store: Store,
    *data: Any,
) -> tuple[Any, Metrics]:
    """`num_updates` updates of one run in one program; the state given stays as it is.

    data: the run's view, for a reward learner also its labelled pairs. Returns the new state and
    the metrics' means. Raises FloatingPointError where a number is no longer finite.
    """
    one = jax.tree.map(lambda leaf: leaf[None], (state, key, data))
    states, metrics, broken = train_chunk(
        learner, config, num_updates, one[0], one[1], store, one[2]
    )
    if broken[0] >= 0:
        name = leaf_names(metrics, states)[broken[0]]
        raise FloatingPointError(f"{name} is not finite within these {num_updates} updates")
    return jax.tree.map(lambda leaf: leaf[0], (states, metrics))


def fit(
    learner: RewardLearner,
    config: Any,
    key: jax.Array,
    store: Store,
    view: View,
    pairs: LabelledPairs,
) -> tuple[Any, Metrics]:
    """A reward learner fitted to labelled pairs, from a fresh state to its last update.

    Returns the state and the metrics' means. Raises FloatingPointError as `train` does.
    """
    init_key, batch_key = jax.random.split(key)
    dims = store.observations.shape[1], store.actions.shape[1]
    num_pairs = len(pairs.labels)
    state = learner.init(config, init_key, *dims, num_pairs)
    num_updates = learner.num_updates(config, num_pairs)
    return train(learner, config, num_updates, state, batch_key, store, view, pairs)


@functools.partial(
    jax.jit,
    static_argnames=("learner", "config", "runs_axis", "mesh"),
    donate_argnames="states",
)
def train_chunk(
    learner: Learner,
    config: Any,
    num_updates: int | jax.Array,
    states: Any,
    keys: jax.Array,
    store: Store,
    data: tuple[Any, ...],
    runs_axis: RunsAxis = "map",
    mesh: Mesh | None = None,
) -> tuple[Any, Metrics, jax.Array]:
    """`num_updates` updates of every run; `states` are donated. Any number is the same program.

    With a `mesh` of `runs_mesh` each of its devices works off its share of the runs, which must be
    a multiple of the devices, and none talks to another.

    keys: `[runs]`, each run's key for batches; what an update draws follows from it and from the
    update's number, and doesn't depend on how updates are cut into chunks. data: of each run, a
    view, or for a reward learner a view and labelled pairs. Returns the new states, the
    metrics `[runs]`, averaged over the chunk, and `[runs]` int32: -1, or the place in `leaf_names`
    of the first metric or parameter that is NaN or infinite. Such a run keeps the state from before
    the chunk, so that its `step` falls behind and tells where it stopped; the others go on.
    """

    def one_run(
        length: jax.Array, store: Store, state: Any, key: jax.Array, data: tuple[Any, ...]
    ) -> tuple[Any, Metrics, jax.Array]:
        def update(state: Any) -> tuple[Any, Metrics]:
            batch = learner.sample(config, key, state.step, store, *data)
            return learner.update_step(config, state, batch)

        def body(_: jax.Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
            state, totals = carry
            state, metrics = update(state)
            return state, jax.tree.map(jnp.add, totals, metrics)

        # Sums in the carry: stacking a row of metrics for every update would cost memory traffic.
        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(update, state)[1])
        new, totals = jax.lax.fori_loop(0, length, body, (state, zeros))
        metrics = jax.tree.map(lambda total: total / length, totals)
        broken = _first_not_finite((metrics, new))
        state = jax.tree.map(lambda new, old: jnp.where(broken < 0, new, old), new, state)
        return state, metrics, broken

    def all_runs(length: jax.Array, store: Store, *of_runs: Any) -> tuple[Any, Metrics, jax.Array]:
        return over_runs(functools.partial(one_run, length, store), runs_axis)(*of_runs)

    if mesh is not None:
        over = PartitionSpec(RUNS)
        all_runs = jax.shard_map(
            all_runs,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(), over, over, over),
            out_specs=over,
            check_vma=False,  # the loop's carry starts from constants, which vary over no axis
        )
    return all_runs(jnp.int32(num_updates), store, states, keys, data)


def leaf_names(metrics: Metrics, states: Any) -> list[str]:
    """The names that `train_chunk` counts through when it tells what isn't finite."""
    return [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for tree in (metrics, states)
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _first_not_finite(tree: Any) -> jax.Array:
    leaves = enumerate(jax.tree.leaves(tree))
    floating = [(place, leaf) for place, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    places = jnp.int32([place for place, _ in floating])
    # Not finite if any number of the leaf isn't. To ask each number were twice as much to compile.
    greatest = jnp.stack([jnp.max(jnp.abs(leaf), initial=0) for _, leaf in floating])
    found = ~jnp.isfinite(greatest)
    return jnp.where(jnp.any(found), places[jnp.argmax(found)], -1)


@functools.partial(jax.jit, static_argnames=("learner", "config", "num_rows", "runs_axis"))
def relabel(
    learner: RewardLearner,
    config: Any,
    states: Any,
    store: Store,
    views: View,
    num_rows: int,
    runs_axis: RunsAxis = "map",
) -> jax.Array:
    """The learned rewards of runs on data sets of `num_rows` rows, `[runs, num_rows]`."""

    def one_run(state: Any, view: View) -> jax.Array:
        return learner.relabel(config, state, store, view, num_rows)

    return over_runs(one_run, runs_axis)(states, views)


@functools.partial(jax.jit, static_argnames=("learner", "config"))
def score(
    learner: Judge,
    config: Any,
    state: Any,
    store: Store,
    view: View,
    pairs: LabelledPairs,
) -> jax.Array:
    """What one learner makes of the segments of labelled pairs, `[pairs, 2]`.

    Raises InputError for longer segments than the store's.
    """
    return learner.score(config, state, sampling.gather_labelled_pairs(store, view, pairs))
