"""A real browser that tests drive: keys, clicks, pictures.

Chromium's own debugging protocol, over two pipes: nothing but the browser has to be installed.
"""

import base64
import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.browser import chromium

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio"),
)
_KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40, " ": 32, "Tab": 9, "Enter": 13}


class Tab:
    """A page in a headless browser."""

    def __init__(self, send: int, receive: int):
        self._send, self._receive = send, receive
        self._buffer, self._number, self._session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and what it returned."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            *whole, self._buffer = self._buffer.split(b"\0")
            for found in map(json.loads, whole):
                if found.get("id") == self._number:
                    assert "error" not in found, (method, found)
                    return found["result"]
            left = deadline - time.monotonic()
            assert left > 0, f"no reply to {method}"
            if select.select([self._receive], [], [], left)[0]:
                read = os.read(self._receive, 1 << 20)
                assert read, "the browser ended"
                self._buffer += read

    def open(self, url: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.body !== null && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """What JavaScript makes of it, also of a promise."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 120) -> Any:
        """Wait until it is true, and return it."""
        deadline = time.monotonic() + seconds
        while not (found := self.evaluate(expression)):
            assert time.monotonic() < deadline, (
                expression,
                self.evaluate("document.body.innerText"),
            )
            time.sleep(0.01)
        return found

    def press(self, key: str, modifiers: int = 0, repeats: int = 0) -> None:
        """A key as a person presses it; repeats: times that it repeats while it is held."""
        code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        what = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        if (len(key) == 1 or key == "Enter") and not modifiers:
            what["text"] = "\r" if key == "Enter" else key
        for number in range(1 + repeats):
            self.call("Input.dispatchKeyEvent", type="keyDown", autoRepeat=number > 0, **what)
        what.pop("text", None)
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        """Another window, and another taste."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """What is to be seen, as PNG."""
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    """A browser with a profile of its own in the folder; skips the test where there is none."""
    program = chromium()
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    # The browser reads from 3 and writes to 4.
    command = [program, "--remote-debugging-pipe", f"--user-data-dir={folder}", *_FLAGS]
    shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    browser = subprocess.Popen(
        ["bash", "-c", shell, "browser", *command],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        opened = Tab(ours_out, ours_in)
        yield opened
    finally:
        browser.terminate()
        browser.wait(30)
        os.close(ours_out)
        os.close(ours_in)
