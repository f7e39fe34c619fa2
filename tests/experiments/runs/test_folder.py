"""A run's folder: config.json is the runs' own, or it is refused."""

from pathlib import Path
from typing import Any

import pytest

from appo_jax.types import InputError
from experiments.runs import files
from experiments.runs.folder import RunFolder
from tests.helpers.runs import TINY, parse


@pytest.mark.parametrize(
    "change",
    [
        *({"runs": runs} for runs in (None, {}, [1])),
        *({"identities": identities} for identities in (None, {}, [], [1], [None], [{}])),
        *({"identities": [{"policy": policy}]} for policy in (None, [], "text")),
        *({"dataset_contents": contents} for contents in (None, [], 1)),
        *({"runs_per_group": size} for size in (0, "x", None, True, 1.5)),
        None,
    ],
)
def test_a_config_that_is_not_the_runs_own(data_dir: Path, tmp_path: Path, change: Any) -> None:
    runs, execution = parse(*TINY, f"--data_dir={data_dir}", f"--workdir={tmp_path}")
    folder = RunFolder(runs, execution)
    folder.write()
    config = folder.config
    files.write_json(tmp_path / "config.json", [] if change is None else config | change)
    with pytest.raises(InputError, match=rf"^--workdir={tmp_path}: .*expected"):
        RunFolder(runs, execution)


def test_a_run_of_an_earlier_release(data_dir: Path, tmp_path: Path) -> None:
    runs, execution = parse(*TINY, f"--data_dir={data_dir}", f"--workdir={tmp_path}")
    folder = RunFolder(runs, execution)
    earlier = {k: v for k, v in folder.config.items() if k != "format_version"}
    for content, found in ((earlier, 1), ({**earlier, "format_version": 7}, 7)):
        files.write_json(tmp_path / "config.json", content)
        with pytest.raises(InputError, match=rf"another release \(format {found}\), expected form"):
            RunFolder(runs, execution)


def test_a_schedule_over_the_whole_run_can_not_be_extended(data_dir: Path, tmp_path: Path) -> None:
    flags = ("--algorithm=oracle", f"--data_dir={data_dir}", f"--workdir={tmp_path}")
    tiny = [f for f in TINY if "num_pairs" not in f and "reward_" not in f]
    RunFolder(*parse(*tiny, *flags)).write()
    RunFolder(*parse(*tiny, *flags))
    with pytest.raises(
        InputError, match=r"--num_updates=70: .* holds a run of 60, over all of which oracle has"
    ):
        RunFolder(*parse(*tiny, *flags, "--num_updates=70"))
    constant = (*flags[:2], "--actor_schedule=constant", f"--workdir={tmp_path / 'constant'}")
    RunFolder(*parse(*tiny, *constant)).path.mkdir()
    RunFolder(*parse(*tiny, *constant)).write()
    RunFolder(*parse(*tiny, *constant, "--num_updates=70"))


@pytest.mark.parametrize("name", ["metrics.csv", "checkpoints"])
def test_what_another_run_left(data_dir: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"holds {name} of a run but not its config.json, expect"):
        RunFolder(*parse(*TINY, f"--data_dir={data_dir}", f"--workdir={tmp_path}"))
