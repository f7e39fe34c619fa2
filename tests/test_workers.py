"""Worker processes: what they see, what they ignore, and when they go."""

import contextlib
import itertools
import multiprocessing
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import workers

_kept: list[Any] = []


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with workers.pool(1) as pool:
        yield pool


def _settings() -> dict[str, Any]:
    matrix = jnp.ones((500, 500))
    jax.jit(lambda matrix: matrix @ matrix)(matrix).block_until_ready()
    tasks = Path("/proc/self/task")
    threads = [(task / "comm").read_text() for task in tasks.iterdir()] if tasks.is_dir() else []
    return {
        "devices": [device.platform for device in jax.devices()],
        "xla_threads": sum("XLAEigen" in name for name in threads),
        "environment": dict(os.environ),
        "handlers": {
            n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        },
    }


def test_a_worker_sees_the_cpu_and_one_thread(pool: ProcessPoolExecutor) -> None:
    before = dict(os.environ)
    found = pool.submit(_settings).result()
    assert found["devices"] == ["cpu"]
    assert found["environment"]["JAX_PLATFORMS"] == "cpu"
    assert "--xla_cpu_multi_thread_eigen=false" in found["environment"]["XLA_FLAGS"]
    for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        assert found["environment"][name] == "1"
    if Path("/proc/self/task").is_dir():
        assert found["xla_threads"] == 1
    assert dict(os.environ) == before  # the parent keeps its own


def _waits(calls: int) -> int:
    matrix = jnp.ones((256, 256))
    product = jax.jit(lambda matrix: matrix @ matrix)
    np.asarray(product(matrix))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(calls):
        np.asarray(product(matrix))
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before


def test_a_worker_computes_without_waiting_for_another_thread(pool: ProcessPoolExecutor) -> None:
    assert pool.submit(_waits, 200).result() < 20


def _keep(value: Any) -> list[Any]:
    _kept.append(value)
    return _kept


def test_what_a_worker_keeps_in_globals_lives_on(pool: ProcessPoolExecutor) -> None:
    pool.submit(_keep, 1).result()
    assert pool.submit(_keep, 2).result() == [1, 2]
    assert _kept == []


def _interrupt_and_go_on(number: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.kill(os.getpid(), number)
        time.sleep(0.01)
    return os.getpid()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_worker_ignores_what_its_group_gets(pool: ProcessPoolExecutor, number: int) -> None:
    worker = pool.submit(os.getpid).result()
    assert worker != os.getpid()
    os.kill(worker, number)  # while it waits for work
    assert pool.submit(_interrupt_and_go_on, number, 0.1).result() == worker
    assert pool.submit(_settings).result()["handlers"][number] is signal.SIG_IGN


def test_a_worker_that_still_starts_ignores_them_too() -> None:
    before = multiprocessing.active_children()
    with workers.pool(1) as pool:
        future = pool.submit(os.getpid)
        (worker,) = (
            child.pid for child in multiprocessing.active_children() if child not in before
        )
        assert worker is not None
        for number in itertools.cycle([signal.SIGINT, signal.SIGTERM]):
            if future.done():
                break
            os.kill(worker, number)
            time.sleep(0.01)
        assert future.result() == worker


def test_the_parent_can_be_interrupted_after_a_start(pool: ProcessPoolExecutor) -> None:
    pool.submit(os.getpid).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_during_a_start_waits_whichever_thread_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(process: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        begun.append(process)

    begun: list[Any] = []
    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", start)
    done = threading.Event()
    other = threading.Thread(target=done.wait)  # blocks no signal
    other.start()
    with pytest.raises(KeyboardInterrupt):
        workers.process(print)
    done.set()
    other.join()
    assert len(begun) == 1


def _fail(message: str) -> None:
    raise ValueError(message)


def test_what_a_worker_raises_arrives_and_its_death_too(pool: ProcessPoolExecutor) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        pool.submit(_fail, "on purpose").result()
    before = set(multiprocessing.active_children())
    with workers.pool(2) as broken:
        other = broken.submit(time.sleep, 600)  # ends with the pool, though it ignores SIGTERM
        broken.submit(os.getpid).result()  # the pool knows of its second worker from here on
        with pytest.raises(BrokenProcessPool):
            broken.submit(os._exit, 3).result()
        with pytest.raises(BrokenProcessPool):
            other.result()
    assert set(multiprocessing.active_children()) == before


def _hold(path: Path, busy: bool) -> None:
    """Keep a pipe open as long as this process lives; tell its id through it."""
    pipe = os.open(path, os.O_WRONLY)
    os.write(pipe, f"{os.getpid()}\n".encode())
    while busy:
        pass


def _parent(path: Path) -> None:
    """One of its two workers is busy, the other one idle."""
    with workers.pool(2) as pool:
        for busy in (True, False):
            pool.submit(_hold, path, busy)
        time.sleep(60)


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    parent = multiprocessing.get_context("spawn").Process(target=_parent, args=(path,))
    parent.start()
    told = b""
    try:
        while told.count(b"\n") < 2:
            assert parent.is_alive()
            if select.select([pipe], [], [], 0.1)[0]:
                told += os.read(pipe, 100)
            time.sleep(0.01)  # before the first worker opens the pipe, it reads as at its end
        assert parent.pid is not None
        os.kill(parent.pid, signal.SIGKILL)
        parent.join()
        # Readable again means at its end: no process holds the other end.
        readable, _, _ = select.select([pipe], [], [], 5)
        assert readable, "a worker is alive 5 seconds after its parent was killed"
        assert os.read(pipe, 100) == b""
    finally:
        parent.kill()
        os.close(pipe)
        for worker in told.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(worker), signal.SIGKILL)


def test_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPO_TEST_SET", "before")
    monkeypatch.delenv("APPO_TEST_UNSET", raising=False)
    before = dict(os.environ)

    def look() -> tuple[str | None, str | None]:
        return os.environ.get("APPO_TEST_SET"), os.environ.get("APPO_TEST_UNSET")

    with workers.environment(APPO_TEST_SET="1", APPO_TEST_UNSET="2"):
        assert look() == ("1", "2")
    assert dict(os.environ) == before
    with (
        pytest.raises(RuntimeError, match="inside"),
        workers.environment(APPO_TEST_SET="1", APPO_TEST_UNSET="2"),
    ):
        raise RuntimeError("inside")
    assert dict(os.environ) == before
    assert look() == ("before", None)


def _work_for_ever(mark: Path) -> None:
    mark.touch()
    while True:
        workers.check_wanted()
        time.sleep(0.01)


def test_a_pool_that_is_shut_down_waits_for_no_long_task(tmp_path: Path) -> None:
    pool = workers.pool(1)
    begun = pool.submit(_work_for_ever, tmp_path / "mark")
    while not (tmp_path / "mark").exists():
        assert not begun.done()
        time.sleep(0.02)
    pool.shutdown(cancel_futures=True)
    assert isinstance(begun.exception(), CancelledError)
    workers.check_wanted()  # in no worker, nothing


_UNGUARDED = """
from appo_jax import workers
workers.pool(1).submit(print).result()
"""


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=60
    )
    assert 'expected its calls below `if __name__ == "__main__":`' in done.stderr
    assert "bootstrapping phase" not in done.stderr
    assert done.returncode == 1


def test_a_renderer_that_is_not_there_is_not_needed() -> None:
    code = "from appo_jax.envs import environment; print(environment.spaces('Hopper-v5')[:2])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "MUJOCO_GL": "nothing"},
    )
    assert (done.stdout, done.returncode) == ("(11, 3)\n", 0), done.stderr
