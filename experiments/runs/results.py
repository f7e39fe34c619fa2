"""Results as typed rows: of a run under way, or of any number of run folders."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from appo_jax.envs import meta_world
from appo_jax.evaluation import LOST
from appo_jax.types import InputError
from experiments.runs import files
from experiments.runs.experiment import differing, identity_digest, named_settings, shown
from experiments.runs.folder import check_config

LAST_EVALUATIONS = 5  # whose mean is the result, as in the paper
# Of the settings that every run has.
_TYPES = {"algorithm": str, "env_name": str, "dataset": str, "seed": int, "num_updates": int}
SUCCESS, RETURN = "eval/success_rate", "eval/return"
State = Literal["finished", "unfinished", "diverged"]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation: rates in percent, None where the environment knows no success.

    lost_episodes: those in which the simulator gave a number that isn't finite; where there are any
    there is no result, and all others are None.
    """

    update: int
    success_rate: float | None
    success_rate_at_end: float | None
    total_return: float | None
    lost_episodes: int = 0


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One run, as far as it has come.

    folder, run: where it lies, and its number there. state: "finished"; "unfinished", which the
    same command goes on with; "diverged", stopped at `stopped_at` for numbers that aren't finite.
    settings: all that were set, by the names of their flags. num_updates: the run's length;
    updates_done: trained so far. success_rate (percent), total_return: means over the last five
    evaluations, of those that lost no episode; None for a run that diverged or has none, and where
    there is no success to know.
    reward_accuracy: of the reward model on `reward_accuracy_pairs` fresh pairs, None where none was
    fitted or every pair was a tie. updates_per_second: of training alone; wall_seconds: in all.
    digest: short name of all that makes it the run it is, `Experiment.digest`. recipe,
    num_transitions: of its data set, the latter None as long as nobody knows.
    dataset_success_rate (percent), dataset_return: means over the episodes of the data.
    """

    folder: str
    run: int
    state: State
    algorithm: str
    env_name: str
    dataset: str
    seed: int
    settings: Mapping[str, Any]
    num_updates: int
    updates_done: int
    stopped_at: int | None
    success_rate: float | None
    total_return: float | None
    num_evaluations_averaged: int
    evaluations: tuple[Evaluation, ...]
    reward_accuracy: float | None
    reward_accuracy_pairs: int
    updates_per_second: float | None
    wall_seconds: float | None
    digest: str = ""
    recipe: str = ""
    num_transitions: int | None = None
    dataset_success_rate: float | None = None
    dataset_return: float | None = None

    @property
    def score(self) -> float | None:
        """What the run is judged by: its success rate, else its return."""
        return self.total_return if self.success_rate is None else self.success_rate


def reads_labels(settings: Mapping[str, Any]) -> bool:
    """Whether a run of these settings learns from labels."""
    if settings.get("labelled_pairs"):
        return True
    if settings.get("algorithm") == "bc" and settings.get("data") == "all":
        return False
    return settings.get("reward") not in ("true", "zero")


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """A folder whose files can't be read as a run's, and why."""

    folder: str
    problem: str


def read(folder: Path) -> list[RunResult]:
    """The runs of one folder, from its config.json and metrics.csv.

    Raises InputError for a folder that holds no run, and for files that aren't a run's.
    """
    config = files.read_json(folder / "config.json")
    if config is None:
        raise InputError(f"{folder}: no config.json, expected a run's folder")
    check_config(config, folder)
    return of_folder(folder, config, files.MetricsFile(folder / "metrics.csv"))


def read_all(places: Iterable[Path]) -> tuple[list[RunResult], list[Unreadable]]:
    """The runs of all folders in and below `places`, and the folders that can't be read."""
    found: list[RunResult] = []
    unreadable: list[Unreadable] = []
    for place in places:
        for path in sorted(place.rglob("config.json")):
            try:
                found += read(path.parent)
            except (InputError, OSError) as error:
                unreadable.append(Unreadable(str(path.parent), str(error)))
    return found, unreadable


def of_folder(
    folder: Path, config: Mapping[str, Any], metrics: files.MetricsFile
) -> list[RunResult]:
    """The runs of a folder whose files are read already. Raises InputError as `read` does."""
    try:
        of_data = config["dataset_contents"], config.get("dataset_means", {})
        return [
            _result(folder, number, resolved, identity_digest(identity), *of_data, metrics)
            for number, (resolved, identity) in enumerate(
                zip(config["runs"], config["identities"], strict=True)
            )
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"{folder}/config.json: {type(error).__name__} {error} in its runs, expected those "
            "that a run wrote"
        ) from error


def not_begun(folder: Path, resolved: Mapping[str, Any], digest: str) -> RunResult:
    """A run that is to come, `Experiment.resolved`, as a row without results.

    Raises KeyError, TypeError or AttributeError for what isn't a run's.
    """
    return _result(folder, 0, resolved, digest, {}, {}, files.MetricsFile(folder / ".none"))


def _result(
    folder: Path,
    run: int,
    resolved: Mapping[str, Any],
    digest: str,
    contents: Mapping[str, Any],
    means: Mapping[str, Any],
    metrics: files.MetricsFile,
) -> RunResult:
    evaluations = _evaluations(metrics, run)
    stopped = metrics.stopped_at(run)
    num_updates = resolved["num_updates"]
    trained = [one for one in evaluations if one.update > 0]
    last = trained[-LAST_EVALUATIONS:] if stopped is None else []
    rates_known = [one.success_rate for one in last if one.success_rate is not None]
    returns_known = [one.total_return for one in last if one.total_return is not None]
    clock = {
        name: next(reversed(metrics.values(run, "clock", f"clock/{name}").values()), None)
        for name in ("timed_updates", "train_seconds", "wall_seconds")
    }
    state: State = "unfinished"
    if stopped is not None:
        state = "diverged"
    elif evaluations and evaluations[-1].update == num_updates:
        state = "finished"
    settings = named_settings(resolved)
    for name, type_ in _TYPES.items():
        if not isinstance(settings[name], type_):
            raise TypeError(f"{name} {settings[name]!r:.60}")
    data_rate, data_return = _means(means.get(settings["dataset"], {}))
    return RunResult(
        folder=str(folder),
        run=run,
        state=state,
        algorithm=settings["algorithm"],
        env_name=settings["env_name"],
        dataset=settings["dataset"],
        seed=settings["seed"],
        settings=settings,
        num_updates=num_updates,
        updates_done=metrics.last_update(run, "train"),
        stopped_at=stopped,
        success_rate=float(np.mean(rates_known)) if rates_known else None,
        total_return=float(np.mean(returns_known)) if returns_known else None,
        num_evaluations_averaged=len(returns_known),
        evaluations=evaluations,
        reward_accuracy=_last(metrics, run, "reward/accuracy"),
        reward_accuracy_pairs=int(_last(metrics, run, "reward/fresh_pairs") or 0),
        updates_per_second=(
            clock["timed_updates"] / clock["train_seconds"]
            if clock["timed_updates"] and clock["train_seconds"]
            else None
        ),
        wall_seconds=clock["wall_seconds"],
        digest=digest,
        recipe=str(resolved["dataset"]["recipe"]),
        num_transitions=_size(resolved, contents),
        dataset_success_rate=None if data_rate is None else 100 * data_rate,
        dataset_return=data_return,
    )


def _evaluations(metrics: files.MetricsFile, run: int) -> tuple[Evaluation, ...]:
    names = (SUCCESS, "eval/success_rate_at_end", RETURN, LOST, files.EVALUATED)
    rates, at_end, returns, lost, done = (metrics.values(run, "eval", name) for name in names)
    return tuple(
        Evaluation(
            *(update, rates.get(update), at_end.get(update), returns.get(update)),
            lost_episodes=int(lost.get(update, 0)),
        )
        for update in done
    )


def _means(of_data: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Success rate, from 0 to 1, and return of a data set's episodes."""
    rate, total = of_data.get("success_rate"), of_data.get("return")
    if not (isinstance(rate, float | None) and isinstance(total, float | None)):
        raise TypeError(f"means of the data {of_data!r:.60}")
    return rate, total


def _size(resolved: Mapping[str, Any], contents: Mapping[str, Any]) -> int | None:
    """Transitions of a run's data set: as they were counted, else as they were asked for."""
    dataset, name = resolved["dataset"], resolved["env_name"]
    size = contents.get(dataset["id"], {}).get("num_transitions", dataset["size"])
    if size is None and dataset["recipe"] == "medium-replay" and meta_world.is_task(name):
        size = meta_world.paper_size(name)
    return size


def _last(metrics: files.MetricsFile, run: int, metric: str) -> float | None:
    return next(reversed(metrics.values(run, "reward", metric).values()), None)


def score_name(metrics: files.MetricsFile, runs: Iterable[int]) -> str:
    """The metric that evaluations are judged by: the success rate, where it is known."""
    known = any(metrics.values(run, "eval", SUCCESS) for run in runs)
    return SUCCESS if known else RETURN


def write_summary(path: Path, results: Sequence[RunResult]) -> None:
    """Write summary.json: a list `runs` of all fields of the results, and their `score`."""
    files.write_json(path, _summary(results))


def is_summary(path: Path, results: Sequence[RunResult]) -> bool:
    """Whether a file is what `write_summary` would write."""
    try:
        return files.read_json(path) == json.loads(json.dumps(_summary(results)))
    except InputError:
        return False


def _summary(results: Sequence[RunResult]) -> dict[str, Any]:
    entries = [
        {**dataclasses.asdict(result), "settings": dict(result.settings), "score": result.score}
        for result in results
    ]
    return {"runs": entries}


def by_setting(results: Sequence[RunResult]) -> tuple[list[str], list[list[RunResult]]]:
    """The names of the settings in which runs differ beside the seed, and the runs of each."""
    names = [n for n in differing([result.settings for result in results]) if n != "seed"]
    groups: dict[tuple[str, ...], list[RunResult]] = {}
    for result in results:
        key = tuple(shown(result.settings.get(name)) for name in names)
        groups.setdefault(key, []).append(result)
    return names, list(groups.values())


def table(results: Sequence[RunResult]) -> str:
    """Mean and standard deviation (n - 1) of the score over seeds, a line for each setting.

    A column for each setting that differs between the runs. A run that diverged, or has no
    evaluation yet, is left out of the mean, and counted.
    """
    names, groups = by_setting(results)
    names = names or ["env_name"]
    known = any(result.success_rate is not None for result in results)
    rows = [[*names, "seeds", "success at any step (%)" if known else "return", ""]]
    for group in groups:
        scores = [result.score for result in group if result.score is not None]
        spread = f" +- {np.std(scores, ddof=1):.1f}" if len(scores) > 1 else ""
        missing = [
            "without a result" if result.state == "finished" else result.state
            for result in group
            if result.score is None
        ]
        rows.append(
            [
                *(shown(group[0].settings.get(name)) for name in names),
                str(len(scores)),
                f"{np.mean(scores):.1f}{spread}" if scores else "-",
                f"({len(missing)} {' and '.join(dict.fromkeys(missing))})" if missing else "",
            ]
        )
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Lines with each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
