"""Plain NumPy arrays of one's own: an `.npz` file, or a folder of `.npy` files.

`lengths [episodes]`, the steps of each episode; `actions [steps, dim]`, `terminations [steps]` and,
where they are known, `rewards`, `truncations` and `successes [steps]`, episodes back to back;
`observations [steps + episodes, dim]`, one more for each episode than it has steps, or `[steps,
dim]` with `next_observations [steps, dim]` beside them.
"""

from collections.abc import Iterable

import numpy as np

from appo_jax.data import plain_npz
from appo_jax.data.array_checks import as_float32
from appo_jax.data.dataset import Episode, from_episodes
from appo_jax.data.formats.format import Imported, Request, check_names
from appo_jax.types import InputError

_NEEDED = ("observations", "actions", "terminations", "lengths")
_NUMBERS = ("rewards", "terminations", "truncations", "successes")


def read(request: Request) -> Imported:
    """The trajectories."""
    where = str(request.source)
    arrays = plain_npz.load(request.source)
    known = (*_NEEDED, *_NUMBERS, "next_observations")
    unknown = [name for name in arrays if name not in known]
    if unknown:
        raise InputError(f"{where}: holds {', '.join(unknown)[:100]}, expected only {known}")
    check_names(arrays, _NEEDED, where)
    lengths = arrays["lengths"]
    if lengths.dtype.kind == "u":  # indices made of unsigned numbers would be floats
        lengths = lengths.astype(np.int64)
    if lengths.ndim != 1 or lengths.dtype.kind != "i" or not len(lengths) or lengths.min() < 1:
        raise InputError(
            f"{where}: lengths {list(lengths.shape)} of {lengths.dtype}, expected a list of whole "
            "numbers from 1, the steps of each episode"
        )
    steps, count = int(lengths.sum()), len(lengths)
    with_next = "next_observations" in arrays
    expected = {name: steps for name in arrays if name != "lengths"}
    expected["observations"] = steps if with_next else steps + count
    for name, rows in expected.items():
        found = arrays[name].shape[:1]
        if found != (rows,):
            hint = ""
            if name == "observations" and found == (steps,):
                hint = ": the last observation of each episode too, or next_observations"
            raise InputError(
                f"{where}: {name} have shape {list(arrays[name].shape)}, expected {rows} rows for "
                f"{steps} steps in {count} episodes{hint}"
            )
    observations = as_float32(arrays["observations"], "observations", where)
    if with_next:
        observations = _joined(observations, arrays["next_observations"], lengths, where)
    metadata = {"format": "arrays", "file": request.source.name}
    return Imported(from_episodes(_episodes(arrays, observations), request.id, metadata))


def _episodes(arrays: dict[str, np.ndarray], observations: np.ndarray) -> Iterable[Episode]:
    start = 0
    for episode, steps in enumerate(arrays["lengths"].tolist()):
        rows = slice(start, start + steps)
        numbers = {name: arrays[name][rows] if name in arrays else None for name in _NUMBERS}
        first = start + episode
        of_episode = observations[first : first + steps + 1]
        yield Episode(of_episode, arrays["actions"][rows], **numbers)  # type: ignore[arg-type]
        start += steps


def _joined(
    observations: np.ndarray, raw: np.ndarray, lengths: np.ndarray, where: str
) -> np.ndarray:
    """Observations with each episode's last next one behind them."""
    after = as_float32(raw, "next_observations", where)
    if after.shape != observations.shape:
        raise InputError(
            f"{where}: next_observations have shape {list(after.shape)}, expected "
            f"{list(observations.shape)}"
        )
    ends = np.cumsum(lengths) - 1
    inside = np.ones(len(after), bool)
    inside[ends] = False
    broken = inside[:-1] & np.any(after[:-1] != observations[1:], axis=1)
    if broken.any():
        raise InputError(
            f"{where} row {int(broken.argmax())}: next_observations differ from the observations "
            "of the following row, expected episodes back to back, as long as lengths say"
        )
    return np.insert(observations, ends + 1, after[ends], axis=0)
