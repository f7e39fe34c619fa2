"""Choose among trained policies without a simulator: `python -m experiments.select --runs=<runs>`.

Offline policy selection: labelled pairs that no run trained on, and what training wrote down, say
which setting is best (`experiments/selecting/criteria.py`). Where runs were evaluated, how well
each criterion would have chosen stands beside it.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from appo_jax import policy
from appo_jax.data import minari_io, preferences
from appo_jax.envs.environment import Spaces
from appo_jax.keys import Purpose
from appo_jax.settings import MAX_INT, MAX_ROWS, Settings, setting
from appo_jax.types import InputError
from experiments.reporting import cells
from experiments.runs import datasets, files, results
from experiments.runs.events import silent
from experiments.runs.experiment import (
    Execution,
    file_digest,
    of_resolved,
)
from experiments.runs.results import RunResult
from experiments.selecting import criteria
from experiments.selecting.criteria import CRITERIA, Choice, HeldOut, Judged
from experiments.terminal import cli
from experiments.terminal.flags import define, define_settings, given

_GROUP = "What to choose among"
_SAME_PAIRS = ("env_name", "dataset", "segment_length", "tie_threshold")


@dataclasses.dataclass(frozen=True)
class Options(Settings):
    """Which pairs are asked where no file holds them."""

    num_pairs: int = setting(1000, "pairs of the scripted teacher", high=MAX_ROWS)
    seed: int = setting(0, "of these pairs", low=0, high=MAX_INT)


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags."""
    define(values, "runs", Path, "folders of runs, also above them: a,b", _GROUP, several=True)
    text = "JSON Lines file of labels that no run was trained on (default: the scripted teacher's)"
    define(values, "preferences", Path, text, _GROUP)
    define_settings(values, Options, _GROUP)
    define(values, "data_dir", Path, "folder of the data sets (default: Minari's)", _GROUP)
    define(values, "output", Path, "JSON file for the numbers", _GROUP)


def groups_of(places: Sequence[Path]) -> Iterator[list[RunResult]]:
    """The finished runs in and below `places`, those that the same pairs can judge together.

    Raises InputError where there is none.
    """
    found, unreadable = results.read_all(places)
    for folder in unreadable:
        print(f"warning: {folder.folder} is left out: {folder.problem}", file=sys.stderr)
    finished = [one for one in found if one.state == "finished"]
    if len(finished) < len(found):
        left = len(found) - len(finished)
        print(f"warning: {left} of {len(found)} runs are left out, not finished", file=sys.stderr)
    if not finished:
        raise InputError(
            f"--runs={','.join(map(str, places))}: holds no finished run, expected folders of some"
        )
    groups: dict[tuple[Any, ...], list[RunResult]] = {}
    for one in finished:
        groups.setdefault(tuple(one.settings[name] for name in _SAME_PAIRS), []).append(one)
    yield from groups.values()


def held_out_of(
    found: Sequence[RunResult], saved: policy.Saved, options: Options, execution: Execution
) -> HeldOut:
    """The pairs that judge runs of the same data. saved: of the first of them.

    Raises InputError for data that aren't there or have changed, labels that don't fit them, and
    those that a run was trained on.
    """
    run, trained = of_resolved(saved.config), saved.policy
    dims = len(trained.normaliser.mean), len(trained.actions.centre)
    dataset = datasets.obtain(run, execution, silent, Spaces(*dims, trained.actions))
    digest = dataset.digest()
    for folder in dict.fromkeys(one.folder for one in found):
        config = files.read_json(Path(folder, "config.json")) or {}
        contents = config.get("dataset_contents", {}).get(dataset.id, {})
        if contents.get("digest") != digest:
            raise InputError(
                f"data set {dataset.id}: its contents aren't those on which {folder} was trained, "
                "expected the same"
            )
    if execution.preferences is not None:
        digest = file_digest(execution.preferences)
        if any(one.settings["preferences_digest"] == digest for one in found):
            raise InputError(
                f"--preferences={execution.preferences}: runs were trained on these labels, "
                "expected others, held out"
            )
        labels = preferences.load(execution.preferences, dataset, run.segment_length)
    else:
        labels = preferences.scripted(
            dataset,
            options.seed,
            options.num_pairs,
            run.segment_length,
            run.tie_threshold,
            purpose=Purpose.FRESH_LABELS,
        )
    return HeldOut.of(dataset, labels)


def lines(judged: Sequence[Judged], choices: Sequence[Choice]) -> list[str]:
    """What was found, for a person."""
    known = [name for name in CRITERIA if any(name in one.criteria for one in judged)]
    score = "return" if judged[0].result.success_rate is None else "success (%)"
    rows = [["setting", "seed", *known, score]]
    for own in criteria.by_setting(judged).values():
        for one in own:
            numbers = (*(one.criteria.get(name) for name in known), one.result.score)
            rows.append([one.setting, str(one.result.seed), *map(_number, numbers)])
    return [
        results.aligned(rows),
        *(f"{name}: {CRITERIA[name].help}" for name in known),
        *(_in_words(choice, criteria.mean_scores(judged)) for choice in choices),
    ]


def _in_words(choice: Choice, scores: Mapping[str, float]) -> str:
    sentence = f"by {choice.criterion}: {choice.chosen}"
    if choice.chosen in scores:
        best = max(scores, key=lambda setting: scores[setting])
        sentence += f", mean score {_number(scores[choice.chosen])}"
        sentence += (
            "; none is better"
            if scores[best] == scores[choice.chosen]
            else (f"; the best is {best} with {_number(scores[best])}")
        )
    if choice.correlation is not None:
        sentence += (
            f"; rank correlation over {choice.num_settings} settings {choice.correlation:.2f}"
        )
    return sentence


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _as_json(judged: Sequence[Judged], choices: Sequence[Choice]) -> Mapping[str, Any]:
    runs = [
        {
            "folder": one.result.folder,
            "run": one.result.run,
            "setting": one.setting,
            "seed": one.result.seed,
            "score": one.result.score,
            "criteria": dict(one.criteria),
        }
        for one in judged
    ]
    return {"runs": runs, "choices": [dataclasses.asdict(choice) for choice in choices]}


def main(values: flags.FlagValues) -> None:
    """Judge the runs that the flags name, and say what each criterion chooses."""
    if not values.runs:
        raise InputError("--runs is missing, expected folders like --runs=runs/sweeps/quick")
    output = cli.output_file(values.output)
    options = Options(**given(values, Options))
    execution = Execution(
        workdir=Path(),
        data_dir=minari_io.root(values.data_dir),
        preferences=Path(values.preferences) if values.preferences else None,
    )
    written = []
    for found in groups_of([Path(one) for one in values.runs]):
        saved = [policy.load(Path(one.folder), one.run) for one in found]
        held_out = held_out_of(found, saved[0], options, execution)
        setting_of = cells.variant_names(found)
        judged = [
            criteria.judge(one, setting_of(one), own, held_out)
            for one, own in zip(found, saved, strict=True)
        ]
        choices = criteria.choose(judged)
        strict = len(held_out.labels) - held_out.labels.num_ties
        print(
            f"{found[0].env_name}, {found[0].dataset}: {len(found)} runs, {strict} pairs that "
            "aren't ties"
        )
        print("\n".join(lines(judged, choices)))
        written.append(_as_json(judged, choices))
    if output:
        files.write_json(output, {"groups": written})


if __name__ == "__main__":
    cli.run(main, define_flags, kept="nothing was changed")
