"""The server: what it refuses, and what it keeps."""

import contextlib
import http.client
import json
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.labelling import journal
from experiments.labelling.server import ADDRESS, TOKEN_HEADER, Server, serving, token_of
from experiments.labelling.session import Session
from experiments.rendering.worker import Key, Look, Renderer
from tests.helpers.labelling import LENGTH, session, walks


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    data = walks()
    with session(tmp_path, data) as found:
        renderer = Renderer(data, None, LENGTH, Look(160, 120))
        with serving(Server(found, renderer, 0, 10)) as server:
            yield server
        renderer.close()


def ask(
    server: Server,
    path: str,
    body: Any = None,
    method: str | None = None,
    **headers: str | None,
) -> tuple[int, Any, dict[str, str]]:
    """Status, body and headers. A header of None is left out."""
    connection = http.client.HTTPConnection(ADDRESS, server.port, timeout=30)
    sent: dict[str, str | None] = {
        "Host": f"{ADDRESS}:{server.port}",
        TOKEN_HEADER: server.token,
        "Content-Type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.putrequest(
        method or ("GET" if body is None else "POST"),
        path,
        skip_host=True,
        skip_accept_encoding=True,
    )
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(content)))
    connection.endheaders(content if body is not None else None)
    reply = connection.getresponse()
    read = reply.read()
    kind = reply.headers["Content-Type"]
    connection.close()
    return reply.status, json.loads(read) if "json" in kind else read, dict(reply.headers)


def answer_to(server: Server, number: int = 0, choice: str = "left") -> dict[str, Any]:
    return {
        **ask(server, f"/api/pair/{number}")[1],
        "id": str(uuid.uuid4()),
        "kind": "answer",
        "answer": choice,
        "seconds": 1.0,
        "loops": 0,
        "labeller": "ann",
    }


def test_a_page_a_pair_its_clips_and_an_answer(served: Server) -> None:
    status, page, headers = ask(served, "/", **{TOKEN_HEADER: None})
    assert status == 200
    assert served.token.encode() not in page
    assert "default-src 'none'; script-src 'sha256-" in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == (
        "nosniff",
        "no-referrer",
    )
    pair = ask(served, "/api/pair/0")[1]
    assert "repeat_of" not in pair
    name = f"{pair['episode_0']}-{pair['start_0']}-0"
    status, info, _ = ask(served, f"/info/{name}")
    assert (status, info["source"], info["frames"]) == (200, "lines", LENGTH + 1)
    status, sheet, headers = ask(served, f"/clip/{name}")
    assert (status, sheet[:2], headers["Content-Type"]) == (200, b"\xff\xd8", "image/jpeg")
    request = answer_to(served)
    for _ in range(2):  # as a page does that didn't hear
        status, state, _ = ask(served, "/api/answer", request)
        assert (status, state["answers"], state["current"]) == (200, 1, 1)
    undo = {"id": str(uuid.uuid4()), "kind": "undo", "cancels": request["id"], "labeller": "ann"}
    assert ask(served, "/api/answer", undo)[1]["current"] == 0
    kept = journal.read(served.session.folder / "answers-ann.jsonl")
    assert [record.id for record in kept] == [request["id"], undo["id"]]
    # The other one may have been drawn ahead, though nobody looked at it.
    assert kept[0].clip in (("lines", "unknown"), ("lines", "lines"))


def test_every_attack_is_refused(served: Server) -> None:
    port, good = served.port, answer_to(served)
    post, token = "/api/answer", TOKEN_HEADER
    evil = "http://evil.example"
    attacks: list[tuple[int, str, Any, dict[str, str | None]]] = [
        # Another name that leads here, as by a changed DNS entry, or none.
        (421, "/api/state", None, {"Host": f"evil.example:{port}"}),
        (421, "/", None, {"Host": f"{ADDRESS}:{port + 1}"}),
        (421, "/api/state", None, {"Host": ADDRESS}),
        (421, "/api/state", None, {"Host": None}),
        # Another site's page.
        (403, post, good, {"Origin": evil}),
        (403, post, good, {"Origin": f"http://{ADDRESS}:{port + 1}"}),
        (403, post, good, {"Origin": "null"}),
        (403, "/", None, {"Origin": evil}),
        (403, "/api/state", None, {"Sec_Fetch_Site": "cross-site"}),
        (403, post, good, {"Sec_Fetch_Site": "same-site"}),
        # No token, another, one that is no text.
        (401, "/api/state", None, {token: None}),
        (401, "/api/pair/0", None, {token: "x" * 43}),
        (401, post, good, {token: served.token[:-1]}),
        (401, "/clip/0-0-0", None, {token: "\xff"}),
        # Paths that name files, or nothing.
        (404, "/../session.json", None, {}),
        (404, "/clip/../token", None, {}),
        (404, "/clip/%2e%2e%2ftoken", None, {}),
        (404, "/token", None, {}),
        (404, "/clip/0--1-0", None, {}),
        (404, "/clip/0-0-9", None, {}),
        (404, "/clip/5-36-0", None, {}),  # leaves its episode
        (404, "/clip/99999-0-0", None, {}),
        (404, "/api/pair/-1", None, {}),
        (404, "/api/pair/29", None, {}),  # not due yet
        (404, "/api/pair/1e3", None, {}),
        (404, "/api/pair/0?x=1", None, {}),
        # Bodies.
        (413, post, b" " * 5000, {}),
        (400, post, b'{"id": ', {}),
        (400, post, b"[" * 4000, {}),
        (400, post, [good], {}),
        (415, post, good, {"Content_Type": "text/plain"}),
        (400, post, {**good, "answer": "both"}, {}),
        (400, post, {**good, "seconds": -1}, {}),
        (400, post, {**good, "seconds": float("inf")}, {}),
        (400, post, {**good, "kind": "delete"}, {}),
        (400, post, {**good, "pair": 7}, {}),
        (400, post, {**good, "pair": -1}, {}),
        (400, post, {**good, "id": "../../x"}, {}),
        (400, post, {**good, "episode_0": 10**30}, {}),
        (403, post, {**good, "labeller": "bob"}, {}),
        (404, "/api/state", good, {}),
    ]
    for expected, path, body, headers in attacks:
        status, reply, _ = ask(served, path, body, **headers)
        assert status == expected, (path, body, headers, status, reply)
        assert not isinstance(reply, dict) or set(reply) == {"error"}
    assert ask(served, post)[0] == 404  # GET in place of POST
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert ask(served, post, good, method)[0] == 501
    assert not served.session.answers
    assert ask(served, post, good)[0] == 200  # the server is well


def test_two_hosts_in_one_request_are_refused(served: Server) -> None:
    with socket.create_connection((ADDRESS, served.port), 10) as connection:
        own = f"{ADDRESS}:{served.port}"
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 421")


def test_other_addresses_can_not_connect(served: Server) -> None:
    others = {"127.0.0.2"} if sys.platform == "linux" else set()  # loopback's, too
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; tells which address would
        others.add(probe.getsockname()[0])
    assert served.server_address[0] == ADDRESS
    for address in others - {ADDRESS, "0.0.0.0"}:
        with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
            socket.create_connection((address, served.port), 2)


def test_where_nothing_can_be_written_nothing_is_acknowledged(
    served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = answer_to(served)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    status, reply, _ = ask(served, "/api/answer", request)
    assert (status, reply) == (507, {"error": "not saved (No space left on device)"})
    monkeypatch.undo()
    assert not served.session.answers
    assert ask(served, "/api/answer", request)[1]["answers"] == 1


def test_a_reply_is_one_write(served: Server) -> None:
    """With two of them Nagle's algorithm holds the second back for 40 ms."""
    request = f"GET /api/state HTTP/1.1\r\nHost: {ADDRESS}:{served.port}\r\n"
    request += f"{TOKEN_HEADER}: {served.token}\r\n\r\n"
    with socket.create_connection((ADDRESS, served.port), 10) as connection:
        for _ in range(3):
            connection.sendall(request.encode())
            head, body = connection.recv(65536).split(b"\r\n\r\n")
            assert f"Content-Length: {len(body)}\r\n".encode() in head


def test_a_token_outlives_the_server_and_is_its_owners(tmp_path: Path) -> None:
    token = token_of(tmp_path)
    assert token == token_of(tmp_path)
    assert len(token) == 43
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_many_requests_at_once_lose_nothing(served: Server) -> None:
    found: Session = served.session
    request = answer_to(served)
    statuses: list[int] = []
    threads = [
        threading.Thread(
            target=lambda one: statuses.append(ask(served, "/api/answer", one)[0]),
            args=({**request, "id": str(uuid.uuid4())},),
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] + 7 * [409]
    assert len(found.answers) == 1


def test_clips_that_are_not_made_yet_are_waited_for(served: Server) -> None:
    key = Key(0, 3, 0)
    clip = served.renderer.clip(key, 10)
    assert clip is not None
    assert served.renderer.source(key) == "lines"
    assert served.renderer.source(Key(0, 4, 0)) == "unknown"
