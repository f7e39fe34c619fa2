"""What data and labels say of trained policies, without their environment.

Offline policy selection: where policies can't be tried out, something that is known has to stand
for how good they are. Pairs that nobody trained on can be asked: do Q and V order them as their
labels do, and are the policy's actions nearer to those of the better segment? And training itself
wrote down how far the critics were off, and how much they prefer the policy's actions to the
data's.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from appo_jax import cpl, policy, registry, training
from appo_jax.data import preferences, sampling
from appo_jax.types import LabelledPairs, Store, View
from experiments.runs import files
from experiments.runs.experiment import differing
from experiments.runs.results import RunResult
from experiments.selecting.held_out import HeldOut

_LAST_SHARE = 0.1  # of training, over which its own numbers are averaged
_OF_TRAINING = ("error", "adversarial")
# What these two are counted in: how segments are compared, and the rewards.
_UNITS = (
    *("pairwise_error", "squared_error", "partial_segments", "labelled_pairs", "segment_length"),
    *("reward", "reward_scale", "ending"),
)


@dataclasses.dataclass(frozen=True)
class Criterion:
    """A number by which a policy may be chosen. sign: 1 where more is better, -1 where less is."""

    help: str
    sign: int


CRITERIA: Mapping[str, Criterion] = {
    "values": Criterion("% of pairs that sum_l Q(s_l, a_l) - gamma V(s_l+1) orders rightly", 1),
    "actions": Criterion("% of pairs whose better segment's actions are nearer to the policy's", 1),
    "error": Criterion("the critics' error over the last tenth of training (APPO)", -1),
    "adversarial": Criterion("Q(s, pi(s)) - Q(s, a) over the last tenth of training (APPO)", -1),
}


@dataclasses.dataclass(frozen=True)
class Judged:
    """A run, its setting in words, and the numbers by those criteria that its algorithm knows."""

    result: RunResult
    setting: str
    criteria: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a criterion chooses among settings, by its mean over their seeds.

    chosen: the setting, or several with the same mean. correlation: Spearman's rank correlation
    between the criterion's means, turned so that more is better, and the score's, over num_settings
    settings; None for fewer than three, and where one of the two is the same in all.
    """

    criterion: str
    chosen: tuple[str, ...]
    correlation: float | None
    num_settings: int


def judge(
    result: RunResult,
    setting: str,
    saved: policy.Saved,
    metrics: files.MetricsFile,
    held_out: HeldOut,
) -> Judged:
    """The criteria of one run.

    setting: what it shares with its other seeds, in words. saved: its last checkpoint. metrics: of
    its folder.
    """
    learner: Any = registry.algorithm(result.algorithm).policy_learner
    known = saved.policy.config, saved.state, held_out.store, held_out.view, held_out.pairs
    pair_error, segment_error, adversarial = (
        _at_end(metrics, result, f"critic/{name}")
        for name in ("pair_error", "segment_error", "adversarial")
    )
    found = {
        "values": _accuracy(held_out, training.score(learner, *known))
        if hasattr(learner, "score")
        else None,
        "actions": _accuracy(held_out, _nearness(learner, *known)),
        "error": segment_error if pair_error is None else pair_error,
        "adversarial": adversarial,
    }
    return Judged(result, setting, {name: own for name, own in found.items() if own is not None})


def choose(judged: Sequence[Judged]) -> list[Choice]:
    """What each criterion chooses, of the settings all of whose runs know it.

    What training wrote down chooses nothing among runs that measured it otherwise.
    """
    scores, found = mean_scores(judged), []
    for name, criterion in CRITERIA.items():
        means = {
            setting: criterion.sign * float(np.mean([one.criteria[name] for one in own]))
            for setting, own in by_setting(judged).items()
            if all(name in one.criteria for one in own)
        }
        if means and not differing_units(judged, name):
            greatest = max(means.values())
            chosen = tuple(setting for setting, mean in means.items() if mean == greatest)
            pairs = [(means[setting], scores[setting]) for setting in means if setting in scores]
            found.append(Choice(name, chosen, _rank_correlation(pairs), len(pairs)))
    return found


def differing_units(judged: Sequence[Judged], name: str) -> list[str]:
    """The settings in which runs differ that decide in what a criterion is counted."""
    if name not in _OF_TRAINING:
        return []
    known = [one.result.settings for one in judged if name in one.criteria]
    return [unit for unit in differing(known) if unit in _UNITS]


def by_setting(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """The runs of each setting."""
    groups: dict[str, list[Judged]] = {}
    for one in judged:
        groups.setdefault(one.setting, []).append(one)
    return groups


def mean_scores(judged: Sequence[Judged]) -> dict[str, float]:
    """Of each setting all of whose runs have a score that is a number."""
    found = {}
    for setting, own in by_setting(judged).items():
        scores = [one.result.score for one in own if one.result.score is not None]
        if len(scores) == len(own) and np.all(np.isfinite(scores)):
            found[setting] = float(np.mean(scores))
    return found


def _rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    if len(pairs) < 3 or any(len(set(numbers)) == 1 for numbers in zip(*pairs, strict=True)):
        return None
    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)


def _accuracy(held_out: HeldOut, scores: jax.Array) -> float:
    share, _ = preferences.accuracy(held_out.labels.labels, np.asarray(scores))
    assert share is not None
    return 100 * share


def _at_end(metrics: files.MetricsFile, result: RunResult, name: str) -> float | None:
    found = metrics.values(result.run, "train", name)
    first = (1 - _LAST_SHARE) * result.updates_done
    last = [value for update, value in found.items() if update > first]
    return float(np.mean(last)) if last else None


@functools.partial(jax.jit, static_argnames=("learner", "config"))
def _nearness(
    learner: Any, config: Any, state: Any, store: Store, view: View, pairs: LabelledPairs
) -> jax.Array:
    """Minus the mean squared distance of the policy's actions to the data's, `[pairs, 2]`."""
    segments = sampling.gather_labelled_pairs(store, view, pairs)
    actions = learner.act(config, state, segments.observations[:, :, :-1])
    near = cpl.log_prob(actions, segments.actions)
    return jnp.mean(near, axis=-1, where=segments.is_step)
