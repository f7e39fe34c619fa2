"""The report as a whole: what it shows of folders in every state, and the page in a browser."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from appo_jax.types import InputError
from experiments.reporting import page, report, videos
from experiments.reporting.page import Section
from experiments.runs import results
from experiments.sweeps import plan
from tests.helpers import sweeps
from tests.helpers.browser import opened

TASKS = ["sweep", "dial-turn"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep with its report: runs of every state beside what is none of ours."""
    workdir = tmp_path_factory.mktemp("sweep")
    wanted = sweeps.of_flags(
        algorithm=["appo", "mr", "oracle"],
        dataset="medium-replay",
        task=TASKS,
        num_feedback=[500, 1000],
        num_seeds=3,
        num_updates=50_000,
    )
    folders = sweeps.write(
        wanted,
        workdir,
        lambda run: (
            None
            if (run.algorithm, run.env_name, run.seed) == ("mr", "sweep-v3", 1)
            else 40.0 + 10 * (run.algorithm == "appo") + run.seed
        ),
    )
    plan.write(workdir, "made", "Made up <b>&</b> small.", wanted)
    whole = folders[0]
    for name in ("damaged", "half-written", "foreign", "<img src=x>", "empty"):
        (workdir / name).mkdir()
    config = (whole / "config.json").read_text()
    (workdir / "damaged" / "config.json").write_text(config[: len(config) // 2])
    (workdir / "foreign" / "config.json").write_text('{"model": "resnet", "runs": 3}')
    (workdir / "<img src=x>" / "config.json").write_text("[]")
    (workdir / "half-written" / "config.json").write_text(
        config.replace('"num_updates": 50000', '"num_updates": 60000')
    )
    metrics = (whole / "metrics.csv").read_text()
    (workdir / "half-written" / "metrics.csv").write_text(metrics[: len(metrics) // 3])
    assert report.build([workdir], workdir / "report") == workdir / "report" / "index.html"
    return workdir


def text_of(built: Path) -> str:
    return re.sub(r"\s+", " ", (built / "report" / "index.html").read_text())


def test_writes_tables_figures_and_the_page(built: Path) -> None:
    found = {path.name for path in (built / "report").iterdir()}
    assert found == {
        *("index.html", "tables.md", "tables.tex", "results.csv", "published.csv", "runs.csv"),
        "figures",
    }
    figures = {path.name for path in (built / "report" / "figures").iterdir()}
    for name in ("curve-sweep-medium-replay-500", "ranks-medium-replay", "labels-dial-turn"):
        assert {f"{name}.png", f"{name}.pdf"} <= figures
    rows = list(csv.DictReader((built / "report" / "runs.csv").open()))
    assert json.loads(rows[0]["settings"])["num_updates"] == 50_000


def test_shows_what_is_no_whole_run(built: Path) -> None:
    page = text_of(built)
    assert f"{built}/damaged/config.json: not JSON" in page
    assert f"{built}/empty: holds no run" in page
    assert page.count("its config.json is not from a run") == 2
    assert f"<li>{built}/foreign: its config.json" in page  # and no flag that reports lack
    assert "<img" not in page
    assert "/&lt;img src=x&gt;: " in page
    assert "Made up &lt;b&gt;" in page
    # Cut short: further updates than were made, in a column of its own.
    assert "appo, num_updates 60000" in page
    assert "under way, " in page
    assert "mr on sweep-v3, 500 labels, seed 1, num_updates 50000: not begun" in page


def test_means_over_fewer_seeds_say_so(built: Path) -> None:
    table = (built / "report" / "tables.md").read_text()
    assert "41.0 ± 1.4 (2 of 3 seeds)" in table
    assert "51.0 ± 1.0" in table
    assert "seeds on, returns of several tasks never" not in text_of(built)


def test_published_numbers_keep_to_their_column(built: Path) -> None:
    page = text_of(built)
    printed = "87.0 ± 6.9"  # the paper's, of MR on sweep
    assert printed in page
    ours = page[page.index('id="results"') : page.index('id="published-numbers"')]
    assert printed not in ours
    rows = list(csv.DictReader((built / "report" / "published.csv").open()))
    assert {row["paper_source"] for row in rows} == {"paper", "paper, copied from LiRE"}


def test_needs_no_network(built: Path) -> None:
    page = (built / "report" / "index.html").read_text()
    namespaces = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
    for name in namespaces:
        page = page.replace(f'="{name}"', "")
    assert "http" not in page
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\((?!#)", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="#([^"]+)"', page):
        assert target in set(ids)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, False), (360, True)])
def test_in_a_browser(built: Path, tmp_path: Path, width: int, dark: bool) -> None:
    found = json.loads(
        opened(
            built / "report" / "index.html",
            tmp_path,
            """
            const svg = document.querySelector('figure svg');
            const text = document.querySelector('figcaption');
            const style = (element, name) => window.getComputedStyle(element)[name];
            return JSON.stringify({
                width: document.documentElement.scrollWidth,
                figures: [...document.querySelectorAll('figure svg')].every(
                    one => one.getBoundingClientRect().width > 100
                        && one.getBoundingClientRect().right <= window.innerWidth),
                number: document.querySelectorAll('figure svg').length,
                back: style(document.body, 'backgroundColor'),
                ink: style(document.body, 'color'),
                axis: style([...svg.querySelectorAll('path')].find(
                    one => one.getAttribute('style')?.includes('currentColor')), 'stroke'),
                small: Math.min(...[...document.querySelectorAll('p, td, figcaption')].map(
                    one => parseFloat(style(one, 'fontSize')))),
            });
            """,
            width,
            dark,
        )
    )
    assert found["width"] <= width  # tables scroll inside, the page doesn't
    assert found["number"] >= 10
    assert found["figures"]
    assert found["small"] >= 12
    back, ink = (sum(map(int, re.findall(r"\d+", found[name])[:3])) / 3 for name in ("back", "ink"))
    assert (back < 40 and ink > 200) if dark else (back > 240 and ink < 60)


def test_rebuilt_from_runs_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps.not_drawn(monkeypatch)
    wanted = sweeps.of_flags(algorithm="appo", dataset="medium-replay", task="sweep", num_seeds=2)
    folder = sweeps.write(wanted, tmp_path / "runs", lambda _: 60.0, share=0.1)[0]
    with (folder / "metrics.csv").open("a") as file:
        file.write("0,30000,eval,eval/succ")  # a writer is at work
    page = report.build([tmp_path], tmp_path / "report").read_text()
    assert "2 runs: 2 under way." in page
    assert "25,000 of 250,000 updates" in page
    assert "0 of 2 seeds" in page
    assert "curve-sweep-medium-replay-1000" in page
    shutil.rmtree(folder)
    sweeps.write(wanted, tmp_path / "runs", lambda _: 60.0)
    page = report.build([tmp_path], tmp_path / "report").read_text()
    assert "2 runs: 2 finished." in page
    assert "60.0 ± 0.0" in page
    assert "with one such task from 3 seeds on" in page


def test_bad_places_are_named(tmp_path: Path) -> None:
    runs, output = tmp_path / "runs", tmp_path / "report"
    with pytest.raises(InputError, match=r"--runs=.*runs: no folder, expected one that holds runs"):
        report.build([runs], output)
    runs.mkdir()
    with pytest.raises(InputError, match=r"^--runs=.*runs: no run can be read, expected folders o"):
        report.build([runs], output)
    (runs / "sweep.json").write_text('{"runs": [{"digest": "x"}]}')
    with pytest.raises(
        InputError, match=r"no run can be read \(.*sweep.json: not the plan of a sweep \(KeyError"
    ):
        report.build([runs], output)
    assert not output.exists()


def test_a_sweep_that_has_just_begun(tmp_path: Path) -> None:
    wanted = sweeps.of_flags(algorithm="appo", dataset="medium-replay", task="sweep")
    plan.write(tmp_path, "made", "", wanted)
    (tmp_path / "jobs").mkdir()  # submitit's
    (tmp_path / "empty").mkdir()
    page = report.build([tmp_path], tmp_path / "report", {one.key for one in wanted}).read_text()
    assert "1 run: 1 not begun." in page
    assert "empty: holds no run" in page
    assert "jobs: holds no run" not in page


def test_a_video_of_each_task(tmp_path: Path) -> None:
    wanted = sweeps.of_flags(algorithm="bc", dataset="medium-replay", task=TASKS, num_seeds=2)
    (folder,) = sweeps.write(wanted, tmp_path, lambda _: 50.0)
    (folder / "video-1.gif").write_bytes(b"GIF89a, of the first task")
    for run in (0, 2):  # of the first task, of the second
        (folder / f"video-{run}.mp4").write_bytes(b"video %d" % run)
    runs = results.read_all([tmp_path])[0]
    found, notes = videos.of_runs(runs)
    assert [one.caption.split(",")[0] for one in found] == ["bc on sweep-v3", "bc on dial-turn-v3"]
    assert not any(one.is_gif for one in found)
    assert not notes
    html = page.render("", [], "", "", [], [Section("Videos", videos=found)])
    assert html.count('<video src="data:video/mp4;base64,dmlkZW8g') == 2
    (folder / "video-0.mp4").unlink()
    (folder / "video-2.mp4").write_bytes(bytes(2**23))
    found, (note,) = videos.of_runs(runs)
    assert [one.is_gif for one in found] == [True]
    assert note.endswith(
        "video-2.mp4: 8.0 MiB, more than the 4 that the page takes; fewer --epi"
        "sodes make a shorter one"
    )
    assert '<img src="data:image/gif;base64,' in page.render(
        "", [], "", "", [], [Section("Videos", videos=found)]
    )
