"""The videos that lie beside runs, for the page: one for each task."""

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from experiments.rendering import video
from experiments.reporting import cells
from experiments.runs.results import RunResult

_MOST = 4 * 2**20  # bytes of one: the page holds them all
_TYPES = {".mp4": "video/mp4", ".gif": "image/gif"}


@dataclasses.dataclass(frozen=True)
class Video:
    """What the page shows. source: a data URI; is_gif: a picture, and no video, for a browser."""

    title: str
    caption: str
    source: str
    is_gif: bool


def of_runs(runs: Sequence[RunResult]) -> tuple[list[Video], list[str]]:
    """The first video of each task, and a sentence for each one that is too large."""
    found: dict[str, Video] = {}
    notes = []
    for run in runs:
        path = _path(run)
        if path is None or run.env_name in found:
            continue
        if path.stat().st_size > _MOST:
            notes.append(
                f"{path}: {path.stat().st_size / 2**20:.1f} MiB, more than the {_MOST // 2**20} "
                "that the page takes; fewer --episodes make a shorter one"
            )
            continue
        data = base64.b64encode(path.read_bytes()).decode()
        source = f"data:{_TYPES[path.suffix]};base64,{data}"
        found[run.env_name] = Video(run.env_name, cells.name(run), source, path.suffix == ".gif")
    return list(found.values()), notes


def _path(run: RunResult) -> Path | None:
    files = [Path(run.folder, video.name(run.run) + suffix) for suffix in _TYPES]
    return next((file for file in files if file.is_file()), None)
