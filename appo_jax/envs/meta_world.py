"""Meta-World environments without Meta-World's traps; the one place that knows them.

What `make` gives is a plain gymnasium environment: observation `[39]` float64 with the goal in the
last three entries of *every* observation, action `[4]` in [-1, 1], a new goal at each reset,
`truncated` (never `terminated`) at step 500, `info["success"]` at each step. Everything follows
from the seed; neither the global generators nor earlier episodes matter.
"""

import difflib
import functools
import importlib
import importlib.metadata
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from appo_jax.envs.family import Family
from appo_jax.types import InputError

HORIZON = 500  # step 500 truncates, step 501 raises
OBSERVATION_DIM, ACTION_DIM = 39, 4
GOAL_COLUMNS = slice(36, 39)  # of an observation
FIXED_GOALS = ("bin-picking-v3", "hammer-v3", "sweep-into-v3")  # elsewhere each reset draws one
TIE_THRESHOLD = 12.5  # of the paper's teacher: half a point of reward for each step of a segment
MAX_REWARD = 10.0  # of one step, by reward function v2
REWARD_FUNCTION_VERSION = "v2"
VERSION = "v3"
_MAX_DRAWS = 12  # of vectors in one reset, which makes the scene twice; more: all are rejected

# Written out so that a name is checked, and a task drawn, without importing a simulator; the order
# is part of the medium-expert recipe (it decides which task a seed draws).
_NAMES = """
assembly basketball bin-picking box-close button-press button-press-topdown
button-press-topdown-wall button-press-wall coffee-button coffee-pull coffee-push dial-turn
disassemble door-close door-lock door-open door-unlock drawer-close drawer-open faucet-close
faucet-open hammer hand-insert handle-press handle-press-side handle-pull handle-pull-side
lever-pull peg-insert-side peg-unplug-side pick-out-of-hole pick-place pick-place-wall
plate-slide plate-slide-back plate-slide-back-side plate-slide-side push push-back push-wall
reach reach-wall shelf-place soccer stick-pull stick-push sweep sweep-into window-close
window-open
"""
TASKS = tuple(f"{name}-{VERSION}" for name in _NAMES.split())

# LiRE's data_quality of the paper's eight tasks, in the paper's order, in 1e5 transitions for each
# of three replay buffers.
PAPER_SIZES: Mapping[str, float] = types.MappingProxyType(
    {
        "button-press-topdown-v3": 1.0,
        "box-close-v3": 8.0,
        "dial-turn-v3": 3.0,
        "sweep-v3": 7.0,
        "button-press-topdown-wall-v3": 1.5,
        "sweep-into-v3": 1.0,
        "drawer-open-v3": 1.0,
        "lever-pull-v3": 3.0,
    }
)
PAPER_TASKS = tuple(PAPER_SIZES)


def canonical_name(task: str) -> str:
    """The installed name of a task: `sweep`, `sweep-v2` and `sweep-v3` all give `sweep-v3`.

    The paper's tasks are `-v2`; `-v3` has the same observations, actions, horizon and reward
    version. Needs no simulator. Raises InputError for anything else, with the closest names.
    """
    base = task.removesuffix("-v2").removesuffix("-v3")
    name = f"{base}-{VERSION}"
    if name in TASKS and task in (base, f"{base}-v2", name):
        return name
    close = difflib.get_close_matches(name, TASKS, n=3)
    hint = f" (close: {', '.join(c.removesuffix('-v3') for c in close)})" if close else ""
    raise InputError(
        f"task {task!r} is none of Meta-World's {len(TASKS)}, "
        f"expected a name like sweep, sweep-v2 or sweep-v3{hint}"
    )


def is_task(name: str) -> bool:
    """Whether `canonical_name` takes it."""
    try:
        canonical_name(name)
    except InputError:
        return False
    return True


def paper_size(task: str) -> int | None:
    """Transitions in the paper's data set of this task, None if it isn't one of the eight."""
    quality = PAPER_SIZES.get(canonical_name(task))
    return None if quality is None else round(3 * 1e5 * quality)


def make(task: str, seed: int) -> gymnasium.Env:
    """Build a task's environment; the first reset and all that follow are a function of `seed`.

    Takes 0.1 to 1 s: keep the environment and call `reseed`. Raises InputError for an unknown task
    and when Meta-World isn't installed.
    """
    name = canonical_name(task)
    env_dict = _import("env_dict")
    # On the plain classes every step clips a goal made visible to zero; these hold the right space.
    # Their constructor draws from the global generator, which with a seed it puts back as it was.
    env = env_dict.ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{name}-goal-observable"](seed=0)
    if env.reward_function_version != REWARD_FUNCTION_VERSION:
        raise InputError(
            f"task {name} has reward function {env.reward_function_version}, "
            f"expected {REWARD_FUNCTION_VERSION}"
        )
    env._freeze_rand_vec = False  # frozen, every reset has the goal of the constructor
    env.seeded_rand_vec = True  # else goals come from NumPy's global generator
    env.touching_object = functools.partial(_touching_object, env)
    reseed(env, seed)
    return env


def reseed(env: gymnasium.Env, seed: int) -> None:
    """Make the following resets and episodes those of a new environment with this seed.

    `env.reset(seed=...)` can't do that: Meta-World ignores the argument.
    """
    env.unwrapped.seed(seed)  # type: ignore[attr-defined]


def reset_space(env: gymnasium.Env) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest vectors that a reset of the task draws, `[numbers]`."""
    space: Any = env.unwrapped._random_reset_space  # type: ignore[attr-defined]
    return np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)


def reset_to(env: gymnasium.Env, vector: np.ndarray) -> None:
    """Begin the episode whose reset drew `vector`, `[numbers]`.

    Raises InputError for a vector that the task rejects: it asks for another one, again and again.
    """
    asked = 0

    def draw() -> np.ndarray:
        nonlocal asked
        asked += 1
        if asked > _MAX_DRAWS:
            raise InputError(f"reset vector {vector} isn't one of the task's, expected its own")
        unwrapped._last_rand_vec = vector.copy()
        return vector.copy()

    unwrapped: Any = env.unwrapped
    unwrapped._get_state_rand_vec = draw
    try:
        env.reset()
    finally:
        del unwrapped._get_state_rand_vec


def _touching_object(env: Any, geom: int) -> bool:
    """Whether both finger pads press on a geom, as `touching_object` of Meta-World says.

    That one walks twice over all contacts in Python, which takes half of the time of a step of
    sweep and of sweep-into; this one gives the same answer from MuJoCo's arrays.
    """
    contacts = env.data.contact
    pairs = contacts.geom
    on_geom = np.flatnonzero((pairs == geom).any(axis=1))
    if not len(on_geom):
        return False
    for pad in ("leftpad_geom", "rightpad_geom"):
        rows = on_geom[(pairs[on_geom] == env.data.geom(pad).id).any(axis=1)]
        if not sum(env.data.efc_force[contacts.efc_address[rows]]) > 0:
            return False
    return True


def scripted_policy(task: str) -> Callable[[np.ndarray], np.ndarray]:
    """Meta-World's scripted expert of a task: observation `[39]` to action `[4]` float32.

    Actions are raw and can exceed the bounds many times over: whoever uses one clips it. Raises
    InputError for an unknown task and when Meta-World isn't installed.
    """
    name = canonical_name(task)
    policies = _import("policies")
    return policies.ENV_POLICY_MAP[name]().get_action


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide what a simulation gives, by name; imports none of them.

    Raises InputError when one isn't installed.
    """
    names = ("metaworld", "mujoco", "gymnasium", "numpy")
    try:
        return {name: importlib.metadata.version(name) for name in names}
    except importlib.metadata.PackageNotFoundError as error:
        raise _not_installed(f"no package {error.name}") from error


def _not_installed(reason: str) -> InputError:
    return InputError(
        f"Meta-World can't be used ({reason}), expected: pip install metaworld packaging"
    )


@functools.cache
def _import(module: str) -> types.ModuleType:
    # Imported late: the learners, and the workers' parent, need no simulator.
    try:
        imported = importlib.import_module(f"metaworld.{module}")
    except ImportError as error:
        raise _not_installed(str(error)) from error
    # Scripted actions out of bounds are the rule, and would be reported from worker processes.
    warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
    return imported


def _reset(env: gymnasium.Env, seed: int) -> np.ndarray:
    reseed(env, seed)
    return env.reset()[0]


FAMILY = Family(
    flag="task",
    owner="metaworld",
    claims=is_task,
    canonical=canonical_name,
    make=functools.partial(make, seed=0),
    reset=_reset,
    versions=package_versions,
    names=TASKS,
    dims=(OBSERVATION_DIM, ACTION_DIM),
    bounds=(-1.0, 1.0),
    goal=GOAL_COLUMNS,
    fixed_goals=FIXED_GOALS,
    terminates=False,
    tie_threshold=TIE_THRESHOLD,
    horizon=HORIZON,
    max_reward=MAX_REWARD,
)
