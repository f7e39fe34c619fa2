"""Pages of the documentation as programs: their blocks are carried out in order, as they stand.

What a block is, readers see as well: `python` is run, all blocks of a page in one program; `bash`
are commands of ours, a line each; a block whose caption is a file's name is that file; `text` is
what the block before it prints, where `...` stands for anything. What has a caption that begins
with `Full size` takes long: of its commands only the flags are read.
"""

import contextlib
import dataclasses
import doctest
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from experiments.terminal import cli

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PROGRAMS = [
    *TUTORIALS,
    *(ROOT / "docs" / f"{name}.md" for name in ("adding_other_parts", "small_tasks")),
]
FULL_SIZE = "Full size"
_BLOCK = re.compile(
    r"^```(?:\{code-block\} )?(?P<language>\w+)\n(?::caption: (?P<caption>[^\n]*)\n\n?)?"
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CHECKER = doctest.OutputChecker()


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code: its language, its caption or "", what it holds, and where it is."""

    language: str
    caption: str
    text: str
    where: str

    @property
    def lines(self) -> list[str]:
        """Its lines; one that goes on behind a backslash is one."""
        return self.text.replace("\\\n", " ").splitlines()


def blocks(page: Path) -> list[Block]:
    """All blocks of a page."""
    content = page.read_text()
    return [
        Block(
            found["language"],
            found["caption"] or "",
            found["text"],
            f"{page.name} line {content.count(chr(10), 0, found.start()) + 1}",
        )
        for found in _BLOCK.finditer(content)
    ]


def read_flags(page: Path) -> int:
    """Read the flags of all commands of a page, and run none; how many there were."""
    lines = [line for block in blocks(page) if block.language == "bash" for line in block.lines]
    for line in lines:
        _parsed(shlex.split(line))
    return len(lines)


def carry_out(page: Path, as_processes: bool = False) -> list[str]:
    """Run a page in the current folder, which holds nothing yet; where its blocks were that ran.

    as_processes: commands are processes, as users type them, and not calls of this one.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    ran, printed = [], ""
    for block in blocks(page):
        if block.caption.startswith(FULL_SIZE):
            for line in block.lines:
                _parsed(shlex.split(line))
            continue
        if block.caption:
            Path(block.caption).write_text(block.text)
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(block.text, block.where, "exec"), names)
            printed = stream.getvalue()
        elif block.language == "bash":
            run = _process if as_processes else _call
            printed = "".join(run(shlex.split(line)) for line in block.lines)
        elif block.language == "text":
            options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert _CHECKER.check_output(block.text, printed, options), (block.where, printed)
        else:
            raise AssertionError(f"{block.where}: {block.language}, which nobody runs")
        ran.append(block.where)
    return ran


def _process(words: list[str]) -> str:
    assert words[:2] == ["python", "-m"], words
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH')}"}
    command = [sys.executable, *words[1:]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _call(words: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        try:
            main, values = _parsed(words)
            main(values)
        except SystemExit as end:
            if end.code:  # 0: --help
                raise
    return stream.getvalue()


def _parsed(words: list[str]) -> tuple[Callable[[flags.FlagValues], None], flags.FlagValues]:
    """The function of a command, and its flags."""
    assert words[:2] == ["python", "-m"], words
    for name, loaded in list(sys.modules.items()):  # a process would read the page's files anew
        if Path(getattr(loaded, "__file__", None) or "/").parent == Path.cwd():
            del sys.modules[name]
    module, values = importlib.import_module(words[2]), flags.FlagValues()
    module.define_flags(values, words[2:])
    cli.parse_flags(values, words[2:])
    return module.main, values
