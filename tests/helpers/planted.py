"""A control task whose best return is known, and data from which cloning learns nothing.

A point of the plane sees where its goal lies from it, moves by `STEP` times its action in
[-1, 1]^2, and is paid for what it comes nearer. Whoever arrives within the horizon has the best
return, the distance at the start, and clip(observation / STEP) arrives. The data are random walks,
of actions uniform in [-1, 1]^2: whatever the state, their mean is to stay, and so does a clone.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import registry, training
from appo_jax.data import dataset, preferences
from appo_jax.data.dataset import Dataset, Episode
from appo_jax.settings import fields
from appo_jax.types import LabelledPairs, Store, View
from experiments.runs import reward_controls

STEP, HORIZON, STRETCH = 0.2, 10, 5
EPISODES, NUM_LABELS = 1000, 2000
STARTS = 256  # of an evaluation, evenly around the goal at distance 1
# Whatever of these a learner has.
SETTINGS = {
    "hidden_layers": 1,
    "hidden_dim": 64,
    "batch_size": 128,
    "num_pairs": 32,
    "segment_length": STRETCH,
    "crop_rows": STRETCH,
    "replay_batch": 64,
    "num_updates": 800,
    "num_epochs": 10,
    "actor_learning_rate": 2e-3,
    "critic_learning_rate": 2e-3,
    "value_learning_rate": 2e-3,
    "learning_rate": 2e-3,
    "initial_temperature": 0.1,
    "temperature": 20.0,
    "regularisation": 0.3,
    "bias": 1.0,  # all actions are in the data: no reason to stay near those that are preferred
    "discount": 0.8,
    "tau": 0.02,
    "num_layers": 1,
    "num_heads": 2,
    "head_dim": 8,
}
# Where a name means something else than in the other learners, or a fit takes longer.
SETTINGS_OF = {
    "dppo": {"lam": 0.9, "temperature": 0.1, "num_epochs": 6},
    "pt": {"num_epochs": 14},
}


@functools.cache
def make_data() -> Dataset:
    """A thousand random walks."""
    draw = np.random.default_rng(0)
    episodes = []
    for _ in range(EPISODES):
        here = draw.uniform(-1.2, 1.2, 2)
        observations, actions = [here], []
        for _ in range(HORIZON):
            action = draw.uniform(-1, 1, 2)
            here = here - STEP * action
            observations.append(here)
            actions.append(action)
        distances = np.linalg.norm(observations, axis=1)
        episodes.append(
            Episode(
                observations=np.array(observations),
                actions=np.array(actions),
                rewards=distances[:-1] - distances[1:],
                terminations=np.zeros(HORIZON, bool),
            )
        )
    return dataset.from_episodes(episodes, "planted")


def returns(policy: Any) -> float:
    """The mean return of a policy, of observations `[starts, 2]` and a key."""
    angles = jnp.arange(STARTS) * 2 * jnp.pi / STARTS
    starts = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)

    def step(here: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        return here - STEP * policy(here, key), None

    ends, _ = jax.lax.scan(step, starts, jax.random.split(jax.random.key(0), HORIZON))
    return float(1 - jnp.linalg.norm(ends, axis=1).mean())


@functools.cache
def _bounds() -> tuple[float, float]:
    """Returns of uniformly random actions and of the best."""
    worst = returns(lambda here, key: jax.random.uniform(key, here.shape, minval=-1, maxval=1))
    return worst, returns(lambda here, key: jnp.clip(here / STEP, -1, 1))


def score(policy: Any) -> float:
    """0 for uniformly random actions, 100 for the best."""
    worst, best = _bounds()
    return 100 * (returns(policy) - worst) / (best - worst)


def _of(cls: Any, names: dict[str, Any]) -> dict[str, Any]:
    own = {field.name for field in fields(cls)}
    return {name: value for name, value in names.items() if name in own}


@functools.cache
def _stored(informed: bool, seed: int) -> tuple[Store, View, LabelledPairs]:
    """The data with their labels, those shuffled among their pairs where not `informed`."""
    data = make_data()
    labels = preferences.scripted(data, seed, NUM_LABELS, STRETCH, tie_threshold=0.0)
    if not informed:
        order = np.random.default_rng(seed).permutation(NUM_LABELS)
        labels = dataclasses.replace(labels, labels=labels.labels[order])
    store, view = dataset.to_device(data, STRETCH)
    pairs = labels.to_device(data)
    store, (view,) = dataset.with_pairs(store, [view], [pairs])
    return store, view, pairs


@functools.cache
def trained_score(algorithm: str, informed: bool = True, seed: int = 0, **changed: Any) -> float:
    """The score of an algorithm, its labels shuffled among their pairs where not `informed`.

    One that learns from the true rewards has those shuffled among the transitions. seed: of labels,
    initialisation and batches. changed: other `SETTINGS`.
    """
    names = SETTINGS | SETTINGS_OF.get(algorithm, {}) | changed
    found, data = registry.algorithm(algorithm), make_data()
    store, view, _ = _stored(informed, seed)
    store = store.replace(rewards=_rewards(found, names, informed, seed))
    learner = found.policy_learner
    config = learner.Config(**_of(learner.Config, names))
    swept = {name: jnp.float32(value) for name, value in _of(learner.Swept, names).items()}
    init = jax.jit(learner.init, static_argnums=(0, 2, 3))
    init_key, batch_key = jax.random.split(_keys(seed)[0])
    state = init(config, init_key, 2, 2, **swept)
    num_updates = names["num_updates"]
    state, _ = training.train(learner, config, num_updates, state, batch_key, store, view)
    normalise = data.normaliser()
    return score(jax.jit(lambda here, _: learner.act(config, state, normalise(here))))


def _keys(seed: int) -> jax.Array:
    """Of the policy and of what it learns from."""
    return jax.random.split(jax.random.key(seed))


def _rewards(
    found: registry.Algorithm, names: dict[str, Any], informed: bool, seed: int
) -> jax.Array:
    """What the policy learns from, `[rows]`."""
    data = make_data()
    if found.true_rewards:
        true = reward_controls.true_rewards(data)
        return reward_controls.controlled("true" if informed else "shuffled", seed, data, true)
    if found.reward_learner is None:
        return jnp.zeros(len(data.rewards))
    config = found.reward_learner.Config(**_of(found.reward_learner.Config, names))
    return _learned(found.reward_learner, config, informed, seed)


@functools.cache  # several algorithms learn from one reward model
def _learned(learner: Any, config: Any, informed: bool, seed: int) -> jax.Array:
    store, view, pairs = _stored(informed, seed)
    num_pairs = len(pairs.labels)
    init = jax.jit(learner.init, static_argnums=(0, 2, 3, 4))
    init_key, batch_key = jax.random.split(_keys(seed)[1])
    state = init(config, init_key, 2, 2, num_pairs)
    num_updates = learner.num_updates(config, num_pairs)
    state, _ = training.train(learner, config, num_updates, state, batch_key, store, view, pairs)
    one = jax.tree.map(lambda leaf: leaf[None], (state, view))
    return training.relabel(learner, config, one[0], store, one[1], len(store.actions))[0]
