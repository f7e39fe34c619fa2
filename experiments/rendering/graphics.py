"""Which graphics library MuJoCo can draw with on this machine, found out by trying each.

MuJoCo reads `MUJOCO_GL` when it is first imported, so the choice comes before that, and is made in
child processes: importing a library that isn't there leaves MuJoCo half imported, and one that is
there but broken may end the process. EGL and OSMesa need no screen, GLFW does.
"""

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

from appo_jax.types import InputError

VARIABLE = "MUJOCO_GL"
# On Linux; elsewhere MuJoCo has one choice of its own, which it takes for "glfw" too.
LIBRARIES = ("egl", "osmesa", "glfw") if sys.platform == "linux" else ("glfw",)
INSTALL = "apt-get install libegl1 libgl1 (needs no screen and no GPU)"

_PROBE = Path(__file__).with_name("probe.py")
_SECONDS = 120  # a probe takes one or two; the rest is for a busy machine


def choose() -> str:
    """The value of `MUJOCO_GL` that draws here: the one that is set, else the first that works.

    Takes a second or two, once for each process; imports nothing. Raises InputError, with what to
    install, where none draws, or where the one that is set doesn't.
    """
    return _choose(os.environ.get(VARIABLE, "").strip().lower())


def set_for_this_process() -> str:
    """Choose, and make MuJoCo draw with it in this process, which must not have imported it yet.

    For a command that draws in its own process; processes that it starts inherit it. Raises
    InputError as `choose` does.
    """
    library = choose()
    if "mujoco" in sys.modules and os.environ.get(VARIABLE, "").strip().lower() != library:
        raise RuntimeError(f"mujoco is imported already, expected to set {VARIABLE} before")
    os.environ[VARIABLE] = library
    return library


@functools.cache
def _choose(asked: str) -> str:
    failed = []
    for library in (asked,) if asked else LIBRARIES:
        why = _why_not(library)
        if why is None:
            return library
        failed.append(f"{library}: {why}")
    place = f"{VARIABLE}={asked} can't draw" if asked else "nothing can draw here"
    remedy = f"another {VARIABLE}, or none; {INSTALL}" if asked else INSTALL
    raise InputError(f"{place} ({'; '.join(failed)}), expected: {remedy}")


def _why_not(library: str) -> str | None:
    """Why a library doesn't draw, in a line; None where it does."""
    try:
        probe = subprocess.run(
            [sys.executable, "-P", str(_PROBE)],
            env={**os.environ, VARIABLE: library},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no picture within {_SECONDS} s"
    if probe.returncode == 0:
        return None
    if probe.returncode < 0:
        return f"ended by {signal.Signals(-probe.returncode).name}"
    said = (probe.stdout.strip() or probe.stderr.strip()).splitlines()
    return said[-1].strip() if said else f"exit code {probe.returncode}"
