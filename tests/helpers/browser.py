"""A real browser, headless, where one is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest


def chromium() -> str:
    """The browser's path; skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium is installed (apt-get install chromium)")


def opened(page: Path, folder: Path, script: str, width: int, dark: bool = False) -> str:
    """What a script that is put into a copy of the page makes of it, in a window so wide.

    The page stands in a frame, since a window can't be as narrow as a phone's. script: the body of
    a function of the frame's `document` and `window` that returns text.
    """
    wrapped = page.read_text().replace("&", "&amp;").replace('"', "&quot;")
    look = folder / "look.html"
    look.write_text(
        f'<!doctype html><iframe width="{width}" height="800" srcdoc="{wrapped}"></iframe>'
        "<pre id=found></pre><script>const frame = document.querySelector('iframe');"
        "frame.onload = () => { const look = (document, window) => {"
        f"{script}"
        "}; document.getElementById('found').textContent = "
        "look(frame.contentDocument, frame.contentWindow); }</script>"
    )
    preference = ["--blink-settings=preferredColorScheme=0"] if dark else []
    command = [
        *(chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
        *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000"),
        # Nothing but files can be reached.
        *("--proxy-server=127.0.0.1:1", "--window-size=1600,1000", *preference, look.as_uri()),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<pre id=\"found\">(.*?)</pre>", shown.stdout, re.DOTALL)
    assert found is not None, shown.stderr
    return found.group(1)
