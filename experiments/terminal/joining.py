"""Joining the other processes of one JAX program, and leaving when one of them is gone.

JAX ends a process that misses another one by C++'s abort, after a page of log, and no Python code
can have it otherwise (a callback from there fails). So that page is kept back, and the abort
caught: who reads finds one sentence.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import jax
from absl import flags

from appo_jax.types import InputError, first_line
from experiments.runs import hosts
from experiments.terminal import cli
from experiments.terminal.flags import define

HEARTBEAT_SECONDS = 60  # without one a process counts as gone
JOIN_SECONDS = 120  # to wait for the others at the beginning
LEAVE_SECONDS = 60  # to wait for the others at the end


def define_flags(values: flags.FlagValues) -> None:
    """Define the flags that say which of several processes this one is."""
    group = "Several hosts (the same command on each; docs/machines.md)"
    first = "host:port of process 0, at which the processes of one program find each other"
    define(values, "coordinator_address", str, first, group)
    define(values, "num_processes", int, "how many processes share the runs of the grid", group)
    define(values, "process_id", int, "which of them this one is, from 0 on", group)


@contextlib.contextmanager
def with_others(values: flags.FlagValues, num_runs: int) -> Iterator[None]:
    """Be one of the processes that the flags name for the block; if they name none, nothing.

    Raises InputError for wrong flags, more processes than runs, and as `joined` does.
    """
    place = values.coordinator_address, values.num_processes, values.process_id
    if not check(*place):
        yield
        return
    hosts.check_count(values.num_processes, num_runs)
    with joined(*place, cli.GOES_ON):
        try:
            yield
        except BaseException as error:
            hosts.tell_of_end(error)
            raise


def check(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None
) -> bool:
    """Whether there are others to join. Raises InputError, naming the flag, for wrong values."""
    named = {
        "coordinator_address": coordinator_address,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    missing = [f"--{name}" for name, value in named.items() if value is None]
    if len(missing) == 3:
        return False
    if missing or coordinator_address is None or num_processes is None or process_id is None:
        given = [f"--{name}" for name, value in named.items() if value is not None]
        raise InputError(
            f"{', '.join(missing)} missing, found {', '.join(given)}, expected all three or none: "
            "the first process's host:port, how many processes there are, and which one this is"
        )
    host, _, port = coordinator_address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise InputError(
            f"--coordinator_address={coordinator_address}: expected host:port of the machine of "
            "process 0, with a free port from 1 to 65535"
        )
    if num_processes < 1:
        raise InputError(f"--num_processes={num_processes}: expected at least 1")
    if not 0 <= process_id < num_processes:
        raise InputError(
            f"--process_id={process_id}: expected a number from 0 to {num_processes - 1}, since "
            f"--num_processes={num_processes}"
        )
    return num_processes > 1


@contextlib.contextmanager
def joined(
    coordinator_address: str, num_processes: int, process_id: int, kept: str
) -> Iterator[None]:
    """Be one of several processes for the block, and keep JAX's log back until the process ends.

    kept: what the user has when another process is gone, which ends this one with status 1. Raises
    InputError where the others can't be joined.
    """
    if process_id == 0:
        _check_port_is_free(coordinator_address)

    def cannot_join(reason: str) -> str:
        return (
            f"--coordinator_address={coordinator_address}: process {process_id} of "
            f"{num_processes} can't join the others ({reason}), expected the address of process "
            "0, and each process started once, with the same flags"
        )

    def alone(log: str) -> str:
        return f"{_who_is_gone(log, num_processes)}; {kept}"

    _keep_log_back()
    _state.sentence = lambda log: cannot_join(_reason(log))
    # Its handler would take SIGTERM away from ours, and Orbax ask it at each checkpoint.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=LEAVE_SECONDS,
        )
    except Exception as error:  # depends on what failed
        raise InputError(cannot_join(first_line(error))) from error
    _state.sentence = alone
    try:
        yield
        jax.distributed.shutdown()
    finally:
        _state.sentence = None  # JAX shuts down when the error's own sentence is out


def _check_port_is_free(address: str) -> None:
    """Raise InputError for a port that another program has, over which JAX falls."""
    port = int(address.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()  # else there is IPv4 alone
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        raise InputError(
            f"--coordinator_address={address}: port {port} can't be opened here "
            f"({os.strerror(error.errno or 0)}), expected a free one of this machine, at which "
            "process 0 answers"
        ) from error


@dataclasses.dataclass
class _State:
    """sentence: of JAX's log what to tell when it ends the process; None: nothing, all is told.

    handler: of the abort, to which C keeps a pointer.
    """

    sentence: Callable[[str], str] | None = None
    handler: Any = None


_state = _State()


def _keep_log_back() -> None:
    """Keep what C++ writes to standard error until the process ends, and catch its abort."""
    sys.stderr.flush()
    terminal = os.dup(2)
    log = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process ends
    os.dup2(log.fileno(), 2)
    sys.stderr = os.fdopen(terminal, "w", buffering=1, errors="backslashreplace")

    def aborted(number: int) -> None:
        text = _contents(log)
        if "JAX distributed service" not in text:
            os.write(terminal, text.encode())
            os._exit(128 + number)
        if _state.sentence is not None:
            os.write(terminal, f"error: {_state.sentence(text)}\n".encode())
        os._exit(1)

    _state.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    set_handler(signal.SIGABRT, ctypes.cast(_state.handler, ctypes.c_void_p))
    atexit.register(_show, log, terminal)


def _show(log: IO[bytes], terminal: int) -> None:
    text = _contents(log)
    if "coordination_service" not in text:
        os.write(terminal, text.encode())


def _contents(log: IO[bytes]) -> str:
    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), size, 0).decode(errors="backslashreplace")


def _reason(log: str) -> str:
    found = re.search(r"absl::Status: (.*)", log)
    if found is None:
        return "JAX gives no reason"
    waited = found.group(1).startswith("DEADLINE_EXCEEDED")
    return f"waited for {JOIN_SECONDS} s" if waited else found.group(1)


def _who_is_gone(text: str, num_processes: int) -> str:
    """What JAX's log says of it."""
    found = re.search(r"stopped sending heartbeats\):\n([\d\n ,]+)", text)
    if found:
        numbers = ", ".join(found.group(1).split())
        return f"process {numbers} of {num_processes} is gone: killed, or not to be reached"
    if "Failed to send RPC" in text:
        return f"process 0 of {num_processes} is gone: killed, ended, or not to be reached"
    return f"another of the {num_processes} processes is gone or started anew ({_reason(text)})"
