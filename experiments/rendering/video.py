"""Frames with captions, written as GIF and as MP4."""

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from appo_jax.data import atomic

Colour: TypeAlias = tuple[int, int, int]
GREEN, GREY, GOAL = (46, 160, 67), (110, 118, 129), (230, 60, 160)
_BAR, _BORDER = 28, 4  # pixels of the caption, and of the border
_GIF_SCALE = 2 / 3


def name(run: int) -> str:
    """Of a run's video in its folder, where a report looks for it, without .mp4 or .gif."""
    return f"video-{run}"


def captioned(frame: np.ndarray, text: str, colour: Colour) -> np.ndarray:
    """A frame `[height, width, 3]` uint8 in a border of a colour, with a bar of text below."""
    height, width, _ = frame.shape
    image = Image.new("RGB", (width + 2 * _BORDER, height + _BORDER + _BAR), colour)
    image.paste(Image.fromarray(frame), (_BORDER, _BORDER))
    place = (_BORDER + 4, height + _BORDER + _BAR // 2)
    ImageDraw.Draw(image).text(place, text, "white", ImageFont.load_default(16), anchor="lm")
    return np.asarray(image)


def write(frames: Sequence[np.ndarray], frames_per_second: float, target: Path) -> list[Path]:
    """Write `<target>.gif`, and `<target>.mp4` where imageio-ffmpeg is installed.

    frames: `[height, width, 3]` uint8, of one size, both sides even. Returns what was written. The
    GIF has every second frame, smaller.
    """
    found = [target.with_name(f"{target.name}.gif")]
    with atomic.replacing(found[0]) as partial:
        _write_gif(frames, frames_per_second, partial)
    if importlib.util.find_spec("imageio_ffmpeg"):
        found.insert(0, target.with_name(f"{target.name}.mp4"))
        with atomic.replacing(found[0]) as partial:
            _write_mp4(frames, frames_per_second, partial)
    return found


def _write_gif(frames: Sequence[np.ndarray], frames_per_second: float, path: Path) -> None:
    height, width, _ = frames[0].shape
    size = (round(width * _GIF_SCALE), round(height * _GIF_SCALE))
    images = [Image.fromarray(frame).resize(size) for frame in frames[::2]]
    palette = _palette([images[0], images[len(images) // 2], images[-1]])
    first, *rest = [image.quantize(palette=palette) for image in images]
    first.save(
        path,
        "GIF",
        save_all=True,
        append_images=rest,
        duration=max(20, 10 * round(200 / frames_per_second)),  # hundredths of a second
        loop=0,
    )


def _palette(images: Sequence[Image.Image]) -> Image.Image:
    """One for all frames, so that colours don't flicker, with those that mean something."""
    width, height = images[0].size
    together = Image.new("RGB", (width, height * (len(images) + 1)))
    for number, image in enumerate(images):
        together.paste(image, (0, number * height))
    meant = (GREEN, GREY, GOAL)
    for number, colour in enumerate(meant):
        box = (number * width // len(meant), len(images) * height, width, together.height)
        together.paste(colour, box)
    return together.quantize()


def _write_mp4(frames: Sequence[np.ndarray], frames_per_second: float, path: Path) -> None:
    from imageio_ffmpeg import get_ffmpeg_exe

    height, width, _ = frames[0].shape
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    # yuv420p: browsers play nothing else; faststart: a page plays it before all of it is there.
    encoded = ["-c:v", "libx264", "-crf", "23", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    # Not by imageio_ffmpeg's own writer: it forks, which JAX's threads may not survive.
    ended = subprocess.run(
        [get_ffmpeg_exe(), "-y", "-loglevel", "error", *raw, "-r", str(frames_per_second)]
        + ["-i", "-", *encoded, "-f", "mp4", str(path)],
        input=b"".join(np.ascontiguousarray(frame).tobytes() for frame in frames),
        stderr=subprocess.PIPE,
    )
    if ended.returncode:
        raise OSError(f"{path}: ffmpeg can't write it ({ended.stderr.decode().strip()})")
