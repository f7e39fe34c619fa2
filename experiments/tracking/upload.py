"""Uploads offline wandb runs while they are written, as a process that ends with its parent."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of Linux's prctl; what it sets outlives exec


def main(folders: list[str]) -> None:
    """Become `wandb beta sync --live` of these folders."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    command = ["-m", "wandb", "beta", "sync", "--live", "--yes", "-n", str(len(folders)), *folders]
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(sys.argv[1:])
