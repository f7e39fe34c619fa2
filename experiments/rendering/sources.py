"""What a simulator shows of a stored episode, by sources that keep a promise or break off.

Each source is a generator: it brings the scene into the state of each frame in turn and yields,
so that the caller draws. It raises Broken where what is simulated isn't what was stored.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from appo_jax.data.dataset import Dataset
from appo_jax.envs import meta_world
from experiments.rendering import recovery
from experiments.rendering.scene import Scene

HAND, OBJECT = slice(0, 3), slice(4, 7)  # places in a Meta-World observation
_DRIFT, _APPROXIMATE = 0.01, 0.03  # metres


@dataclasses.dataclass(frozen=True)
class Stored:
    """What a data set knows of an episode, up to a clip's end.

    observations `[steps + 1, observation_dim]`, actions `[steps, action_dim]` in the environment's
    own units, float32; start: the clip's first step; seed: of the episode's reset, None if unknown;
    frames: a folder of pictures, None if there is none.
    """

    episode: int
    start: int
    observations: np.ndarray
    actions: np.ndarray
    seed: int | None = None
    frames: Path | None = None

    @classmethod
    def of(
        cls, dataset: Dataset, episode: int, start: int, length: int, frames: Path | None = None
    ) -> Self:
        """That of a segment of a data set, whose actions are in the environment's own units.

        Without an episode's last action, where its data end with one: what followed isn't known.
        """
        first, end = int(dataset.episode_starts[episode]), start + length
        end = min(end, int(dataset.lengths[episode]))
        seeds = episode_seeds(dataset)
        return cls(
            episode=episode,
            start=start,
            observations=dataset.observations[first : first + end + 1],
            actions=dataset.actions[first : first + end],
            seed=seeds[episode] if seeds else None,
            frames=frames,
        )


def episode_seeds(dataset: Dataset) -> list[int] | None:
    """The seeds of the episodes' resets, where the metadata hold them."""
    seeds = dataset.metadata.get("episode_seeds")
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        return None
    return seeds if len(seeds) == dataset.num_episodes else None


class Broken(Exception):
    """A source doesn't hold what it promises."""


def replayed(scene: Scene, stored: Stored) -> Iterator[None]:
    """Pass the frames of an episode that follows from its seed, each observation as it was."""
    assert stored.seed is not None
    _check_same(scene.family.reset(scene.env, stored.seed), stored.observations[0])
    for step, action in enumerate(stored.actions):
        if step >= stored.start:
            yield
        seen = scene.env.step(action.reshape(scene.env.action_space.shape or ()))[0]
        _check_same(seen, stored.observations[step + 1])
    yield


class Recovered:
    """The episode from the reset that explains it; what was found is kept, by episode."""

    def __init__(self) -> None:
        self.vectors: dict[int, np.ndarray | None] = {}

    def __call__(self, scene: Scene, stored: Stored) -> Iterator[None]:
        """Pass the frames; hand and object stay within a centimetre of the stored ones."""
        if stored.episode not in self.vectors:
            self.vectors[stored.episode] = recovery.recover(
                scene.env, stored.observations[1], stored.actions[0]
            )
        vector = self.vectors[stored.episode]
        if vector is None:
            raise Broken
        meta_world.reset_to(scene.env, vector)
        for step, action in enumerate(stored.actions, start=1):
            if step > stored.start:
                yield
            seen = scene.env.step(action)[0]
            if step >= stored.start:
                _check_near(seen, stored.observations[step], _DRIFT)
        yield


def approximated(scene: Scene, stored: Stored) -> Iterator[None]:
    """Pass the frames of the clip alone, the simulator put where the observations say."""
    if scene.is_meta_world:
        yield from _with_the_hand_led(scene, stored)
    else:
        yield from _put_into_observations(scene, stored)


def _with_the_hand_led(scene: Scene, stored: Stored) -> Iterator[None]:
    """Lead the hand, and put the object, where they were seen; nothing touches anything."""
    import mujoco

    env: Any = scene.env.unwrapped
    model, data = scene.model, scene.data
    free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    if len(free) != 1:
        raise Broken
    place = int(model.jnt_qposadr[free[0]])
    speed = int(model.jnt_dofadr[free[0]])
    scene.env.reset()
    flags = model.opt.disableflags
    model.opt.disableflags = flags | mujoco.mjtDisableBit.mjDSBL_CONTACT
    try:
        mujoco.mj_forward(model, data)
        hand_offset = data.mocap_pos[0] - env.get_endeff_pos()
        object_offset = data.qpos[place : place + 3] - env._get_pos_objects()[:3]
        for step in range(stored.start, len(stored.observations)):
            seen = stored.observations[step]
            data.mocap_pos[0] = seen[HAND] + hand_offset
            grip = stored.actions[min(step, len(stored.actions) - 1), 3]
            data.ctrl[:] = (grip, -grip)
            # A step of the environment is five of MuJoCo's; the first time the hand comes from
            # where the reset left it.
            for _ in range(400 if step == stored.start else 20):
                data.qpos[place : place + 3] = seen[OBJECT] + object_offset
                data.qvel[speed : speed + 6] = 0
                mujoco.mj_step(model, data)
            data.qpos[place : place + 3] = seen[OBJECT] + object_offset
            mujoco.mj_forward(model, data)
            there = np.zeros(7)
            there[HAND], there[OBJECT] = env.get_endeff_pos(), env._get_pos_objects()[:3]
            _check_near(there, seen, _APPROXIMATE)
            yield
    finally:
        model.opt.disableflags = flags


def _put_into_observations(scene: Scene, stored: Stored) -> Iterator[None]:
    """Positions and speeds of Gymnasium's MuJoCo environments, whose observations hold them."""
    env: Any = scene.env.unwrapped
    structure = getattr(env, "observation_structure", None)
    if structure is None or set(structure) - {"skipped_qpos", "qpos", "qvel"}:
        raise Broken
    scene.env.reset()
    skipped = int(structure.get("skipped_qpos", 0))
    position = env.init_qpos.copy()
    for seen in stored.observations[stored.start :].astype(np.float64):
        numbers = len(position) - skipped
        if len(seen) != numbers + len(env.init_qvel):
            raise Broken
        position[skipped:] = seen[:numbers]
        env.set_state(position, seen[numbers:])
        yield
        # What isn't observed is how far it has come; it follows from the speed.
        position[:skipped] += seen[numbers : numbers + skipped] * env.dt


def _check_same(seen: np.ndarray, stored: np.ndarray) -> None:
    if not np.array_equal(np.asarray(seen, np.float32).reshape(-1), stored):
        raise Broken


def _check_near(seen: np.ndarray, stored: np.ndarray, most: float) -> None:
    for place in (HAND, OBJECT):
        if not np.linalg.norm(seen[place] - stored[place]) <= most:
            raise Broken
