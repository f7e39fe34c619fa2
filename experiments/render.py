"""Make a video: `python -m experiments.render --checkpoint=<a run's folder> --episodes=3`.

A GIF, and an MP4 where the extra `video` is installed, of a policy's episodes: those that the
evaluation of its checkpoint counted; in a green border, what has succeeded. Or, with --labels and
--pair, of two labelled segments side by side; in a green border, the preferred one. Needs a
graphics library, but neither a screen nor a GPU.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from appo_jax import policy
from appo_jax.data import lire, minari_io, preferences
from appo_jax.data.dataset import Dataset
from appo_jax.envs import meta_world, origin
from appo_jax.settings import Settings, setting
from appo_jax.types import InputError
from experiments.rendering import episodes, graphics, pairs, video
from experiments.rendering.clips import Clips
from experiments.rendering.scene import Scene
from experiments.terminal import cli
from experiments.terminal.flags import define, define_settings, given

_GROUP, _LOOK = "What to show", "How it looks"
_MAX_SIDE = 4096
# Flags that one of the two kinds alone reads.
_OF = {"checkpoint": ("run", "episodes", "stride", "linger"), "labels": ("pair", "data_dir")}


@dataclasses.dataclass(frozen=True)
class Options(Settings):
    """What is asked of a video of a policy."""

    run: int = setting(0, "the run of a grid", low=0)
    episodes: int = setting(3, "how many, from the first of an evaluation on", high=1000)


@dataclasses.dataclass(frozen=True)
class Look(Settings):
    """How it looks."""

    width: int = setting(480, "pixels of a picture", high=_MAX_SIDE)
    height: int = setting(360, "pixels of a picture", high=_MAX_SIDE)
    stride: int | None = setting(
        None, "with --checkpoint: steps between frames; about 40 frames a second if left out"
    )
    linger: int = setting(
        40, "with --checkpoint: steps that are shown after the first success", low=0
    )


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags."""
    where = "a run's folder (its last checkpoint) or one checkpoint in it"
    define(values, "checkpoint", Path, where, _GROUP)
    define_settings(values, Options, _GROUP)
    define(values, "labels", Path, "instead of a checkpoint: a JSON Lines file of labels", _GROUP)
    define(values, "pair", int, "which of its pairs, from 0", _GROUP)
    define(values, "data_dir", Path, "folder of the labels' data set (default: Minari's)", _GROUP)
    name = (
        "of the files, without .mp4 and .gif (default: video-<run> in the run's folder; pair, here)"
    )
    define(values, "output", Path, name, _GROUP)
    define_settings(values, Look, _LOOK)
    define(values, "camera", str, "a camera of the environment's model", _LOOK)


def main(values: flags.FlagValues) -> None:
    """Render what the flags name."""
    if (values.checkpoint is None) == (values.labels is None):
        found = "neither" if values.checkpoint is None else "both"
        raise InputError(
            f"found {found} of --checkpoint and --labels, expected a run's folder or a checkpoint, "
            "or a file of labels with --pair"
        )
    kind, other = (
        ("labels", "checkpoint") if values.checkpoint is None else ("checkpoint", "labels")
    )
    for name in _OF[other]:
        if values[name].value is not None:
            raise InputError(f"--{name}: given with --{kind}, expected with --{other} only")
    look = _look(values)
    if values.labels is None:
        _render_policy(values, look)
    else:
        _render_pair(values, look)


def _render_policy(values: flags.FlagValues, look: Look) -> None:
    options, path = Options(**given(values, Options)), Path(values.checkpoint)
    # From a checkpoint up to its run's folder.
    places = [path, *path.absolute().parents[:4]]
    runs = [place for place in places if (place / "checkpoints").is_dir()]
    folder = next((place for place in runs if (place / "config.json").exists()), Path())
    target = _target(values, folder / video.name(options.run))
    graphics.set_for_this_process()
    saved = policy.load(path, options.run)
    scene = Scene(saved.config["env_name"], look.width, look.height, values.camera)
    try:
        stride = look.stride or episodes.natural_stride(scene)
        shot = episodes.Shot(stride, look.linger)
        frames = [
            frame
            for episode in range(options.episodes)
            for frame in episodes.frames(saved, episode, scene, shot)
        ]
        speed = episodes.frames_per_second(scene, stride)
    finally:
        scene.close()
    _write(frames, speed, target)


def _render_pair(values: flags.FlagValues, look: Look) -> None:
    path, pair = Path(values.labels), values.pair
    target = _target(values, Path("pair"))
    if pair is None:
        raise InputError(f"--pair is missing, expected a pair of {path}, from 0")
    id, length = preferences.about(path)
    dataset, env_name = _dataset(id, minari_io.root(values.data_dir))
    labels = preferences.load(path, dataset, length)
    if not 0 <= pair < len(labels):
        raise InputError(f"--pair={pair}: expected 0 to {len(labels) - 1}, the pairs of {path}")
    graphics.set_for_this_process()
    scene = Scene(env_name, look.width, look.height, values.camera)
    try:
        frames, sources = pairs.frames(dataset, labels, pair, Clips(scene, look.width, look.height))
    finally:
        scene.close()
    print(f"label {labels.labels[pair]:g} by {labels.labellers[pair]}; {' and '.join(sources)}")
    _write(frames, pairs.FRAMES_PER_SECOND, target)


def _dataset(id: str, data_dir: Path) -> tuple[Dataset, str]:
    """The data set that labels are of, as it is stored, and its environment."""
    buffers = re.fullmatch(r"lire/([^/]+)/n(\d+)", id)
    if buffers:
        folder = data_dir / buffers[1]
        if not folder.is_dir():
            raise InputError(f"data set {id}: {data_dir} holds no folder {buffers[1]}, expected it")
        return lire.load(folder, int(buffers[2])), meta_world.canonical_name(buffers[1])
    dataset = minari_io.load(id, data_dir)
    env_name = origin.environment_of(dataset)
    if env_name is None:
        raise InputError(f"data set {id}: its metadata name no environment, expected one to draw")
    return dataset, env_name


def _look(values: flags.FlagValues) -> Look:
    look = Look(**given(values, Look))
    for name in ("width", "height"):
        if getattr(look, name) % 2:  # MP4's colours are those of squares of four pixels
            raise InputError(f"--{name}={getattr(look, name)}: expected an even number")
    return look


def _target(values: flags.FlagValues, default: Path) -> Path:
    target = Path(values.output or default)
    if not target.parent.is_dir():
        raise InputError(f"--output={target}: no folder {target.parent}, expected one that exists")
    return target


def _write(frames: Sequence, speed: float, target: Path) -> None:
    written = video.write(frames, speed, target)
    print(f"{len(frames)} frames, {len(frames) / speed:.0f} s: {' and '.join(map(str, written))}")
    if len(written) == 1:
        print(
            f"{target}.mp4 isn't there: it needs imageio-ffmpeg, which `pip install "
            "'appo-jax[video]'` adds"
        )


if __name__ == "__main__":
    cli.run(main, define_flags, kept="nothing was changed")
