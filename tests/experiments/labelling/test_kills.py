"""What is left where processes are killed."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from experiments.labelling import journal
from experiments.labelling.server import ADDRESS, TOKEN_HEADER, token_of
from experiments.rendering import graphics, worker
from experiments.rendering.worker import Key, Look, Renderer
from tests.helpers.labelling import LENGTH, walks


class Person(threading.Thread):
    """Answers as fast as the server takes it, and sends again what wasn't acknowledged."""

    def __init__(self, folder: Path, port: int):
        super().__init__(daemon=True)
        self.acknowledged: list[str] = []
        self.is_over = False
        self._headers = {TOKEN_HEADER: token_of(folder), "Content-Type": "application/json"}
        self._port = port

    def run(self) -> None:
        number = 0
        while not self.is_over:
            pair = self._ask("GET", f"/api/pair/{number}")
            record = {
                **(pair or {}),
                "id": str(uuid.uuid4()),
                "kind": "answer",
                "answer": random.choice(["left", "right", "equal", "skip"]),
                "seconds": 1,
                "loops": 1,
                "labeller": "ann",
            }
            if pair and self._ask("POST", "/api/answer", record):
                self.acknowledged.append(record["id"])
                number += 1

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        while not self.is_over:
            connection = http.client.HTTPConnection(ADDRESS, self._port, timeout=5)
            try:
                sent = json.dumps(body) if body else None
                connection.request(method, path, sent, self._headers)
                reply = connection.getresponse()
                found = json.loads(reply.read())
                assert reply.status == 200, (path, reply.status, found)
                return found
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.01)
            finally:
                connection.close()
        return None


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_lose_and_double_no_answer(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kills, port = request.config.getoption("--chaos_kills"), 18765
    person = Person(tmp_path, port)
    person.start()
    draw, cut = random.Random(0), 0
    command = [sys.executable, "-m", "tests.helpers.label_server", str(tmp_path), str(port)]
    for _ in range(kills):
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout
        said = server.stdout.readline()
        assert said.startswith("serving"), said
        cut += "cut off" in said
        time.sleep(draw.uniform(0.02, 0.5))
        server.send_signal(signal.SIGKILL)
        server.wait()
        if draw.random() < 0.3:  # as a machine that loses power may leave it
            with (tmp_path / "answers-ann.jsonl").open("ab") as file:
                file.write(b'{"id": "torn-in-the-mid')
    person.is_over = True
    person.join()
    journal.Journal(tmp_path / "answers-ann.jsonl").close()
    lines = [value for _, value in journal.objects(tmp_path / "answers-ann.jsonl")]
    kept = Counter(value["id"] for value in lines)
    assert set(kept.values()) == {1}
    assert set(person.acknowledged) <= set(kept)
    # At most the one whose acknowledgement was on its way.
    assert len(kept) - len(person.acknowledged) <= 1
    records = journal.read(tmp_path / "answers-ann.jsonl")
    pairs = [answer.pair for answer in journal.standing(records)]
    assert pairs == list(range(len(pairs)))
    print(f"{kills} kills, {len(person.acknowledged)} answers acknowledged, {cut} torn tails cut")
    assert cut > 0
    assert len(person.acknowledged) > kills


def _dying(pipe: Any, env_name: str, look: Look) -> None:
    """In place of a renderer: a graphics library that crashes."""
    pipe.send(["overview"])
    pipe.recv()
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_renderer_that_crashes_takes_nothing_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphics, "choose", lambda: "egl")
    monkeypatch.setattr(worker, "_serve", _dying)
    renderer = Renderer(walks(), "Hopper-v5", LENGTH, Look(160, 120))
    try:
        clip = renderer.clip(Key(0, 0, 0), 60)
        assert clip is not None
        assert clip.source == "lines"
        assert len(renderer.notes) == 2
        assert "the renderer ended at episode 0, step 0 (" in renderer.notes[0]
    finally:
        renderer.close()


def test_without_a_graphics_library_clips_are_lines_and_a_sentence_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphics, "LIBRARIES", ("disable",))
    monkeypatch.setattr(graphics, "choose", lambda: graphics._choose.__wrapped__(""))
    renderer = Renderer(walks(), "Hopper-v5", LENGTH, Look(160, 120))
    try:
        clip = renderer.clip(Key(0, 0, 0), 60)
        assert clip is not None
        assert clip.source == "lines"
        assert "apt-get install libegl1 libgl1" in renderer.notes[0]
    finally:
        renderer.close()
