"""The survival check: what does a data set teach when the reward says something else, or nothing?

A data set can teach its task without any reward, as when its behaviour is good already: then a
policy that "survives" a wrong reward says nothing about preferences. `--reward` picks what trains
the policy in place of its own reward; the scale stays that of r_hat's default, [0, 1].
"""

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import registry
from appo_jax.data.dataset import Dataset
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import InputError
from experiments.runs.experiment import Experiment

# Of the rewards' range, where ending is the goal (what 0 does: docs/measurements.md).
_COST_AT_BEST = 0.15
_CONTROLS = ("shuffled", "negated", "zero")
KINDS = {
    "learned": ("learned", *_CONTROLS, "true"),
    "true": ("true", *_CONTROLS),
    "none": ("none",),
}


def own_kind(algorithm: str) -> str:
    """What an algorithm trains its policy on: learned rewards, the true ones, or none."""
    found = registry.algorithm(algorithm)
    if found.reward_learner is not None:
        return "learned"
    return "true" if found.true_rewards else "none"


def check_kind(algorithm: str, kind: str) -> None:
    """Raise InputError for a kind of reward that makes no sense with an algorithm."""
    allowed = KINDS[own_kind(algorithm)]
    if kind not in allowed:
        *others, last = allowed
        words = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"reward={kind}: expected {words} with algorithm {algorithm}")


def check_ending(algorithm: str, kind: str, ending: str) -> None:
    """Raise InputError where an ending is given for rewards that aren't learned for each step."""
    if ending != "unknown" and not _of_steps(algorithm, kind):
        raise InputError(
            f"ending={ending}: says where the zero of learned rewards lies, and algorithm "
            f"{algorithm} with reward {kind} learns none of a step; expected unknown"
        )


def asks_for_ending(run: Experiment) -> bool:
    """Whether the zero of the run's rewards lies where nobody has put it."""
    scaled = getattr(run.reward_model, "scale", "minmax") == "minmax"
    return run.ending == "unknown" and scaled and _of_steps(run.algorithm, run.reward)


def _of_steps(algorithm: str, kind: str) -> bool:
    return needs_model(algorithm, kind) and not registry.algorithm(algorithm).of_windows


def needs_model(algorithm: str, kind: str) -> bool:
    """Whether a reward model has to be fitted for this kind of reward."""
    return own_kind(algorithm) == "learned" and kind in ("learned", "shuffled", "negated")


def needs_truth(algorithm: str, kind: str) -> bool:
    """Whether the data set's own rewards train the policy, as they are or changed."""
    return kind == "true" or (own_kind(algorithm) == "true" and kind != "zero")


def true_rewards(dataset: Dataset, window: int = 1) -> jax.Array:
    """The data set's own rewards scaled to [0, 1], `[rows]`; 0 on rows that start no transition.

    Where episodes end in terminal states, whose value is 0, their zero says what a step is worth:
    they are then divided by the largest, and not moved.

    window: steps of which a row has the mean, up to its own, or of fewer at an episode's beginning.
    """
    of_steps, rewards = dataset.transition_rows(), dataset.known_rewards("the true reward")
    place = of_steps - np.repeat(dataset.episode_starts, dataset.lengths)  # in the episode
    total = np.zeros(len(of_steps), np.float32)
    for ago in range(window):
        total += np.where(ago <= place, rewards[np.maximum(of_steps - ago, 0)], 0)
    rows = jnp.asarray(of_steps)
    found = jnp.asarray(total / np.minimum(place + 1, window).astype(np.float32))
    low, span = found.min(), found.max() - found.min()
    if dataset.terminations.any():
        low, span = jnp.float32(0), jnp.abs(found).max()
    found = jnp.where(span > 0, (found - low) / span, 0.0)
    return jnp.zeros(len(dataset.observations)).at[rows].set(found)


def controlled(kind: str, seed: int, dataset: Dataset, rewards: jax.Array) -> jax.Array:
    """What `--reward=<kind>` makes of an algorithm's own `rewards`, `[rows]`. seed: the run's."""
    rows = jnp.asarray(dataset.transition_rows())
    of_rows = rewards[rows]
    match kind:
        case "learned" | "true":
            return rewards
        case "shuffled":
            key = purpose_key(seed, Purpose.SHUFFLED_REWARDS)
            found = rewards[jax.random.permutation(key, rows)]
        case "negated":
            found = of_rows.max() + of_rows.min() - of_rows  # 1 - r for r in [0, 1]
        case "zero" | "none":
            found = jnp.zeros_like(of_rows)
        case _:
            raise ValueError(kind)
    return jnp.zeros_like(rewards).at[rows].set(found)


def with_ending(ending: str, dataset: Dataset, rewards: jax.Array) -> jax.Array:
    """The rewards `[rows]`, moved so that an end, worth 0, is to them what `ending` says.

    "fall": the worst step's is 0; "goal": the best step costs a little, for with 0 to linger beside
    the goal would be as good as to reach it; "unknown": they stay as they are.
    """
    if ending == "unknown":
        return rewards
    rows = jnp.asarray(dataset.transition_rows())
    of_rows = rewards[rows]
    low, high = of_rows.min(), of_rows.max()
    zero = low if ending == "fall" else high + _COST_AT_BEST * (high - low)
    return rewards.at[rows].set(of_rows - zero)
