"""Tiny data sets, and the surroundings in which tiny runs are quick."""

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from appo_jax import evaluation
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from tests.helpers.agents import SteppersHere
from tests.helpers.compilation import compile_quickly, keep_compiled


def _numbered(
    lengths: tuple[int, ...] = (3, 1, 7, 4), id: str = "tiny/numbered-v0", first_row: int = 0
) -> Dataset:
    episodes = []
    for index, steps in enumerate(lengths):
        rows = np.arange(first_row, first_row + steps + 1)
        episodes.append(
            Episode(
                observations=np.stack([rows, np.full(steps + 1, index)], axis=1),
                actions=rows[:-1, None] + 0.25,
                rewards=rows[:-1] + 0.5,
                terminations=(np.arange(steps) == steps - 1) & (index % 2 == 0),
            )
        )
        first_row += steps + 1
    return from_episodes(episodes, id)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos_kills", type=int, default=20, help="kills of the slow chaos test")


# The files that take longest: begun last, one would keep a process busy while the other is idle.
LONGEST = (
    *("test_learners", "test_grid", "test_runner", "test_train", "test_planted", "test_policy"),
    *("test_collect", "test_any_environment", "test_places", "test_preference_transformer"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


_compiled = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Let all processes of the tests share what they compile, quickly but for long checks.

    Workers inherit both by the environment.
    """
    gc.set_threshold(50_000, 20, 50)  # a program that is traced is many objects, and they stay
    if "PYTEST_XDIST_WORKER" not in os.environ:
        if config.getoption("markexpr") == "not slow":
            compile_quickly()
        config.stash[_compiled] = Path(tempfile.mkdtemp(prefix="compiled-"))
        keep_compiled(config.stash[_compiled])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if _compiled in config.stash:
        shutil.rmtree(config.stash[_compiled], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Free programs before their memory maps are too many: at 65,530 of them jaxlib crashes."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()


@pytest.fixture
def numbered() -> Callable[..., Dataset]:
    """Make a data set whose row i holds observation (i, episode), action i + 1/4, reward i + 1/2.

    The first, third, ... episode ends in a termination. Counting rows starts at `first_row`.
    """
    return _numbered


@pytest.fixture(scope="session")
def hoppers() -> SteppersHere:
    """Two Hoppers, in this process."""
    return SteppersHere("Hopper-v5", 2)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data sets that holds tiny LiRE buffers."""
    from tests.helpers.runs import write_buffers  # here, since it imports the command

    folder = tmp_path_factory.mktemp("data")
    write_buffers(folder)
    return folder


@pytest.fixture(scope="module")
def fake_evaluations() -> Iterator[None]:
    """Evaluations without a simulator."""
    from experiments.runs import curves
    from tests.helpers.runs import FakeEvaluation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "start", FakeEvaluation)
        patch.setattr(curves, "plot", lambda path, *_: path.touch())  # the real one takes 0.5 s
        yield
