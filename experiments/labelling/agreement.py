"""How labellers agree: each with themself over repeated pairs, and with each other."""

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from experiments.labelling.records import Answer, Segments, unordered


@dataclasses.dataclass(frozen=True)
class Labeller:
    """One labeller's answers in numbers.

    answers: pairs that were answered, skipped ones aside. ties: share of `equal`. left: share of
    the answers that aren't ties that say left; far from a half, a side is favoured, since sides are
    drawn at random. seconds: the median's. repeats: pairs that were answered twice;
    self_agreement: share of them with the same label both times, None where there are none.
    """

    name: str
    answers: int
    skips: int
    ties: float | None
    left: float | None
    seconds: float | None
    repeats: int
    self_agreement: float | None


@dataclasses.dataclass(frozen=True)
class Between:
    """Two labellers over the pairs that both answered. kappa: Cohen's, of first, tie, second."""

    names: tuple[str, str]
    pairs: int
    agreement: float
    kappa: float | None


def of_labeller(name: str, answers: Sequence[Answer]) -> Labeller:
    """What one labeller's standing answers say."""
    given = [answer for answer in answers if answer.label is not None]
    strict = [answer for answer in given if answer.label != 0.5]
    by_pair = {answer.pair: answer for answer in given}
    twice = [
        (_of_sorted(answer), _of_sorted(by_pair[answer.repeat_of]))
        for answer in given
        if answer.repeat_of is not None and answer.repeat_of in by_pair
    ]
    return Labeller(
        name=name,
        answers=len(given),
        skips=len(answers) - len(given),
        ties=_share(len(given) - len(strict), len(given)),
        left=_share(sum(answer.answer == "left" for answer in strict), len(strict)),
        seconds=statistics.median(answer.seconds for answer in given) if given else None,
        repeats=len(twice),
        self_agreement=_share(sum(first == second for first, second in twice), len(twice)),
    )


def between(names: tuple[str, str], first: Sequence[Answer], second: Sequence[Answer]) -> Between:
    """What two labellers' standing answers to the same pairs say; a pair's first answer counts."""
    one, other = (_labels(answers) for answers in (first, second))
    shared = [(one[pair], other[pair]) for pair in one if pair in other]
    agreement = _share(sum(a == b for a, b in shared), len(shared)) or 0.0
    return Between(names, len(shared), agreement, cohens_kappa(shared))


def cohens_kappa(labels: Sequence[tuple[float, float]]) -> float | None:
    """(p_o - p_e) / (1 - p_e): agreement beyond that of two who answer at random in their shares.

    None without labels, and where both gave one and the same label throughout.
    """
    total = len(labels)
    if not total:
        return None
    observed = sum(a == b for a, b in labels) / total
    one, other = Counter(a for a, _ in labels), Counter(b for _, b in labels)
    expected = sum(one[label] * other[label] for label in one) / total**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def report(answers: Sequence[Answer]) -> dict[str, Any]:
    """All of it, JSON-able, by the standing answers of all labellers."""
    own: dict[str, list[Answer]] = {}
    for answer in answers:
        own.setdefault(answer.labeller, []).append(answer)
    pairs = itertools.combinations(sorted(own), 2)
    return {
        "labellers": [dataclasses.asdict(of_labeller(name, own[name])) for name in sorted(own)],
        "between": [dataclasses.asdict(between((a, b), own[a], own[b])) for a, b in pairs],
    }


def lines(found: dict[str, Any]) -> list[str]:
    """A report for a person."""
    shown = []
    for one in found["labellers"]:
        parts = [f"{one['answers']} answers", f"{one['skips']} skipped"]
        if one["answers"]:
            parts += [f"{one['ties']:.0%} equal", f"{one['seconds']:.1f} s an answer (median)"]
        if one["left"] is not None:
            parts.append(f"{one['left']:.0%} of the others left")
        agrees = one["self_agreement"]
        again = f"agrees with themself in {agrees:.0%} of " if agrees is not None else ""
        shown.append(f"{one['name']}: {', '.join(parts)}; {again}{one['repeats']} repeated pairs")
    for two in found["between"]:
        kappa = "" if two["kappa"] is None else f", Cohen's kappa {two['kappa']:.2f}"
        agrees = f", the same label in {two['agreement']:.0%}{kappa}" if two["pairs"] else ""
        shown.append(f"{' and '.join(two['names'])}: {two['pairs']} pairs in common{agrees}")
    return shown


def _labels(answers: Sequence[Answer]) -> dict[Segments, float]:
    found: dict[Segments, float] = {}
    for answer in answers:
        if answer.label is not None:
            found.setdefault(unordered(answer.segments), _of_sorted(answer))
    return found


def _of_sorted(answer: Answer) -> float:
    """The label of the pair's segments in their order."""
    assert answer.label is not None
    in_order = answer.segments == unordered(answer.segments)
    return answer.label if in_order else 1 - answer.label


def _share(count: int, total: int) -> float | None:
    return count / total if total else None
