"""Settings: what each kind of field refuses, in which words, and where values come from."""

import dataclasses
import math
import re
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import appo, registry, settings
from appo_jax.collect import sac
from appo_jax.settings import MAX_INT, MAX_ROWS, Settings, SweptSettings, setting
from appo_jax.types import InputError


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    units: int = setting(8, "units")
    seed: int = setting(0, "seed", low=0)
    workers: int | None = setting(None, "workers", high=4)
    rate: float = setting(1e-3, "rate", above=0)
    share: float = setting(0.5, "share", low=0, high=1)
    level: float = setting(0.0, "level")
    limit: float | None = setting(None, "limit", above=0, high=2)
    scale: Literal["minmax", "raw"] = setting("minmax", "scale")
    count: Literal[1, 2, 3] = setting(1, "count")
    paired: bool = setting(True, "paired", with_terminations=False)
    name: str = setting("run", "name", of_run=True)
    length: int = setting(25, "length", of_run=True, with_terminations=10)
    other: Any = None  # no setting: nobody checks it


class Swept(SweptSettings):
    lam: float = setting(0.03, "lambda", low=0)
    tau: float = setting(0.001, "Polyak", above=0, high=1)


UNITS = f"a whole number from 1 to {MAX_INT}"
RATE = "a number above 0 that float32 can hold"
SHARE = "a number from 0 to 1 that float32 can hold"
BAD: list[tuple[str, Any, str]] = [
    ("units", 0, UNITS),
    ("units", -3, UNITS),
    ("units", 2**31, UNITS),
    ("units", 8.0, UNITS),
    ("units", True, UNITS),
    ("units", "8", UNITS),
    ("units", None, UNITS),
    ("seed", -1, f"a whole number from 0 to {MAX_INT}"),
    ("workers", 5, "a whole number from 1 to 4"),
    ("workers", 0, "a whole number from 1 to 4"),
    ("rate", 0, RATE),
    ("rate", 0.0, RATE),
    ("rate", -1e-3, RATE),
    ("rate", 1e-50, RATE),  # above 0 here, 0 on the device
    ("rate", 1e39, RATE),
    ("rate", 10**400, RATE),  # no float holds it
    ("rate", math.nan, RATE),
    ("rate", math.inf, RATE),
    ("rate", True, RATE),
    ("rate", "0.1", RATE),
    ("rate", None, RATE),
    ("share", -0.1, SHARE),
    ("share", 1.5, SHARE),
    ("share", math.nan, SHARE),
    ("level", -math.inf, "a number that float32 can hold"),
    ("level", -1e-50, "a number that float32 can hold"),
    ("limit", 3.0, "a number above 0 to 2 that float32 can hold"),
    ("scale", "max", "minmax or raw"),
    ("scale", None, "minmax or raw"),
    ("count", 4, "1, 2 or 3"),
    ("paired", 1, "true or false"),
    ("paired", "true", "true or false"),
    ("paired", None, "true or false"),
    ("name", 3, "text"),
    ("name", None, "text"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "value", "expected"), BAD)
def test_a_bad_value_is_refused_in_one_sentence(name: str, value: Any, expected: str) -> None:
    with pytest.raises(InputError) as error:
        Config(**{name: value})
    assert str(error.value) == f"{name}={value}: expected {expected}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("units", 1),
        ("units", MAX_INT),
        ("seed", 0),
        ("workers", None),
        ("workers", 4),
        ("rate", 1e-37),
        ("rate", 3),  # a whole number is a number
        ("share", 0),
        ("share", 1.0),
        ("level", -3e38),
        ("limit", None),
        ("limit", 2),
        ("scale", "raw"),
        ("count", 3),
        ("paired", False),
        ("name", ""),
        ("other", object()),
    ],
)
def test_a_good_value_is_taken_as_it_is(name: str, value: Any) -> None:
    assert getattr(Config(**{name: value}), name) is value


def test_a_change_is_checked_too() -> None:
    with pytest.raises(InputError, match="^units=0: "):
        dataclasses.replace(Config(), units=0)
    with pytest.raises(InputError, match="^lam=-1: "):
        Swept().replace(lam=-1)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lam", -0.5, "a number from 0 that float32 can hold"),
        ("lam", math.nan, "a number from 0 that float32 can hold"),
        ("tau", 0, "a number above 0 to 1 that float32 can hold"),
        ("tau", 1e-50, "a number above 0 to 1 that float32 can hold"),
        ("tau", 2.0, "a number above 0 to 1 that float32 can hold"),
    ],
)
def test_numbers_to_sweep_are_checked(name: str, value: Any, expected: str) -> None:
    with pytest.raises(InputError) as error:
        Swept(**{name: value})
    assert str(error.value) == f"{name}={value}: expected {expected}"


def test_arrays_and_tracers_are_taken_unseen() -> None:
    # What they hold may not be known yet; -1 would be refused.
    for lam in (jnp.float32(-1.0), np.float32(-1.0), jnp.full(3, -1.0)):
        assert Swept(lam=lam).lam is lam
    seen = []

    def traced(lam: jax.Array) -> jax.Array:
        seen.append(lam)
        return Swept(lam=lam).on_device().lam

    np.testing.assert_array_equal(jax.jit(jax.vmap(traced))(jnp.arange(-2.0, 1.0)), [-2, -1, 0])
    assert isinstance(seen[0], jax.core.Tracer)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, Swept(lam=jnp.full(3, -1.0)))
    np.testing.assert_array_equal(doubled.lam, [-2.0] * 3)


def test_on_the_device_numbers_are_float32() -> None:
    found = Swept(lam=1, tau=np.float64(0.1)).on_device()
    for leaf, expected in ((found.lam, 1.0), (found.tau, np.float32(0.1))):
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype == jnp.float32
        assert leaf.shape == ()
        assert leaf == expected


def test_fields_are_told_with_what_is_known_of_them() -> None:
    found = {field.name: field for field in settings.fields(Config)}
    assert list(found) == [f.name for f in dataclasses.fields(Config) if f.name != "other"]
    workers, limit, scale = found["workers"], found["limit"], found["scale"]
    assert (workers.type, workers.optional, workers.choices, workers.default) == (
        int,
        True,
        (),
        None,
    )
    assert (limit.type, limit.optional) == (float, True)
    assert (scale.type, scale.optional, scale.choices) == (str, False, ("minmax", "raw"))
    assert (found["count"].type, found["count"].choices) == (int, (1, 2, 3))
    assert found["share"].setting == settings.Setting("share", low=0, high=1)
    assert [field.name for field in settings.fields(Swept)] == ["lam", "tau"]


def test_build_takes_what_was_given_then_the_runs_own_then_defaults() -> None:
    run = {"length": 50, "name": "theirs", "units": 3, "seed": 5}
    # Units and seed are the run's by accident of the name: these fields don't say `of_run`.
    assert settings.build(Config, {}, run) == Config(length=50, name="theirs")
    assert settings.build(Config, {"length": 7, "units": 2}, run) == Config(
        length=7, name="theirs", units=2
    )
    assert settings.build(Config, {}, {}) == Config()


def test_build_knows_the_defaults_for_environments_that_can_terminate() -> None:
    # False is a default like any other, and what was given or is the run's goes first.
    assert settings.build(Config, {}, {}, True) == Config(paired=False, length=10)
    assert settings.build(Config, {"paired": True}, {"length": 50}, True) == Config(length=50)
    assert settings.build(Config, {}, {}, False) == Config()


def test_build_checks() -> None:
    with pytest.raises(InputError, match="^length=0: expected a whole number from 1 to"):
        settings.build(Config, {}, {"length": 0})


def test_labelled_segments_are_whole() -> None:
    with pytest.raises(InputError, match="^labelled_pairs and partial_segments: expected at most"):
        appo.Config(labelled_pairs=True, partial_segments=True)


def test_the_actors_bounds_have_to_be_in_order() -> None:
    with pytest.raises(InputError) as error:
        appo.Config(log_std_min=3.0)
    assert str(error.value) == "log_std_min=3.0: expected at most log_std_max=2.0"
    assert appo.Config(log_std_min=2.0).log_std_min == 2.0
    with pytest.raises(InputError, match="^log_std_max=nan: expected a number that float32"):
        appo.Config(log_std_max=math.nan)


def learners() -> list[Any]:
    found = [sac.Config]
    for algorithm in registry.ALGORITHMS.values():
        found += [algorithm.policy_learner.Config, algorithm.policy_learner.Swept]
        if algorithm.reward_learner is not None:
            found.append(algorithm.reward_learner.Config)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("cls", learners(), ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_defaults_are_allowed_and_every_field_tells_what_it_is(cls: Any) -> None:
    assert cls() == cls(**{field.name: field.default for field in settings.fields(cls)})
    for field in settings.fields(cls):
        assert field.setting.help
        if field.setting.with_terminations is not None:
            cls(**{field.name: field.setting.with_terminations})
        # All but updates, epochs and steps are sizes of arrays, or numbers of layers.
        if field.type is int and not re.search("updates|epochs|length|crop|interval", field.name):
            assert (field.setting.high or MAX_INT) <= MAX_ROWS, field.name
