"""Mutants of episodes in memory, of LiRE's pickles and of Minari's folders, with their rules."""

import contextlib
import json
import math
import pickle
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
from hypothesis import strategies as st

from appo_jax.data import checks, lire, minari_io
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from tests.mutants.core import JSON_VALUES, Draw, mutate_bytes, outcome, pick

FIELDS = ("observations", "actions", "rewards", "terminations", "successes")
ENDS = ("terminations", "truncations")  # flags that an episode's last row alone may have
GOAL = slice(1, 3)


VALUES = (math.nan, math.inf, -math.inf, 1e39, -3.5e38, 3.4e38, 1e-60, 0.5, 2, -7, 1, 0, 1.0000001)
DTYPES = ("float64", "float16", "int8", "int64", "uint8", "bool", "complex64", "str", "object")


def valid_episodes(successes: bool = True) -> list[dict[str, Any]]:
    generator = np.random.default_rng(0)
    episodes = []
    for steps in (4, 2, 6):
        episodes.append(
            {
                "observations": generator.normal(size=(steps + 1, 3)),
                "actions": generator.uniform(-1, 1, (steps, 2)),
                "rewards": generator.normal(size=steps),
                "terminations": np.arange(steps) == steps - 1,
                "truncations": np.zeros(steps),
                "successes": generator.random(steps) < 0.5,
            }
        )
        if not successes:
            del episodes[-1]["successes"]
    return episodes


CHANGES_OF_ALL: tuple[Callable[[np.ndarray], Any], ...] = (
    lambda array: array.astype(np.float32),
    lambda array: array[..., None],
    lambda array: array.tolist(),
    lambda array: array * 3,
    lambda array: array * 0,
    lambda array: array[..., :2],
)


def mutate_array(draw: Draw, array: np.ndarray) -> Any:
    kinds = ("value", "scale", "dtype", "rows", "columns", "shape", "same", "none", "list")
    kind = pick(draw, kinds)
    match kind:
        case "value" if array.size:
            changed = array.astype(np.float64) if array.dtype.kind in "biuf" else array.copy()
            with contextlib.suppress(ValueError, TypeError):
                changed.reshape(-1)[draw(st.integers(0, array.size - 1))] = pick(draw, VALUES)
            return changed
        case "scale" if array.dtype.kind == "f":
            return array * 3
        case "dtype":
            with np.errstate(all="ignore"), contextlib.suppress(TypeError, ValueError):
                return array.astype(pick(draw, DTYPES))
        case "rows" if array.ndim:
            return pick(draw, (array[:-1], array[:0], np.concatenate([array, array[:1]])))
        case "columns" if array.ndim == 2:
            return pick(draw, (array[:, :-1], array[:, :0], np.hstack([array, array])))
        case "shape":
            return pick(draw, (array[..., None], array.reshape(-1), array.T, np.array(0.0)))
        case "same" if array.size:
            return np.full_like(array, array.reshape(-1)[0])
        case "none":
            return None
        case "list":
            ragged = [1.0, [2.0, 3.0]]
            return pick(draw, (array.tolist(), ragged))
    return array


def shape_of(values: Any) -> tuple[int, ...] | None:
    if isinstance(values, np.ndarray):
        return values.shape
    if not isinstance(values, list):
        return ()
    inner = {shape_of(value) for value in values} or {()}
    if len(inner) > 1 or None in inner:
        return None
    return (len(values), *inner.pop())  # type: ignore[misc]


def flat(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        return values.reshape(-1).tolist()
    if isinstance(values, list):
        return [number for value in values for number in flat(value)]
    return [values]


def is_float32(number: Any) -> bool:
    if not isinstance(number, bool | int | float) or not math.isfinite(number):
        return False
    try:
        struct.pack("<f", number)
    except OverflowError:
        return False
    return True


def numbers(values: Any) -> list[Any] | None:
    """All elements, or None where the rules refuse one of them."""
    if isinstance(values, np.ndarray) and values.dtype.name not in DTYPES[:6] + ("float32",):
        return None
    if values is None or shape_of(values) is None:
        return None
    found = flat(values)
    return found if all(is_float32(number) for number in found) else None


def expected_arrays(episodes: Sequence[dict[str, Any]]) -> dict[str, list[Any]] | None:
    """What a data set of these must hold, or None where it must be refused."""
    rows: dict[str, list[Any]] = {name: [] for name in (*FIELDS, "lengths")}
    widths: dict[str, int] = {}
    for episode in episodes:
        episode = {name: values for name, values in episode.items() if values is not None}
        if set(FIELDS[:4]) - set(episode):
            return None
        if ("successes" in episode) != (episodes[0].get("successes") is not None):
            return None
        steps = (shape_of(episode["actions"]) or (0,))[0]
        for name, values in episode.items():
            found, shape = numbers(values), shape_of(values)
            if found is None or not shape:
                return None
            if name in FIELDS[:2]:
                length = steps + (name == "observations")
                if len(shape) != 2 or not shape[1] or widths.setdefault(name, shape[1]) != shape[1]:
                    return None
                padding = [0] * shape[1] if name == "actions" else []
            else:
                length, padding = steps, [0]
                if shape[1:] not in ((), (1,)):
                    return None
            if shape[0] != length or not steps:
                return None
            flags = name in (*ENDS, "successes")
            if flags and not all(flag in (0, 1) for flag in found):
                return None
            if name in ENDS and any(found[:-1]):
                return None
            if name in rows:
                rows[name] += found + padding
        rows["lengths"].append(steps)
    return rows if episodes else None


def check_arrays(found: Dataset, expected: dict[str, list[Any]]) -> None:
    for name, values in expected.items():
        array = getattr(found, name)
        assert (array is None) == (not values), name
        if array is not None:
            dtype = {"terminations": bool, "successes": bool, "lengths": np.int64}
            wanted = np.array(values).astype(dtype.get(name, np.float32))
            assert array.dtype == wanted.dtype
            np.testing.assert_array_equal(array.reshape(-1), wanted)


def check_training(draw: Draw, dataset: Dataset) -> str:
    """The second half of the rules: what training needs, and what is odd."""
    length = pick(draw, (1, 2, 2, 2, 3, 5, 8))
    _, refusal = outcome(lambda: checks.check_episodes(dataset, length), dataset.id)
    assert (refusal is None) == (sum(steps >= length for steps in dataset.lengths.tolist()) >= 2)
    clipped, warnings = checks.clip_actions(dataset)
    before, after = flat(dataset.actions), flat(clipped.actions)
    assert after == [min(max(action, -1), 1) for action in before]
    told_of_clipping = [one for one in warnings if "clipped" in one]
    assert bool(told_of_clipping) == any(not -1 <= action <= 1 for action in before)
    told = checks.about_dataset(dataset, GOAL) + checks.about_segments(dataset, length)
    assert [kind_of(one) for one in told] == expected_warnings(dataset, length)
    return "refused" if refusal else "warned of" if warnings + told else "accepted"


KINDS = ("goal is", "true reward is", "terminal", "far from 0 that float32 can't", "small that")
KINDS = (*KINDS, "true rewards, ", "shorter than")


def kind_of(warning: str) -> str:
    return next(kind for kind in KINDS if kind in warning)


def expected_warnings(dataset: Dataset, length: int) -> list[str]:
    goals, ends, rewards, row = set(), [], [], 0
    columns: list[list[float]] = [[] for _ in range(dataset.observation_dim)]
    lengths = dataset.lengths.tolist()
    for steps in lengths:
        for values, stored in zip(columns, dataset.observations.T.tolist(), strict=True):
            values += stored[row : row + steps]
        rewards += dataset.rewards[row : row + steps].tolist()
        row += steps
        goals.add(tuple(dataset.observations[row, GOAL].tolist()))
        ends.append((steps, bool(dataset.terminations[row - 1])))
        row += 1
    at_limit = [end for steps, end in ends if steps == max(lengths)]
    found = (
        len(goals) == 1,
        len(set(rewards)) == 1,
        len(at_limit) > 1 and all(at_limit),
        any(is_coarse(values) for values in columns),
        any(is_small(values) for values in columns),
        is_coarse(rewards),
        min(lengths) < length,
    )
    return [kind for kind, told in zip(KINDS, found, strict=True) if told]


def spread(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def is_coarse(values: Sequence[float]) -> bool:
    apart = 2.0 ** (max(math.frexp(max(map(abs, values)))[1] - 1, -126) - 23)  # float32's numbers
    return spread(values) < 100 * apart and max(spread(values), apart) >= 0.01


def is_small(values: Sequence[float]) -> bool:
    std = spread(values)
    varies = len(set(values)) > 1
    return varies and std / (std + 1e-3) < 0.1 and std > 0.01 * max(map(abs, values))


def episodes_mutant(draw: Draw, *_: Path) -> str:
    episodes = valid_episodes(draw(st.booleans()))
    for _ in range(draw(st.integers(0, 2))):
        episode = pick(draw, episodes)
        name = pick(draw, sorted(episode))
        if episode[name] is None or isinstance(episode[name], list):
            continue
        if draw(st.booleans()):
            episode[name] = mutate_array(draw, episode[name])
        elif all(isinstance(one[name], np.ndarray) for one in episodes):
            change = pick(draw, CHANGES_OF_ALL)
            for one in episodes:
                one[name] = change(one[name])
    if draw(st.integers(0, 5)) == 5:
        episodes = episodes[: draw(st.integers(0, 2))]
    expected = expected_arrays(episodes)
    made = [Episode(**episode) for episode in episodes]
    found, refusal = outcome(lambda: from_episodes(made, "a/b-v0"), "episode", "no episodes")
    assert (refusal is None) == (expected is not None), refusal
    if expected is None:
        return "refused"
    check_arrays(found, expected)
    if found.observation_dim != 3:
        return "accepted"
    return check_training(draw, found)


# LiRE's pickles, with episodes of five steps.

HORIZON = 5


def buffer(agent: int, episodes: int) -> dict[str, Any]:
    generator = np.random.default_rng(agent)
    steps = HORIZON * episodes
    observations = generator.normal(size=(steps + 1, 3)).astype(np.float32)
    after = observations[1:].copy()
    after[HORIZON - 1 :: HORIZON] += 1  # a reset follows
    return {
        "observations": observations[:-1],
        "next_observations": after,
        "actions": generator.uniform(-1, 1, (steps, 2)).astype(np.float32),
        "rewards": generator.normal(size=(steps, 1)),
        "dones": np.zeros((steps, 1)),
    }


def expected_lire(buffers: Sequence[Any], size: int) -> dict[str, list[Any]] | None:
    steps = size // len(buffers)
    if size != steps * len(buffers) or steps % HORIZON or steps <= 0:
        return None
    episodes = []
    for arrays in buffers:
        names = ("observations", "next_observations", "actions", "rewards", "dones")
        if not isinstance(arrays, dict):
            return None
        if any(not isinstance(arrays.get(name), np.ndarray) for name in names):
            return None
        shapes = [arrays[name].shape for name in names]
        if any(len(shape) != 2 for shape in shapes[:3]) or shapes[0] != shapes[1]:
            return None
        if len({shape[:1] for shape in shapes}) > 1 or shapes[0][0] < steps:
            return None
        if any(shape[1:] not in ((), (1,)) for shape in shapes[3:]):
            return None
        used = {name: arrays[name][:steps] for name in names}
        if any(numbers(values) is None for values in used.values()):
            return None
        now, after = (used[name].astype(np.float32).tolist() for name in names[:2])
        if any(after[t] != now[t + 1] for t in range(steps - 1) if (t + 1) % HORIZON):
            return None
        behind = arrays["observations"][: steps + 1].astype(np.float32).tolist()
        ends = range(HORIZON - 1, steps, HORIZON)
        if any(after[t] == behind[t + 1] for t in ends if t + 1 < len(behind)):
            return None
        dones = flat(used["dones"])
        if any(flag not in (0, 1) for flag in dones):
            return None
        if any(flag for t, flag in enumerate(dones) if (t + 1) % HORIZON):
            return None
        for start in range(0, steps, HORIZON):
            end = start + HORIZON
            episodes.append(
                {
                    "observations": np.array(now[start:end] + after[end - 1 : end]),
                    "actions": used["actions"][start:end],
                    "rewards": used["rewards"][start:end],
                    "terminations": np.zeros(HORIZON),
                }
            )
    return expected_arrays(episodes)


def lire_mutant(draw: Draw, folder: Path, _: Path) -> str:
    buffers: list[Any] = [buffer(agent, 2) for agent in range(2)]
    size = pick(draw, (20, 10, 30, 15, 0, -10, 21)) if draw(st.integers(0, 5)) == 5 else 20
    bytes_too = draw(st.integers(0, 3)) == 3
    for _ in range(draw(st.integers(0, 2))):
        agent = draw(st.integers(0, 1))
        arrays = buffers[agent]
        if not isinstance(arrays, dict):
            continue
        kinds = ("array", "array", "array", "delete", "extra", "chain", "join", "dones", "other")
        match pick(draw, kinds):
            case "array":
                name = pick(draw, sorted(arrays))
                if isinstance(arrays[name], np.ndarray):
                    arrays[name] = mutate_array(draw, arrays[name])
            case "delete" if arrays:
                del arrays[pick(draw, sorted(arrays))]
            case "extra":
                arrays["two\nlines"] = np.zeros(3)
            case "chain" if isinstance(arrays.get("next_observations"), np.ndarray):
                after = np.array(arrays["next_observations"])
                if after.size and after.dtype.kind == "f":
                    after[pick(draw, (0, 3, 4, 5, 9)) % len(after)] += 1
                arrays["next_observations"] = after
            case "join":
                named = [arrays.get(name) for name in ("observations", "next_observations")]
                if all(isinstance(one, np.ndarray) and one.shape == (10, 3) for one in named):
                    now, after = named
                    arrays["next_observations"] = np.vstack([now[1:], after[-1:]])
            case "dones" if isinstance(arrays.get("dones"), np.ndarray):
                dones = np.zeros(len(arrays["dones"]) if arrays["dones"].ndim else 1)
                dones[pick(draw, (0, 3, 4, 5, 9)) % max(len(dones), 1) :: 5] = pick(draw, (1, 7))
                arrays["dones"] = dones
            case "other":
                buffers[agent] = pick(draw, (None, [1], "text", 3))
    for agent, arrays in enumerate(buffers):
        content = pickle.dumps(arrays, draw(st.integers(2, 5)))
        if bytes_too and agent == 0:
            content = mutate_bytes(draw, content)
        (folder / f"saved_replay_buffer_1000000_seed{agent}.pkl").write_bytes(content)
    with mock.patch.object(lire, "HORIZON", HORIZON):
        found, refusal = outcome(lambda: lire.load(folder, size), str(folder), "data set lire/")
    if bytes_too:  # what the bytes mean now is not for a simple model to say
        return "refused" if refusal else check_training(draw, found)
    expected = expected_lire(buffers, size)
    assert (refusal is None) == (expected is not None), refusal
    if expected is None:
        return "refused"
    check_arrays(found, expected)
    return check_training(draw, found) if found.observation_dim == 3 else "accepted"


# Minari's folders.


def valid_set() -> Dataset:
    return from_episodes([Episode(**episode) for episode in valid_episodes()], "set-v0")


def mutate_hdf5(draw: Draw, path: Path) -> None:
    with h5py.File(path, "a") as file:
        episode = f"episode_{draw(st.integers(0, 2))}"
        name = pick(draw, (*FIELDS[:4], "infos/success", "truncations"))
        array = file[episode][name][()]
        del file[episode][name]
        changed = mutate_array(draw, array)
        if isinstance(changed, np.ndarray) and changed.dtype.kind in "biufc":
            file[episode][name] = changed


def stored_episodes(path: Path, count: int) -> list[dict[str, Any]] | None:
    """The arrays as they are on disk, in the layout of an `Episode`."""
    episodes = []
    with h5py.File(path) as file:
        for index in range(count):
            group = file[f"episode_{index}"]
            if any(name not in group for name in (*FIELDS[:4], "truncations")):
                return None
            episode = {name: group[name][()] for name in (*FIELDS[:4], "truncations")}
            if any(episode[name].ndim == 0 for name in episode):
                return None
            for name in FIELDS[:2]:
                rows = episode[name]
                episode[name] = rows.reshape(len(rows), math.prod(rows.shape[1:]))
            if "success" in group.get("infos", {}):
                success = group["infos/success"][()]
                if success.ndim == 0:
                    return None
                longer = len(success) == len(episode["rewards"]) + 1
                episode["successes"] = success[1:] if longer else success
            episodes.append(episode)
    return episodes


def minari_mutant(draw: Draw, folder: Path, shared: Path) -> str:
    original = valid_set()
    if not (shared / original.id).exists():
        minari_io.save(original, shared)
    shutil.copytree(shared / original.id, folder / original.id)
    data = folder / "set-v0" / "data"
    arrays, metadata = data / "main_data.hdf5", data / "metadata.json"
    foreign = draw(st.booleans())
    stored = json.loads(metadata.read_text())
    if foreign:
        del stored["appo_jax"]
        metadata.write_text(json.dumps(stored))
    kind = pick(draw, ("none", "arrays", "arrays", "arrays", "json", "json", "bytes", "bytes"))
    match kind:
        case "arrays":
            mutate_hdf5(draw, arrays)
        case "json":
            key = pick(draw, sorted(stored))
            stored[key] = pick(draw, JSON_VALUES)
            metadata.write_text(json.dumps(stored))
        case "bytes":
            path = pick(draw, (arrays, metadata))
            path.write_bytes(mutate_bytes(draw, path.read_bytes()))
    found, refusal = outcome(lambda: minari_io.load("set-v0", folder), original.id)
    if kind == "arrays":
        episodes = stored_episodes(arrays, 3)
        expected = None if episodes is None else expected_arrays(episodes)
        acceptable = expected is not None and len(expected["lengths"]) == 3
        acceptable = acceptable and sum(expected["lengths"]) == 12  # type: ignore[index]
        if not foreign and acceptable:  # our own may change in what training doesn't read
            for name in FIELDS[:4]:
                now = np.array(expected[name]).astype(np.float32)  # type: ignore[index]
                acceptable &= np.array_equal(now, getattr(original, name).reshape(-1))
        assert (refusal is None) == acceptable, refusal
        if acceptable:
            check_arrays(found, expected)  # type: ignore[arg-type]
    elif kind == "none":
        assert refusal is None
    if refusal is None and not (foreign and kind in ("arrays", "bytes")):
        for name in FIELDS[:4]:
            np.testing.assert_array_equal(getattr(found, name), getattr(original, name))
    return "refused" if refusal else check_training(draw, found)
