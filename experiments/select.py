"""Choose among trained policies without a simulator: `python -m experiments.select --runs=<runs>`.

Offline policy selection: labelled pairs that no run trained on, and what training wrote down, say
which setting is best (`experiments/selecting/criteria.py`). Where runs were evaluated, how well
each criterion would have chosen stands beside it.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from appo_jax import policy
from appo_jax.data import minari_io
from appo_jax.settings import MAX_INT, Settings, setting
from appo_jax.types import InputError
from experiments.reporting import cells
from experiments.runs import files, results
from experiments.runs.experiment import Execution, difference, named_settings
from experiments.runs.results import RunResult
from experiments.selecting import criteria, held_out
from experiments.selecting.criteria import CRITERIA, Choice, Judged
from experiments.selecting.held_out import HeldOut
from experiments.terminal import cli
from experiments.terminal.flags import define, define_settings, given

_GROUP = "What to choose among"
_SAME_PAIRS = ("env_name", "dataset", "segment_length", "normalise_observations")
_MAX_PAIRS = 10_000  # what the critics keep of so many fits into a few gigabytes


@dataclasses.dataclass(frozen=True)
class Options(Settings):
    """Which pairs are asked where no file holds them."""

    num_pairs: int = setting(1000, "pairs of the scripted teacher", high=_MAX_PAIRS)
    seed: int = setting(0, "of the scripted teacher's pairs", low=0, high=MAX_INT)


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags."""
    define(
        values, "runs", Path, "folders of runs, or above such, with commas", _GROUP, several=True
    )
    text = "JSON Lines file of labels that no run was trained on (default: the scripted teacher's)"
    define(values, "preferences", Path, text, _GROUP)
    define_settings(values, Options, _GROUP)
    define(values, "data_dir", Path, "folder of the data sets (default: Minari's)", _GROUP)
    define(values, "output", Path, "JSON file for the numbers", _GROUP)


def groups_of(places: Sequence[Path], is_scripted: bool) -> list[list[RunResult]]:
    """The finished runs in and below `places`, those that the same pairs can judge together.

    is_scripted: who labels the pairs also needs to know from where on segments differ. Raises
    InputError for a place that isn't there, and where there is no finished run.
    """
    for place in places:
        if not place.is_dir():
            raise InputError(f"--runs={place}: no such folder, expected one of runs")
    found, unreadable = results.read_all(places)
    for folder in unreadable:
        _warn(f"left out: {folder.problem}")
    found, doubles = cells.without_doubles(found)
    for double in doubles:
        _warn(double)
    for one in found:
        if one.state != "finished":
            _warn(f"run {one.run} of {one.folder} is left out: {one.state}")
    names = (*_SAME_PAIRS, "tie_threshold") if is_scripted else _SAME_PAIRS
    groups: dict[tuple[str, ...], list[RunResult]] = {}
    for one in found:
        if one.state == "finished":
            key = tuple(repr(one.settings.get(name)) for name in names)
            groups.setdefault(key, []).append(one)
    if not groups:
        raise InputError(
            f"--runs={','.join(map(str, places))}: holds no finished run, expected folders of some"
        )
    return list(groups.values())


def checkpoints_of(runs: Sequence[RunResult]) -> list[policy.Saved]:
    """The last checkpoint of each run. Raises InputError for one of another update, or run."""
    saved: dict[tuple[str, int], policy.Saved] = {}
    for folder in dict.fromkeys(one.folder for one in runs):
        numbers = [one.run for one in runs if one.folder == folder]
        for number, own in zip(numbers, policy.load_all(Path(folder), numbers), strict=True):
            saved[folder, number] = own
    for one in runs:
        own = saved[one.folder, one.run]
        if own.update != one.num_updates:
            raise InputError(
                f"{one.folder}: its last checkpoint is of update {own.update:,}, expected "
                f"{one.num_updates:,}"
            )
        # Of an earlier start, which may have asked for more updates.
        recorded = named_settings(own.config) | {"num_updates": one.num_updates}
        differs = difference(recorded, one.settings)
        if differs:
            raise InputError(
                f"{one.folder}: its checkpoint is of a run with {differs} as in its config.json, "
                "expected the same"
            )
    return [saved[one.folder, one.run] for one in runs]


def setting_names(runs: Sequence[RunResult]) -> list[str]:
    """What each run shares with its other seeds, in words."""
    variant_of = cells.variant_names(runs)
    counts = {one.settings["num_feedback"] for one in runs if cells.reads_labels(one)}
    return [
        f"{variant_of(one)}, {one.settings['num_feedback']} labels"
        if len(counts) > 1 and cells.reads_labels(one)
        else variant_of(one)
        for one in runs
    ]


def lines(judged: Sequence[Judged], choices: Sequence[Choice]) -> list[str]:
    """What was found, for a person."""
    known = [name for name in CRITERIA if any(name in one.criteria for one in judged)]
    score = "return" if judged[0].result.success_rate is None else "success (%)"
    rows = [["setting", "seed", *known, score]]
    for own in criteria.by_setting(judged).values():
        for one in own:
            numbers = (*(one.criteria.get(name) for name in known), one.result.score)
            rows.append([one.setting, str(one.result.seed), *map(_number, numbers)])
    scores = criteria.mean_scores(judged)
    return [
        results.aligned(rows),
        *(f"{name}: {CRITERIA[name].help}" for name in known),
        *(_in_words(choice, scores) for choice in choices),
        *(
            f"by {name}: not compared, since runs differ in {', '.join(units)}"
            for name in known
            if (units := criteria.differing_units(judged, name))
        ),
        *_about_seeds(judged),
    ]


def _in_words(choice: Choice, scores: Mapping[str, float]) -> str:
    sentence = f"by {choice.criterion}: {' and '.join(choice.chosen)}"
    if len(choice.chosen) > 1:
        sentence += " alike"
    elif choice.chosen[0] in scores:
        best = max(scores, key=lambda setting: scores[setting])
        sentence += f", mean score {_number(scores[choice.chosen[0]])}"
        is_best = scores[best] == scores[choice.chosen[0]]
        sentence += "; none has more" if is_best else f"; {best} has {_number(scores[best])}"
    if choice.correlation is not None:
        sentence += f"; rank correlation over {choice.num_settings} settings "
        sentence += f"{choice.correlation:.2f}"
    return sentence


def _about_seeds(judged: Sequence[Judged]) -> list[str]:
    seeds = {
        setting: sorted(one.result.seed for one in own)
        for setting, own in criteria.by_setting(judged).items()
    }
    if len({tuple(own) for own in seeds.values()}) == 1:
        return []
    said = "; ".join(f"{setting}: {', '.join(map(str, own))}" for setting, own in seeds.items())
    return [f"warning: settings are compared by means over different seeds ({said})"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _as_json(
    judged: Sequence[Judged], choices: Sequence[Choice], held_out: HeldOut
) -> Mapping[str, Any]:
    first = judged[0].result
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
    return {
        "env_name": first.env_name,
        "dataset": first.dataset,
        "segment_length": first.settings["segment_length"],
        "pairs": held_out.num_strict,
        "runs": runs,
        "choices": [dataclasses.asdict(choice) for choice in choices],
    }


def _warn(sentence: str) -> None:
    print(f"warning: {sentence}", file=sys.stderr)


def main(values: flags.FlagValues) -> None:
    """Judge the runs that the flags name, and say what each criterion chooses."""
    if not values.runs:
        raise InputError("--runs is missing, expected folders like --runs=runs/sweeps/quick")
    output = cli.output_file(values.output)
    own = given(values, Options)
    if values.preferences and own:
        raise InputError(
            f"--{next(iter(own))}: of pairs of the scripted teacher, expected it to be left out "
            f"with --preferences={values.preferences}"
        )
    options = Options(**own)
    execution = Execution(
        workdir=Path(),
        data_dir=minari_io.root(values.data_dir),
        preferences=Path(values.preferences) if values.preferences else None,
        allow_other_environment=True,  # asked when the runs were trained
    )
    prepared = []
    for runs in groups_of([Path(one) for one in values.runs], execution.preferences is None):
        saved = checkpoints_of(runs)
        pairs = held_out.of_runs(runs, saved[0], execution, options.num_pairs, options.seed)
        prepared.append((runs, saved, pairs))
    written = []
    for runs, saved, pairs in prepared:
        folders = {one.folder for one in runs}
        metrics = {folder: files.MetricsFile(Path(folder, "metrics.csv")) for folder in folders}
        judged = [
            criteria.judge(one, setting, own, metrics[one.folder], pairs)
            for one, setting, own in zip(runs, setting_names(runs), saved, strict=True)
        ]
        choices = criteria.choose(judged)
        print(
            f"{runs[0].env_name}, {runs[0].dataset}, segments of "
            f"{runs[0].settings['segment_length']} steps: runs {len(runs)}, pairs that aren't ties "
            f"{pairs.num_strict:,}"
        )
        print("\n".join(lines(judged, choices)))
        written.append(_as_json(judged, choices, pairs))
    if output:
        files.write_json(output, {"groups": written})


if __name__ == "__main__":
    cli.run(main, define_flags, kept="nothing was changed")
