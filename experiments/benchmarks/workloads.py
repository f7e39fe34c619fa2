"""What `experiments.benchmark` times: updates of ours and of PyTorch's, matrix products alone.

A workload is a function without arguments that does a fixed amount of work and waits for its end.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import (
    appo,
    bc,
    cpl,
    dppo,
    ipl,
    iql,
    preference_transformer,
    training,
    transformer,
    workers,
)
from appo_jax.data import dataset
from appo_jax.training import PolicyLearner, RewardLearner
from appo_jax.types import LabelledPairs, Store, View

Workload = Callable[[], None]
Product = tuple[int, ...]  # m, k, n of [m, k] times [k, n], after the axes of a batch of these

OBSERVATION_DIM, ACTION_DIM = 39, 4  # Meta-World's
EPISODE_LENGTH = 500
NUM_LABELS = 1000
CONFIG = appo.Config()
IQL_CONFIG = iql.Config()
IPL_CONFIG = ipl.Config()
BC_CONFIG = bc.Config()
CPL_CONFIG = cpl.Config()
DPPO_CONFIG = dppo.Config()
TRANSFORMER_CONFIG = preference_transformer.Config()
# Seconds before each call: threads of the other side still spin for a moment after theirs.
PAUSE = 0.2


def matrix_products() -> list[Product]:
    """The matrix products of one update, 3.13 GFLOP in all.

    Of each network: forward, then for each layer the gradient of its weights and, but for the first
    layer where nothing before it learns, of its input.
    """
    transitions, steps = CONFIG.batch_size, CONFIG.num_pairs * 2 * CONFIG.segment_length
    state, pair = OBSERVATION_DIM, OBSERVATION_DIM + ACTION_DIM

    def layers(inputs: int, outputs: int) -> list[tuple[int, int]]:
        widths = [inputs, *[CONFIG.hidden_dim] * CONFIG.hidden_layers, outputs]
        return list(zip(widths[:-1], widths[1:], strict=True))

    def forward(rows: int, inputs: int, outputs: int) -> Iterator[Product]:
        return ((rows, m, n) for m, n in layers(inputs, outputs))

    def weights(rows: int, inputs: int, outputs: int) -> Iterator[Product]:
        return ((m, rows, n) for m, n in layers(inputs, outputs))

    def inner(rows: int, inputs: int, outputs: int, first: int = 1) -> Iterator[Product]:
        return ((rows, n, m) for m, n in layers(inputs, outputs)[first:])

    critic, actor = (2 * transitions + steps, pair, 1), (transitions, state, 2 * ACTION_DIM)
    value, one = (transitions, state, 1), (transitions, pair, 1)
    twice = [*forward(*critic), *weights(*critic), *inner(*critic), *forward(*one)]  # and targets
    return [
        *twice,
        *twice,
        *forward(steps, state, 1),  # V of the segments' next states
        *forward(*value),
        *weights(*value),
        *inner(*value),
        *forward(*actor),
        *weights(*actor),
        *inner(*actor),
        *forward(*one),  # Q of the actor loss, and its gradient to the action
        *inner(*one, first=0),
    ]


def transformer_products(num_pairs: int) -> list[Product]:
    """The matrix products of the gradient of a part of a batch of Preference Transformer.

    Each forward product has two in the gradient, of its left and of its right side, but for the
    embeddings, before which nothing learns.
    """
    config = TRANSFORMER_CONFIG
    width, heads, length = config.width, config.num_heads, config.segment_length
    windows = 2 * num_pairs
    steps, tokens = windows * length, windows * 2 * length
    embeddings = [(steps, ACTION_DIM, width), (steps, OBSERVATION_DIM, width)]
    forward = [
        (steps, width, width),  # the layer's queries, of the observations' tokens alone
        (tokens, width, width),  # keys
        (tokens, width, width),  # values
        (windows * heads, length, config.head_dim, 2 * length),
        (windows * heads, length, 2 * length, config.head_dim),
        (steps, width, width),
        (steps, width, 4 * width),
        (steps, 4 * width, width),
        (steps, width, 1),  # rewards
        (steps, width, width),  # queries and keys of the preference attention
        (steps, width, width),
        (windows, length, width, length),
        (windows, length, length, 1),
    ]
    left = [(*batch, m, n, k) for *batch, m, k, n in forward]
    right = [(*batch, k, m, n) for *batch, m, k, n in [*embeddings, *forward]]
    return [*embeddings, *forward, *left, *right]


def transformer_pairs() -> int:
    """The labelled pairs of an update of Preference Transformer."""
    fitted = preference_transformer.num_fitted(TRANSFORMER_CONFIG, NUM_LABELS)
    return fitted // transformer.updates_per_epoch(TRANSFORMER_CONFIG, fitted)


def product_workload(shapes: Sequence[Product], num_updates: int, num_runs: int) -> Workload:
    """A call makes these matrix products of so many updates of so many runs, and nothing else."""
    runs_axis = training.choose_runs_axis()

    @jax.jit
    def run(left: Any, right: Any) -> Any:
        def one_run(left: Any, right: Any) -> Any:
            def body(_: jax.Array, left: list[jax.Array]) -> list[jax.Array]:
                # The barrier keeps the compiler from computing the one entry that is read alone.
                out = jax.lax.optimization_barrier(
                    [a @ b for a, b in zip(left, right, strict=True)]
                )
                return [
                    a.at[..., 0, 0].add(1e-30 * product[..., 0, 0])
                    for a, product in zip(left, out, strict=True)
                ]

            return jax.lax.fori_loop(0, num_updates, body, left)

        return training.over_runs(one_run, runs_axis)(left, right)

    draw = np.random.default_rng(0)

    def matrices(places: tuple[int, int]) -> list[jax.Array]:
        return [
            jnp.asarray(
                draw.standard_normal((num_runs, *s[:-3], *(s[p] for p in places)), np.float32)
            )
            for s in shapes
        ]

    left, right = matrices((-3, -2)), matrices((-2, -1))

    def work() -> None:
        jax.block_until_ready(run(left, right))

    return work


@functools.lru_cache(maxsize=1)
def random_store(num_transitions: int) -> tuple[Store, View]:
    """Transitions of noise in episodes of Meta-World's length and widths, and labels of them."""
    draw = np.random.default_rng(0)
    episodes = num_transitions // EPISODE_LENGTH
    rows = episodes * (EPISODE_LENGTH + 1)
    data = dataset.Dataset(
        observations=draw.standard_normal((rows, OBSERVATION_DIM), np.float32),
        actions=draw.random((rows, ACTION_DIM), np.float32) * 2 - 1,
        rewards=draw.random(rows, np.float32),
        terminations=np.zeros(rows, bool),
        successes=None,
        lengths=np.full(episodes, EPISODE_LENGTH),
        id="noise",
        metadata={},
    )
    store, view = dataset.to_device(data, CONFIG.segment_length)
    store, (view,) = dataset.with_pairs(store, [view], [labels_of(store)])
    return store, view


def labels_of(store: Store) -> LabelledPairs:
    """Labels drawn without a look at what they label."""
    draw = np.random.default_rng(1)
    return LabelledPairs(
        rows=jnp.asarray(draw.choice(store.segment_rows, (NUM_LABELS, 2))),
        labels=jnp.asarray(draw.integers(0, 2, NUM_LABELS), jnp.float32),
        length=CONFIG.segment_length,
    )


def runs_of(
    view: View, num_runs: int, learner: PolicyLearner = appo
) -> tuple[Any, jax.Array, View]:
    """States, keys and views of runs that differ in their keys."""
    keys = jax.random.split(jax.random.key(1), num_runs)
    init = functools.partial(
        learner.init,
        config_of(learner),
        observation_dim=OBSERVATION_DIM,
        action_dim=ACTION_DIM,
    )
    return jax.jit(jax.vmap(init))(keys), keys, training.stack_runs([view] * num_runs)


def config_of(learner: PolicyLearner) -> Any:
    """The config with which a learner is measured."""
    return CONFIG if learner is appo else learner.Config()


def lower_chunk(store: Store, runs: tuple[Any, jax.Array, View], num_updates: int) -> Any:
    """A chunk of what `runs_of` gives, traced."""
    states, keys, views = runs
    return training.train_chunk.lower(
        appo, CONFIG, num_updates, states, keys, store, (views,), training.choose_runs_axis()
    )


def jax_workload(
    store: Store,
    view: View,
    num_updates: int,
    num_runs: int = 1,
    learner: PolicyLearner = appo,
) -> Workload:
    """A call makes `num_updates` updates of each run, in one program as in training."""
    config, runs_axis = config_of(learner), training.choose_runs_axis()
    states, keys, views = runs_of(view, num_runs, learner)

    def work() -> None:
        nonlocal states
        states, metrics, _ = training.train_chunk(
            learner, config, num_updates, states, keys, store, (views,), runs_axis
        )
        jax.block_until_ready((states, metrics))

    return work


def reward_workload(store: Store, view: View, num_updates: int, learner: RewardLearner) -> Workload:
    """A call makes `num_updates` updates of a reward learner on labels of noise."""
    config, key = learner.Config(), jax.random.key(1)
    pairs = labels_of(store)
    state = learner.init(config, key, OBSERVATION_DIM, ACTION_DIM, NUM_LABELS)

    def work() -> None:
        nonlocal state
        state, metrics = training.train(
            learner, config, num_updates, state, key, store, view, pairs
        )
        jax.block_until_ready((state, metrics))

    return work


def relabel_workload(store: Store, view: View, learner: RewardLearner) -> Workload:
    """A call makes the rewards of all rows of the store, by a fresh reward model."""
    config = learner.Config()
    state = learner.init(config, jax.random.key(1), OBSERVATION_DIM, ACTION_DIM, NUM_LABELS)
    states, views = training.stack_runs([state]), training.stack_runs([view])
    num_rows = len(store.actions)

    def work() -> None:
        jax.block_until_ready(training.relabel(learner, config, states, store, views, num_rows))

    return work


def torch_appo_workload(store: Store, num_updates: int) -> Workload:
    """APPO's updates in eager PyTorch, with the same data."""
    import torch

    from experiments.benchmarks import torch_appo

    data = _torch_store(store)
    reference = torch_appo.APPO(OBSERVATION_DIM, ACTION_DIM)
    offsets = torch.arange(CONFIG.segment_length + 1)

    def sample() -> torch_appo.Batch:
        rows = _torch_draw(data.transition_rows, (CONFIG.batch_size,))
        with_next = _torch_draw(data.segment_rows, (CONFIG.num_pairs, 2))[..., None] + offsets
        steps = with_next[..., :-1]
        return torch_appo.Batch(
            observations=data.observations[rows],
            actions=data.actions[rows],
            segment_observations=data.observations[with_next],
            segment_actions=data.actions[steps],
            segment_rewards=data.rewards[steps],
            segment_terminations=data.terminations[steps],
        )

    def work() -> None:
        for _ in range(num_updates):
            noise = torch.randn(CONFIG.batch_size, ACTION_DIM)
            reference.update(sample(), noise, int(torch.randint(2, ())))

    return work


def torch_iql_workload(store: Store, num_updates: int) -> Workload:
    """IQL's updates in eager PyTorch, with the same data."""
    from experiments.benchmarks import torch_iql

    data = _torch_store(store)
    reference = torch_iql.IQL(OBSERVATION_DIM, ACTION_DIM, IQL_CONFIG.variant)

    def sample() -> torch_iql.Batch:
        rows = _torch_draw(data.transition_rows, (IQL_CONFIG.batch_size,))
        return torch_iql.Batch(rewards=data.rewards[rows], **_torch_steps(data, rows))

    return _torch_updates(reference, sample, num_updates)


def torch_ipl_workload(store: Store, num_updates: int) -> Workload:
    """IPL's updates in eager PyTorch, with the same data and labels."""
    import torch

    from experiments.benchmarks import torch_ipl

    data = _torch_store(store)
    reference = torch_ipl.IPL(OBSERVATION_DIM, ACTION_DIM)
    offsets = torch.arange(IPL_CONFIG.crop_rows - 1)

    def steps(rows: Any) -> torch_ipl.Steps:
        return torch_ipl.Steps(**_torch_steps(data, rows))

    def sample() -> torch_ipl.Batch:
        pairs = torch.randint(len(data.pair_rows), (IPL_CONFIG.num_pairs,))
        start = torch.randint(IPL_CONFIG.segment_length - IPL_CONFIG.crop_rows, ())
        rows = (data.pair_rows[pairs] + start)[..., None] + offsets
        return torch_ipl.Batch(
            first=steps(rows[:, 0]),
            second=steps(rows[:, 1]),
            labels=data.pair_labels[pairs],
            replay=steps(_torch_draw(data.transition_rows, (IPL_CONFIG.replay_batch,))),
        )

    return _torch_updates(reference, sample, num_updates)


def torch_bc_workload(store: Store, num_updates: int) -> Workload:
    """Updates of behaviour cloning in eager PyTorch, of the preferred segments' steps."""
    import torch

    from experiments.benchmarks import torch_direct

    data = _torch_store(store)
    size = (BC_CONFIG.batch_size,)

    def sample() -> torch_direct.Transitions:
        pairs = torch.randint(len(data.pair_rows), size)
        labels = data.pair_labels[pairs]
        preferred = torch.where(labels > 0.5, *data.pair_rows[pairs].T.flip(0))
        rows = preferred + torch.randint(BC_CONFIG.segment_length, size)
        weights = (2 * labels - 1).abs()
        return torch_direct.Transitions(data.observations[rows], data.actions[rows], weights)

    return _torch_updates(torch_direct.BC(OBSERVATION_DIM, ACTION_DIM), sample, num_updates)


def torch_cpl_workload(store: Store, num_updates: int) -> Workload:
    """CPL's updates in eager PyTorch, of the phase that clones."""
    from experiments.benchmarks import torch_direct

    data = _torch_store(store)

    def sample() -> torch_direct.Pairs:
        pairs = _torch_pairs(data, CPL_CONFIG.num_pairs, CPL_CONFIG.segment_length)
        return torch_direct.Pairs(*pairs)

    return _torch_updates(torch_direct.CPL(OBSERVATION_DIM, ACTION_DIM), sample, num_updates)


def torch_dppo_workload(store: Store, num_updates: int) -> Workload:
    """Updates of DPPO's policy in eager PyTorch; scores stand where a window ends, as rewards."""
    import torch

    from experiments.benchmarks import torch_direct

    data = _torch_store(store)
    offsets = torch.arange(DPPO_CONFIG.segment_length)

    def sample() -> torch_direct.Windows:
        steps = _torch_draw(data.segment_rows, (DPPO_CONFIG.batch_size,))[:, None] + offsets
        scores = data.rewards[steps[:, -1]]
        return torch_direct.Windows(data.observations[steps], data.actions[steps], scores)

    return _torch_updates(torch_direct.DPPO(OBSERVATION_DIM, ACTION_DIM), sample, num_updates)


def torch_transformer_workload(store: Store, num_updates: int) -> Workload:
    """Updates of Preference Transformer's reward model in eager PyTorch, without dropout."""
    from experiments.benchmarks import torch_preference_transformer as torch_pt

    data = _torch_store(store)
    network = torch_pt.PreferenceTransformer(OBSERVATION_DIM, ACTION_DIM)
    reference = torch_pt.Learner(network, num_updates=10_000)

    def sample() -> torch_pt.Batch:
        pairs = _torch_pairs(data, transformer_pairs(), TRANSFORMER_CONFIG.segment_length)
        states, actions, labels = pairs
        return torch_pt.Batch(states=states, actions=actions, labels=labels)

    return _torch_updates(reference, sample, num_updates)


def _torch_updates(reference: Any, sample: Callable[[], Any], num_updates: int) -> Workload:
    def work() -> None:
        for _ in range(num_updates):
            reference.update(sample())

    return work


def _torch_store(store: Store) -> Any:
    """The store with tensors in it, on as many threads as this process may use."""
    import torch

    torch.set_num_threads(workers.available_cores())
    store = store.replace(terminations=store.terminations.astype(jnp.float32))
    return jax.tree.map(lambda array: torch.from_numpy(np.array(array)), store)


def _torch_steps(data: Any, rows: Any) -> dict[str, Any]:
    return {
        "observations": data.observations[rows],
        "actions": data.actions[rows],
        "next_observations": data.observations[rows + 1],
        "terminations": data.terminations[rows],
    }


def _torch_pairs(data: Any, num_pairs: int, length: int) -> tuple[Any, Any, Any]:
    """Observations, actions and labels of labelled pairs of whole segments."""
    import torch

    pairs = torch.randint(len(data.pair_rows), (num_pairs,))
    steps = data.pair_rows[pairs][..., None] + torch.arange(length)
    return data.observations[steps], data.actions[steps], data.pair_labels[pairs]


def _torch_draw(rows: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return rows[torch.randint(len(rows), shape)]


def interleave(workloads: dict[str, Workload], rounds: int) -> dict[str, list[float]]:
    """Seconds of each workload in each round, after one call that isn't counted."""
    for work in workloads.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in workloads}
    for _ in range(rounds):
        for name, work in workloads.items():
            time.sleep(PAUSE)
            clock = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - clock)
    return seconds
