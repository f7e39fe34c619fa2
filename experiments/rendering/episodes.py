"""Episodes of a policy as frames: those that its evaluation counts."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from appo_jax import evaluation
from appo_jax.envs import environment, meta_world
from appo_jax.policy import Saved
from experiments.rendering.scene import OVERVIEW, Scene
from experiments.rendering.video import GOAL, GREEN, GREY, captioned

_RING_RADIUS = 0.04  # metres, around the goal


@dataclasses.dataclass(frozen=True)
class Shot:
    """How episodes are shown.

    stride: steps from one frame to the next. linger: steps that are shown after the first success.
    """

    stride: int
    linger: int


def frames_per_second(scene: Scene, stride: int) -> float:
    """At which frames are as fast as the simulator's clock."""
    return float(scene.env.metadata.get("render_fps", 30)) / stride


def natural_stride(scene: Scene) -> int:
    """Steps between frames, for about 40 frames a second."""
    return max(1, round(frames_per_second(scene, 1) / 40))


def frames(saved: Saved, episode: int, scene: Scene, shot: Shot) -> Iterator[np.ndarray]:
    """The frames of one episode, captioned, in a green border once it has succeeded.

    It has the seed and the inference of the evaluation at the checkpoint's update, and ends with
    its environment's episode, or `linger` steps after the first success.
    """
    policy = saved.policy.on_device()
    scale = environment.spaces(saved.config["env_name"]).actions
    seed = evaluation.episode_seed(saved.config["seed"], saved.update, episode)
    observation = scene.family.reset(scene.env, seed)
    # As many rows as in an evaluation: other shapes round differently.
    rows = np.zeros((evaluation.GROUP_SIZE, len(policy.normaliser.mean)), np.float32)
    succeeded_at: int | None = None
    step, is_over = 0, False
    total = 0.0
    while True:
        if step % shot.stride == 0 or is_over:
            picture = with_goal(scene.draw(0), scene, np.asarray(observation))
            what = f"episode {episode + 1}, step {step}, return {total:.0f}"
            if succeeded_at is None:
                yield captioned(picture, what, GREY)
            else:
                yield captioned(picture, f"{what}: success at step {succeeded_at}", GREEN)
        if is_over:
            return
        rows[0] = np.asarray(observation, np.float32).reshape(-1)
        action = scale.to_raw(policy.unit_actions(rows)[0])
        action = action.reshape(scene.env.action_space.shape or ())
        observation, reward, terminated, truncated, info = scene.env.step(action)
        step, total = step + 1, total + float(np.asarray(reward).item())
        if succeeded_at is None and info.get("success", info.get("is_success")):
            succeeded_at = step
        has_lingered = succeeded_at is not None and step >= succeeded_at + shot.linger
        is_over = bool(terminated or truncated or has_lingered or step >= evaluation.MAX_STEPS)


def with_goal(frame: np.ndarray, scene: Scene, observation: np.ndarray) -> np.ndarray:
    """A ring around the goal of a Meta-World task, which the simulator may not draw."""
    if not scene.is_meta_world or scene.views[0] != OVERVIEW:
        return frame
    angles = np.linspace(0, 2 * np.pi, 32)
    ring = np.stack([np.cos(angles), np.sin(angles), np.zeros(len(angles))], axis=1)
    points = scene.project(observation[meta_world.GOAL_COLUMNS] + _RING_RADIUS * ring, 0)
    if not np.isfinite(points).all():
        return frame
    image = Image.fromarray(frame)
    outline: Any = [tuple(point) for point in points]
    ImageDraw.Draw(image).line(outline, fill=GOAL, width=2)
    return np.asarray(image)
