"""Environments of one's own that go wrong, each in its way."""

from typing import Any

import gymnasium
import numpy as np

MODULE = "tests.helpers.environments"


class Plain(gymnasium.Env):
    """A point that the action pushes, from a random place; four steps. Pendulum's spaces."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
    steps = 4

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.step_count = 0
        self.place = self.np_random.normal(size=3)
        return self.place, {}

    def step(self, action: np.ndarray) -> Any:
        self.step_count += 1
        self.place = self.place + action
        return self.place, float(self.place.sum()), False, self.step_count == self.steps, {}


class NotANumber(Plain):
    """The third reward is NaN, in episodes of an odd seed."""

    def reset(self, *, seed: int, options: Any = None) -> Any:
        self.wrong_at = 3 if seed % 2 else -1
        return super().reset(seed=seed)

    def step(self, action: np.ndarray) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.nan if self.step_count == self.wrong_at else reward, *rest


class HugeObservation(Plain):
    """A number that float32 can't hold, at once."""

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0] * 1e300, {}


class Raises(Plain):
    """Fails in the second step."""

    def step(self, action: np.ndarray) -> Any:
        return (1 / (2 - self.step_count - 1), *super().step(action))[1:]


class NeedsArguments(Plain):
    def __init__(self, size: int):
        pass


class Refuses(Plain):
    def __init__(self) -> None:
        raise OSError("no licence")


class Deaf(Plain):
    """Ignores its seed."""

    def reset(self, **options: Any) -> Any:
        return super().reset(seed=1)


class RewardInAnArray(Plain):
    def step(self, action: np.ndarray) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward]), *rest


class TwoRewards(Plain):
    def step(self, action: np.ndarray) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward, reward]), *rest


class WideObservation(Plain):
    def reset(self, **options: Any) -> Any:
        return np.zeros(4), {}


class OddSuccess(Plain):
    def step(self, action: np.ndarray) -> Any:
        return *super().step(action)[:4], {"success": np.nan}


class OtherSuccess(Plain):
    """Succeeds in its second step, by the name that robots in Gymnasium have for it."""

    def step(self, action: np.ndarray) -> Any:
        return *super().step(action)[:4], {"is_success": np.float32(self.step_count == 2)}


class Boundless(Plain):
    """Its bounds are finite, but nothing is half as far apart as they are."""

    limit = np.finfo(np.float32).max
    action_space = gymnasium.spaces.Box(-limit, limit, (1,), np.float32)


class BeyondFloat32(Plain):
    action_space = gymnasium.spaces.Box(-1e300, 1e300, (1,), np.float64)


class Lopsided(Plain):
    """Bounds whose middle and half distance are rounded."""

    action_space = gymnasium.spaces.Box(0.05, 1.0, (1,), np.float32)


class Seen(Plain):
    """Has pictures, as red as it has steps behind it, and succeeds in its second step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def step(self, action: np.ndarray) -> Any:
        return *super().step(action)[:4], {"success": self.step_count == 2}

    def render(self) -> Any:
        return np.full((30, 40, 3), [50 * self.step_count, 0, 0], np.uint8)


for _cls in Plain, *Plain.__subclasses__():
    gymnasium.register(f"{_cls.__name__}-v0", _cls)


def name(cls: type) -> str:
    """What `--env` takes."""
    return f"{MODULE}:{cls.__name__}-v0"
