"""Mutants of files of labels, with their rules."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from appo_jax.data import checks, preferences
from tests.mutants.core import JSON_VALUES, Draw, mutate_bytes, outcome, pick
from tests.mutants.data import valid_set

LABEL_LENGTH = 2
PAIR_FIELDS = ("episode_0", "start_0", "episode_1", "start_1", "length", "label")
PAIR_VALUES = (*range(-1, 6), 10**30, 0.5, 1.0, 0.3, 0.7, 1.5, math.nan, math.inf, *JSON_VALUES)


def label_lines() -> list[dict[str, Any]]:
    header = {"format": "appo-preferences", "version": 1, "dataset": "set-v0", "seed": 0}
    pairs = ((0, 0, 1, 0, 1.0), (0, 2, 2, 3, 0.0), (1, 0, 2, 1, 0.5), (0, 0, 2, 4, 0.3))
    return [header] + [
        dict(zip(PAIR_FIELDS, (*pair[:4], LABEL_LENGTH, pair[4]), strict=True)) for pair in pairs
    ]


def parsed(line: str) -> dict[str, Any] | None:
    def once(fields: list[tuple[str, Any]]) -> Any:
        return dict(fields) if len({name for name, _ in fields}) == len(fields) else [][1]

    try:
        value = json.loads(line, object_pairs_hook=once)
    except (ValueError, IndexError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def expected_labels(
    content: bytes, lengths: Sequence[int], drop: bool
) -> tuple[list[list[Any]], int] | None:
    """The pairs that are read and how many are left out, or None where the file is refused."""
    try:
        text = content.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        return None
    header, *lines = text.removesuffix("\n").split("\n")
    head = parsed(header)
    if head is None or type(head.get("seed")) not in (int, type(None)):
        return None
    if (head.get("format"), head.get("dataset")) != ("appo-preferences", "set-v0"):
        return None
    if head.get("version") != 1:
        return None
    pairs, left_out = [], 0
    for line in filter(str.strip, lines):
        pair = parsed(line)
        if pair is None:
            return None
        values = [pair.get(name) for name in PAIR_FIELDS]
        *places, length, label = values
        if type(label) not in (int, float) or not 0 <= label <= 1:  # type: ignore[operator]
            return None
        if any(type(place) is not int for place in (*places, length)) or length != LABEL_LENGTH:
            return None
        for episode, start in (places[:2], places[2:]):
            if not (0 <= episode < len(lengths) and 0 <= start <= lengths[episode] - LABEL_LENGTH):
                return None
        if places[:2] == places[2:]:
            if not drop:
                return None
            left_out += 1
        else:
            pairs.append([*places, label])
    return (pairs, left_out) if pairs else None


def expected_label_warnings(pairs: Sequence[Sequence[Any]]) -> set[str]:
    kinds = set()
    for index, (*places, label) in enumerate(pairs):
        for *others, first in pairs[:index]:
            swapped = places == [*others[2:], *others[:2]]
            if places == others or swapped:
                same = math.isclose(label, 1 - first if swapped else first, abs_tol=1e-6)
                kinds.add(f"{'repeat' if same else 'contradict'}")
                break
    labels = [np.float32(label) for *_, label in pairs if np.float32(label) != 0.5]
    if not labels:
        kinds.add("ties")
    elif len({label > 0.5 for label in labels}) == 1:
        kinds.add("second" if labels[0] > 0.5 else "first")
    if labels and len(labels) * 4 <= len(pairs):
        kinds.add("leaves")
    return kinds


def kind_of(warning: str) -> str:
    if "aren't ties" in warning:
        return "second" if "second" in warning else "first"
    kinds = ("repeat", "contradict", "left out", "leaves", "ties")
    return next(kind for kind in kinds if kind in warning)


def labels_mutant(draw: Draw, folder: Path, _: Path) -> str:
    dataset = valid_set()
    lines: list[Any] = label_lines()
    kinds = ("field", "field", "field", "delete", "copy", "swap", "itself", "drop", "insert")
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(lines))) if lines else 0
        match pick(draw, kinds):
            case "field" if place < len(lines) and isinstance(lines[place], dict):
                line = lines[place] = dict(lines[place])
                line[pick(draw, sorted(line))] = pick(draw, PAIR_VALUES)
            case "delete" if place < len(lines) and lines[place] and place:
                if isinstance(lines[place], dict):
                    lines[place] = dict(lines[place])
                    lines[place].pop(pick(draw, sorted(lines[place])))
            case "copy" if 0 < place < len(lines):
                lines.append(lines[place])
            case "swap" if 0 < place < len(lines) and isinstance(lines[place], dict):
                other = {"0": "1", "1": "0"}
                copied = {n[:-1] + other.get(n[-1], n[-1]): v for n, v in lines[place].items()}
                if draw(st.booleans()) and isinstance(copied.get("label"), float):
                    copied["label"] = 1 - copied["label"]
                lines.append(copied)
            case "itself" if 0 < place < len(lines) and isinstance(lines[place], dict):
                line = dict(lines[place])
                line |= {"episode_1": line.get("episode_0"), "start_1": line.get("start_0")}
                lines.insert(place, line)
            case "drop":
                del lines[place:]
            case "insert":
                lines.insert(
                    place, pick(draw, ("", " ", "no JSON", "[1]", '{"label":1,"label":0}'))
                )
    ends = pick(draw, ("\n", "\n", "\n", "\r\n", "\r"))
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + ends for x in lines)
    content = text.encode()
    if draw(st.integers(0, 3)) == 0:
        content = mutate_bytes(draw, content)
    path = folder / "labels.jsonl"
    path.write_bytes(content)
    on_bad_label = pick(draw, ("refuse", "drop"))
    read = expected_labels(content, dataset.lengths.tolist(), on_bad_label == "drop")
    found, refusal = outcome(
        lambda: preferences.load(path, dataset, LABEL_LENGTH, on_bad_label), str(path)
    )
    assert (refusal is None) == (read is not None), refusal
    if read is None:
        return "refused"
    expected, left_out = read
    assert found.num_left_out == left_out
    assert preferences.count_labels(path, on_bad_label) == len(expected)
    assert np.hstack([found.episodes, found.starts])[:, [0, 2, 1, 3]].tolist() == [
        pair[:4] for pair in expected
    ]
    np.testing.assert_array_equal(found.labels, np.float32([pair[4] for pair in expected]))
    warnings = checks.about_labels(found)
    # The model finds a contradiction with the first of the same pair, as the rules do.
    told = expected_label_warnings(expected) | ({"left out"} if left_out else set())
    assert {kind_of(one) for one in warnings} == told
    copy = folder / "copy.jsonl"
    preferences.save(found, copy)
    again = preferences.load(copy, dataset, LABEL_LENGTH)
    np.testing.assert_array_equal(again.labels, found.labels)
    return "warned of" if warnings else "accepted"
