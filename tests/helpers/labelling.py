"""A small data set to label, and a session in a folder."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from appo_jax.data.dataset import Dataset, Episode, from_episodes
from experiments.labelling import records
from experiments.labelling.session import Plan, Session, opened
from experiments.labelling.strategies import Random, Segmented, Strategy

LENGTH = 5


def walks(episodes: int = 6, steps: int = 40, seed: int = 0) -> Dataset:
    """Random walks of three numbers; the reward is the first one."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(episodes):
        observations = np.cumsum(draw.normal(size=(steps + 1, 3)), axis=0)
        actions = draw.uniform(-1, 1, (steps, 2))
        found.append(Episode(observations, actions, observations[1:, 0], np.zeros(steps)))
    return from_episodes(found, "tiny/walks-v0")


@contextlib.contextmanager
def session(
    folder: Path,
    dataset: Dataset | None = None,
    labeller: str = "ann",
    strategy: Strategy | None = None,
    **plan: Any,
) -> Iterator[Session]:
    """A session with its folder's lock."""
    dataset = dataset or walks()
    fields: dict[str, Any] = {
        "pairs": "random",
        "num_pairs": 30,
        "segment_length": LENGTH,
        "seed": 0,
        "repeats": 0.0,
        "question": "Which is better?",
    }
    made = Plan(**{**fields, **plan})
    strategy = strategy or Random(Segmented(dataset, LENGTH), made.seed)
    with opened(folder, dataset, made, labeller, strategy) as found:
        yield found


def say(
    session: Session, choice: str, number: int | None = None, id: str | None = None
) -> dict[str, Any]:
    """Answer the current pair, or one by its number; what was sent."""
    pair = session.pair(session.current() if number is None else number)
    request = {
        **records.to_json(pair),
        "id": id or str(uuid.uuid4()),
        "answer": choice,
        "seconds": 1.0,
        "loops": 1,
    }
    session.answer(request, ("lines", "lines"))
    return request
