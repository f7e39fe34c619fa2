"""What makes two runs the same run, and which data set a command line means."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.types import InputError
from experiments.runs.experiment import (
    Experiment,
    completed,
    difference,
    differing,
    file_digest,
    identity_digest,
    named_settings,
)
from experiments.runs.sources import resolve as resolve_dataset
from tests.helpers.runs import SIZE, TASK, TINY, parse, write_buffers

EXPERT = f"metaworld/{TASK}-v3/medium-expert-n1000-seed0-v0"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    write_buffers(tmp_path)
    return parse(*TINY, f"--data_dir={tmp_path}")[0][0]


def test_digest_covers_every_number(experiment: Experiment) -> None:
    digests = {experiment.digest()}
    count = 1
    for field in dataclasses.fields(experiment):
        value = getattr(experiment, field.name)
        nested = dataclasses.is_dataclass(value)
        if field.name in ("num_updates", "dataset", "algorithm"):
            continue
        for inner in dataclasses.fields(value) if nested else [field]:
            new = changed(inner.name, getattr(value, inner.name) if nested else value)
            new = dataclasses.replace(value, **{inner.name: new}) if nested else new
            digests.add(dataclasses.replace(experiment, **{field.name: new}).digest())
            count += 1
    assert len(digests) == count > 35


def test_a_run_that_was_written_before_a_setting_came_stays_the_same(
    experiment: Experiment,
) -> None:
    before = experiment.identity()
    del before["normalise_observations"]
    assert identity_digest(before) == experiment.digest()
    assert difference(completed(before), experiment.identity()) is None
    assert named_settings(before)["normalise_observations"] is True
    other = dataclasses.replace(experiment, normalise_observations=False)
    assert identity_digest(before) != other.digest()
    assert "normalise_observations" in str(difference(completed(before), other.identity()))


OTHER = {
    "learned": "shuffled",
    "minmax": "raw",
    "bradley_terry": "linear",
    "independent": "seqrank",
    "unknown": "goal",
}


def changed(name: str, value: Any) -> Any:
    """Another value that the setting can have."""
    match value:
        case bool():
            return not value
        case None:
            return 3 if name in ("crop", "adversarial_target") else "another"
        case str():
            return OTHER.get(value, value + "x")
        case int():
            return value + 1
        case _:
            return value / 2 + 0.001


def test_digest_leaves_out_what_changes_no_number(experiment: Experiment) -> None:
    longer = dataclasses.replace(experiment, num_updates=10**6)
    assert longer.digest() == experiment.digest()
    spec = experiment.dataset
    for field in ("requested", "reason", "recipe", "source"):
        same = dataclasses.replace(spec, **{field: "another"})
        assert dataclasses.replace(experiment, dataset=same).digest() == experiment.digest()
    other = dataclasses.replace(spec, id="another")
    assert dataclasses.replace(experiment, dataset=other).digest() != experiment.digest()


def test_identity_comes_back_from_json_as_it_was(experiment: Experiment) -> None:
    found = json.loads(json.dumps(experiment.identity()))
    assert difference(found, experiment.identity()) is None
    assert difference(experiment.identity(), found) is None


def test_difference_names_the_field() -> None:
    assert difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 2}}) is None
    assert difference({"a": 1}, {"a": 2}) == "a 1, not 2"
    assert difference({"b": {"c": 2}}, {"b": {"c": 3}}) == "b: c 2, not 3"
    assert difference({}, {"a": 2}) == "a None, not 2"
    assert difference({"a": 1, "b": {"c": 2}}, {"b": {"c": 2}}) is None
    assert difference({"b": {"c": 2, "d": 3}}, {"b": {"c": 2}}) == "b: d 3, not None"
    assert difference({"b": 1}, {"b": {"c": 2}}) == "b 1, not {'c': 2}"
    assert difference([1], {"b": 2}) == "[1], not {'b': 2}"
    assert difference({"b": 2}, None) == "{'b': 2}, not None"


def resolve(data_dir: Path, requested: str, size: int | None = None, task: str = f"{TASK}-v3"):  # noqa: ANN201
    return resolve_dataset(requested, task, size, 0, data_dir)


def test_auto_takes_local_buffers(tmp_path: Path) -> None:
    write_buffers(tmp_path)
    spec = resolve(tmp_path, "auto", SIZE)
    assert (spec.source, spec.recipe, spec.id) == (
        "lire",
        "medium-replay",
        f"lire/{TASK}-v3/n{SIZE}",
    )
    assert spec.reason == f"--dataset=auto found a local medium-replay set in {tmp_path}"
    named = resolve(tmp_path, "medium-replay", SIZE)
    assert (named.id, named.reason) == (spec.id, "--dataset=medium-replay asks for it")
    assert resolve(tmp_path, "auto").size == 2 * 100_000  # the paper's for each buffer
    with pytest.raises(InputError, match=r"--dataset_size=1500: expected a multiple of 1000"):
        resolve(tmp_path, "auto", 1500)


def test_buffers_of_version_2_count_too(tmp_path: Path) -> None:
    write_buffers(tmp_path, task="reach-v2")
    assert resolve(tmp_path, "auto", SIZE, "reach-v3").id == f"lire/reach-v2/n{SIZE}"
    with pytest.raises(InputError, match=r"no size for reach-v3, expected --dataset_size"):
        resolve(tmp_path, "auto", None, "reach-v3")


def test_auto_collects_where_there_is_nothing(tmp_path: Path) -> None:
    spec = resolve(tmp_path, "auto")
    assert (spec.source, spec.recipe, spec.size) == ("collected", "medium-expert", 100_000)
    assert spec.reason == (
        f"--dataset=auto found no local medium-replay set in {tmp_path}; "
        "medium-expert data are collected now"
    )
    assert resolve(tmp_path, "medium-expert").id == spec.id


def test_a_collected_set_is_found_again(tmp_path: Path, numbered: Any) -> None:
    dataset: Dataset = numbered(id=EXPERT)
    minari_io.save(dataset, tmp_path)
    spec = resolve(tmp_path, "auto", 1000)
    assert (spec.source, spec.id) == ("minari", EXPERT)
    assert "medium-expert data of an earlier collection are there" in spec.reason
    named = resolve(tmp_path, EXPERT)
    assert (named.source, named.id, named.size) == ("minari", EXPERT, None)
    with pytest.raises(InputError, match=rf"--dataset=./{EXPERT}: .* which holds {EXPERT}"):
        resolve(tmp_path, f"./{EXPERT}")
    with pytest.raises(InputError, match=r"--dataset_size=500: .* taken whole, expected"):
        resolve(tmp_path, EXPERT, 500)
    replay = EXPERT.replace("expert", "replay").replace("1000", "300000")
    minari_io.save(dataclasses.replace(dataset, id=replay), tmp_path)
    assert resolve(tmp_path, "auto").id == replay


def test_unknown_set(tmp_path: Path, numbered: Any) -> None:
    minari_io.save(numbered(id="mine/tiny-v0"), tmp_path)
    with pytest.raises(
        InputError, match=r"--dataset=nothing: for .* expected auto, .*which holds mine/tiny"
    ):
        resolve(tmp_path, "nothing")
    with pytest.raises(InputError, match=r"--dataset=medium-replay: .* holds no folder"):
        resolve(tmp_path, "medium-replay")


def test_file_digest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_digest(path) == known
    with pytest.raises(InputError, match=r"nothing: can't be read \(No such file"):
        file_digest(tmp_path / "nothing")


def test_a_schedule_over_the_run_is_part_of_it(tmp_path: Path) -> None:
    write_buffers(tmp_path)
    flags = [f for f in TINY if "num_pairs" not in f and "reward_" not in f]
    flags += [f"--data_dir={tmp_path}", "--algorithm=oracle"]
    for schedule, is_part in (("cosine", True), ("constant", False)):
        digests = [
            parse(*flags, f"--actor_schedule={schedule}", f"--num_updates={num}")[0][0].digest()
            for num in (60, 70)
        ]
        assert (digests[0] != digests[1]) == is_part


def test_settings_that_differ(tmp_path: Path) -> None:
    write_buffers(tmp_path)
    write_buffers(tmp_path, task="reach-v3")
    flags = (*TINY, f"--data_dir={tmp_path}")

    def found(*arguments: str) -> list[str]:
        return differing([named_settings(run.resolved()) for run in parse(*flags, *arguments)[0]])

    assert found() == []
    assert found("--seed=0,1", "--lam=0.1,0.2") == ["lam", "seed"]
    assert found(f"--task={TASK},reach", "--discount=0.9,0.99") == ["env_name", "discount"]
    names = named_settings(parse(*flags, "--reward_batch_size=3")[0][0].resolved())
    assert (names["batch_size"], names["reward_batch_size"], names["lam"]) == (8, 3, 0.03)
