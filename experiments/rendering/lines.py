"""A segment as curves, where no simulator shows it: each frame marks its own step.

Where the places of hand, object and goal are known (Meta-World), they are drawn from above and from
the front, as tracks; beside them, or alone, the observation's columns that move most, and actions.
"""

from collections.abc import Mapping

import numpy as np
from PIL import Image, ImageDraw

_BACKGROUND, _FRAME, _TEXT = (16, 20, 28), (70, 78, 92), (200, 206, 216)
_CURSOR = (255, 255, 255)
_COLOURS = ((86, 180, 233), (230, 159, 0), (0, 158, 115), (204, 121, 167), (240, 228, 66))
_PLACES = {"hand": (86, 180, 233), "object": (230, 159, 0), "goal": (0, 200, 120)}
_MAX_COLUMNS = 5  # of an observation
_MARGIN = 8


def draw(
    observations: np.ndarray,
    actions: np.ndarray,
    width: int,
    height: int,
    places: Mapping[str, slice],
) -> list[np.ndarray]:
    """Frames `[height, width, 3]` uint8, one for each of `observations [frames, dim]`.

    actions: `[frames - 1, dim]`. places: the columns of three coordinates, by name; maybe none.
    """
    return [
        _frame(observations, actions, width, height, places, now)
        for now in range(len(observations))
    ]


def _frame(
    observations: np.ndarray,
    actions: np.ndarray,
    width: int,
    height: int,
    places: Mapping[str, slice],
    now: int,
) -> np.ndarray:
    image = Image.new("RGB", (width, height), _BACKGROUND)
    canvas = ImageDraw.Draw(image)
    top, third = 0, height // 3
    if places:
        half = width // 2
        _tracks(canvas, (0, 0, half, 2 * third), observations, places, (0, 1), "from above", now)
        _tracks(
            canvas, (half, 0, width, 2 * third), observations, places, (0, 2), "from the front", now
        )
        top = 2 * third
    else:
        spread = np.ptp(observations, axis=0)
        moving = np.argsort(-spread, kind="stable")[:_MAX_COLUMNS]
        names = [f"observation {column}" for column in sorted(moving.tolist())]
        _curves(canvas, (0, 0, width, 2 * third), observations[:, np.sort(moving)], names, now)
        top = 2 * third
    names = [f"action {column}" for column in range(min(actions.shape[1], _MAX_COLUMNS))]
    _curves(canvas, (0, top, width, height), actions[:, : len(names)], names, now)
    return np.asarray(image)


def _tracks(
    canvas: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    observations: np.ndarray,
    places: Mapping[str, slice],
    axes: tuple[int, int],
    title: str,
    now: int,
) -> None:
    """Two coordinates of each place over the segment, one scale for both."""
    tracks = {name: observations[:, columns][:, axes] for name, columns in places.items()}
    points = np.concatenate(list(tracks.values()))
    low, high = points.min(axis=0), points.max(axis=0)
    left, top, right, bottom = _inside(box)
    canvas.rectangle((left, top, right, bottom), outline=_FRAME)
    canvas.text((left + 4, top + 2), title, fill=_TEXT)
    scale = min((right - left - 30), (bottom - top - 40)) / max(float((high - low).max()), 0.05)
    middle = np.array([(left + right) / 2, (top + bottom) / 2 + 6])
    centre = (low + high) / 2
    for row, (name, track) in enumerate(tracks.items()):
        pixels = middle + (track - centre) * scale * np.array([1, -1])
        colour = _PLACES[name]
        if name == "goal":
            across, down = pixels[now].tolist()
            canvas.ellipse((across - 7, down - 7, across + 7, down + 7), outline=colour, width=2)
        else:
            _path(canvas, pixels, colour, now)
        canvas.text((left + 4, bottom - 14 * (len(tracks) - row)), name, fill=colour)


def _curves(
    canvas: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    values: np.ndarray,
    names: list[str],
    now: int,
) -> None:
    """Columns over time, on one scale."""
    left, top, right, bottom = _inside(box)
    canvas.rectangle((left, top, right, bottom), outline=_FRAME)
    low, high = float(values.min()), float(values.max())
    span = max(high - low, 1e-6)
    times = np.linspace(left + 4, right - 4, len(values))
    for number, column in enumerate(values.T):
        down = bottom - 6 - (column - low) / span * (bottom - top - 26)
        colour = _COLOURS[number % len(_COLOURS)]
        _path(canvas, np.stack([times, down], axis=1), colour, min(now, len(values) - 1))
        canvas.text((left + 4 + 92 * number, top + 2), names[number], fill=colour)
    across = float(times[min(now, len(values) - 1)])
    canvas.line((across, top + 16, across, bottom), fill=_CURSOR)


def _path(
    canvas: ImageDraw.ImageDraw, pixels: np.ndarray, colour: tuple[int, int, int], now: int
) -> None:
    """A thin line for all of it, a thick one up to now, a dot at now."""
    points = [tuple(point) for point in pixels.tolist()]
    faint = tuple(value // 2 for value in colour)
    if len(points) > 1:
        canvas.line(points, fill=faint)
    if now:
        canvas.line(points[: now + 1], fill=colour, width=2)
    across, down = points[now]
    canvas.ellipse((across - 4, down - 4, across + 4, down + 4), fill=colour)


def _inside(box: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    left, top, right, bottom = box
    return left + _MARGIN, top + _MARGIN, right - _MARGIN, bottom - _MARGIN
