"""Mutants of command lines, and of the files that a run finds in its folder, with their rules."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from absl import flags
from hypothesis import strategies as st
from mutants import JSON_VALUES, BadFlag, Draw, mutate_bytes, outcome, pick
from test_flags import COUNTS, RATES
from train_helpers import TINY, parse, write_buffers

from experiments import cli, controls, outputs, prepare, summary, train

FLOAT32_MAX = 3.4028234663852886e38
FLAG_VALUES = (
    *("-1", "0", "1", "2", "500", "501", "1000", "2147483647", "2147483648", "1" + "0" * 400),
    *("nan", "inf", "-inf", "0.0", "0.5", "1.5", "1e-30", "3e38", "1e39", "-0.5", ""),
    *("text", "learned", "shuffled", "negated", "minmax", "raw", "two\nlines", "None"),
    *("1,2", "500,1000", "0.5,0", "1,1", "1,", ",", "0,-1", "1,nan"),
)
LISTS = ("lam", "num_feedback", "seed")  # flags of which every value is a run


def whole(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else math.nan


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def command_line(arguments: Sequence[str]) -> Any:
    values = flags.FlagValues()
    train.define_flags(values)
    with mock.patch.object(flags, "FLAGS", values):
        try:
            cli.parse_flags(["train", *arguments])
        except SystemExit as ended:
            raise BadFlag(ended.code) from ended
    return train.experiments_from_flags(values)


def flag_rules() -> dict[str, Callable[[str], bool]]:
    rules: dict[str, Callable[[str], bool]] = {}
    rules |= dict.fromkeys(COUNTS, lambda text: 1 <= whole(text) < 2**31)
    rules |= dict.fromkeys(("seed", "data_seed"), lambda text: 0 <= whole(text) < 2**31)
    rules |= dict.fromkeys(RATES, lambda text: 0 < number(text) <= FLOAT32_MAX)
    rules |= dict.fromkeys(("lam", "tie_threshold"), lambda text: 0 <= number(text) <= FLOAT32_MAX)
    unit = ("discount", "label_noise", "negative_slope", "reward_negative_slope")
    rules |= dict.fromkeys(unit, lambda text: 0 <= number(text) <= 1)
    rules |= dict.fromkeys(("tau", "reward_decay_rate"), lambda text: 0 < number(text) <= 1)
    rules["segment_length"] = lambda text: 1 <= whole(text) <= 500
    rules["dataset_size"] = lambda text: 1 <= whole(text) < 2**31 and whole(text) % 1000 == 0
    rules["reward"] = lambda text: text in controls.REWARDS
    rules["reward_scale"] = lambda text: text in ("minmax", "raw")
    return rules | {name: each(rules[name]) for name in LISTS}


def each(rule: Callable[[str], bool]) -> Callable[[str], bool]:
    def of_list(text: str) -> bool:
        words = text.split(",")
        return all(map(rule, words)) and len(set(map(number, words))) == len(words)

    return of_list


def data_dir(shared: Path) -> Path:
    folder = shared / "buffers"
    if not folder.exists():
        write_buffers(folder)
    return folder


def flags_mutant(draw: Draw, _: Path, shared: Path) -> str:
    rules = flag_rules()
    given_flags = dict(flag.removeprefix("--").split("=", 1) for flag in TINY)
    given_flags["data_dir"] = str(data_dir(shared))
    unknown = draw(st.integers(0, 9)) == 0
    for _ in range(draw(st.integers(0, 2))):
        given_flags[pick(draw, sorted(rules))] = pick(draw, FLAG_VALUES)
    arguments = [f"--{name}={value}" for name, value in given_flags.items()]
    if unknown:
        arguments.append("--unknown=1")
    wrong = [n for n, rule in rules.items() if n in given_flags and not rule(given_flags[n])]
    found, refusal = outcome(lambda: command_line(arguments), *wrong, *["unknown"] * unknown)
    assert (refusal is None) == (not wrong and not unknown), (refusal, wrong)
    if refusal:
        return "refused"
    runs = found[0]
    for name in (*LISTS, "discount", "tau", "tie_threshold", "label_noise"):
        if name in given_flags:
            given = [float(word) for word in given_flags[name].split(",")]
            assert list(dict.fromkeys(getattr(run, name) for run in runs)) == given
    return "accepted"


# A run's own files.


def config_mutant(draw: Draw, folder: Path, shared: Path) -> str:
    runs, local = parse(*TINY, f"--data_dir={data_dir(shared)}", f"--workdir={folder}")
    config = json.loads(json.dumps(prepare.check_config(runs, local)))
    kind = pick(draw, ("none", "json", "json", "json", "bytes"))
    acceptable = True
    if kind == "json":
        place, keys = config, []
        while place and isinstance(place, dict | list) and (not keys or draw(st.booleans())):
            above = place
            keys.append(pick(draw, sorted(place) if isinstance(place, dict) else [0]))
            place = place[keys[-1]]
        value = pick(draw, JSON_VALUES)
        changed = above[keys[-1]] != value
        above[keys[-1]] = value
        acceptable = not (changed and keys[0] == "identities")
        if keys[0] == "runs" and len(keys) < 3:
            acceptable = isinstance(value, list if len(keys) == 1 else dict) and value != [1]
    content = json.dumps(config).encode()
    if kind == "bytes":
        content = mutate_bytes(draw, content)
    path = folder / "config.json"
    path.write_bytes(content)
    _, refusal = outcome(lambda: prepare.check_config(runs, local), str(folder))
    if kind != "bytes":
        assert (refusal is None) == acceptable, refusal
    assert path.read_bytes() == content  # nothing is changed by looking
    return "refused" if refusal else "accepted"


CELLS = ("0", "-1", "7", "1.5", "nan", "inf", "1e400", "text", "", "9" * 5000, "\x00", "ä")


def metrics_mutant(draw: Draw, folder: Path, _: Path) -> str:
    columns = ("run", "update", "split", "metric", "value", "time")
    rows = [list(columns), *([0, 5 * i, "train", "critic/loss", 0.5, 1.0] for i in range(3))]
    kind = pick(draw, ("none", "cell", "cell", "cell", "columns", "bytes"))
    readable = True
    match kind:
        case "cell":
            row, column = draw(st.integers(0, 3)), draw(st.integers(0, 5))
            cell = rows[row][column] = pick(draw, CELLS)
            if row == 0:
                readable = False
            elif column in (0, 1):
                readable = len(cell) < 4300 and cell.lstrip("-").isdigit()
            elif column in (4, 5):
                readable = cell not in ("text", "", "\x00", "ä")
        case "columns":
            row = draw(st.integers(0, 3))
            rows[row] = rows[row][: draw(st.integers(1, 5))]
            readable = False
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    content = text.getvalue().encode()
    if kind == "bytes":
        content = mutate_bytes(draw, content)
    path = folder / "metrics.csv"
    path.write_bytes(content)
    found, refusal = outcome(lambda: outputs.MetricsFile(path), str(path))
    if kind != "bytes":
        assert (refusal is None) == readable, refusal
        assert refusal or len(found.rows) == 3
    return "refused" if refusal else "accepted"


def summary_mutant(draw: Draw, folder: Path, _: Path) -> str:
    entry: dict[str, Any] = {"task": "sweep-v3", "seed": 0, "lam": 0.03, "num_feedback": 100}
    entry |= {"num_updates": 400, "num_evaluations_averaged": 2, "success_rate": 5.0, "return": 1.5}
    content: Any = {"runs": [entry, {**entry, "seed": 1}]}
    kind = pick(draw, ("none", "field", "field", "entry", "runs", "whole", "bytes"))
    readable = True
    value = pick(draw, JSON_VALUES)
    match kind:
        case "field":
            name = pick(draw, sorted(entry))
            content["runs"][1][name] = value
            types = {"task": str, "lam": int | float, "seed": object}
            types |= dict.fromkeys(("success_rate", "return"), int | float | None)
            readable = isinstance(value, types.get(name, int))
        case "entry":
            content["runs"][1] = value
            readable = False
        case "runs":
            content["runs"] = value
            readable = False
        case "whole":
            content, readable = value, False
    text = json.dumps(content).encode()
    if kind == "bytes":
        text = mutate_bytes(draw, text)
    path = folder / "summary.json"
    path.write_bytes(text)
    found, refusal = outcome(lambda: summary.read(path, 2), str(path))
    if kind != "bytes":
        assert (refusal is None) == readable, refusal
    if refusal:
        return "refused"
    summary.table(found["runs"])  # what the end of a run does with it
    return "accepted"
