"""Folders of odd names through all commands: they work, or are refused before any work."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import appo_jax
from appo_jax import checkpoint, policy
from appo_jax.data import minari_io
from appo_jax.types import InputError
from experiments import evaluate
from experiments.collecting import sac_collection
from experiments.runs import runner
from experiments.runs.results import RunResult
from tests.helpers.agents import HOPPER, SteppersHere
from tests.helpers.runs import contents, parse, print_told, tiny, write_buffers

pytestmark = pytest.mark.usefixtures("fake_evaluations")

FINE = ("{a}~#%20 ;&$'\"=,!@^`|<>", "a\nb\t ", "\u00e9\u65e5\u672c", "-x:y")
REFUSED = ("[x]", "a*", "a?", "a\\b", "gs:", "\udcff")


def train(place: Path, *arguments: str) -> RunResult:
    places = (f"--workdir={place / 'run'}", f"--data_dir={place / 'data'}")
    return runner.run(*parse(*tiny("bc"), *places, *arguments), print_told)[0]


@pytest.fixture
def collecting(hoppers: SteppersHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collections step the session's Hoppers."""

    @contextlib.contextmanager
    def running(*_: object) -> Iterator[SteppersHere]:
        yield hoppers

    monkeypatch.setattr(sac_collection, "steppers", running)


@pytest.mark.usefixtures("collecting")
@pytest.mark.parametrize(
    "name", [FINE[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FINE[1:])]
)
def test_a_name_that_works(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / name
    write_buffers(place / "data")
    train(place, "--num_updates=20")
    assert train(place, "--num_updates=40").state == "finished"
    told = capsys.readouterr().out
    assert "going on from update 20" in told
    assert "damaged" not in told
    ((saved, episodes),) = evaluate.evaluate(
        policy.load_all(place / "run", [0]), evaluate.Options()
    )
    assert (saved.update, set(episodes.metrics())) == (40, {"eval/return", *RATES})
    assert appo_jax.load_policy(place / "run")(np.ones(39)).shape == (4,)
    collected = sac_collection.collect_and_save(
        HOPPER, str(place / "data"), lambda *_: None, pytest.fail
    )
    found = minari_io.load(collected.id, place / "data")
    assert found.digest() == collected.digest()
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


RATES = ("eval/success_rate", "eval/success_rate_at_end")


@pytest.fixture(scope="module")
def trained(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder."""
    place = tmp_path_factory.mktemp("trained")
    (place / "data").symlink_to(data_dir)
    train(place, "--num_updates=20")
    return place / "run"


@pytest.mark.usefixtures("collecting")
@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_is_refused(tmp_path: Path, name: str, trained: Path) -> None:
    place = tmp_path / name
    write_buffers(place / "data")
    shutil.copytree(trained, place / "moved" / "run")
    (place / "moved" / "data").symlink_to(place / "data")
    before = contents(tmp_path)
    for attempt in (
        lambda: train(place),
        lambda: train(place / "moved", "--num_updates=40"),
        lambda: policy.load_all(place / "moved" / "run", [0]),
        lambda: appo_jax.load_policy(place / "moved" / "run"),
        lambda: sac_collection.collect_and_save(
            HOPPER, str(place / "data"), lambda *_: None, pytest.fail
        ),
    ):
        with pytest.raises(InputError, match="in the path, expected a path of text") as error:
            attempt()
        assert not isinstance(error.value, checkpoint.Damaged)
    assert contents(tmp_path) == before
