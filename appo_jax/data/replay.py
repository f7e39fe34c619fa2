"""Replay buffers of agents that train side by side, on the host, and their chunks on disk."""

from pathlib import Path

import numpy as np

from appo_jax.checkpoint import Damaged
from appo_jax.data import atomic, plain_npz
from appo_jax.data.dataset import Episode
from appo_jax.types import InputError

_FIELDS = (
    *("observations", "actions", "rewards", "next_observations"),
    *("terminations", "ends", "successes"),
)


class Replay:
    """Everything that `agents` agents have seen, in time order, `[agents, capacity, ...]` each.

    observations, next_observations `[..., observation_dim]` and actions `[..., action_dim]`
    float32, rewards float32, terminations bool (a terminal state), ends bool (the last step of an
    episode), successes int8 (1, 0, or -1 where the environment doesn't say). `size` steps of each
    agent are filled.
    """

    def __init__(self, agents: int, capacity: int, observation_dim: int, action_dim: int):
        shape = (agents, capacity)
        self.size = 0
        self.observations = np.zeros((*shape, observation_dim), np.float32)
        self.next_observations = np.zeros((*shape, observation_dim), np.float32)
        self.actions = np.zeros((*shape, action_dim), np.float32)
        self.rewards = np.zeros(shape, np.float32)
        self.terminations = np.zeros(shape, np.bool_)
        self.ends = np.zeros(shape, np.bool_)
        self.successes = np.zeros(shape, np.int8)

    @property
    def num_agents(self) -> int:
        """How many agents there are."""
        return len(self.observations)

    def episode_bounds(self, agent: int) -> list[tuple[int, int]]:
        """First step of each of an agent's episodes and the step after its last, unfinished last.

        The unfinished one has no steps where the latest step ended an episode, and isn't listed.
        """
        ends = np.flatnonzero(self.ends[agent, : self.size]) + 1
        stops = [*ends.tolist(), self.size]
        return [(a, b) for a, b in zip([0, *stops[:-1]], stops, strict=True) if a < b]

    def episodes(self, agent: int) -> list[Episode]:
        """An agent's episodes; of the last one as many steps as there are.

        Successes are known where every step of every agent says: a set has them in all episodes or
        in none.
        """
        knows_success = bool((self.successes[:, : self.size] >= 0).all())
        bounds = self.episode_bounds(agent)
        return [self._episode(agent, start, stop, knows_success) for start, stop in bounds]

    def _episode(self, agent: int, start: int, stop: int, knows_success: bool) -> Episode:
        return Episode(
            observations=np.concatenate(
                [
                    self.observations[agent, start:stop],
                    self.next_observations[agent, stop - 1 : stop],
                ]
            ),
            actions=self.actions[agent, start:stop],
            rewards=self.rewards[agent, start:stop],
            terminations=self.terminations[agent, start:stop],
            successes=self.successes[agent, start:stop].astype(np.bool_) if knows_success else None,
        )

    def save_chunk(self, folder: Path, start: int) -> None:
        """Write the steps from `start` on into a file that appears whole, named by its last step.

        A file of that name, left by a killed writer, holds the same and is replaced.
        """
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name)[:, start : self.size] for name in _FIELDS}
        with atomic.replacing(_chunk(folder, self.size)) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def load_chunk(self, folder: Path, stop: int) -> None:
        """Append the chunk that ends at step `stop`.

        Raises Damaged if it isn't there whole, InputError where it can't be opened: the fault may
        not be the file's.
        """
        path = _chunk(folder, stop)
        expected = "expected the steps that a collection wrote"
        try:
            path.open("rb").close()
            found = plain_npz.load(path)
            arrays = {name: found[name] for name in _FIELDS}
        except (FileNotFoundError, InputError, KeyError) as error:
            raise Damaged(f"{path}: can't be read ({error}), {expected}") from error
        except OSError as error:
            raise InputError(f"{path}: can't be opened ({error.strerror}), {expected}") from error
        for name, array in arrays.items():
            place = getattr(self, name)[:, self.size : stop]
            if array.shape != place.shape or array.dtype != place.dtype:
                raise Damaged(
                    f"{path}: {name} are {array.dtype}{list(array.shape)}, "
                    f"expected {place.dtype}{list(place.shape)}"
                )
            place[:] = array
        self.size = stop


def _chunk(folder: Path, stop: int) -> Path:
    return folder / f"steps-{stop:08d}.npz"
