"""The numbers that the paper printed, as data: never ours, and never in a column of ours."""

import csv
import dataclasses
import functools
from pathlib import Path

FILE = Path(__file__).with_name("paper_results.csv")
PAPER = "APPO, ICLR 2025, arXiv 2503.05306"


@dataclasses.dataclass(frozen=True)
class Published:
    """One number of Table 1 or 2, in percent: mean and standard deviation over five seeds.

    recipe: of the data. source: whose number it is; the paper copied some of its rows.
    """

    table: int
    recipe: str
    env_name: str
    num_feedback: int
    algorithm: str
    mean: float
    std: float
    source: str


@functools.cache
def load() -> tuple[Published, ...]:
    """All of them, in the paper's order."""
    with FILE.open(newline="") as file:
        return tuple(
            Published(
                int(row["table"]),
                row["dataset"],
                f"{row['task']}-v3",
                int(row["num_feedback"]),
                row["algorithm"],
                float(row["mean"]),
                float(row["std"]),
                row["source"],
            )
            for row in csv.DictReader(file)
        )


def find(recipe: str, env_name: str, num_feedback: int, algorithm: str) -> Published | None:
    """The number of one cell, if the paper has it."""
    key = (recipe, env_name, num_feedback, algorithm)
    return next(
        (
            one
            for one in load()
            if (one.recipe, one.env_name, one.num_feedback, one.algorithm) == key
        ),
        None,
    )
