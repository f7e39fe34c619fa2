"""A labeller at work in a folder: which pair comes next, answers kept, labels derived.

Files of the folder: `session.json` (which data set, by its digest; how the pairs are found),
`pairs-<labeller>.jsonl` (the pairs that were asked about, with their sides),
`answers-<labeller>.jsonl` (the journal), `preferences.jsonl` (derived from all journals),
`report.json`, `token`, `open.html`. A journal of another labeller that is copied into the folder
counts.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset
from appo_jax.types import InputError
from experiments.labelling import agreement, export, records
from experiments.labelling.journal import Journal, Lines, objects, read, standing
from experiments.labelling.records import Answer, Pair, Record, Segments, Undo, unordered
from experiments.labelling.strategies import Ranked, Strategy, Waiting
from experiments.runs import files

FORMAT, VERSION = "appo-labelling", 1
AHEAD = 3  # pairs that are chosen beyond the one that is judged
_REST = 10  # pairs between an answer and its repetition, at least
_SIDES, _REPEATS = 1, 2  # what a draw is for


@dataclasses.dataclass(frozen=True)
class Plan:
    """How pairs are found, and what is asked of them."""

    pairs: str
    num_pairs: int
    segment_length: int
    seed: int
    repeats: float
    question: str


class Conflict(Exception):
    """A request that no longer fits what is on the disk: an answer to a pair that has one."""


class Session:
    """One labeller's work; safe to use from several threads. notes: what a person should know."""

    def __init__(
        self, folder: Path, dataset: Dataset, plan: Plan, labeller: str, strategy: Strategy
    ):
        """Go on with what the folder holds, or begin.

        The caller holds the folder's lock. Raises InputError for another data set or segment length
        than the folder was begun with, and for files that aren't as they must be.
        """
        if not records.LABELLER.fullmatch(labeller):
            raise InputError(
                f"--labeller={labeller}: expected 1 to 40 letters, digits, - or _, which name a "
                "file"
            )
        self.folder, self.plan, self.labeller = folder, plan, labeller
        self._dataset, self._strategy = dataset, strategy
        self.id = _check_session(folder, dataset, plan)
        self._lock = threading.RLock()
        self._pairs = Lines(folder / f"pairs-{labeller}.jsonl")
        self._issued = [
            records.pair_from(value, where) for where, value in objects(self._pairs.path)
        ]
        self._journal = Journal(folder / f"answers-{labeller}.jsonl")
        self.notes = [*self._journal.notes]
        self._others = [r for path in self._other_journals() for r in read(path)]
        self._check_records([*self._others, *self._journal.records])
        self.save()

    @property
    def answers(self) -> list[Answer]:
        """The answers of the labeller that count."""
        with self._lock:
            return standing(self._journal.records)

    @property
    def total(self) -> int:
        """Pairs to ask about, repeated ones too, as far as the strategy has so many."""
        with self._lock:
            left = self._strategy.left(self._asked(), self._known())
            wanted = self.plan.num_pairs
            return wanted if left is None else min(wanted, len(self._issued) + left)

    @property
    def left_out(self) -> int:
        """Pairs that a strategy with an end still has and `num_pairs` doesn't reach."""
        with self._lock:
            left = self._strategy.left(self._asked(), self._known()) or 0
            return max(0, min(left, len(self._issued) + left - self.plan.num_pairs))

    def answered(self) -> dict[int, Answer]:
        """They, by the number of their pair."""
        return {answer.pair: answer for answer in self.answers}

    def current(self) -> int:
        """The first pair without an answer; `total` where all have one."""
        with self._lock:
            there, total = self.answered(), self.total
            return next((n for n in range(total) if n not in there), total)

    def pair(self, number: int) -> Pair:
        """A pair by its number; one that wasn't asked about yet is chosen, and written down, now.

        Raises InputError for a number beyond those that are due, Waiting where it depends on an
        answer that isn't there yet, OSError where it can't be written down.
        """
        with self._lock:
            if not 0 <= number < min(self.total, self.current() + AHEAD + 1):
                raise InputError(f"pair {number}, expected one that is due")
            while len(self._issued) <= number:
                pair = self._choose(len(self._issued))
                self._pairs.append({**records.to_json(pair), "length": self.plan.segment_length})
                self._issued.append(pair)
            return self._issued[number]

    def issued(self) -> list[Pair]:
        """All pairs that were asked about so far."""
        with self._lock:
            return list(self._issued)

    def ahead(self) -> list[Pair]:
        """The pair that is judged now and those after it, as far as they can be known."""
        found = []
        with self._lock, contextlib.suppress(Waiting):
            first = self.current()
            for number in range(first, first + AHEAD):
                if number < self.total:  # which a repeated pair makes more
                    found.append(self.pair(number))
        return found

    def answer(self, request: Mapping[str, Any], clip: tuple[str, str]) -> None:
        """Keep an answer: what it says of its pair must be what was asked.

        clip: the sources of the clips of segments 0 and 1. It is on the disk when this returns.
        Raises InputError for a request that can't be right, Conflict for a pair that has another
        answer, OSError where it can't be written.
        """
        where = "answer"
        id = records.id_from(request, "id", where)
        pair = records.pair_from(request, where)
        choice = records.choice_from(request, where)
        with self._lock:
            if id in self._journal:
                return
            if pair.pair >= len(self._issued) or not _same(pair, self._issued[pair.pair]):
                raise InputError(f"answer: pair {pair.pair} is another one, expected one asked")
            if pair.pair in self.answered():
                raise Conflict(f"pair {pair.pair} has an answer already, expected to undo it first")
            asked = self._issued[pair.pair]
            record = Answer(
                id=id,
                pair=pair.pair,
                segments=asked.segments,
                length=self.plan.segment_length,
                left=asked.left,
                answer=choice,
                seconds=round(records.seconds_from(request, where), 3),
                loops=records.whole_from(request, "loops", where),
                at=_now(),
                labeller=self.labeller,
                repeat_of=asked.repeat_of,
                clip=clip,
                session=self.id,
            )
            self._keep(record)

    def undo(self, request: Mapping[str, Any]) -> None:
        """Cancel an answer of this labeller's; the pair is asked about again.

        Raises InputError for a request that can't be right, Conflict for an answer that doesn't
        count (any more), OSError where it can't be written.
        """
        id, cancels = (records.id_from(request, field, "undo") for field in ("id", "cancels"))
        with self._lock:
            if id in self._journal:
                return
            if cancels not in {answer.id for answer in self.answers}:
                raise Conflict("undo: there is no such answer (any more)")
            self._keep(Undo(id, cancels, _now(), self.labeller, self.id))

    def state(self) -> dict[str, Any]:
        """What the page shows beside the clips, JSON-able."""
        with self._lock:
            own = self.answers
            last = own[-1] if own else None
            return {
                "question": self.plan.question,
                "labeller": self.labeller,
                # A page keeps answers that no server has yet under this name.
                "folder": hashlib.sha256(f"{self.id} {self.folder.resolve()}".encode()).hexdigest(),
                "total": self.total,
                "current": self.current(),
                "last": last and {"id": last.id, "pair": last.pair},
                **dataclasses.asdict(agreement.of_labeller(self.labeller, own)),
            }

    def save(self) -> None:
        """Derive the labels, and the report, from all journals of the folder."""
        with self._lock:
            answers = standing([*self._others, *self._journal.records])
            length, id = self.plan.segment_length, self._dataset.id
            given = export.preferences_of(answers, id, length)
            export.save(given, self.folder / "preferences.jsonl")
            if isinstance(self._strategy, Ranked):
                implied = self._strategy.implied(self._known())
                all_labels = export.with_implied(given, implied, id, length, self.labeller)
                export.save(all_labels, self.folder / "preferences-ranked.jsonl")
            files.write_json(self.folder / "report.json", agreement.report(answers))

    def report(self) -> list[str]:
        """Agreement of all labellers of the folder, for a person."""
        with self._lock:
            answers = standing([*self._others, *self._journal.records])
            return agreement.lines(agreement.report(answers))

    def close(self) -> None:
        """Nothing more is written."""
        with self._lock:
            self._pairs.close()
            self._journal.close()

    def _keep(self, record: Record) -> None:
        self._journal.append(record)
        try:
            self.save()
        except OSError as error:  # the answer itself is safe
            self.notes.append(f"preferences.jsonl is behind the journal ({error})")

    def _choose(self, number: int) -> Pair:
        draw = np.random.default_rng([self.plan.seed, number, _REPEATS])
        if draw.random() < self.plan.repeats:
            again = self._to_repeat(number)
            if again:
                pair = again[int(draw.integers(len(again)))]
                return Pair(number, pair.segments, 1 - pair.left, pair.pair)
        segments = self._strategy.propose(self._asked(), self._known())
        # Of labeller and pair: nobody can learn that a side is the better one.
        entropy = hashlib.sha256(self.labeller.encode()).digest()[:8]
        words = [self.plan.seed, number, _SIDES, int.from_bytes(entropy)]
        return Pair(number, segments, int(np.random.default_rng(words).integers(2)))

    def _asked(self) -> list[Segments]:
        """Pairs that were asked about, but for repetitions."""
        return [pair.segments for pair in self._issued if pair.repeat_of is None]

    def _to_repeat(self, number: int) -> list[Pair]:
        """Pairs that were answered some time ago, and not asked about twice."""
        twice = {pair.repeat_of for pair in self._issued}
        answered = {n for n, answer in self.answered().items() if answer.label is not None}
        return [
            pair
            for pair in self._issued[: max(0, number - _REST)]
            if pair.repeat_of is None and pair.pair not in twice and pair.pair in answered
        ]

    def _known(self) -> dict[Segments, float | None]:
        """The answers as strategies read them; the first one to a pair counts."""
        known: dict[Segments, float | None] = {}
        for answer in self.answers:
            label, key = answer.label, unordered(answer.segments)
            swapped = label is not None and key != answer.segments
            known.setdefault(key, 1 - label if swapped and label is not None else label)
        return known

    def _other_journals(self) -> list[Path]:
        own = f"answers-{self.labeller}.jsonl"
        return sorted(p for p in self.folder.glob("answers-*.jsonl") if p.name != own)

    def _check_records(self, found: Sequence[Record]) -> None:
        """Raise InputError for answers to other segments than this data set's."""
        for record in found:
            if record.session != self.id:
                raise InputError(
                    f"{self.folder}: an answer of {record.labeller} (id {record.id}) is about data "
                    f"of digest {record.session}, expected {self.id}, {self._dataset.id}"
                )
            if isinstance(record, Answer) and record.length != self.plan.segment_length:
                raise InputError(
                    f"{self.folder}: an answer of {record.labeller} (id {record.id}) is about "
                    f"segments of {record.length} steps, expected {self.plan.segment_length}"
                )
        answers = [record for record in found if isinstance(record, Answer)]
        if answers:
            try:
                preferences.from_arrays(
                    self._dataset,
                    [[s.episode for s in answer.segments] for answer in answers],
                    [[s.start for s in answer.segments] for answer in answers],
                    [0.5] * len(answers),
                    self.plan.segment_length,
                )
            except InputError as error:
                raise InputError(f"{self.folder}, its journals: {error}") from error


def _check_session(folder: Path, dataset: Dataset, plan: Plan) -> str:
    """The beginning of the data set's digest, after comparing it with the folder's own."""
    path, digest = folder / "session.json", dataset.digest()
    found = files.read_json(path)
    expected = {
        "format": FORMAT,
        "version": VERSION,
        "dataset": dataset.id,
        "digest": digest,
        "segment_length": plan.segment_length,
    }
    if found is not None:
        for field, value in expected.items():
            there = found.get(field) if isinstance(found, dict) else None
            if there != value:
                raise InputError(
                    f"{path}: {field} is {there!r:.80}, expected {value!r}: the folder holds "
                    "labels of something else; take another --workdir"
                )
    files.write_json(path, {**expected, "plan": dataclasses.asdict(plan)})
    return digest[:16]


def _same(pair: Pair, other: Pair) -> bool:
    """Whether an answer's pair is the one that was asked about, sides included."""
    return (pair.segments, pair.left) == (other.segments, other.left)


def _now() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}Z"


@contextlib.contextmanager
def opened(
    folder: Path, dataset: Dataset, plan: Plan, labeller: str, strategy: Strategy
) -> Iterator[Session]:
    """A session in a folder that nobody else works in. Raises InputError where somebody does."""
    with files.locked(folder):
        session = Session(folder, dataset, plan, labeller, strategy)
        try:
            yield session
        finally:
            session.close()
