"""A labelled pair of segments, side by side."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences
from experiments.rendering.clips import Clip, Clips
from experiments.rendering.sources import Stored
from experiments.rendering.video import GOAL, GREEN, GREY, captioned

FRAMES_PER_SECOND = 10.0  # slower than life: a segment of 25 steps takes a third of a second


def frames(
    dataset: Dataset, labels: Preferences, pair: int, clips: Clips
) -> tuple[list[np.ndarray], list[str]]:
    """The frames of a pair, the preferred segment in green, and where each segment's come from.

    The shorter one waits at its end for the other. dataset: with actions in the environment's own
    units. pair: from 0, in the labels' order.
    """
    label = float(labels.labels[pair])
    lengths = [labels.length] * 2 if labels.lengths is None else labels.lengths[pair].tolist()
    sides, sources = [], []
    for side, is_preferred in ((0, label < 0.5), (1, label > 0.5)):
        places = int(labels.episodes[pair, side]), int(labels.starts[pair, side])
        stored = Stored.of(dataset, *places, lengths[side])
        clip = clips.make(stored, 0)
        end = stored.start + lengths[side]
        text = f"{side}: episode {stored.episode}, steps {stored.start} to {end}"
        text += ", preferred" if is_preferred else ", neither" if label == 0.5 else ""
        colour = GREEN if is_preferred else GREY
        sides.append([captioned(frame, text, colour) for frame in _pictures(clip)])
        sources.append(clip.source)
    count = max(map(len, sides))
    waiting = [frames + frames[-1:] * (count - len(frames)) for frames in sides]
    return [np.hstack(both) for both in zip(*waiting, strict=True)], sources


def _pictures(clip: Clip) -> Sequence[np.ndarray]:
    """The frames of a clip's sheet, with its goal."""
    sheet = np.asarray(Image.open(io.BytesIO(clip.sheet)))
    found = []
    for number in range(clip.frames):
        down, across = number // clip.columns * clip.height, number % clip.columns * clip.width
        picture = Image.fromarray(sheet[down : down + clip.height, across : across + clip.width])
        if ring := clip.points.get("goal"):
            points = [tuple(point) for point in (*ring, ring[0])]
            ImageDraw.Draw(picture).line(points, fill=GOAL, width=2)
        found.append(np.asarray(picture))
    return found
