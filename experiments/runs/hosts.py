"""Several processes that train the runs of one grid together, by `jax.distributed`.

Each holds its share of the runs, on its own devices; updates need nothing of other shares. What
they do tell each other goes through JAX's coordination service: it answers on any device, and
waiting for it can be interrupted. Process 0, the first, owns the run's folder, fits the reward
models and evaluates. In a program of one process all of this is nothing.
"""

import contextlib
import dataclasses
import functools
import itertools
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax._src import distributed  # has the key-value store, which no public module gives

from appo_jax import workers
from appo_jax.types import InputError, first_line
from experiments.runs.experiment import Execution

_T = TypeVar("_T")
_WAIT_MS = 500  # between two looks at signals, and at whether others are still there
_ENDED = "appo/ended"  # the folder of what those said that ended by an error
_numbers = itertools.count()
_read_by_all: list[str] = []  # keys that may be deleted once everyone has been heard of again
_alone = False


def is_first() -> bool:
    """Whether this process owns what is on disk."""
    return _count() == 1 or jax.process_index() == 0


def from_first(make: Callable[[], _T]) -> _T:
    """What `make` gives in the first process, which alone calls it, for all; it can be pickled.

    In `make` that process is by itself: it must not wait for others there, and doesn't.
    """
    if _count() == 1:
        return make()
    key = f"appo/{next(_numbers)}"
    if jax.process_index() == 0:
        with _by_itself():
            value = make()
        _client().key_value_set_bytes(key, pickle.dumps(value))
        _read_by_all.append(key)
        return value
    found: _T = pickle.loads(_wait_for(key))
    return found


def first_before_others(make: Callable[[], _T]) -> _T:
    """What `make` gives in each process, in the first one before the others begin."""
    if is_first():
        value = make()
        from_first(lambda: None)
        return value
    from_first(lambda: None)
    return make()


def to_first(value: _T) -> list[_T] | None:
    """The values of all processes, in their order, in the first one; None elsewhere."""
    if _count() == 1:
        return [value]
    key = f"appo/{next(_numbers)}"
    if jax.process_index() > 0:
        _client().key_value_set_bytes(f"{key}/{jax.process_index()}", pickle.dumps(value))
        return None
    found = [value]
    for number in range(1, jax.process_count()):
        found.append(pickle.loads(_wait_for(f"{key}/{number}")))
        _client().key_value_delete(f"{key}/{number}")
    while _read_by_all:
        _client().key_value_delete(_read_by_all.pop())
    return found


def of_all(value: _T) -> list[_T]:
    """The values of all processes, in their order, in each of them."""
    found = to_first(value)
    return from_first(lambda: found or [])


def slots_to_first(tree: Any) -> Any:
    """Arrays over the slots of all processes, whole in the first one; None elsewhere."""
    if _count() == 1:
        return tree
    shares = to_first(jax.tree.map(_own_slots, tree))
    if shares is None:
        return None
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *shares)


def slots_to_all(tree: Any) -> Any:
    """Arrays over the slots of all processes, as NumPy arrays, whole in each of them."""
    found = slots_to_first(tree)
    return from_first(lambda: jax.device_get(found))


def check_same(what: str, value: Any) -> None:
    """Raise InputError where another process's `value` is another one than the first's."""
    values = of_all(value)
    others = [number for number, found in enumerate(values) if found != values[0]]
    if others:
        raise InputError(
            f"--process_id={others[0]}: {what} differ from those of process 0, expected the same "
            "command and the same files for all processes"
        )


def apart(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function of this module's kind in a process that isn't one of several.

    Orbax writes and reads with all processes of a program or not at all.
    """
    if jax.process_count() == 1:
        return function(*arguments)
    return _scribe().submit(function, *arguments).result()


@contextlib.contextmanager
def own_folder(execution: Execution) -> Iterator[Execution]:
    """The same, but where this isn't the first process: with a folder that nobody keeps."""
    if is_first():
        yield execution
        return
    with tempfile.TemporaryDirectory(prefix="appo-") as folder:
        yield dataclasses.replace(execution, workdir=Path(folder), track="")


def check_count(num_processes: int, num_runs: int) -> None:
    """Raise InputError for more processes than there are runs to share."""
    if num_processes > num_runs:
        runs = "one run" if num_runs == 1 else f"{num_runs} runs"
        raise InputError(
            f"--num_processes={num_processes}: the processes share the runs of a grid, of which "
            f"this is {runs}, expected at most as many processes"
        )


def tell_of_end(error: BaseException) -> None:
    """Let the other processes know that this one ends, and why, before they wait in vain."""
    if jax.process_count() > 1:
        with contextlib.suppress(Exception):  # the service is gone: they notice by themselves
            _client().key_value_set(f"{_ENDED}/{jax.process_index()}", first_line(error))


def _count() -> int:
    return 1 if _alone else jax.process_count()


@contextlib.contextmanager
def _by_itself() -> Iterator[None]:
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


@functools.cache
def _scribe() -> Executor:
    return workers.pool(1)


def _client() -> Any:
    return distributed.global_state.client


def _wait_for(key: str) -> bytes:
    while True:
        try:
            found: bytes = _client().blocking_key_value_get_bytes(key, _WAIT_MS)
            return found
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        for place, words in _client().key_value_dir_get(_ENDED):
            number = place.rpartition("/")[2]
            raise ConnectionError(f"process {number} of {jax.process_count()} has ended ({words})")


def _own_slots(leaf: jax.Array) -> jax.Array:
    """Of an array over the slots of all processes those that lie here, on one device."""
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    if len(shards) == 1:
        return shards[0].data
    here = jax.local_devices()[0]
    return jnp.concatenate([jax.device_put(shard.data, here) for shard in shards])


def signals_of_all(came: Sequence[Any]) -> list[Any]:
    """The signals that came to any process, the first's before the others'."""
    return [signal for own in of_all(list(came)) for signal in own]
