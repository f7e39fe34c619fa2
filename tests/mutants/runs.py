"""Mutants of command lines, and of the files that a run finds in its folder, with their rules."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from hypothesis import strategies as st

from appo_jax import appo, reward_model, settings
from experiments import train
from experiments.runs import files, results
from experiments.runs.experiment import Execution, Experiment, named_settings
from experiments.runs.folder import RunFolder
from experiments.terminal import cli
from tests.helpers.runs import TINY, parse, write_buffers
from tests.mutants.core import JSON_VALUES, Draw, mutate_bytes, outcome, pick

FLOAT32_MAX, FLOAT32_TINY = 3.4028234663852886e38, 1.1754943508222875e-38
FLAG_VALUES = (
    *("-1", "0", "1", "2", "500", "501", "1000", "2147483647", "2147483648", "1" + "0" * 400),
    *("nan", "inf", "-inf", "0.0", "0.5", "1.5", "1e-30", "3e38", "1e39", "-0.5", ""),
    *("text", "learned", "shuffled", "negated", "minmax", "raw", "two\nlines", "None"),
    *("1,2", "500,1000", "0.5,0", "1,1", "1,", ",", "0,-1", "1,nan"),
)
LISTS = ("lam", "discount", "tau", "num_feedback", "seed")  # flags of which every value is a run


def whole(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else math.nan


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def command_line(arguments: Sequence[str]) -> Any:
    values, argv = flags.FlagValues(), ["train", *arguments]
    train.define_flags(values, argv)
    cli.parse_flags(values, argv)
    return train.experiments_from_flags(values)


def rule_of(field: settings.Field) -> Callable[[str], bool]:
    """What a flag takes, worked out here from what its setting says of itself."""
    about = field.setting
    if field.choices:
        return lambda text: text in field.choices
    if field.type is int:
        low = 1 if about.low is None else about.low
        high = 2**31 - 1 if about.high is None else about.high
        return lambda text: low <= whole(text) <= high
    low = -FLOAT32_MAX if about.low is None else about.low
    high = FLOAT32_MAX if about.high is None else about.high

    def of_number(text: str) -> bool:
        value = number(text)
        above = about.above is None or value > about.above
        return low <= value <= high and above and not 0 < abs(value) < FLOAT32_TINY

    return of_number


def flag_rules() -> dict[str, Callable[[str], bool]]:
    classes = [("", Experiment), ("", Execution), ("", appo.Swept), ("", appo.Config)]
    classes.append(("reward_", reward_model.Config))
    rules = {
        prefix + field.name: rule_of(field)
        for prefix, cls in classes
        for field in settings.fields(cls)
        if not field.setting.of_run and field.type is not bool
    }
    rules["segment_length"] = lambda text: 1 <= whole(text) <= 500
    rules["dataset_size"] = lambda text: 1 <= whole(text) < 2**31 and whole(text) % 1000 == 0
    rules["data_seed"] = lambda text: 0 <= whole(text) < 2**31
    rules["track"] = lambda text: not text.strip(",")
    rules["reward"] = lambda text: text in ("learned", "shuffled", "negated", "true", "zero")
    # The one is bounded by the other, which isn't among the mutants.
    rules["log_std_min"] = lambda text: number(text) <= 2 and number(text) >= -FLOAT32_MAX
    del rules["log_std_max"]
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
    settings_of_runs = [named_settings(run.resolved()) for run in found[0]]
    for name in (*LISTS, "tie_threshold", "label_noise"):
        if name in given_flags:
            given = [float(word) for word in given_flags[name].split(",")]
            assert list(dict.fromkeys(own[name] for own in settings_of_runs)) == given
    return "accepted"


# A run's own files.


def config_mutant(draw: Draw, folder: Path, shared: Path) -> str:
    runs, execution = parse(*TINY, f"--data_dir={data_dir(shared)}", f"--workdir={folder}")
    written = RunFolder(runs, execution)
    config = json.loads(json.dumps(written.config))
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
        acceptable = not (changed and keys[0] in ("identities", "format_version"))
        if keys[0] == "runs" and len(keys) < 3:
            acceptable = isinstance(value, list if len(keys) == 1 else dict) and value != [1]
        if keys == ["dataset_contents"]:
            acceptable = isinstance(value, dict)
    content = json.dumps(config).encode()
    if kind == "bytes":
        content = mutate_bytes(draw, content)
    path = folder / "config.json"
    path.write_bytes(content)
    _, refusal = outcome(lambda: RunFolder(runs, execution), str(folder))
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
    found, refusal = outcome(lambda: files.MetricsFile(path), str(path))
    if kind != "bytes":
        assert (refusal is None) == readable, refusal
        assert refusal or len(found.rows) == 3
    return "refused" if refusal else "accepted"


def results_mutant(draw: Draw, folder: Path, shared: Path) -> str:
    """A finished run's config.json with something else in its runs; its results are read."""
    runs, execution = parse(*TINY, f"--data_dir={data_dir(shared)}", f"--workdir={folder}")
    config = json.loads(json.dumps(RunFolder(runs, execution).config))
    run = config["runs"][0]
    name = pick(draw, sorted(run))
    value = pick(draw, JSON_VALUES)
    types = {"algorithm": str, "env_name": str, "seed": int, "num_updates": int}
    if draw(st.booleans()):
        del run[name]
        acceptable = name not in (*types, "dataset")
    else:
        run[name] = value  # no one is a data set's
        acceptable = name != "dataset" and isinstance(value, types.get(name, object))
    files.write_json(folder / "config.json", config)
    metrics = files.MetricsFile(folder / "metrics.csv")
    metrics.keep(lambda row: True)
    metrics.append(20, "eval", {0: {"eval/success_rate": 5.0, "eval/return": 1.5, "eval/done": 1}})
    found, refusal = outcome(lambda: results.read(folder), str(folder))
    assert (refusal is None) == acceptable, refusal
    if refusal:
        return "refused"
    results.table(found)  # what the end of a run does with it
    results.write_summary(folder / "summary.json", found)
    return "accepted"
