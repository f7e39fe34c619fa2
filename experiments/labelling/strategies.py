"""Which pairs to ask about. Each strategy follows from its seed and the answers so far alone.

`propose` is asked for one pair after another, and may be asked again after a restart: what it gives
must depend on the arguments only. Labellers of one folder share the seed, and so are asked about
the same pairs wherever the answers don't decide.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from appo_jax.data import preferences
from appo_jax.data.dataset import STD_FLOOR, Dataset
from appo_jax.types import InputError
from experiments.labelling import journal
from experiments.labelling.records import Segment, Segments, unordered

# The answers so far: of each pair, its segments in their order, the label; None where skipped.
Answers = Mapping[Segments, float | None]

CANDIDATES = 10  # pairs of which `changing` takes one
NUM_LISTS = 2  # that `ranked` fills in turn, so that the next pair is known while one is judged


class Waiting(Exception):
    """Which pair comes next depends on an answer that isn't there yet."""


class Strategy(Protocol):
    """What a strategy offers."""

    def propose(self, asked: Sequence[Segments], answers: Answers) -> Segments:
        """The pair to ask about after those. Raises Waiting."""

    def left(self, asked: Sequence[Segments], answers: Answers) -> int | None:
        """How many pairs it has after those; None for any number."""


class Segmented:
    """A data set's segments, to draw from."""

    def __init__(self, dataset: Dataset, length: int):
        """Raises InputError where there are fewer than two."""
        self.dataset, self.length = dataset, length
        self.rows = dataset.segment_rows(length)
        if len(self.rows) < 2:
            raise InputError(
                f"data set {dataset.id}: {len(self.rows)} segment of length {length}, expected at "
                "least two to compare"
            )

    def segment(self, row: int) -> Segment:
        """The segment that begins in a row."""
        starts = self.dataset.episode_starts
        episode = int(np.searchsorted(starts, row, side="right")) - 1
        return Segment(episode, int(row - starts[episode]))

    def row(self, segment: Segment) -> int:
        """The row in which a segment begins."""
        return int(self.dataset.episode_starts[segment.episode]) + segment.start

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """The rows of two different segments, uniform."""
        return self.rows[generator.choice(len(self.rows), 2, replace=False)]

    def pair(self, rows: np.ndarray) -> Segments:
        """The pair that begins in two rows."""
        return self.segment(int(rows[0])), self.segment(int(rows[1]))


class Random:
    """Pairs of different segments, uniform."""

    def __init__(self, segmented: Segmented, seed: int):
        self._segmented, self._seed = segmented, seed

    def propose(self, asked: Sequence[Segments], answers: Answers) -> Segments:
        """A pair that wasn't asked about before, if one is found soon."""
        generator = np.random.default_rng([self._seed, len(asked)])
        known = {unordered(pair) for pair in asked}
        for _ in range(20):
            pair = self._segmented.pair(self._pick(generator))
            if unordered(pair) not in known:
                break
        return pair

    def left(self, asked: Sequence[Segments], answers: Answers) -> int | None:
        """It doesn't end."""
        return None

    def _pick(self, generator: np.random.Generator) -> np.ndarray:
        return self._segmented.draw(generator)


class Changing(Random):
    """Of ten random pairs the one whose observations change most.

    In all columns, each in its standard deviations (measured: docs/measurements.md).
    """

    def __init__(self, segmented: Segmented, seed: int):
        super().__init__(segmented, seed)
        std = segmented.dataset.moments[1]
        self._scale = np.where(std > STD_FLOOR, std, np.inf)  # what never changes doesn't count

    def _pick(self, generator: np.random.Generator) -> np.ndarray:
        pairs = np.stack([self._segmented.draw(generator) for _ in range(CANDIDATES)])
        return pairs[np.argmax([self._change(rows) for rows in pairs])]

    def _change(self, rows: np.ndarray) -> float:
        """How far a pair's segments go, over all columns."""
        steps = np.arange(self._segmented.length + 1)
        seen = self._segmented.dataset.observations[rows[:, None] + steps]
        return float((np.ptp(seen, axis=1) / self._scale).sum())


class FromFile:
    """The pairs of a file, in its order: lines as of preferences, with labels or without."""

    def __init__(self, path: Path, dataset: Dataset, length: int):
        """Raises InputError for a file that doesn't hold such pairs of this data set."""
        lines = [value for _, value in journal.objects(path) if "episode_0" in value]
        fields = ("episode_0", "start_0", "episode_1", "start_1")
        for value in lines:
            lengths = [value.get(name, length) for name in ("length", "length_0", "length_1")]
            if lengths != [length] * 3 or any(f not in value for f in fields):
                raise InputError(
                    f"{path}: {json.dumps(value)[:80]}, expected {', '.join(fields)} and length "
                    f"{length}"
                )
        if not lines:
            raise InputError(f"{path}: no pairs, expected lines with {', '.join(fields)}")
        try:
            checked = preferences.from_arrays(
                dataset,
                [[value["episode_0"], value["episode_1"]] for value in lines],
                [[value["start_0"], value["start_1"]] for value in lines],
                [0.5] * len(lines),
                length,
            )
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        self.pairs = [
            (Segment(e[0], s[0]), Segment(e[1], s[1]))
            for e, s in zip(checked.episodes.tolist(), checked.starts.tolist(), strict=True)
        ]

    def propose(self, asked: Sequence[Segments], answers: Answers) -> Segments:
        """The file's next pair that wasn't asked about."""
        return self._after(asked)[0]

    def left(self, asked: Sequence[Segments], answers: Answers) -> int | None:
        """The file's pairs that weren't asked about."""
        return len(self._after(asked))

    def _after(self, asked: Sequence[Segments]) -> list[Segments]:
        """A pair that stands in the file twice is asked about twice."""
        there, after = Counter(map(unordered, asked)), []
        for pair in self.pairs:
            if there[unordered(pair)]:
                there[unordered(pair)] -= 1
            else:
                after.append(pair)
        return after


class Ranked:
    """Lists of segments from the worst to the best, each new segment put in by binary search.

    As LiRE's (arXiv 2402.18212): a place of a list holds segments that were called equal, and the
    comparisons of a search imply all others of the segment. Two lists are filled in turn. A list
    ends when all segments were drawn for it.
    """

    def __init__(self, segmented: Segmented, seed: int):
        self._segmented, self._seed = segmented, seed

    def propose(self, asked: Sequence[Segments], answers: Answers) -> Segments:
        """The comparison that the next list waits for; of another one where that is being asked."""
        known = {unordered(pair) for pair in asked}
        for shift in range(NUM_LISTS):
            _, question = self._list((len(asked) + shift) % NUM_LISTS, answers)
            if question is not None and unordered(question) not in known:
                return question
        raise Waiting("the next pair depends on the answer before it")

    def left(self, asked: Sequence[Segments], answers: Answers) -> int | None:
        """None, or 0 where all lists have ended."""
        if len({segment for pair in answers for segment in pair}) < len(self._segmented.rows):
            return None  # without making the lists: one that has ended compared all segments
        questions = [self._list(number, answers)[1] for number in range(NUM_LISTS)]
        return 0 if questions == [None] * NUM_LISTS else None

    def implied(self, answers: Answers) -> dict[Segments, float]:
        """Labels of all pairs of segments of one list, as the lists have them."""
        labels: dict[Segments, float] = {}
        for number in range(NUM_LISTS):
            places, _ = self._list(number, answers)
            for place, members in enumerate(places):
                for index, segment in enumerate(members):
                    for equal in members[index + 1 :]:
                        labels[unordered((segment, equal))] = 0.5
                    for better in (one for later in places[place + 1 :] for one in later):
                        labels[unordered((segment, better))] = float(segment < better)
        return labels

    def _list(self, number: int, answers: Answers) -> tuple[list[list[Segment]], Segments | None]:
        """A list as the answers make it, worst first, and the comparison that it waits for."""
        generator = np.random.default_rng([self._seed, number])
        places = [[self._draw(generator)]]
        drawn = set(places[0])
        while len(drawn) < len(self._segmented.rows):
            segment = self._draw(generator)
            drawn.add(segment)
            if any(segment in place for place in places):
                continue
            low, high = 0, len(places)
            while low < high:
                middle = (low + high) // 2
                question = (segment, places[middle][0])
                key = unordered(question)
                if key not in answers:
                    return places, question
                label = answers[key]
                if label is None:  # skipped: another segment in its place
                    break
                is_better = (1 - label if key[0] == segment else label) - 0.5
                if is_better == 0:
                    places[middle].append(segment)
                    break
                low, high = (middle + 1, high) if is_better > 0 else (low, middle)
            else:
                places.insert(low, [segment])
        return places, None

    def _draw(self, generator: np.random.Generator) -> Segment:
        rows = self._segmented.rows
        return self._segmented.segment(int(rows[generator.integers(len(rows))]))
