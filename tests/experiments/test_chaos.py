"""Real runs of the real command, killed at random moments until they are through.

Each starts from nothing (collection, labels, reward fit, training, evaluations) and is started
again after each kill. It must end as the run that nobody killed, bit for bit.
"""

import collections
import random
import signal
import time
from pathlib import Path

import pytest

from tests.helpers.runs import TINY, Command, contents, result

KILLS_IN_A_RUN = 6  # then it is left alone
SIGNALS = (
    (signal.SIGINT, True),  # as a terminal sends it: to every process
    (signal.SIGTERM, True),
    (signal.SIGTERM, False),
    (signal.SIGKILL, False),
)
STAGES = {  # by the last line seen
    "task": "collection",
    "data:": "labels",
    "labels:": "reward",
    "reward model (": "reward fit",
    "reward model: right": "compilation",
    "compiling": "compilation",
}


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_killed_at_random_moments(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    kills = pytestconfig.getoption("chaos_kills")
    began = time.monotonic()
    status, _, stderr = _run(tmp_path / "whole").finish()
    duration = time.monotonic() - began  # with compilation; shorter ones are noticed below
    assert status == 0, stderr
    expected = result(tmp_path / "whole" / "run"), _data(tmp_path / "whole")

    draw = random.Random(kills)
    hit: collections.Counter[str] = collections.Counter()
    missed = runs = 0
    while hit.total() < kills:
        folder = tmp_path / f"run{runs}"
        in_this_run = 0
        finished = False
        while not finished:
            process = _run(folder)
            began = time.monotonic()
            if in_this_run < KILLS_IN_A_RUN and hit.total() < kills:
                number, whole_session = draw.choice(SIGNALS)
                stage = process.signal_after(
                    draw.uniform(0, duration), number, whole_session=whole_session
                )
                if stage is None:
                    missed += 1
                    if not in_this_run:  # a whole run, on a machine as busy as it is now
                        duration = time.monotonic() - began
                else:
                    hit[f"{number.name} in {_stage(stage)}"] += 1
                    in_this_run += 1
            status, lines, stderr = process.finish()
            assert "Traceback" not in stderr, stderr
            finished = status == 0
            assert finished or status in (1, 128 + number, -number), (status, lines, stderr)
        assert (result(folder / "run"), _data(folder)) == expected
        runs += 1
    print(f"\n{hit.total()} kills in {runs} runs, {missed} more came too late; no bit differs")
    for what, count in sorted(hit.items()):
        print(f"{count:4} {what}")


def _run(folder: Path) -> Command:
    folder.mkdir(exist_ok=True)
    flags = ("--dataset=medium-expert", "--dataset_size=1000", "--data_dir=data", "--workdir=run")
    return Command(folder, *TINY, *flags)


def _data(folder: Path) -> list[str]:
    """The data set's files: an unfinished write leaves none."""
    return sorted(str(path.relative_to(folder)) for path in contents(folder / "data"))


def _stage(line: str) -> str:
    for beginning, stage in STAGES.items():
        if line.startswith(beginning):
            return stage
    return "training and evaluation" if line else "start-up"
