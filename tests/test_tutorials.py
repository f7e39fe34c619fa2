"""The pages that are programs, carried out as they stand."""

from pathlib import Path

import pytest

from tests.helpers.pages import FULL_SIZE, PROGRAMS, TUTORIALS, blocks, carry_out, read_flags

each_page = pytest.mark.parametrize("page", PROGRAMS, ids=[page.stem for page in PROGRAMS])
LONG = {"reproduce_a_row", "own_data"}  # of commands that other tests call with such flags


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one to work in, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def all_but_full_size(page: Path) -> list[str]:
    return [block.where for block in blocks(page) if not block.caption.startswith(FULL_SIZE)]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in LONG))
        for page in PROGRAMS
    ],
)
def test_in_this_process(page: Path) -> None:
    assert carry_out(page) == all_but_full_size(page)


@pytest.mark.parametrize("name", sorted(LONG))
def test_flags(name: str) -> None:
    (page,) = [page for page in PROGRAMS if page.stem == name]
    assert read_flags(page) >= 3


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@each_page
def test_as_it_is_typed(page: Path) -> None:
    assert carry_out(page, as_processes=True) == all_but_full_size(page)


def test_every_tutorial_shows_the_full_size() -> None:
    assert len(TUTORIALS) == 3
    for page in TUTORIALS:
        assert any(block.caption.startswith(FULL_SIZE) for block in blocks(page)), page


@each_page
def test_no_block_is_passed_over(page: Path) -> None:
    assert page.read_text().count("\n```") == 2 * len(blocks(page))


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "1"),
        ("```python\nnothing\n```\n", "nothing"),
        ("```bash\nls\n```\n", "ls"),
        ("```bash\npython -m experiments.train --nothing=1\n```\n", "nothing"),
        ("```json\n{}\n```\n", "json"),
    ],
)
def test_what_is_wrong_fails(block: str, problem: str, folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(block)
    with pytest.raises(Exception, match=problem):
        carry_out(page)
