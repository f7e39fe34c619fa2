"""The page in a real browser: keys, undo, lost servers, narrow windows."""

import contextlib
import json
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset
from experiments.labelling import journal
from experiments.labelling.server import Server, serving
from experiments.labelling.strategies import Ranked, Segmented, Strategy
from experiments.rendering.worker import Look, Renderer
from tests.helpers.driven import Tab, tab
from tests.helpers.labelling import LENGTH, session, walks

DATA = walks()
READY = "document.body.dataset.ready === 'yes'"
CTRL = 2


@contextlib.contextmanager
def served(
    folder: Path,
    port: int = 0,
    data: Dataset = DATA,
    strategy: Strategy | None = None,
    num_pairs: int = 40,
) -> Iterator[Server]:
    """A server on the folder, with clips of lines."""
    with session(folder, data, strategy=strategy, num_pairs=num_pairs) as found:
        renderer = Renderer(data, None, LENGTH, Look(160, 120))
        try:
            with serving(Server(found, renderer, port, 20)) as server:
                yield server
        finally:
            renderer.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """One browser for all."""
    with tab(tmp_path_factory.mktemp("profile")) as found:
        found.resize(1200, 800)
        yield found


def shown(page: Tab, pair: int) -> None:
    """Wait until a pair can be answered."""
    page.wait_for(f"{READY} && +document.body.dataset.pair === {pair} && answersCount()")


def begin(page: Tab, server: Server) -> None:
    page.open(server.url)
    page.wait_for(READY)
    page.evaluate(f"window.answersCount = () => performance.now() - shown.since > {200}")
    assert page.evaluate("location.hash") == ""


def saved(page: Tab, count: int) -> None:
    page.wait_for(f"queue.length === 0 && +document.body.dataset.saved === {count}")


def text(page: Tab, id: str) -> str:
    return page.evaluate(f"document.getElementById('{id}').innerText")


def test_thirty_labels_by_keys(browser: Tab, tmp_path: Path) -> None:
    keys = ["ArrowLeft", "ArrowRight", "ArrowDown", "s", "ArrowRight"] * 6
    with served(tmp_path) as server:
        begin(browser, server)
        for number, key in enumerate(keys):
            shown(browser, number)
            browser.press(key, repeats=2)  # a held key answers once
        saved(browser, 30)
        # Too early, with a modifier, and a key that means nothing.
        shown(browser, 30)
        browser.evaluate("shown.since = performance.now() + 1e6")
        browser.press("ArrowLeft")
        browser.evaluate("shown.since = 0")
        browser.press("ArrowLeft", modifiers=CTRL)
        browser.press("Backspace")
        saved(browser, 30)
        assert text(browser, "numbers").startswith("30 of 40")
    said = {"ArrowLeft": "left", "ArrowRight": "right", "ArrowDown": "equal", "s": "skip"}
    answers = journal.standing(journal.read(tmp_path / "answers-ann.jsonl"))
    assert [answer.answer for answer in answers] == [said[key] for key in keys]
    assert [answer.pair for answer in answers] == list(range(30))
    assert {answer.clip for answer in answers} == {("lines", "lines")}
    labels = preferences.load(tmp_path / "preferences.jsonl", DATA, LENGTH)
    assert len(labels) == 24
    assert {answer.left for answer in answers} == {0, 1}


def test_undo_by_key_and_by_click(browser: Tab, tmp_path: Path) -> None:
    with served(tmp_path) as server:
        begin(browser, server)
        for number in range(12):
            shown(browser, number)
            browser.press("ArrowLeft")
        saved(browser, 12)
        for count in range(10):  # as fast as they come
            browser.press(*(("z", CTRL) if count % 2 else ("u",)))
        saved(browser, 2)
        shown(browser, 2)
        browser.evaluate("document.querySelector('[data-act=undo]').click()")
        shown(browser, 1)
        browser.press("ArrowRight")
        shown(browser, 2)
        saved(browser, 2)
    records = journal.read(tmp_path / "answers-ann.jsonl")
    assert len(records) == 12 + 11 + 1
    found = journal.standing(records)
    assert [(answer.pair, answer.answer) for answer in found] == [(0, "left"), (1, "right")]


def test_the_server_dies_and_comes_back_without_a_reload(browser: Tab, tmp_path: Path) -> None:
    with served(tmp_path) as server:
        port = server.port
        begin(browser, server)
        browser.evaluate("window.mark = 7")
        browser.wait_for("clips.size >= 6")  # two pairs ahead
        shown(browser, 0)
    browser.press("ArrowLeft")
    shown(browser, 1)
    browser.press("ArrowRight")
    browser.wait_for("document.getElementById('trouble').innerText.includes('not saved yet')")
    assert "2 being saved" in text(browser, "numbers")
    kept = browser.evaluate("localStorage.getItem(place())")
    assert [one["answer"] for one in json.loads(kept)] == ["left", "right"]
    with served(tmp_path, port):
        saved(browser, 2)
        shown(browser, 2)
        assert browser.evaluate("window.mark") == 7
        assert text(browser, "trouble") == ""
    answers = journal.standing(journal.read(tmp_path / "answers-ann.jsonl"))
    assert [answer.answer for answer in answers] == ["left", "right"]


def test_both_canvases_show_the_same_frame_and_nothing_leaves_the_window(
    browser: Tab, tmp_path: Path
) -> None:
    frames = "['left', 'right'].map((side) => document.getElementById(side).dataset.frame)"
    with served(tmp_path) as server:
        begin(browser, server)
        for pair in range(3):  # the clock runs for each of them
            shown(browser, pair)
            seen = set()
            deadline = time.monotonic() + 60
            while len(seen) < LENGTH + 1 and time.monotonic() < deadline:
                left, right = browser.evaluate(frames)
                assert left == right
                seen.add(int(left))
            assert seen == set(range(LENGTH + 1))
            browser.press("ArrowDown")
        shown(browser, 3)
        browser.press(" ")
        before = int(browser.evaluate(frames)[0])
        browser.press(".")
        assert browser.evaluate(frames) == [str((before + 1) % (LENGTH + 1))] * 2
        for _ in range(2):
            browser.press(",")
        assert browser.evaluate(frames) == [str((before - 1) % (LENGTH + 1))] * 2
        assert browser.evaluate(
            "(() => { const [a, b] = ['left', 'right'].map((side) => document.getElementById(side)"
            ".toDataURL()); return a !== b; })()"
        )
        colours = set()
        for width, dark in ((320, True), (700, False), (1200, True)):
            browser.resize(width, 800, dark)
            overflow = "document.documentElement.scrollWidth - window.innerWidth"
            assert browser.evaluate(overflow) <= 0
            colours.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(colours) == 2
        browser.resize(1200, 800)


def test_by_keyboard_alone_with_a_focus_that_is_seen(browser: Tab, tmp_path: Path) -> None:
    with served(tmp_path) as server:
        begin(browser, server)
        shown(browser, 0)
        names = []
        for _ in range(13):
            browser.press("Tab")
            if browser.evaluate("document.activeElement === document.body"):
                continue
            names.append(browser.evaluate("document.activeElement.innerText"))
            width = browser.evaluate("getComputedStyle(document.activeElement).outlineWidth")
            assert width == "3px", names[-1]
        assert [name.split()[0] for name in names[:5]] == [
            "Left",
            "Right",
            "Equally",
            "Skip",
            "Undo",
        ]
        browser.evaluate("document.querySelector('[data-answer=right]').focus()")
        browser.press("Enter")
        shown(browser, 1)
        saved(browser, 1)
        browser.press("?")
        assert browser.evaluate("document.getElementById('help').open")
        browser.press("ArrowLeft")  # the keys mean nothing behind it
        saved(browser, 1)
        browser.evaluate("document.getElementById('help').close()")
    assert [a.answer for a in journal.standing(journal.read(tmp_path / "answers-ann.jsonl"))] == [
        "right"
    ]


def test_pairs_that_end_early_and_a_file_that_opens_the_page(browser: Tab, tmp_path: Path) -> None:
    small = walks(episodes=1, steps=LENGTH + 1)  # two segments, so one pair in each of two lists
    with served(tmp_path, data=small, strategy=Ranked(Segmented(small, LENGTH), 0)) as server:
        door = server.door()
        assert stat.S_IMODE(door.stat().st_mode) == 0o600
        assert server.token not in door.as_uri()
        browser.open(door.as_uri())
        browser.wait_for(f"document.body && {READY}")
        browser.evaluate("window.answersCount = () => performance.now() - shown.since > 200")
        shown(browser, 0)
        browser.press("ArrowLeft")
        browser.wait_for("document.body.dataset.ready === 'done'")
        assert "All pairs are answered" in text(browser, "status")
        assert text(browser, "trouble") == ""


def test_the_last_answer_and_one_that_is_refused(browser: Tab, tmp_path: Path) -> None:
    all_answered = "document.getElementById('status').innerText.startsWith('All pairs are answ')"
    not_kept = "document.getElementById('trouble').innerText.startsWith('An answer was not kept')"
    with served(tmp_path, num_pairs=3) as server:
        begin(browser, server)
        for number in range(3):
            shown(browser, number)
            browser.press("ArrowLeft")
        browser.wait_for(all_answered)
        browser.press("u")
        shown(browser, 2)
        elsewhere = "ask('/api/answer', {...queueOf('right')}).then(() => window.taken = true)"
        browser.evaluate(
            "window.queueOf = (answer) => ({id: crypto.randomUUID(), labeller: state.labeller, "
            "kind: 'answer', ...shown.pair, answer, seconds: 1, loops: 0})"
        )
        browser.evaluate(elsewhere)  # as from another window
        browser.wait_for("window.taken")
        browser.press("ArrowLeft")
        browser.wait_for(f"{all_answered} && {not_kept}")
        browser.press("u")
        shown(browser, 2)
        assert text(browser, "trouble") == ""
        saved(browser, 2)
    (*_, last) = journal.standing(journal.read(tmp_path / "answers-ann.jsonl"))
    assert (last.pair, last.answer) == (1, "left")


def test_without_the_token_the_page_says_what_to_open(browser: Tab, tmp_path: Path) -> None:
    with served(tmp_path) as server:
        browser.open(server.url.split("#")[0] + "#wrong")
        browser.wait_for(
            "document.getElementById('trouble').innerText.includes('open the address')"
        )


@pytest.mark.slow
def test_from_data_to_labels_to_a_policy(browser: Tab, tmp_path: Path) -> None:
    """Sweep, as a person does it: collect, label by keys, train."""

    def command(name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", f"experiments.{name}", *arguments]

    place = f"--data_dir={tmp_path}"
    run = subprocess.run(command("collect", "--task=sweep", "--size=6000", place))
    assert run.returncode == 0
    id = "metaworld/sweep-v3/medium-expert-n6000-seed0-v0"
    label = subprocess.Popen(
        command("label", f"--dataset={id}", place, "--port=0", "--num_pairs=40"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert label.stdout
    try:
        url = next(found[1] for line in label.stdout if (found := re.match(r"open (\S+)", line)))
        browser.open(url)
        browser.wait_for(READY, 120)
        browser.evaluate("window.answersCount = () => performance.now() - shown.since > 200")
        waited = []
        for number in range(30):
            shown(browser, number)
            time.sleep(4)
            assert browser.evaluate("shown.clips.left.info.source") == "re-simulated"
            browser.press(["ArrowLeft", "ArrowRight", "ArrowDown"][number % 3])
            began = time.monotonic()
            browser.wait_for(f"{READY} && +document.body.dataset.pair === {number + 1}", 60)
            waited.append(time.monotonic() - began)
        saved(browser, 30)
    finally:
        label.send_signal(signal.SIGINT)
        rest = label.communicate(timeout=60)[0]
    print(f"the next pair is there after {sorted(waited)[15]:.3f} s, at most {max(waited):.3f} s")
    print(rest)
    labels = tmp_path / "labels" / id / "preferences.jsonl"
    assert len(labels.read_text().splitlines()) > 25
    trained = subprocess.run(
        command(
            *("train", "--task=sweep", f"--dataset={id}", place, f"--preferences={labels}"),
            *("--num_updates=200", "--eval_interval=200", "--eval_episodes=1"),
            *("--reward_num_epochs=20", "--hidden_dim=16", f"--workdir={tmp_path / 'run'}"),
        ),
        capture_output=True,
        text=True,
    )
    assert trained.returncode == 0, trained.stderr
    count = len(labels.read_text().splitlines()) - 1
    assert f"labels: {count} pairs" in trained.stdout
    print(trained.stdout)
