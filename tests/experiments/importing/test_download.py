"""Downloads, from servers of this machine in the public hosts' places."""

import functools
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from appo_jax.data import minari_io
from appo_jax.types import InputError
from experiments import import_data
from experiments.importing import download
from tests.helpers import download_hosts as hosts
from tests.helpers import published
from tests.helpers.commands import call
from tests.helpers.download_hosts import Host

run = functools.partial(call, import_data)
ID = "1ixXsiscRFFypnQBLRkb2WGYSTOwzU7XS"  # published for drawer-open
CHUNK = 512 * 1024  # in which gdown writes
NAMES = [f"drawer-open-v2/saved_replay_buffer_1000000_seed{seed}.pkl" for seed in range(3)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = published.lire(tmp_path_factory.mktemp("lire") / "drawer-open-v2")
    buffers = [path.read_bytes() for path in sorted(folder.iterdir())]
    return zipped(dict(zip(NAMES, [*buffers, buffers[0]], strict=True)))


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    content.write(bytes(4 * CHUNK))  # an archive may begin with anything
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return content.getvalue()


@pytest.fixture
def drive(tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    pytest.importorskip("gdown", reason="the extra `download` isn't installed")
    if shutil.which("openssl") is None:
        pytest.skip("no openssl, which makes the server's certificate")
    with hosts.google_drive(tmp_path, {ID: archive}) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setattr(download, "_RETRIES", 0)
        yield found


def fetch(data_dir: Path, *arguments: str) -> None:
    run("--format=lire", "--download=drawer-open", f"--data_dir={data_dir}", *arguments)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_task_of_lire(drive: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A connection cut twice, a page that asks first, and all of the import behind it."""
    place, size = tmp_path / "data", len(drive.files[ID])
    drive.cuts = {0: CHUNK + 1000, 2: CHUNK + 3}
    message = r"drawer-open-v2.zip can't be fetched \(.*bytes read.*is kept.*id=1ixX\w+ in a brow"
    with pytest.raises(InputError, match=message):
        fetch(place)
    (part,) = place.glob("*.part")
    assert part.read_bytes() == drive.files[ID][:CHUNK]
    assert left(place) == [part.name, "imported"]  # nothing has a name yet
    with pytest.raises(InputError, match="bytes read"):
        fetch(place)
    capsys.readouterr()
    fetch(place)
    assert drive.asked == [0, 0, CHUNK, 0, 2 * CHUNK]  # gdown asks for the whole before it goes on
    out = capsys.readouterr().out.splitlines()
    assert out[0] == (
        f"fetching      drawer-open-v2.zip from https://drive.google.com/uc?id={ID}, to {place}"
    )
    assert f"drawer-open-v2.zip: {size:,} of {size:,} bytes" in out
    assert out[-1] == "train with    --dataset=imported/lire-drawer-open-v2-v0"
    assert left(place) == ["drawer-open-v2", "imported"]
    dataset = minari_io.load("imported/lire-drawer-open-v2-v0", place)
    assert (dataset.num_transitions, dataset.metadata["environment_id"]) == (1500, "drawer-open-v3")
    asked = len(drive.asked)
    fetch(place, "--id=again/drawer-open-v0")
    assert len(drive.asked) == asked
    assert f"{place}/drawer-open-v2 is there, nothing is fetched" in capsys.readouterr().out


def test_a_server_that_does_not_say_how_much_there_is(
    drive: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gdown

    def download(url: str, output: str, progress: Callable[..., None], **options: Any) -> None:
        progress(CHUNK, None)
        plain(url, output, progress=lambda done, _: progress(done, None), **options)

    plain = gdown.download
    monkeypatch.setattr(gdown, "download", download)
    fetch(tmp_path)
    assert "drawer-open-v2" in left(tmp_path)


@pytest.mark.parametrize(
    ("page", "named", "message"),
    [
        (
            hosts.QUOTA,
            False,
            r"can't be fetched \(Too many users have viewed this file recently\.",
        ),
        ("<html>gone</html>", False, r"can't be fetched \(Cannot retrieve the public link of the"),
        (hosts.QUOTA, True, r"gave b'<html>.*, expected a zip archive: open http\S+ in a browser"),
    ],
)
def test_a_page_in_place_of_the_file(
    drive: Host, tmp_path: Path, page: str, named: bool, message: str
) -> None:
    drive.page, drive.named = page, named
    with pytest.raises(InputError, match=message) as caught:
        fetch(tmp_path / "data")
    assert f"save the file as {tmp_path}/data/drawer-open-v2.zip" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert left(tmp_path / "data") == ["imported"]


def test_no_server(drive: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"drawer-open-v2.zip can't be fetched \(.*refused"):
        fetch(tmp_path / "data")
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(InputError, match=r"expected what `pip install 'appo-jax\[download\]'`"):
        fetch(tmp_path / "data")


def test_an_archive_that_lies_there(tmp_path: Path, archive: bytes) -> None:
    """Saved by hand, or all of it here when a process was killed: no server is asked."""
    (tmp_path / "drawer-open-v2.zip").write_bytes(archive)
    fetch(tmp_path, "--id=by/hand-v0")
    shutil.rmtree(tmp_path / "drawer-open-v2")
    (tmp_path / "drawer-open-v2.zip8_letter.part").write_bytes(archive)
    fetch(tmp_path, "--id=after/all-v0")
    assert left(tmp_path) == ["after", "by", "drawer-open-v2"]


def damaged(content: bytes) -> bytes:
    place = content.index(b".pkl") + 2000  # inside of the first file
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped(dict.fromkeys(NAMES, b"")), "seed0.pkl: "),
        (
            zipped(dict.fromkeys(NAMES[:2], b"")),
            r"seed1.pkl, expected drawer-open-v2/saved_",
        ),
        (zipped(dict.fromkeys(["../../evil.pkl", *NAMES], b"")), r"holds \.\./\.\./evil.pkl, draw"),
        (zipped({}), "holds nothing, expected drawer-open-v2/saved"),
        (damaged, r"can't be unpacked \(.*\), expected a whole zip archive; delete it"),
        (b"<html>too many</html>", r"can't be unpacked \(File is not a zip file\)"),
    ],
)
def test_archives_that_are_refused(
    tmp_path: Path, archive: bytes, content: bytes | Callable[[bytes], bytes], message: str
) -> None:
    content = content if isinstance(content, bytes) else content(archive)
    (tmp_path / "drawer-open-v2.zip").write_bytes(content)
    with pytest.raises(InputError, match=message):
        fetch(tmp_path)


def test_a_disk_without_room(
    tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drawer-open-v2.zip").write_bytes(archive)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    message = r"drawer-open-v2.zip, unpacked, takes about \d+ MB, .* has room for 0 MB, expected"
    with pytest.raises(InputError, match=message):
        fetch(tmp_path)
    assert "drawer-open-v2" not in left(tmp_path)


def test_names_that_are_refused(tmp_path: Path) -> None:
    for arguments, message in (
        (("--format=lire", "--download=hammer"), "--download: 'hammer': LiRE's script fetches no"),
        (("--format=lire", "--download=swep"), "--download: task 'swep' is none of Meta-World's"),
        (("--format=d4rl", "--download=sweep"), "--download: format d4rl is published nowhere"),
        (
            ("--format=lire", "--download=sweep", "--source=x"),
            "--source=x: found with --download",
        ),
        (("--format=lire", "--download=sweep", "--task=sweep"), "--task=sweep: found with --downl"),
        (("--format=lire", "--download="), "--download: task '' is none"),
    ):
        with pytest.raises(InputError, match=message):
            run(*arguments, f"--data_dir={tmp_path}")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_ended(drive: Host, tmp_path: Path, number: int) -> None:
    place = tmp_path / "data"
    line = [sys.executable, "-m", "experiments.import_data", "--format=lire"]
    line += ["--download=drawer-open", f"--data_dir={place}"]
    drive.cuts = {0: 2 * CHUNK + 1000}
    drive.goes_on.clear()
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    parts: list[Path] = []
    while not parts or parts[0].stat().st_size < CHUNK:
        assert process.poll() is None
        time.sleep(0.05)
        parts = list(place.glob("*.part"))
    process.send_signal(number)
    said = process.communicate(timeout=30)[1]
    assert "Traceback" not in said
    drive.goes_on.set()
    kept = parts[0].stat().st_size
    assert left(place) == [parts[0].name, "imported"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert drive.asked == [0, 0, kept]
    assert "train with    --dataset=imported/lire-drawer-open-v2-v0" in done.stdout
    assert left(place) == ["drawer-open-v2", "imported"]


# Minari's, by its own client, which reads where its server is when it is imported: in a process.


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Host]:
    pytest.importorskip("huggingface_hub", reason="the extra `download` isn't installed")
    np.savez(tmp_path / "own.npz", **published.own_arrays())
    for id in ("TEST/walk-v0", "TEST/dict-v0"):
        run(
            "--format=arrays",
            f"--source={tmp_path / 'own.npz'}",
            f"--id={id}",
            f"--data_dir={tmp_path / 'remote'}",
        )
    folder = tmp_path / "remote" / "TEST"
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "data" in path.parts
    }
    about = json.loads(files["dict-v0/data/metadata.json"])
    about["observation_space"] = json.dumps({"type": "Dict"})
    files["dict-v0/data/metadata.json"] = json.dumps(about).encode()
    namespace = {"datasets": ["TEST/walk-v0", "TEST/dict-v0"], "namespaces": []}
    files["namespace_metadata.json"] = json.dumps(namespace).encode()
    with hosts.hub(tmp_path, files) as found:
        yield found


@pytest.mark.slow
def test_a_set_of_minari(hub: Host, tmp_path: Path) -> None:
    place = tmp_path / "data"

    def command(id: str, *arguments: str) -> tuple[int, str, str]:
        line = [sys.executable, "-m", "experiments.import_data", "--format=minari"]
        done = subprocess.run(
            [*line, f"--download={id}", f"--data_dir={place}", *arguments],
            env=os.environ | hub.environment,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    def refused(id: str, *arguments: str) -> str:
        code, _, said = command(id, *arguments)
        assert code == 1
        assert "Traceback" not in said
        return said.splitlines()[-1].removeprefix("error: ")

    # Its client writes 10 MB at a time, and HDF5 passes over what lies behind a file's end.
    hub.files["walk-v0/data/main_data.hdf5"] += bytes(24 * 2**20)
    hub.cuts = dict.fromkeys(range(20), 2**20)
    said = refused("TEST/walk-v0")
    assert re.match(r"TEST/walk-v0 can't be fetched \(.*received 1048576 bytes, expected 25", said)
    assert said.endswith("files that came whole are kept. Try the same command again later")
    assert left(place) == []
    hub.cuts, hub.asked = {0: 15 * 2**20}, []
    code, out, said = command("TEST/walk-v0")
    assert code == 0, said
    assert hub.asked == [0, 10 * 2**20]
    assert re.match(r".*\nfetching      TEST/walk-v0, 20 steps in 0.\d MB, to .*/walk-v0\n", out)
    assert out.splitlines()[-1] == "train with    --dataset=TEST/walk-v0 --segment_length=8"
    found = minari_io.load("TEST/walk-v0", place)
    assert found.digest() == minari_io.load("TEST/walk-v0", tmp_path / "remote").digest()
    assert left(place) == ["TEST"]
    assert not (place / ".downloads/TEST-walk-v0").exists()
    asked = len(hub.asked)
    code, out, _ = command("TEST/walk-v0", "--id=mine/walk-v0", "--env=Hopper-v5")
    assert (code, len(hub.asked)) == (0, asked)
    assert f"{place}/TEST/walk-v0 is there, nothing is fetched" in out
    assert minari_io.load("mine/walk-v0", place).metadata["environment_id"] == "Hopper-v5"

    missing = "not among the remote sets that Minari 0.5.4 reads, expected"
    assert refused("TEST/walk-v1") == f"--download=TEST/walk-v1: {missing} TEST/walk-v0"
    assert f"{missing} one that `minari list remote` shows" in refused("OTHER/walk-v0")
    assert refused("TEST/dict-v0").endswith("observation space is Dict, expected a Box")
    assert "id '../walk-v0', expected e.g. namespace/name-v0" in refused("../walk-v0")
    assert refused("TEST/dict-v0", "--env=Hopper-v5").endswith("expected also --id=<new>")
