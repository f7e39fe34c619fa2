"""Clips of stored segments: one frame for each observation, and where the frames come from.

The best source that holds its promise is taken, and named:

- `frames`: pictures from a folder of the user's;
- `re-simulated`: the episode from its seed, each observation up to the clip's last compared with
  the stored one, bit for bit;
- `re-simulated, reset recovered`: without a seed, from the reset that explains what was observed
  after it (Meta-World); hand and objects stay within a centimetre of the stored ones in the clip;
- `approximated`: the simulator put into the stored observations, within three centimetres;
- `lines`: curves of the numbers.

A frame is drawn while the simulation passes it; a source that breaks its promise is left at once.
"""

import dataclasses
import io
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from appo_jax.envs import meta_world
from appo_jax.types import InputError
from experiments.rendering import lines
from experiments.rendering.scene import Scene, fitted
from experiments.rendering.sources import (
    HAND,
    OBJECT,
    Broken,
    Recovered,
    Stored,
    approximated,
    replayed,
)

Play: TypeAlias = Callable[[Scene, Stored], Iterator[None]]

FRAMES, SEED, RECOVERED = "frames", "re-simulated", "re-simulated, reset recovered"
APPROXIMATED, LINES = "approximated", "lines"
_QUALITY = 88  # of JPEG, colours at full resolution
_MAX_SIDE = 16384  # pixels of a sheet; browsers take no more
_RING = 24  # points of the ring that shows the goal
_RING_RADIUS = 0.04


@dataclasses.dataclass(frozen=True)
class Clip:
    """A sheet of frames, row by row, as JPEG, and what the page must know of it.

    points: pixels of the frames; `hand`, `object` `[frames, 2]`, `goal` a ring; empty where they
    aren't known.
    """

    sheet: bytes
    source: str
    frames: int
    columns: int
    width: int
    height: int
    points: Mapping[str, Any]

    def info(self) -> dict[str, Any]:
        """All but the sheet, JSON-able."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["sheet"]
        return fields


class Clips:
    """Makes clips of one environment's episodes. scene: None where nothing can be drawn."""

    def __init__(self, scene: Scene | None, width: int, height: int):
        self._scene, self._size = scene, (width, height)
        self._recovered = Recovered()

    def make(self, stored: Stored, view: int) -> Clip:
        """The clip by the best source. Raises InputError for frames that aren't as expected."""
        if stored.frames is not None:
            found = from_folder(stored, *self._size)
            if found is not None:
                return self._clip(FRAMES, found, {})
        for source, play in self._sources(stored):
            try:
                return self._drawn(source, stored, view, play)
            except (Broken, InputError):  # the next one is not as good
                continue
        return self._clip(LINES, self._lines(stored), {})

    def _sources(self, stored: Stored) -> Iterator[tuple[str, Play]]:
        if self._scene is None:
            return
        if stored.seed is not None:
            yield SEED, replayed
        if self._scene.is_meta_world:
            yield RECOVERED, self._recovered
        if self._scene.model is not None:
            yield APPROXIMATED, approximated

    def _drawn(self, source: str, stored: Stored, view: int, play: Play) -> Clip:
        assert self._scene is not None
        scene = self._scene
        view = min(view, len(scene.views) - 1)
        frames = [scene.draw(view) for _ in play(scene, stored)]
        points = _points(scene, stored, view) if scene.is_meta_world else {}
        return self._clip(source, frames, points)

    def _lines(self, stored: Stored) -> list[np.ndarray]:
        is_meta_world = self._scene is not None and self._scene.is_meta_world
        return lines.draw(
            stored.observations[stored.start :],
            stored.actions[stored.start :],
            *self._size,
            places={"hand": HAND, "object": OBJECT, "goal": meta_world.GOAL_COLUMNS}
            if is_meta_world or stored.observations.shape[1] == meta_world.OBSERVATION_DIM
            else {},
        )

    def _clip(self, source: str, frames: list[np.ndarray], points: Mapping[str, Any]) -> Clip:
        width, height = self._size
        columns = math.ceil(math.sqrt(len(frames)))
        rows = math.ceil(len(frames) / columns)
        if max(columns * width, rows * height) > _MAX_SIDE:
            raise InputError(
                f"{len(frames)} frames of {width}x{height} are too many for a sheet, expected "
                "smaller clips or shorter segments"
            )
        sheet = np.zeros((rows * height, columns * width, 3), np.uint8)
        for number, frame in enumerate(frames):
            down, across = number // columns * height, number % columns * width
            sheet[down : down + height, across : across + width] = frame
        file = io.BytesIO()
        Image.fromarray(sheet).save(file, "JPEG", quality=_QUALITY, subsampling=0)
        return Clip(file.getvalue(), source, len(frames), columns, width, height, points)


def _points(scene: Scene, stored: Stored, view: int) -> dict[str, Any]:
    """Hand, object and goal as they were observed, in pixels."""
    seen = stored.observations[stored.start :].astype(np.float64)
    goal = seen[-1, meta_world.GOAL_COLUMNS]
    found = {
        "hand": scene.project(seen[:, HAND], view),
        "object": scene.project(seen[:, OBJECT], view),
    }
    if goal.any():
        angles = np.linspace(0, 2 * np.pi, _RING, endpoint=False)
        ring = np.stack([np.cos(angles), np.sin(angles), np.zeros(_RING)], axis=1)
        found["goal"] = scene.project(goal + _RING_RADIUS * ring, view)
    # Cameras that follow the hand see the past elsewhere: only fixed ones get overlays.
    if not _is_fixed(scene, view) or not all(np.isfinite(p).all() for p in found.values()):
        return {}
    return {name: points.round(1).tolist() for name, points in found.items()}


def _is_fixed(scene: Scene, view: int) -> bool:
    name = scene.views[view]
    if name not in [scene.model.camera(number).name for number in range(scene.model.ncam)]:
        return True
    return bool(scene.model.camera(name).bodyid[0] == 0)


def from_folder(stored: Stored, width: int, height: int) -> list[np.ndarray] | None:
    """A clip's frames from `<folder>/<episode>.npy`, None where there is no such file.

    The file holds uint8 `[steps + 1, height, width, 3]`, a frame for each observation of the
    episode. Raises InputError for anything else.
    """
    assert stored.frames is not None
    path = stored.frames / f"{stored.episode}.npy"
    if not path.exists():
        return None
    try:
        frames = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read ({error}), expected an array") from error
    end = len(stored.observations)
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or len(frames) < end:
        raise InputError(
            f"{path}: holds {frames.dtype}{list(frames.shape)}, expected uint8 [steps + 1, height, "
            f"width, 3] with {end} frames or more"
        )
    return [fitted(np.array(frame), width, height) for frame in frames[stored.start : end]]
