"""Clips made ahead of whoever looks at them, in a process of its own.

A graphics library that crashes takes that process along and nothing else: it is started again, and
a clip that brings it down twice is drawn as lines.
"""

import collections
import dataclasses
import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from appo_jax import workers
from appo_jax.data.dataset import Dataset
from appo_jax.types import InputError
from experiments.rendering import graphics
from experiments.rendering.clips import Clip, Clips
from experiments.rendering.scene import Scene
from experiments.rendering.sources import Stored

_KEPT = 64  # clips, of about a megabyte
_START_SECONDS = 180  # of a renderer, at most, on a busy machine
_CLIP_SECONDS = 120


class Key(NamedTuple):
    """Which clip: where its segment begins, and a number of `Renderer.views`."""

    episode: int
    start: int
    view: int


@dataclasses.dataclass(frozen=True)
class Look:
    """How clips look. frames: a folder of the user's pictures; camera: the first view."""

    width: int
    height: int
    camera: str | None = None
    frames: Path | None = None


class Renderer:
    """Makes clips of a data set's segments; safe to use from several threads.

    views: names of what can be seen, known once the first clip is there. notes: what a person
    should know, such as why there are only lines.
    """

    def __init__(self, dataset: Dataset, env_name: str | None, length: int, look: Look):
        """Find a graphics library and start the process. env_name: None where nobody knows it."""
        self._dataset, self._env_name, self._length, self._look = dataset, env_name, length, look
        self.views: Sequence[str] = ("lines",)
        self.notes: list[str] = []
        self._library: str | None = None
        if env_name is None:
            self.notes.append(
                "clips are lines: the data set doesn't name its environment, expected --task or "
                "--env"
            )
        else:
            try:
                self._library = graphics.choose()
            except InputError as error:
                self.notes.append(f"clips are lines: {error}")
        self._drawn_here = Clips(None, look.width, look.height)
        self._made: collections.OrderedDict[Key, Clip | InputError] = collections.OrderedDict()
        self._wanted: collections.deque[Key] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._process: Any = None
        self._pipe: Connection | None = None
        self._thread = threading.Thread(target=self._work, name="clips", daemon=True)
        self._thread.start()

    def ask(self, key: Key, soon: bool = False) -> None:
        """Have a clip made, in turn, or before all others."""
        with self._changed:
            if key in self._made or self._closed:
                return
            if soon and key in self._wanted:
                self._wanted.remove(key)
            if key not in self._wanted:
                (self._wanted.appendleft if soon else self._wanted.append)(key)
                self._changed.notify_all()

    def clip(self, key: Key, seconds: float) -> Clip | None:
        """A clip, made now if it isn't there; None where that takes longer than `seconds`.

        Raises InputError for a clip that can't be made.
        """
        self.ask(key, soon=True)
        with self._changed:
            self._changed.wait_for(lambda: key in self._made or self._closed, seconds)
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
        if isinstance(found, InputError):
            raise found
        return found

    def source(self, key: Key) -> str:
        """Where the frames of a clip come from, in words; "unknown" before it is made."""
        with self._changed:
            found = self._made.get(key)
        return found.source if isinstance(found, Clip) else "unknown"

    def close(self) -> None:
        """End the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._end()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                key = self._wanted.popleft()
                if key in self._made:
                    continue
            made: Clip | InputError
            try:
                made = self._make(key)
            except InputError as error:
                made = error
            with self._changed:
                self._made[key] = made
                while len(self._made) > _KEPT:
                    self._made.popitem(last=False)
                self._changed.notify_all()

    def _make(self, key: Key) -> Clip:
        stored = Stored.of(self._dataset, key.episode, key.start, self._length, self._look.frames)
        for _ in range(2):
            if self._library is None or self._closed:
                break
            try:
                return self._by_process(stored, key.view)
            except (EOFError, OSError, TimeoutError) as error:
                self._end()
                if not self._closed:
                    self.notes.append(
                        f"the renderer ended at episode {key.episode}, step {key.start} "
                        f"({type(error).__name__}); it is started again"
                    )
        return self._drawn_here.make(stored, key.view)

    def _by_process(self, stored: Stored, view: int) -> Clip:
        if self._pipe is None:
            self._start()
            if self._pipe is None:
                return self._drawn_here.make(stored, view)
        self._pipe.send((stored, view))
        found = _received(self._pipe, _CLIP_SECONDS)
        if isinstance(found, InputError):
            raise found
        return found

    def _start(self) -> None:
        assert self._library is not None
        ours, theirs = Pipe()
        with workers.environment(**{graphics.VARIABLE: self._library}):
            self._process = workers.process(_serve, theirs, self._env_name, self._look)
        theirs.close()
        found = _received(ours, _START_SECONDS)
        if isinstance(found, InputError):
            self.notes.append(f"clips are lines: {found}")
            self._library = None
            ours.close()
            return
        self.views, self._pipe = found, ours

    def _end(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _received(pipe: Connection, seconds: float) -> Any:
    if not pipe.poll(seconds):
        raise TimeoutError
    return pipe.recv()


def _serve(pipe: Connection, env_name: str, look: Look) -> None:
    """Make clips until the other end is closed."""
    try:
        # Before the simulators, so that it is MUJOCO_GL's library that is imported.
        scene = Scene(env_name, look.width, look.height, look.camera)
    except InputError as error:
        pipe.send(error)
        return
    clips = Clips(scene, look.width, look.height)
    pipe.send(scene.views)
    try:
        while True:
            stored, view = pipe.recv()
            try:
                pipe.send(clips.make(stored, view))
            except InputError as error:
                pipe.send(error)
    except (EOFError, OSError):
        pass
    finally:
        scene.close()


def check_frames(folder: Path, dataset: Dataset) -> None:
    """Raise InputError unless a folder of pictures holds a file for an episode of the data set."""
    if not any((folder / f"{episode}.npy").is_file() for episode in range(dataset.num_episodes)):
        raise InputError(
            f"--frames={folder}: holds no file like 0.npy, expected uint8 [steps + 1, height, "
            f"width, 3] for each of {dataset.num_episodes} episodes"
        )
