import errno
import socket
from typing import Any

import pytest

from appo_jax.types import InputError
from experiments.terminal import joining
from tests.helpers.processes import free_port

# As jaxlib 0.10.2 writes it when process 1 was killed.
MISSED = """\
F1129 08:17:18.827 30306 client.h:80] Terminating process because the JAX distributed service \
detected fatal errors. absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped \
sending heartbeats):
1
The tasks have crashed. Check the task logs for an earlier error.
"""
LEADER_GONE = """\
F1129 08:17:23.569 30490 client.h:80] Terminating process because the JAX distributed service \
detected fatal errors. absl::Status: UNAVAILABLE: Failed to send RPC to coordination service.
"""


def test_there_are_others_or_none() -> None:
    assert not joining.check(None, None, None)
    assert not joining.check("localhost:1234", 1, 0)
    assert joining.check("localhost:1234", 2, 1)
    assert joining.check("[::1]:1234", 2, 0)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((None, 2, None), "^--coordinator_address, --process_id missing, found --num_processes,"),
        (("host:1", 2, None), "^--process_id missing, found --coordinator_address, --num_pro"),
        (("host", 2, 0), "^--coordinator_address=host: expected host:port"),
        (("host:port", 2, 0), "^--coordinator_address=host:port: expected host:port"),
        ((":1234", 2, 0), "^--coordinator_address=:1234: expected host:port"),
        (("host:65536", 2, 0), "a free port from 1 to 65535"),
        (("host:1234", 0, 0), "^--num_processes=0: expected at least 1"),
        (("host:1234", 2, 2), "^--process_id=2: expected a number from 0 to 1, since --num_pro"),
        (("host:1234", 2, -1), "^--process_id=-1: expected a number from 0 to 1"),
    ],
)
def test_wrong_flags(place: tuple[str | None, int | None, int | None], message: str) -> None:
    with pytest.raises(InputError, match=message):
        joining.check(*place)


def test_a_port_that_another_program_has() -> None:
    with (
        socket.create_server(("", 0)) as server,
        pytest.raises(InputError, match=r"port \d+ can't be opened here \(Address already in use"),
    ):
        joining._check_port_is_free(f"localhost:{server.getsockname()[1]}")
    joining._check_port_is_free(f"localhost:{free_port()}")


def test_a_port_where_there_is_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutIPv6(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *others: Any, **named: Any):
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *others, **named)

    monkeypatch.setattr(socket, "socket", WithoutIPv6)
    test_a_port_that_another_program_has()


def test_who_is_gone() -> None:
    killed = "process 1 of 2 is gone: killed, or not to be reached"
    assert joining._who_is_gone(MISSED, 2) == killed
    assert joining._who_is_gone(MISSED.replace("\n1\n", "\n1\n3\n"), 4).startswith("process 1, 3 ")
    assert joining._who_is_gone(LEADER_GONE, 2).startswith("process 0 of 2 is gone: killed")
    assert joining._who_is_gone("absl::Status: ABORTED: by 1\n", 2) == (
        "another of the 2 processes is gone or started anew (ABORTED: by 1)"
    )


def test_why_the_others_cannot_be_joined() -> None:
    assert joining._reason("absl::Status: DEADLINE_EXCEEDED: late\n\nRPC") == "waited for 120 s"
    assert joining._reason("absl::Status: ABORTED: by 1\n") == "ABORTED: by 1"
    assert joining._reason("") == "JAX gives no reason"
