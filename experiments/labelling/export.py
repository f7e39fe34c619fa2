"""Labels out of answers: a line of preferences for each pair that somebody answered."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from appo_jax.data import atomic, preferences
from appo_jax.data.preferences import Preferences
from experiments.labelling.records import Answer, Segment, Segments, unordered

# Of a pair whose segments stand in their order: probability that the later one is preferred.
Labels = Mapping[Segments, float]


def preferences_of(answers: Iterable[Answer], dataset_id: str, length: int) -> Preferences:
    """A label for each unordered pair, in the order in which the pairs were first answered.

    The mean over labellers and repeats; skipped pairs are left out. Segments stand as they were
    first asked about.
    """
    given: dict[Segments, list[Answer]] = {}
    for answer in sorted(answers, key=lambda answer: (answer.at, answer.labeller, answer.pair)):
        if answer.label is not None:
            given.setdefault(unordered(answer.segments), []).append(answer)
    firsts = [own[0] for own in given.values()]
    labels = [
        float(np.mean([_label(answer, own[0].segments) for answer in own]))
        for own in given.values()
    ]
    labellers = [", ".join(sorted({answer.labeller for answer in own})) for own in given.values()]
    pairs = [answer.segments for answer in firsts]
    return _preferences(pairs, labels, labellers, dataset_id, length)


def with_implied(
    given: Preferences, implied: Labels, dataset_id: str, length: int, labeller: str
) -> Preferences:
    """The labels that were given, and behind them those that follow from ranked lists."""
    pairs = [_segments(given, index) for index in range(len(given))]
    there = {unordered(pair) for pair in pairs}
    new = {pair: label for pair, label in implied.items() if pair not in there}
    return _preferences(
        [*pairs, *new],
        [*given.labels.tolist(), *new.values()],
        [*given.labellers, *[f"implied by {labeller}'s ranking"] * len(new)],
        dataset_id,
        length,
    )


def save(labels: Preferences, path: Path) -> None:
    """Write the file whole or not at all."""
    with atomic.replacing(path) as partial:
        preferences.save(labels, partial)


def _label(answer: Answer, segments: Segments) -> float:
    """An answer's label, of the segments in this order."""
    assert answer.label is not None
    return answer.label if answer.segments == segments else 1 - answer.label


def _segments(labels: Preferences, index: int) -> Segments:
    pairs = zip(labels.episodes[index].tolist(), labels.starts[index].tolist(), strict=True)
    first, second = (Segment(episode, start) for episode, start in pairs)
    return first, second


def _preferences(
    pairs: list[Segments],
    labels: list[float],
    labellers: list[str],
    dataset_id: str,
    length: int,
) -> Preferences:
    places = np.array(pairs, np.int64).reshape(len(pairs), 2, 2)  # [pairs, segment, episode/start]
    return Preferences(
        episodes=places[..., 0],
        starts=places[..., 1],
        labels=np.array(labels, np.float32),
        labellers=tuple(labellers),
        length=length,
        dataset_id=dataset_id,
        seed=None,
    )
