"""Folders that appear whole, and what their killed writers left."""

import os
import platform
from pathlib import Path

import pytest

from appo_jax.data import atomic

DEAD = 2**22 + 1  # above every process id


def test_only_what_a_dead_process_of_this_host_left_is_deleted(tmp_path: Path) -> None:
    begin, end = f".set.partial-{platform.node()}", "0" * 32
    others = {
        f"{begin}-{os.getpid()}-{end}",  # at work
        f"{begin}-2-{DEAD}-{end}",  # of hosts whose names begin with this one's
        f"{begin}-b-{DEAD}-{end}",
        f"{begin}-notes",
    }
    for name in (*others, f"{begin}-{DEAD}-{end}"):
        (tmp_path / name).mkdir()
    with atomic.new_folder(tmp_path / "set") as partial:
        (partial / "file").touch()
    assert set(os.listdir(tmp_path)) == {*others, "set"}


def test_a_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, sync, synced = tmp_path / "set", os.fsync, []

    def note(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, target.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with atomic.new_folder(target) as partial:
        (partial / "data").mkdir()
        (partial / "data" / "file").write_text("much")
    within = {path.stat().st_ino for path in (target, target / "data", target / "data" / "file")}
    assert set(synced) == {*((number, False) for number in within), (tmp_path.stat().st_ino, True)}


def test_names_are_no_patterns(tmp_path: Path) -> None:
    left = tmp_path / f".[x]*.partial-{platform.node()}-{DEAD}-{'0' * 32}"
    left.mkdir()
    with pytest.raises(KeyError), atomic.new_folder(tmp_path / "[x]*"):
        raise KeyError
    assert os.listdir(tmp_path) == []
