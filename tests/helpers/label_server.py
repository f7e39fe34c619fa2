"""A label server on the small data set, in a process of its own: a folder and a port."""

import sys
import time
from pathlib import Path

from experiments.labelling.server import Server, serving
from experiments.rendering.worker import Look, Renderer
from tests.helpers.labelling import LENGTH, session, walks


def main() -> None:
    data = walks()
    with session(Path(sys.argv[1]), data, num_pairs=100_000) as found:
        renderer = Renderer(data, None, LENGTH, Look(160, 120))
        with serving(Server(found, renderer, int(sys.argv[2]), 10)):
            print("serving", *found.notes, flush=True)
            while True:
                time.sleep(10)


if __name__ == "__main__":
    main()
