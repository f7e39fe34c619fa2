"""What a tracker is, and the ones that are known by name."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from appo_jax import by_name
from appo_jax.types import InputError

# By name, which is also that of the extra: where it is, and the package that the extra installs.
_KNOWN = {
    "tensorboard": ("experiments.tracking.tensorboard:TensorBoard", "tensorboardX"),
    "wandb": ("experiments.tracking.weights_and_biases:WeightsAndBiases", "wandb"),
}


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run as trackers get to know it.

    name: for a person, with the settings in which it differs from the others. settings: all of
    them, by the names of their flags.
    """

    name: str
    settings: Mapping[str, Any]


class Tracker(Protocol):
    """Follows runs; whatever it raises is told as a warning, and it hears no more of this start.

    A start tells it of all that metrics.csv holds, also of earlier starts, then of what is new.
    """

    def log(
        self, run: int, split: str, update: int, metrics: Mapping[str, float], time: float
    ) -> None:
        """Metrics that are on disk. run: its number; split: see `files.MetricsFile`; time: of the
        writing, in seconds since 1970.
        """

    def close(self) -> None:
        """Nothing comes after this."""


# Of the runs' folder and the runs.
Factory: TypeAlias = Callable[[Path, Sequence[TrackedRun]], Tracker]


def find(name: str) -> Factory:
    """The tracker of that name, or `module:name` of one's own.

    Raises InputError for an unknown one, and for one whose package isn't installed.
    """
    place, package = _KNOWN.get(name, (name, None))
    if package is not None:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise InputError(
                f"tracker {name!r}: {error}, expected what `pip install 'appo-jax[{name}]'` adds"
            ) from error
    found = by_name.find("tracker", place, _KNOWN)
    if not callable(found):
        raise InputError(
            f"tracker {name!r}: found {found!r:.60}, expected a function or a class that makes one"
        )
    return found  # type: ignore[no-any-return]


def find_all(track: str) -> dict[str, Factory]:
    """The trackers that a setting names, with commas between them. Raises as `find` does."""
    names = [name.strip() for name in track.split(",")]
    return {name: find(name) for name in names if name}


def tag(split: str, metric: str) -> str:
    """What a metric is called where splits aren't apart: `train/critic/loss`, `eval/return`."""
    return metric if metric.startswith(f"{split}/") else f"{split}/{metric}"
