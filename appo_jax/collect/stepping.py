"""Environments that are stepped side by side, each in a process of its own, over a pipe.

A pool's queue costs more for each step than some environments need to simulate it; a pipe to a
process that keeps its environment costs about a tenth of a millisecond.
"""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from appo_jax import workers
from appo_jax.envs.environment import Environment, Outcome
from appo_jax.types import InputError


class Steppers:
    """`count` environments of one name; the calls `begin` and `end` enclose what runs beside them.

    observation_dim, action_dim, actions: the environments'.
    """

    def __init__(self, env_name: str, count: int):
        """Start the processes; they build their environments at the same time.

        Raises what building raises, such as InputError for an unknown name.
        """
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = Pipe()
            self._processes.append(workers.process(_serve, theirs, env_name))
            theirs.close()  # so that the process's end is an end of the pipe
            self._connections.append(ours)
        try:
            facts = [self._receive(index) for index in range(count)]
        except BaseException:
            self.close()
            raise
        self.observation_dim, self.action_dim, self.actions = facts[0]

    def reset(self, index: int, seed: int) -> np.ndarray:
        """Begin an episode in one environment; its first observation, `[observation_dim]`."""
        self._send(index, seed)
        return self._receive(index)

    def begin(self, actions: Sequence[np.ndarray] | np.ndarray) -> None:
        """Have every environment take its action, `[count, action_dim]`, and return at once."""
        for index, action in enumerate(actions):
            self._send(index, action)

    def end(self) -> list[Outcome]:
        """Wait for all environments. Raises what a step raised, BrokenProcessPool if one died."""
        return [self._receive(index) for index in range(len(self._connections))]

    def step(self, index: int, action: np.ndarray) -> Outcome:
        """One environment's step."""
        self._send(index, action)
        return self._receive(index)

    def close(self) -> None:
        """Let the processes end, and wait for them."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join()

    def _send(self, index: int, message: Any) -> None:
        try:
            self._connections[index].send(message)
        except OSError as error:
            raise BrokenProcessPool("an environment's process died") from error

    def _receive(self, index: int) -> Any:
        try:
            answer = self._connections[index].recv()
        except (EOFError, OSError) as error:
            raise BrokenProcessPool("an environment's process died") from error
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextlib.contextmanager
def steppers(env_name: str, count: int) -> Iterator[Steppers]:
    """`Steppers` for the duration of a block."""
    running = Steppers(env_name, count)
    try:
        yield running
    finally:
        running.close()


def _serve(connection: Connection, env_name: str) -> None:
    try:
        environment = Environment(env_name)
        facts = (environment.observation_dim, environment.action_dim, environment.actions)
        connection.send(facts)
        while True:
            message = connection.recv()
            if isinstance(message, int):
                connection.send(environment.reset(message))
            else:
                connection.send(environment.step(message))
    except (EOFError, ConnectionError):
        return  # the parent has closed its end
    except InputError as error:  # also what the simulator raises
        answer = error
    with contextlib.suppress(ConnectionError):
        connection.send(answer)
