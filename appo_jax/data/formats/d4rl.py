"""D4RL's files: HDF5 with `observations, actions, rewards, terminals, timeouts`, row after row.

The transitions are those of D4RL's `qlearning_dataset`, in its order, so that published labels
point at them: the step at which a time limit cuts an episode, terminal or not, is none, since its
next observation isn't in the file. Its action is kept for labels alone.
"""

from pathlib import Path

import numpy as np

from appo_jax.data.array_checks import as_bool, as_float32
from appo_jax.data.dataset import Episode, from_episodes
from appo_jax.data.formats.format import Imported, Request, check_names, check_shapes
from appo_jax.data.hdf5 import check_sizes
from appo_jax.types import InputError

_ARRAYS = ("observations", "actions", "rewards", "terminals", "timeouts")


def read(request: Request) -> Imported:
    """The trajectories."""
    path = request.source
    arrays = _arrays(path)
    terminals, timeouts = (as_bool(arrays[name], name, str(path)) for name in _ARRAYS[3:])
    ends = np.flatnonzero(terminals | timeouts)
    if not len(ends) or ends[-1] != len(terminals) - 1:
        ends = np.append(ends, len(terminals) - 1)
    starts = np.concatenate([[0], ends[:-1] + 1])
    warnings = []
    # Where no time limit cuts it, a terminal step is a transition: nobody reads what comes next.
    is_both = terminals & timeouts
    is_terminal = terminals & ~is_both
    is_short = (starts == ends) & ~is_terminal[ends]
    if is_short.any():
        warnings.append(
            f"{is_short.sum():,} of {len(starts):,} episodes have one row, which is no transition, "
            f"and are left out; the first is row {starts[is_short.argmax()]}"
        )
    if is_both.any():
        warnings.append(
            f"{is_both.sum():,} terminal steps are timeouts too, and no transitions, as in D4RL's "
            "qlearning_dataset: their episodes count as cut; the first is row "
            f"{int(is_both.argmax())}"
        )
    after = arrays.get("next_observations")
    if is_terminal.any() and after is None:
        warnings.append(
            f"the observation behind {is_terminal.sum():,} terminal steps isn't in the file; the "
            "one before stands in its place, and no value of it counts"
        )

    def episode(start: int, end: int) -> Episode:
        observations = arrays["observations"][start : end + 1]
        steps = end - start
        if is_terminal[end]:
            final = observations[-1:] if after is None else after[end : end + 1]
            observations, steps = np.concatenate([observations, final]), steps + 1
        rows = slice(start, start + steps)
        return Episode(
            observations=observations,
            actions=arrays["actions"][rows],
            rewards=arrays["rewards"][rows],
            terminations=is_terminal[rows],
            last_action=None if is_terminal[end] else arrays["actions"][end],
        )

    bounds = zip(starts[~is_short].tolist(), ends[~is_short].tolist(), strict=True)
    metadata = {"format": "D4RL", "file": path.name}
    dataset = from_episodes((episode(*one) for one in bounds), request.id, metadata)
    return Imported(dataset, None, tuple(warnings))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    import h5py  # imported when it is asked for, as Minari is

    if path.is_dir():
        raise InputError(f"{path}: a folder, expected an HDF5 file")
    try:
        with h5py.File(path) as file:
            check_sizes(file, str(path))
            names = [name for name, value in file.items() if isinstance(value, h5py.Dataset)]
            check_names(names, _ARRAYS, str(path))
            wanted = [name for name in (*_ARRAYS, "next_observations") if name in names]
            raw = {name: file[name][()] for name in wanted}
    except InputError:
        raise
    except Exception as error:  # damaged files make the library raise anything
        raise InputError(
            f"{path}: not a whole HDF5 file ({type(error).__name__}: {error})"
        ) from error
    arrays = {name: as_float32(array, name, str(path)) for name, array in raw.items()}
    for name in ("rewards", "terminals", "timeouts"):
        if arrays[name].shape[1:] == (1,):
            arrays[name] = arrays[name].reshape(-1)
    shapes = dict.fromkeys(("rewards", "terminals", "timeouts"), ("rows",))
    vectors = {"observations": ("rows", "obs dim"), "actions": ("rows", "action dim")}
    if "next_observations" in arrays:
        vectors["next_observations"] = ("rows", "obs dim")
    if not check_shapes(arrays, {**vectors, **shapes}, str(path))["rows"]:
        raise InputError(f"{path}: no rows, expected transitions")
    _check_chain(arrays, path)
    return arrays


def _check_chain(arrays: dict[str, np.ndarray], path: Path) -> None:
    if "next_observations" not in arrays:
        return
    inside = ~(arrays["terminals"].astype(bool) | arrays["timeouts"].astype(bool))[:-1]
    differs = np.any(arrays["next_observations"][:-1] != arrays["observations"][1:], axis=1)
    if (inside & differs).any():
        raise InputError(
            f"{path} row {int((inside & differs).argmax())}: next_observations differ from the "
            "observations of the following row, expected episodes back to back, each with a "
            "terminal or a timeout in its last row"
        )
