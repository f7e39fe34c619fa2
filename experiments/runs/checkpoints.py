"""The checkpoints of one group of runs: saved, found again, stepped back over where damaged."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from appo_jax import checkpoint, training
from appo_jax.types import InputError
from experiments.runs import hosts, signals
from experiments.runs.events import Report, Told

KEPT = 3  # of which no evaluation needs one


@dataclasses.dataclass
class Clock:
    """How long a group of runs has taken, over all starts."""

    train_seconds: float = 0.0
    timed_updates: int = 0
    wall_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Restored:
    """States of the runs, and what lay beside them."""

    update: int
    states: list[Any]
    clock: Clock


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where and how a group keeps its states.

    template: for so many slots the shapes of what `pack` makes of states. metadata: what lies
    beside them; a checkpoint's must agree with it in `differs` (found metadata to words, or None).
    num_runs: slots that aren't repeats, which are the first ones.
    """

    folder: Path
    template: Callable[[int], Any]
    pack: Callable[[Any], Any]
    metadata: Mapping[str, Any]
    differs: Callable[[Mapping[str, Any]], str | None]
    num_runs: int

    def saved(self) -> list[int]:
        """The updates of which there is one, ascending."""
        return checkpoint.updates(self.folder)

    def save(self, update: int, states: Any, clock: Clock) -> None:
        """Save the states, if they aren't saved already."""
        saved = self.saved()
        if saved and saved[-1] == update:
            return
        metadata = {**self.metadata, "clock": dataclasses.asdict(clock)}
        with signals.held():
            hosts.apart(checkpoint.save, self.folder, update, self.pack(states), metadata)

    def prune(self, is_needed: Callable[[int], bool]) -> None:
        """Delete all but the last few, and those that are still needed."""
        for update in self.saved()[:-KEPT]:
            if not is_needed(update):
                hosts.apart(checkpoint.delete, self.folder, update)

    def restore(self, update: int) -> Restored:
        """One checkpoint. Raises InputError if it is another run's, Damaged if it is damaged."""
        with signals.held():
            metadata = hosts.apart(checkpoint.read_metadata, self.folder, update)
            differs = self.differs(metadata)
            if differs:
                raise InputError(
                    f"checkpoint {self.folder}/{update}: {differs}; expected one of the same run"
                )
            # Other devices have other numbers of slots.
            template = self.template(metadata["rows"])
            arrays, _ = hosts.apart(checkpoint.restore, self.folder, update, template)
        states = [training.take_runs(arrays["states"], slot) for slot in range(self.num_runs)]
        return Restored(update, states, Clock(**metadata["clock"]))

    def latest(
        self, needed: Callable[[Sequence[int]], Sequence[int]], report: Report
    ) -> Restored | None:
        """The last one that is whole, as are those that are `needed` of the saved; None for none.

        Damaged ones are put aside, with those that came after them.
        """
        while saved := self.saved():
            for update in dict.fromkeys([*needed(saved), saved[-1]]):
                try:
                    restored = self.restore(update)
                except checkpoint.Damaged as damage:
                    self._step_back([later for later in saved if later >= update], damage, report)
                    break
            else:
                return restored
        return None

    def _step_back(
        self, updates: Sequence[int], damage: checkpoint.Damaged, report: Report
    ) -> None:
        report(Told(str(damage)))
        for update in updates:
            place = hosts.apart(checkpoint.set_aside, self.folder, update)
            report(Told(f"checkpoint of update {update:,} put aside: {place}"))
        if not self.saved():
            report(Told("no earlier checkpoint is left: training starts anew"))
