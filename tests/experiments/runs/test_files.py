"""The files of a run's folder."""

import contextlib
import csv
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appo_jax.types import InputError
from experiments.runs import files


def test_metrics_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = files.MetricsFile(path)
    file.keep(lambda row: True)
    file.append(500, "train", {0: {"critic/loss": 0.1 + 0.2, "value/loss": 1e-30}})
    file.append(500, "train", {1: {"critic/loss": 7.0}})
    file.append(40, "eval", {0: {"eval/success_rate": 50.0}})
    with path.open() as lines:
        assert next(csv.reader(lines)) == ["run", "update", "split", "metric", "value", "time"]
    again = files.MetricsFile(path)
    assert again.rows == file.rows
    assert again.values(0, "train", "critic/loss") == {500: 0.1 + 0.2}
    assert again.values(1, "train", "critic/loss") == {500: 7.0}
    assert again.values(0, "train", "nothing") == {}


def test_values_are_in_order_of_updates(tmp_path: Path) -> None:
    file = files.MetricsFile(tmp_path / "metrics.csv")
    for update in (20, 60, 40):
        file.append(update, "eval", {0: {"eval/return": float(update)}})
    assert list(file.values(0, "eval", "eval/return").items()) == [(20, 20), (40, 40), (60, 60)]


def test_dropped_rows_leave_the_file_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = files.MetricsFile(path)
    for update in (20, 40):
        file.append(update, "train", {0: {"critic/loss": 1.0}})
    file.keep(lambda row: row["update"] <= 20)
    file.append(30, "train", {0: {"critic/loss": 2.0}})
    assert files.MetricsFile(path).values(0, "train", "critic/loss") == {20: 1.0, 30: 2.0}
    assert os.listdir(tmp_path) == ["metrics.csv"]


def test_a_line_cut_anywhere_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = files.MetricsFile(path)
    file.keep(lambda row: True)
    file.append(20, "train", {0: {"critic/loss": 1.25, "value/loss": 10.5}})
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for length in range(len(last)):
        path.write_bytes(whole[: len(whole) - len(last) + length])
        cut = files.MetricsFile(path)
        assert cut.rows == file.rows[:1], length
        cut.keep(lambda row: True)
        assert path.read_bytes() == whole[: -len(last)]


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    columns = b"run,update,split,metric,value,time\n"
    for content in (
        b"step,loss\n1,2\n",
        columns + b"0,x,eval,y,1,2\n",
        columns + b"0,\xff,eval,y,1,2\n",
        columns + b"0,1,eval," + b"y" * 200_000 + b",1,2\n",  # more than the csv module takes
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"metrics.csv: not the metrics of a run .*run,update"):
            files.MetricsFile(path)


def test_json_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert files.read_json(path) is None
    files.write_json(path, {"lam": 0.03})
    with pytest.raises(TypeError):
        files.write_json(path, {"lam": object()})
    assert files.read_json(path) == {"lam": 0.03}
    for content in (b'{"lam":', b'"\xff"', b"[" * 100_000, b"9" * 5000):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"config.json: not JSON .*expected a file that a run"):
            files.read_json(path)


# Another process at work in a folder.
_HOLDING = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def test_a_folder_is_locked_for_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with files.locked(folder):
        pass
    holding = [sys.executable, "-c", _HOLDING, folder / ".lock"]
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(InputError, match=r"another process is at"), files.locked(folder):
            pass
        other.communicate()
    with files.locked(folder):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"--workdir=.*file/run: can't be written to \(Not a dir"),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(files.locked(tmp_path / "file" / "run"))


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with (
        pytest.raises(InputError, match=r"can't be locked \(No locks .*take a folder on a local"),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(files.locked(tmp_path))
