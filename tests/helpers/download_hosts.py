"""The public hosts of data sets, played by servers of this machine.

Google Drive is reached as it would be: by TLS, through a proxy (HTTPS_PROXY) that answers for every
name itself, with a certificate of its own making (REQUESTS_CA_BUNDLE). No client is changed.
"""

import contextlib
import dataclasses
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

# As Google's: what it asks before a file that it can't look into for viruses, and of busy files.
CONFIRM = """<html><body><p class="uc-warning-caption">Google Drive can't scan this file.</p>
<form id="download-form" action="https://drive.usercontent.google.com/download" method="get">\
<input type="submit" value="Download anyway"/><input type="hidden" name="id" value="{id}">\
<input type="hidden" name="export" value="download"><input type="hidden" name="confirm" value="t">\
</form></body></html>"""
QUOTA = """<html><body><p class="uc-error-caption">Sorry, you can't view or download this file.</p>
<p class="uc-error-subcaption">Too many users have viewed this file recently.</p></body></html>"""


@dataclasses.dataclass
class Host:
    """What a host holds and does, and what it was asked.

    files: by their ids. page: what it answers in place of a file, under status 200. named: whether
    that page comes as an attachment. cuts: for some replies, counted from 0, how many bytes come
    before the connection is cut. asked: of each reply the first byte that was asked for.
    goes_on: unless it is set, a connection that is to be cut stays open. environment: variables
    that lead a client here.
    """

    files: dict[str, bytes]
    page: str = ""
    named: bool = False
    cuts: dict[int, int] = dataclasses.field(default_factory=dict)
    asked: list[int] = dataclasses.field(default_factory=list)
    goes_on: threading.Event = dataclasses.field(default_factory=threading.Event)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


class Replies(BaseHTTPRequestHandler):
    """Files of a server in whole or from a byte on, cut where it says so."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: Any) -> None:
        pass

    def send(self, content: bytes, kind: str, **headers: str) -> None:
        """One reply; `Range` and `If-Range` are followed."""
        etag = f'"{len(content)}-{hash(content)}"'
        first = int(re.sub(r"\D", "", self.headers.get("Range", "")) or 0)
        if self.headers.get("If-Range", etag) != etag:
            first = 0
        self.send_response(200 if not first else 206 if first < len(content) else 416)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        body = content[first:]
        for name, value in {**headers, "ETag": etag, "Content-Type": kind}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind == "application/octet-stream":
            host = self.server.host
            cut = host.cuts.get(len(host.asked))
            host.asked.append(first)
            body, self.close_connection = body[:cut], cut is not None
        with contextlib.suppress(OSError):  # a client may leave
            self.wfile.write(body)
        if self.close_connection:
            self.server.host.goes_on.wait(30)


class DriveReplies(Replies):
    """Google Drive's part of it, and the proxy's."""

    def do_CONNECT(self) -> None:  # noqa: N802
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        self.close_connection = False

    def finish(self) -> None:
        super().finish()
        with contextlib.suppress(OSError):
            self.connection.close()

    def do_GET(self) -> None:  # noqa: N802
        host, query = self.server.host, parse_qs(urlsplit(self.path).query)
        id = query["id"][0]
        attached = {"Content_Disposition": f'attachment; filename="{id}.zip"'}
        if host.page:
            self.send(host.page.encode(), "text/html", **(attached if host.named else {}))
        elif id in host.files and "confirm" not in query:
            self.send(CONFIRM.format(id=id).encode(), "text/html; charset=utf-8")
        else:
            self.send(host.files[id], "application/octet-stream", **attached)


class HubReplies(Replies):
    """The hub's part that Minari's client asks of one repository, farama-minari/TEST."""

    def do_GET(self) -> None:  # noqa: N802
        host, sha = self.server.host, "0" * 40
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        name = re.sub(r"/datasets/farama-minari/TEST/resolve/\w+/", "", path)
        files = [
            {"type": "file", "path": name, "size": len(data), "oid": name}
            for name, data in host.files.items()
        ]
        if path == "/api/datasets":
            known = query.get("search", ["TEST"]) == ["TEST"]
            answer: Any = [{"id": "farama-minari/TEST"}] if known else []
        elif path.startswith("/api/datasets/farama-minari/TEST/revision/"):
            answer = {"id": "farama-minari/TEST", "sha": sha}
        elif path.startswith("/api/datasets/farama-minari/TEST/tree/"):
            answer = files
        elif name in host.files:
            kind = "application/octet-stream" if name.endswith(".hdf5") else "text/plain"
            self.send(host.files[name], kind, X_Repo_Commit=sha)
            return
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", sha)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send(json.dumps(answer).encode(), "application/json")

    do_HEAD = do_GET  # noqa: N815


@contextlib.contextmanager
def serving(host: Any, replies: type[Replies], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve a host's files for a while, at the address given."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), replies)
    server.daemon_threads = True
    server.host, server.tls = host, tls  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def hub(folder: Path, files: dict[str, bytes]) -> Iterator[Host]:
    """The hub with these files; its client's cache is in the folder."""
    host = Host(files)
    host.goes_on.set()
    with serving(host, HubReplies) as address:
        host.environment = {"HF_ENDPOINT": address, "HF_HOME": str(folder / "cache")}
        yield host


@contextlib.contextmanager
def google_drive(folder: Path, files: dict[str, bytes]) -> Iterator[Host]:
    """Google Drive with these files; `environment` leads a client there."""
    names = ("drive.google.com", "drive.usercontent.google.com")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out"]
    command += [certificate, "-addext", f"subjectAltName={','.join(f'DNS:{n}' for n in names)}"]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    host = Host(files)
    host.goes_on.set()
    with serving(host, DriveReplies, tls) as address:
        host.environment = {"HTTPS_PROXY": address, "REQUESTS_CA_BUNDLE": str(certificate)}
        yield host
