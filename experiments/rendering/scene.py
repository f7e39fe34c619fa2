"""An environment under a camera: frames of its state, and where points of space lie in them.

MuJoCo's own renderer draws whatever has a MuJoCo model: Gymnasium's viewer changes several
Meta-World environments. What has none is asked for its picture.
"""

from typing import Any

import gymnasium
import numpy as np
from PIL import Image

from appo_jax.envs import environment, meta_world
from appo_jax.types import InputError

_SAMPLES = 4  # of a pixel; the edges of thin arms are jagged with one
# Meta-World's named cameras that hang upside down: half a turn, since a flip would mirror.
_UPSIDE_DOWN = ("corner", "corner2", "corner4")
# Sees the table, the arm and the objects of the paper's eight tasks.
_TABLE = {"lookat": (0.05, 0.68, 0.1), "distance": 1.15, "azimuth": 155.0, "elevation": -32.0}
OVERVIEW = "overview"


class Scene:
    """A simulator and its camera. views: names of what can be seen, the best first.

    is_meta_world: whether points of space mean something in `project`.
    """

    def __init__(self, env_name: str, width: int, height: int, camera: str | None = None):
        """Build both; MUJOCO_GL is set before. camera: a view to have first.

        Raises InputError for an environment that can't be made or drawn, and an unknown camera.
        """
        import mujoco  # reads MUJOCO_GL

        self._mujoco: Any = mujoco
        self.width, self.height = width, height
        self.family = environment.family(env_name)
        self.is_meta_world = meta_world.is_task(env_name)
        self.env = self.family.make(env_name)
        self.model: Any = getattr(self.env.unwrapped, "model", None)
        self._renderer: Any = None
        if isinstance(self.model, mujoco.MjModel):
            self._prepare()
        else:
            self.env = _picturing(env_name)
            self.views = [OVERVIEW]
        if camera is not None:
            if camera not in self.views:
                raise InputError(
                    f"--camera={camera}: expected one of {', '.join(self.views)}, the cameras of "
                    f"{env_name}"
                )
            self.views.insert(0, self.views.pop(self.views.index(camera)))

    @property
    def data(self) -> Any:
        """MuJoCo's state."""
        return self.env.unwrapped.data  # type: ignore[attr-defined]

    def draw(self, view: int) -> np.ndarray:
        """What is to be seen now, `[height, width, 3]` uint8."""
        if self._renderer is None:
            return self._asked_for()
        name = self.views[view]
        self._renderer.update_scene(self.data, camera=self._camera(name))
        flags = self._renderer.scene.flags
        # Two thirds of the time of a frame, and no help in judging it.
        flags[self._mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        flags[self._mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        frame = self._renderer.render()
        return np.rot90(frame, 2) if self._is_turned(name) else frame.copy()

    def project(self, points: np.ndarray, view: int) -> np.ndarray:
        """Where points of space `[points, 3]` lie in the frame that was drawn last, in pixels.

        `[points, 2]`, across and down from the upper left corner; NaN for points behind the camera.
        """
        left, right = self._renderer.scene.camera
        forward, up = np.array(left.forward), np.array(left.up)
        away = points - (np.array(left.pos) + np.array(right.pos)) / 2
        depth = away @ forward
        with np.errstate(divide="ignore", invalid="ignore"):
            near = np.where(depth > 0, left.frustum_near / depth, np.nan)
        scale = self.height / (left.frustum_top - left.frustum_bottom)
        across = (away @ np.cross(forward, up)) * near * scale
        above = (away @ up) * near - (left.frustum_top + left.frustum_bottom) / 2
        found = np.stack([self.width / 2 + across, self.height / 2 - above * scale], axis=1)
        size = np.array([self.width, self.height])
        return size - found if self._is_turned(self.views[view]) else found

    def close(self) -> None:
        """Free what the graphics library holds."""
        if self._renderer is not None:
            self._renderer.close()  # else it prints a traceback at the end of the process

    def _prepare(self) -> None:
        model, mujoco = self.model, self._mujoco
        model.vis.quality.offsamples = _SAMPLES
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        try:
            self._renderer = mujoco.Renderer(model, self.height, self.width)
        except Exception as error:
            raise InputError(
                f"{self.width}x{self.height} can't be drawn ({error}), expected a size that the "
                "graphics library takes"
            ) from error
        named = [model.camera(number).name for number in range(model.ncam)]
        first = [OVERVIEW] if self.is_meta_world or "track" not in named else ["track", OVERVIEW]
        wanted = ["behindGripper"] if "behindGripper" in named else []
        others = [name for name in named if name and name not in (*first, *wanted)]
        self.views = [*first, *wanted, *others]

    def _is_turned(self, name: str) -> bool:
        return self.is_meta_world and name in _UPSIDE_DOWN

    def _camera(self, name: str) -> Any:
        if name != OVERVIEW:
            return name
        camera = self._mujoco.MjvCamera()
        if self.is_meta_world:
            for field, value in _TABLE.items():
                setattr(camera, field, value)
        else:
            self._mujoco.mjv_defaultFreeCamera(self.model, camera)
        return camera

    def _asked_for(self) -> np.ndarray:
        frame = np.asarray(self.env.render())
        if frame.ndim != 3 or frame.shape[2] != 3:
            raise InputError(f"the environment's picture has shape {frame.shape}, expected RGB")
        return fitted(frame.astype(np.uint8), self.width, self.height)


def fitted(frame: np.ndarray, width: int, height: int) -> np.ndarray:
    """A picture of any size in a frame, as large as it goes, in the middle."""
    if frame.shape[:2] == (height, width):
        return frame
    image = Image.fromarray(frame)
    image.thumbnail((width, height))
    if image.width < width and image.height < height:  # it was smaller
        factor = min(width / image.width, height / image.height)
        image = image.resize((int(image.width * factor), int(image.height * factor)))
    canvas = Image.new("RGB", (width, height))
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return np.asarray(canvas)


def _picturing(env_name: str) -> gymnasium.Env:
    """The environment with pictures of its own."""
    try:
        return gymnasium.make(env_name, render_mode="rgb_array", disable_env_checker=True)
    except Exception as error:
        raise InputError(
            f"environment {env_name!r} can't be drawn ({type(error).__name__}: {error}), expected "
            "render_mode rgb_array"
        ) from error
