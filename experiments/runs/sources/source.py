"""What a source of data sets offers, and what it is asked."""

import dataclasses
from pathlib import Path
from typing import Protocol

from appo_jax.data.dataset import Dataset
from experiments.runs.events import Report
from experiments.runs.experiment import DatasetSpec, Execution


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line says of the data set: `--dataset`, `--dataset_size`, `--data_seed`."""

    requested: str
    env_name: str
    size: int | None
    data_seed: int
    data_dir: Path

    def reason(self, article: str) -> str:
        """Why a medium-replay set was found, or not, in words."""
        if self.requested != "auto":
            return f"--dataset={self.requested} asks for it"
        return f"--dataset=auto found {article} local medium-replay set in {self.data_dir}"


class Source(Protocol):
    """What the module of a source offers."""

    def find(self, request: Request) -> DatasetSpec | None:
        """The set that the request means, None where it is none of this source's.

        Raises InputError for a request that is this source's and can't be served.
        """

    def load(
        self, spec: DatasetSpec, env_name: str, execution: Execution, report: Report
    ) -> Dataset:
        """The data set. Raises InputError if it can't be read or made."""

    def describe(self, spec: DatasetSpec, execution: Execution) -> str:
        """Where it lies, or how it is made."""
