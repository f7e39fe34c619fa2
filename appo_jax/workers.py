"""Worker processes for simulators: spawned, one thread each, gone when their parent is gone."""

import contextlib
import multiprocessing
import multiprocessing.context
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax

# The libraries read these when they are first imported, so they are set before a worker starts.
_WORKER_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "NPROC": "1",  # size of XLA's thread pool
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for the duration of a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# Ctrl-C and schedulers signal the whole process group; the parent decides what becomes of workers.
_IGNORED = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    # A worker inherits the mask, so that a Ctrl-C while it still imports prints no traceback; the
    # parent gets its own signals after the block.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Process(multiprocessing.context.SpawnProcess):
    def start(self) -> None:
        with environment(**_WORKER_ENVIRONMENT), _without_interrupts():
            super().start()

    def terminate(self) -> None:
        self.kill()  # how a broken pool gets rid of the others: they ignore SIGTERM


class _Context(multiprocessing.context.SpawnContext):
    Process = _Process


def _start_worker() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # A policy's small batches wait longer for XLA's thread to wake up than for their result.
    # No environment variable does this.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # a worker blocked on its queue holds the queue's other end open: no EOF comes


def pool(num_workers: int) -> ProcessPoolExecutor:
    """A pool of `num_workers` spawned processes; what a worker keeps in module globals lives on.

    The functions submitted must be importable (module level), their arguments picklable. Workers
    see the CPU only, use one thread, ignore SIGINT and SIGTERM, and exit when their parent dies,
    however it does. Never kill one to stop it: killed while it sends a result, it leaves the pool
    waiting for the rest for ever. Cancel what has not begun, and wait for what has.
    """
    return ProcessPoolExecutor(num_workers, mp_context=_Context(), initializer=_start_worker)


def process(target: Callable[..., None], *arguments: Any) -> multiprocessing.context.SpawnProcess:
    """One such process on its own, started; it ends with `target`, or with its parent."""
    started = _Context().Process(target=_run, args=(target, arguments), daemon=True)
    started.start()
    return started


def _run(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    _start_worker()
    target(*arguments)
