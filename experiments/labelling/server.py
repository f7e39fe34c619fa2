"""The page's server: this machine's own browser asks it for pairs and clips, and sends answers.

Python's own `http.server`: five routes, one user, and nothing more to install or to keep safe.

Nobody else can use it. It listens on the loopback address; a request's `Host` must be that address
(a foreign name that leads here is refused), an `Origin` or `Sec-Fetch-Site` this very page's; all
but the empty page needs the token, which is in the fragment of the address that the command prints
(never sent by a browser) and comes back in a header (no cookie, which every port would share).
Paths hold whole numbers alone, and name no file.

    GET /                                   the page
    GET /api/state                          progress, question
    GET /api/pair/<number>                  its segments and sides; 409 where it isn't known yet
    GET /clip/<episode>-<start>-<view>      a sheet of frames, JPEG; 503 while it is made
    GET /info/<episode>-<start>-<view>      what the clip's sheet holds, JSON
    POST /api/answer                        answered once the journal has it on the disk
"""

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from appo_jax.types import InputError
from experiments.labelling import records
from experiments.labelling.records import Segment
from experiments.labelling.session import Conflict, Session
from experiments.labelling.strategies import Waiting
from experiments.rendering.worker import Key, Renderer

ADDRESS = "127.0.0.1"
TOKEN_HEADER = "X-Label-Token"
_MAX_BODY = 4096  # bytes of an answer
_CLIP_SECONDS = 8.0  # that a request waits for a clip, before it is told to come again
_VIEWS = 2  # that the page goes through
_PAGE = Path(__file__).with_name("page.html")
_CLIP_PATH = re.compile(r"/(clip|info)/(\d{1,9})-(\d{1,9})-(\d)")
_PAIR_PATH = re.compile(r"/api/pair/(\d{1,9})")


class _Refused(Exception):
    """A request that gets an error."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


class Server(http.server.ThreadingHTTPServer):
    """Serves one session. url: for the person, with the token in its fragment."""

    daemon_threads = True
    block_on_close = False  # a browser keeps its connections open
    allow_reuse_address = True

    def __init__(self, session: Session, renderer: Renderer, port: int, fps: int):
        """Bind the port, 0 for any. Raises InputError where it can't be had."""
        self.session, self.renderer, self.fps = session, renderer, fps
        self.token = token_of(session.folder)
        page = _PAGE.read_text(encoding="utf-8")
        self.page, self.policy = page.encode(), _policy(page)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise InputError(
                f"--port={port}: can't be used ({error.strerror}), expected a free one"
            ) from error
        self.port = int(self.server_address[1])
        self.hosts = {f"{ADDRESS}:{self.port}", f"localhost:{self.port}"}

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.port}/#{self.token}"

    def door(self) -> Path:
        """A file that leads a browser to the page.

        Its address can stand in a command, which other users of the machine can read; the token
        can't.
        """
        path = self.session.folder / "open.html"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f'<meta http-equiv="refresh" content="0; url={self.url}">\n')
        return path.resolve()

    def server_bind(self) -> None:
        """Bind, and ask nobody for the machine's name, as the base class does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = ADDRESS, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser may go away in the middle of an answer."""

    def look_ahead(self) -> None:
        """Have the clips of the pairs that come next made."""
        with contextlib.suppress(OSError):
            for pair in self.session.ahead():
                for segment in pair.segments:
                    self.renderer.ask(Key(*segment, view=0))


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Answer requests in threads while the block runs."""
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def token_of(folder: Path) -> str:
    """The folder's token, 32 random bytes; made once, so that an open page outlives the server.

    Raises InputError for a file that isn't one.
    """
    path = folder / "token"
    with contextlib.suppress(FileExistsError):
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(secrets.token_urlsafe(32))
    token = path.read_text().strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{43}", token):
        raise InputError(f"{path}: isn't a token, expected 43 letters; delete it for a new one")
    return token


def _policy(page: str) -> str:
    """A policy that lets the page run its own script, use its own style, and ask this server."""
    sources = {}
    for kind, tag in (("script", "script"), ("style", "style")):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        sources[kind] = f"'sha256-{digest}'"
    return (
        f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "label", ""
    # Else an answer goes out in two packets, and the second waits 40 ms for word of the first.
    wbufsize = 65536
    disable_nagle_algorithm = True
    timeout = 60  # a connection that says nothing

    def do_GET(self) -> None:
        """Serve the page, or what it asks for."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Take an answer."""
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is for the person."""

    def send_error(self, code: int, message: str | None = None, _: str | None = None) -> None:
        """A request that isn't HTTP, in the form of all others."""
        self.close_connection = True
        self._send(code, _json({"error": message or "bad request"}), "application/json")

    def _answer(self, respond: Callable[[], tuple[bytes, str]]) -> None:
        try:
            body, kind = respond()
            self._send(200, body, kind)
        except _Refused as refused:
            self.close_connection = True  # a body may be left unread
            self._send(refused.status, _json({"error": refused.why}), "application/json")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _get(self) -> tuple[bytes, str]:
        self._check_host()
        if self.path == "/":
            return self.server.page, "text/html; charset=utf-8"
        if self.path == "/favicon.ico":
            raise _Refused(404, "there is none")
        self._check_token()
        if self.path == "/api/state":
            return _json(self._state()), "application/json"
        if found := _PAIR_PATH.fullmatch(self.path):
            return _json(self._pair(int(found[1]))), "application/json"
        if found := _CLIP_PATH.fullmatch(self.path):
            return self._clip(found[1], Key(int(found[2]), int(found[3]), int(found[4])))
        raise _Refused(404, "no such path")

    def _post(self) -> tuple[bytes, str]:
        self._check_host()
        self._check_token()
        if self.path != "/api/answer":
            raise _Refused(404, "no such path")
        request = self._body()
        session = self.server.session
        if request.get("labeller") != session.labeller:
            raise _Refused(403, f"expected labeller {session.labeller!r}")
        try:
            if request.get("kind") == "undo":
                session.undo(request)
            elif request.get("kind") == "answer":
                first, second = records.pair_from(request, "answer").segments
                session.answer(request, (self._source(first), self._source(second)))
            else:
                raise _Refused(400, "kind: expected answer or undo")
        except InputError as error:
            raise _Refused(400, str(error)) from error
        except Conflict as error:
            raise _Refused(409, str(error)) from error
        except OSError as error:
            why = f"not saved ({error.strerror or error})"
            raise _Refused(507, why) from error
        self.server.look_ahead()
        return _json(self._state()), "application/json"

    def _state(self) -> Mapping[str, Any]:
        views = list(self.server.renderer.views)[:_VIEWS]
        notes = [*self.server.session.notes, *self.server.renderer.notes]
        return {
            **self.server.session.state(),
            "fps": self.server.fps,
            "views": views,
            "notes": notes[-3:],
        }

    def _pair(self, number: int) -> Mapping[str, Any]:
        try:
            pair = self.server.session.pair(number)
        except InputError as error:
            raise _Refused(404, str(error)) from error
        except Waiting as error:
            raise _Refused(409, str(error)) from error
        except OSError as error:
            raise _Refused(507, f"the pair can't be written down ({error.strerror})") from error
        self.server.look_ahead()
        shown = records.to_json(pair)
        del shown["repeat_of"]  # or the labeller would know
        return shown

    def _clip(self, what: str, key: Key) -> tuple[bytes, str]:
        if Segment(key.episode, key.start) not in self._shown() or key.view >= _VIEWS:
            raise _Refused(404, "no such clip in a pair that is due")
        try:
            clip = self.server.renderer.clip(key, _CLIP_SECONDS)
        except InputError as error:
            raise _Refused(500, str(error)) from error
        if clip is None:
            raise _Refused(503, "the clip is being made")
        if what == "clip":
            return clip.sheet, "image/jpeg"
        return _json(clip.info()), "application/json"

    def _shown(self) -> set[Segment]:
        """The segments of all pairs that were asked about."""
        return {segment for pair in self.server.session.issued() for segment in pair.segments}

    def _source(self, segment: Segment) -> str:
        return self.server.renderer.source(Key(*segment, view=0))

    def _body(self) -> Mapping[str, Any]:
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Transfer-Encoding") or not re.fullmatch(r"\d{1,9}", length):
            raise _Refused(411, "expected a Content-Length")
        if int(length) > _MAX_BODY:
            raise _Refused(413, f"expected at most {_MAX_BODY} bytes")
        if self.headers.get("Content-Type", "").split(";")[0] != "application/json":
            raise _Refused(415, "expected application/json")
        try:
            value = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise _Refused(400, "expected JSON") from error
        if not isinstance(value, dict):
            raise _Refused(400, "expected a JSON object")
        return value

    def _check_host(self) -> None:
        """Refuse a request that another site, or another name for this machine, led here."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise _Refused(421, "expected this machine's own address")
        origins = self.headers.get_all("Origin") or []
        if origins and origins != [f"http://{hosts[0]}"]:
            raise _Refused(403, "expected the page's own origin")
        # The empty page may be come to from anywhere, so also from the file that opens it.
        is_visit = self.path == "/" and self.headers.get("Sec-Fetch-Mode") == "navigate"
        came_from = self.headers.get("Sec-Fetch-Site")
        if came_from not in (None, "same-origin", "none") and not is_visit:
            raise _Refused(403, "expected a request of the page itself")

    def _check_token(self) -> None:
        given = self.headers.get_all(TOKEN_HEADER) or [""]
        if len(given) != 1 or not hmac.compare_digest(
            given[0].encode("latin-1", "replace"), self.server.token.encode()
        ):
            raise _Refused(401, "expected the token of the address that the command printed")


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
