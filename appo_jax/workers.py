"""Worker processes for simulators: spawned, one thread each, gone when their parent is gone."""

import contextlib
import importlib
import multiprocessing
import multiprocessing.context
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from multiprocessing.synchronize import Event
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


def available_cores() -> int:
    """Cores that this process may use; fewer than the machine's under taskset or in a container."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone has it
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


def import_mujoco() -> None:
    """Import it without a renderer where that of MUJOCO_GL isn't there: none is needed."""
    if "MUJOCO_GL" not in os.environ:
        return
    try:
        importlib.import_module("mujoco")
    except Exception:  # it looks for the renderer's library, and falls over what it doesn't find
        with environment(MUJOCO_GL="disable"):
            importlib.import_module("mujoco")


# Ctrl-C and schedulers signal the whole process group; the parent decides what becomes of workers.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    # A worker inherits the mask, so that a Ctrl-C while it still imports prints no traceback; the
    # parent gets its own signals after the block. Those that another of its threads takes would be
    # handled in the main thread all the same, and a worker whose parent leaves before it has told
    # it everything prints a traceback, too: so they wait.
    caught: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in _IGNORED}
        not_ours = (None, signal.SIG_IGN)  # None: a handler that isn't Python's
        handlers = {number: old for number, old in found.items() if old not in not_ours}
    for number in handlers:
        signal.signal(number, lambda number, _: caught.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, old in handlers.items():
            signal.signal(number, old)
        for waiting in caught:
            signal.raise_signal(waiting)


class _Process(multiprocessing.context.SpawnProcess):
    def start(self) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # In a worker, which imports the main script again: an error would be a traceback.
            raise SystemExit(
                "the script that starts worker processes is imported by each of them, expected its "
                'calls below `if __name__ == "__main__":`'
            )
        with environment(**_WORKER_ENVIRONMENT), _without_interrupts():
            super().start()

    def terminate(self) -> None:
        self.kill()  # how a broken pool gets rid of the others: they ignore SIGTERM


class _Context(multiprocessing.context.SpawnContext):
    Process = _Process


class _Pool(ProcessPoolExecutor):
    def __init__(self, num_workers: int):
        context = _Context()
        with _without_interrupts():  # its first semaphore starts Python's tracker of such things
            self._shut_down = context.Event()
        super().__init__(
            num_workers, mp_context=context, initializer=_start_worker, initargs=(self._shut_down,)
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self._shut_down.set()
        super().shutdown(wait, cancel_futures=cancel_futures)


_shut_down: Event | None = None  # a worker's own pool's


def check_wanted() -> None:
    """Raise CancelledError in a worker whose pool was shut down; to be called between steps."""
    if _shut_down is not None and _shut_down.is_set():
        raise CancelledError


def _start_worker(shut_down: Event | None = None) -> None:
    global _shut_down
    _shut_down = shut_down
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # A policy's small batches wait longer for XLA's thread to wake up than for their result.
    # No environment variable does this.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    import_mujoco()
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # a worker blocked on its queue holds the queue's other end open: no EOF comes


def pool(num_workers: int) -> ProcessPoolExecutor:
    """A pool of `num_workers` spawned processes; what a worker keeps in module globals lives on.

    The functions submitted must be importable (module level), their arguments picklable. Workers
    see the CPU only, use one thread, ignore the signals that stop a command, and exit when their
    parent dies, however it does. Never kill one to stop it: killed while it sends a result, it
    leaves the pool waiting for the rest for ever. `shutdown(cancel_futures=True)` cancels what has
    not begun, and what has begun where it calls `check_wanted`.
    """
    return _Pool(num_workers)


def process(target: Callable[..., None], *arguments: Any) -> multiprocessing.context.SpawnProcess:
    """One such process on its own, started; it ends with `target`, or with its parent."""
    started = _Context().Process(target=_run, args=(target, arguments), daemon=True)
    started.start()
    return started


def _run(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    _start_worker()
    target(*arguments)
