"""Data sets of others, from the places where they are published.

LiRE's replay buffers lie on Google Drive, an archive for each task; of Minari's remote sets its own
client knows where they are. What came of an unfinished download is kept beside the place, and the
next call goes on from it; only what is whole gets its name.
"""

import contextlib
import dataclasses
import importlib
import io
import json
import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from appo_jax import workers
from appo_jax.data import atomic, minari_io
from appo_jax.envs import meta_world
from appo_jax.types import InputError
from experiments.runs import files
from experiments.runs.events import Counter, Report, Told

# Of the archives of LiRE's download script, one for each task of the paper.
_LIRE_FILES: Mapping[str, str] = {
    "box-close-v2": "1yva0VXvnnyMOCLfWstj5q0TK-oi3Rt65",
    "button-press-topdown-v2": "1McVLA6KWi6KWJOI0lpIQ3dm60dxF_SpL",
    "button-press-topdown-wall-v2": "1dxdzUom2NsKFKkv0nrD2590UojoMYFmf",
    "dial-turn-v2": "11lC_Ihn55Lruv-GDPe7lrkLNd0pxSCy4",
    "drawer-open-v2": "1ixXsiscRFFypnQBLRkb2WGYSTOwzU7XS",
    "lever-pull-v2": "17kLkqfAX3OPefb1bsuVXSMdglDmtYwuJ",
    "sweep-into-v2": "1G3VghYKH5Mm2XHM69-oMl6uDNx7fdCxC",
    "sweep-v2": "1u7f5WZYQlqXSxyJGI56kWlafYluFrgJb",
}
_LIRE_BUFFERS = tuple(f"saved_replay_buffer_1000000_seed{seed}" for seed in range(3))
_RETRIES = 3  # of one call, on a connection that was cut; each goes on where the last one ended
_TIMEOUT = 60.0  # seconds without a byte


@dataclasses.dataclass(frozen=True)
class Publisher:
    """Where a format's files can be fetched.

    help: what is to be named, for a person. place: the source that `fetch` leaves below the folder
    of data sets; raises InputError for a name under which nothing is published. fetch: brings it
    there; raises InputError without a network, for a connection that was cut, and for what isn't
    as published.
    """

    help: str
    place: Callable[[str, Path], Path]
    fetch: Callable[[str, Path, Report], None]


def _lire_place(name: str, data_dir: Path) -> Path:
    folder = meta_world.canonical_name(name).removesuffix(meta_world.VERSION) + "v2"
    if folder not in _LIRE_FILES:
        tasks = ", ".join(task.removesuffix("-v2") for task in _LIRE_FILES)
        raise InputError(f"{name!r}: LiRE's script fetches no such buffers, expected {tasks}")
    return data_dir / folder


def _fetch_lire(name: str, data_dir: Path, report: Report) -> None:
    folder = _lire_place(name, data_dir)
    archive = folder.with_name(f"{folder.name}.zip")
    for part in data_dir.glob(f"{archive.name}????????.part"):
        if zipfile.is_zipfile(part):  # a killed process had all of it, and no time for its name
            part.rename(archive)
    if archive.exists():
        report(Told(f"{archive} is there, nothing is fetched"))
    else:
        _from_google_drive(_LIRE_FILES[folder.name], archive, report)
    _unpack(archive, folder)
    archive.unlink()


def _from_google_drive(id: str, archive: Path, report: Report) -> None:
    """Bring a zip archive to its place, which has it whole or not at all."""
    gdown = _module("gdown")
    import requests  # comes with it

    url = f"https://drive.google.com/uc?id={id}"
    report(Told(f"fetching      {archive.name} from {url}, to {archive.parent}"))
    counter = Counter(report, archive.name, "bytes")
    by_hand = f"open {url} in a browser and save the file as {archive}, the same command goes on"
    try:
        gdown.download(
            url,
            str(archive),
            quiet=True,
            use_cookies=False,  # it would write them to the home folder
            resume=True,
            # A server needn't say how much there is to come.
            progress=lambda done, total: counter(done, total) if total else None,
            timeout=_TIMEOUT,
            retries=_RETRIES,
        )
    except (gdown.exceptions.DownloadError, requests.RequestException, LookupError) as error:
        raise InputError(
            f"{archive.name} can't be fetched ({_reason(error)}); what came of it is kept. Try the "
            f"same command again later, or {by_hand}"
        ) from error
    if not zipfile.is_zipfile(archive):
        with archive.open("rb") as file:
            begin = file.read(60)
        archive.unlink()
        raise InputError(f"{url}: gave {begin!r}, expected a zip archive: {by_hand}")


def _unpack(archive: Path, folder: Path) -> None:
    """Make the folder of an archive's three buffers, at once or not at all."""
    try:
        with zipfile.ZipFile(archive) as packed:
            found = [file for file in packed.infolist() if not file.is_dir()]
            names = sorted(file.filename for file in found)
            expected = [f"{folder.name}/{name}" for name in _LIRE_BUFFERS]
            if [name.removesuffix(".pkl") for name in names] != expected:
                raise InputError(
                    f"{archive}: holds {', '.join(names)[:300] or 'nothing'}, expected "
                    f"{', '.join(f'{name}.pkl' for name in expected)}"
                )
            size = sum(file.file_size for file in found)
            atomic.check_room(f"{archive}, unpacked,", size, folder.parent)
            with atomic.new_folder(folder) as partial:
                for file in found:
                    with packed.open(file) as source:
                        target = partial / Path(file.filename).name
                        with target.open("wb") as copy:
                            shutil.copyfileobj(source, copy)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise InputError(
            f"{archive}: can't be unpacked ({_reason(error)}), expected a whole zip archive; "
            "delete it, and the same command fetches it anew"
        ) from error


def _minari_place(name: str, data_dir: Path) -> Path:
    minari_io.check_id(name)
    return data_dir / name


def _fetch_minari(name: str, data_dir: Path, report: Report) -> None:
    place = _minari_place(name, data_dir)
    minari = _module("minari")
    # Where its remote sets are, by default; the client would tell of each of its many attempts.
    _module("huggingface_hub.utils.logging").set_verbosity_error()
    report(Told(f"asking Minari's remote for {name}"))
    staging = data_dir / ".downloads" / name.replace("/", "-")
    try:
        # Minari would take what is there of a set for all of it.
        unfinished = (staging / name).exists()
        quiet = contextlib.redirect_stdout(io.StringIO())
        with workers.environment(MINARI_DATASETS_PATH=str(staging)), quiet:
            _check_remote(minari, name, place, report)
            minari.download_dataset(name, force_download=unfinished)
        minari_io.load(name, staging)
    except InputError:
        raise
    except Exception as error:  # its clients raise anything
        raise InputError(
            f"{name} can't be fetched ({_reason(error)}); files that came whole are kept. Try "
            "the same command again later"
        ) from error
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(staging / name / ".cache", ignore_errors=True)  # of the hub, in a top set
    (staging / name).rename(place)
    shutil.rmtree(staging)


def _check_remote(minari: Any, name: str, place: Path, report: Report) -> None:
    """Raise InputError unless Minari's remote has such a set, with Box spaces."""
    versions = minari.list_remote_datasets(
        prefix=name.rpartition("-v")[0], compatible_minari_version=True
    )
    if name not in versions:
        raise InputError(
            f"--download={name}: not among the remote sets that Minari {minari.__version__} reads, "
            f"expected {', '.join(sorted(versions)) or 'one that `minari list remote` shows'}"
        )
    about = versions[name]
    for kind in ("observation", "action"):
        space = json.loads(about[f"{kind}_space"])["type"]
        if space != "Box":
            raise InputError(f"--download={name}: {kind} space is {space}, expected a Box")
    steps, size = about.get("total_steps", 0), about.get("dataset_size", 0)
    report(Told(f"fetching      {name}, {steps:,} steps in {size:,.1f} MB, to {place}"))


def _module(name: str) -> Any:
    # Imported late: of the optional extra `download`.
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"{error}, expected what `pip install 'appo-jax[download]'` adds"
        ) from error


def _reason(error: BaseException) -> str:
    """What an exception came from, as one line: the host's own word, or the system's."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return " ".join(str(error).split())[:300] or type(error).__name__


PUBLISHERS: Mapping[str, Publisher] = {
    "lire": Publisher("a task, like sweep (lire)", _lire_place, _fetch_lire),
    "minari": Publisher("the id of a remote set (minari)", _minari_place, _fetch_minari),
}


def fetch(format: str, name: str, data_dir: Path, report: Report) -> None:
    """Bring what is published under a name to its place, unless it is there.

    Raises InputError where another process downloads into the folder, and as `Publisher` says.
    """
    publisher = PUBLISHERS[format]
    place = publisher.place(name, data_dir)
    if place.exists():
        report(Told(f"{place} is there, nothing is fetched"))
        return
    with files.locked(data_dir, "--data_dir"):
        publisher.fetch(name, data_dir, report)
