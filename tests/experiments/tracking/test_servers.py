"""Trackers beside a run that is killed, and goes on, while W&B's server can't be reached."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from experiments.runs.files import MetricsFile
from experiments.tracking.tracker import tag
from tests.helpers.processes import wait_until
from tests.helpers.runs import TINY, Command, result

Found = dict[tuple[str, int], float]
NOBODY = "http://127.0.0.1:9"  # the port of a service that is nowhere any more


def of_csv(folder: Path) -> Found:
    rows = MetricsFile(folder / "metrics.csv").rows
    return {(tag(row["split"], row["metric"]), row["update"]): row["value"] for row in rows}


def of_tensorboard(folder: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (own,) = (folder / "tensorboard").iterdir()
    events = EventAccumulator(str(own), size_guidance={"scalars": 0})
    events.Reload()
    scalars = [(name, one) for name in events.Tags()["scalars"] for one in events.Scalars(name)]
    found = {(name, one.step): one.value for name, one in scalars}
    assert len(found) == len(scalars)
    return found


def of_wandb(folder: Path) -> Found:
    from wandb.proto.wandb_internal_pb2 import Record

    found: Found = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for bytes in _records(path.read_bytes()):
            record = Record.FromString(bytes)
            items = {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            update = items.pop("update", None)
            found |= {(key, update): value for key, value in items.items() if "/" in key}
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """Of LevelDB's log format: blocks of 32 KiB with pieces of records."""
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_waits(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("tensorboard", "tensorboardX", "wandb"):
        pytest.importorskip(package, reason=f"{package} isn't installed")
    monkeypatch.setenv("WANDB_BASE_URL", NOBODY)
    monkeypatch.setenv("WANDB_API_KEY", 40 * "0")
    arguments = [*TINY, "--num_updates=2000", "--eval_interval=500", f"--data_dir={data_dir}"]
    followed = (*arguments, "--track=tensorboard,wandb")
    took = {}
    for name, line in {"alone": arguments, "followed": followed}.items():
        began = time.monotonic()
        command = Command(tmp_path, *line, f"--workdir={tmp_path / name}")
        status, lines, stderr = command.finish()
        took[name] = time.monotonic() - began
        assert (status, stderr) == (0, "")
    assert "warning: tracker wandb: not all of it is uploaded (see " in "".join(lines)
    assert result(tmp_path / "alone") == result(tmp_path / "followed")
    print(f"alone {took['alone']:.1f} s, with trackers {took['followed']:.1f} s")
    assert took["followed"] < took["alone"] + 15  # five of which it waits in the end

    killed = tmp_path / "killed"
    command = Command(tmp_path, *followed, f"--workdir={killed}")
    wait_until(lambda: (killed / "checkpoints" / "policy" / "500").exists(), 60)
    command.signal(signal.SIGKILL)
    assert command.finish()[0] == -signal.SIGKILL
    assert Command(tmp_path, *followed, f"--workdir={killed}").finish()[0] == 0
    assert result(killed) == result(tmp_path / "followed")

    for folder in (tmp_path / "followed", killed):
        csv = of_csv(folder)
        assert len(csv) > 3000
        assert of_tensorboard(folder) == {key: float(np.float32(one)) for key, one in csv.items()}
        assert {key: one for key, one in of_wandb(folder).items() if "clock" not in key[0]} == {
            key: one for key, one in csv.items() if "clock" not in key[0]
        }
