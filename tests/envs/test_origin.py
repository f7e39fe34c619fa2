"""Which environment the metadata of a data set name."""

import dataclasses
import json
import re
from typing import Any

import gymnasium
import pytest

from appo_jax.data.dataset import Dataset
from appo_jax.envs import origin
from appo_jax.types import InputError


@pytest.fixture
def made_with(numbered: Any) -> Any:
    """A data set with metadata, or with Minari's spec."""

    def make(spec: Any = None, **metadata: Any) -> Dataset:
        if spec is not None:
            metadata["minari"] = {"env_spec": spec}
        return dataclasses.replace(numbered(), metadata=metadata)

    return make


def task_spec(id: str, **kwargs: Any) -> str:
    return json.dumps({"id": id, "kwargs": kwargs})


def test_names(made_with: Any) -> None:
    assert origin.environment_of(made_with()) is None
    assert origin.environment_of(made_with(minari={"author": []})) is None
    assert origin.environment_of(made_with(environment_id="sweep-v3")) == "sweep-v3"
    spec = gymnasium.spec("HalfCheetah-v5").to_json()
    assert origin.environment_of(made_with(spec)) == "HalfCheetah-v5"
    for name in ("reach-v3", "reach-v3-goal-hidden", "reach-v3-goal-observable"):
        spec = task_spec("Meta-World/MT1", env_name=name)
        assert origin.environment_of(made_with(spec)) == "reach-v3"


@pytest.mark.parametrize("spec", [7, "no JSON", "[1]", "null", "{}", json.dumps({"id": [1]})])
def test_metadata_that_name_none(made_with: Any, spec: Any) -> None:
    with pytest.raises(InputError, match=r"^data set tiny/numbered-v0: its .*, expected"):
        origin.environment_of(made_with(spec))
    with pytest.raises(InputError, match=r"its metadata say environment 7, expected a name"):
        origin.environment_of(made_with(environment_id=7))


@pytest.mark.parametrize(
    ("found", "used", "other", "told"),
    [
        ("Hopper-v5", "Hopper-v5", False, None),
        ("Hopper-v5", "mine:Hopper-v5", False, None),
        ("mine:Hopper-v5", "Hopper-v5", False, None),
        ("Hopper-v5", "Hopper-v4", False, "it is from Hopper-v5 and used for Hopper-v4: another v"),
        ("Hopper", "Hopper-v4", False, "it is from Hopper and used for Hopper-v4: another version"),
        (
            "HalfCheetah-v5",
            "Walker2d-v5",
            True,
            "it is from HalfCheetah-v5 .*: another environment",
        ),
        ("ns/Hopper-v5", "Hopper-v5", True, "it is from ns/Hopper-v5 .*: another environment, wh"),
        (
            "sweep-v2",
            "sweep-v3",
            False,
            "it is from sweep-v2 and used for sweep-v3: another vers",
        ),
        ("sweep-v3", "sweep-into-v3", True, "it is from sweep-v3 .*: another environment"),
        ("", "Hopper-v5", True, "it is from  and used for Hopper-v5: another environment"),
    ],
)
def test_another_environment_or_version(
    made_with: Any, found: str, used: str, other: bool, told: str | None
) -> None:
    assert origin.is_other(found, used) == other
    warnings = origin.about(made_with(environment_id=found), used)
    assert len(warnings) == (told is not None)
    assert not told or re.match(told, warnings[0])


def test_another_reward_function(made_with: Any) -> None:
    own = {"environment_id": "sweep-v3", "reward_function_version": "v2"}
    assert origin.about(made_with(**own), "sweep-v3") == []
    (told,) = origin.about(made_with(**own | {"reward_function_version": "v1"}), "sweep-v3")
    assert told.startswith("its rewards are of reward function 'v1', expected 'v2': labels made")
    spec = task_spec("Meta-World/MT1", env_name="reach-v3", reward_function_version="v1")
    assert len(origin.about(made_with(spec), "reach-v3")) == 1
    assert origin.about(made_with(environment_id="Hopper-v5"), "Hopper-v5") == []
