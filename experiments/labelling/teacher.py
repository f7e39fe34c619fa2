"""The scripted teacher in a person's place: it answers a session's pairs by the true returns.

What it is told, and what is kept of its answers, is what a person's page sends and a journal holds;
so strategies can be compared at equal numbers of answers.
"""

import uuid

import numpy as np

from appo_jax.data.dataset import Dataset
from experiments.labelling import records
from experiments.labelling.records import Segment
from experiments.labelling.session import Session


def answer_all(session: Session, dataset: Dataset, tie_threshold: float) -> None:
    """Answer every pair of a session: the greater return, equal within `tie_threshold`."""
    length = session.plan.segment_length
    while (number := session.current()) < session.total:
        pair = session.pair(number)
        first, second = (_return(dataset, segment, length) for segment in pair.segments)
        choice = "equal"
        if abs(second - first) > tie_threshold:
            choice = "left" if pair.left == int(second > first) else "right"
        request = {
            **records.to_json(pair),
            "id": str(uuid.uuid4()),
            "answer": choice,
            "seconds": 0.0,
            "loops": 0,
        }
        session.answer(request, ("none", "none"))


def _return(dataset: Dataset, segment: Segment, length: int) -> float:
    row = int(dataset.episode_starts[segment.episode]) + segment.start
    rewards = dataset.known_rewards("the scripted teacher")
    return float(rewards[row : row + length].sum(dtype=np.float64))
