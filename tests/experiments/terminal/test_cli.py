"""How the commands end, what they say of flags, and their help."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import pytest
from absl import flags

import experiments
from appo_jax.types import InputError
from experiments.runs.compiled import use_compilation_cache
from experiments.terminal.cli import help_text, naming, parse_flags

# A command of which each copy ends in another way; all share the time that importing takes.
_ENDINGS = '''
"""About a command."""
import atexit, os, signal, sys
import jax
from concurrent.futures.process import BrokenProcessPool
from absl import flags
from appo_jax.types import Diverged, InputError
from experiments.terminal.cli import run
from experiments.runs.signals import Stopped

def main(values):
    print("begins")
    if values.ending == "letters":
        print("\u00e4", file=sys.stdout)
        return
    if values.ending == "figure":
        import matplotlib.figure
        return
    if values.ending in ("stopped", "interrupt", "late"):  # a signal while it tidies up
        atexit.register(signal.raise_signal, signal.SIGINT)
    if values.ending == "late":
        return
    if values.ending == "device":
        jax.config.update("jax_platforms", "nothing")
    if values.ending:
        raise {
            "input": InputError("--size: 3, expected 4"),
            "diverged": Diverged("run 2: not finite"),
            "disk": OSError(28, "No space left on device"),
            "stopped": Stopped(signal.SIGTERM, "update 5"),
            "interrupt": KeyboardInterrupt(),
            "pool": BrokenProcessPool(),
            "memory": RuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
            "array": MemoryError(),
            "device": RuntimeError("no backend"),
            "bug": ZeroDivisionError("a bug"),
        }[values.ending]

def define_flags(values, argv):
    if "--ending=early" in argv:
        raise InputError("--ending: early, expected another")
    flags.DEFINE_string("ending", None, "how it ends", flag_values=values, module_name="endings")
    flags.DEFINE_integer("runs_per_group", 0, "", flag_values=values, module_name="endings")

for ending in sys.argv[1:]:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        sys.argv = ["command", *([f"--ending={ending}"] if ending != "none" else [])]
        os.dup2(1, 2)
        run(main, define_flags, lambda values: f"{values.ending} is kept")
    print(f"= {ending} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
'''


@pytest.fixture(scope="module")
def ends() -> dict[str, tuple[int, list[str]]]:
    """Exit code and lines of each copy."""
    names = ["none", "input", "diverged", "disk", "stopped", "interrupt", "pool", "early", "bug"]
    names += ["memory", "array", "device", "letters", "figure", "late"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ENDINGS, *names],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "MPLBACKEND": "nothing"},
    )
    found, lines = {}, []
    for line in done.stdout.splitlines():
        if line.startswith("= "):
            _, name, code = line.split()
            found[name], lines = (int(code), lines), []
        else:
            lines.append(line)
    return found


@pytest.mark.parametrize(
    ("name", "code", "last"),
    [
        ("none", 0, "begins"),
        ("input", 1, "error: --size: 3, expected 4"),
        ("diverged", 1, "error: run 2: not finite"),
        ("disk", 1, "error: [Errno 28] No space left on device; disk is kept"),
        ("stopped", 130, "stopped by SIGTERM at update 5; the same command goes on from there"),
        ("interrupt", 130, "interrupted; interrupt is kept"),
        ("figure", 0, "begins"),
        (
            *("pool", 1),
            "error: a worker process died (killed, or out of memory); pool is kept",
        ),
        (
            *("memory", 1),
            "error: out of memory (RESOURCE_EXHAUSTED: Out of memory), expected smaller settings "
            "(--batch_size, ...) or fewer runs at once (--runs_per_group)",
        ),
        (
            *("array", 1),
            "error: out of memory (MemoryError), expected smaller settings (--batch_size, ...) or "
            "fewer runs at once (--runs_per_group)",
        ),
    ],
)
def test_endings(ends: dict[str, tuple[int, list[str]]], name: str, code: int, last: str) -> None:
    assert ends[name] == (code, ["begins", last] if code else ["begins"])


def test_a_signal_after_the_work_ends_it_without_a_word(
    ends: dict[str, tuple[int, list[str]]],
) -> None:
    assert ends["late"] == (130, ["begins"])


def test_a_command_may_end_while_its_flags_are_defined(
    ends: dict[str, tuple[int, list[str]]],
) -> None:
    assert ends["early"] == (1, ["error: --ending: early, expected another"])


def test_a_bug_keeps_its_traceback(ends: dict[str, tuple[int, list[str]]]) -> None:
    code, lines = ends["bug"]
    assert code == 1
    assert any("Traceback" in line for line in lines)
    assert lines[-1] == "ZeroDivisionError: a bug"


def defined() -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_integer(
        "size", None, "steps, " + "many of them " * 9, flag_values=values, module_name="sets"
    )
    flags.DEFINE_enum("kind", "a", ["a", "b"], "which", flag_values=values, module_name="sets")
    flags.DEFINE_float("rate", 0.5, "speed", flag_values=values, module_name="only b")
    flags.DEFINE_bool("theirs", False, "a library's", flag_values=values, module_name="absl.app")
    return values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size=many"], "^--size=many: .*, expected: steps, many of them"),
        (["--kind=c"], "^--kind=c: value should be one of <a|b>$"),
        (["--siez=3"], "^Unknown command line flag 'siez'. Did you mean: size"),
        (["--rate_of_all=3"], "^Unknown command line flag 'rate_of_all'. Did you mean: rate \\?$"),
        (["--ki=a"], "^Unknown command line flag 'ki'. Did you mean: kind \\?$"),
        (["--theirs_too"], "^Unknown command line flag 'theirs_too'"),
        (["--x=3"], "^Unknown command line flag 'x'$"),
        (["size"], "^found 'size' after the flags, expected flags only"),
        (["--size=two\nlines"], "^--size=two lines: "),
    ],
)
def test_bad_flags(arguments: Sequence[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_flags(defined(), ["command", *arguments])


def test_help_has_the_groups_in_order_and_no_library(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_flags(defined(), ["command", "--kind=c", "--help"], "About it.")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert printed == f"About it.\n\n{help_text(defined())}\n"
    lines = printed.splitlines()
    assert max(len(line) for line in lines) <= 100
    first_words = [line.split()[0] for line in lines[2:] if line and line[:3] != "   "]
    assert first_words == ["sets:", "--size", "--kind=a", "only", "--rate=0.5", "--helpfull"]
    assert "theirs" not in printed


def test_help_that_nobody_reads_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(SystemExit) as ended:
            parse_flags(defined(), ["command", "--help"])
    assert ended.value.code == 0


def test_every_command_is_ended_so() -> None:
    commands = [p for p in Path(experiments.__file__).parent.glob("*.py") if p.stem != "__init__"]
    assert len(commands) > 10
    for path in commands:
        last = ast.unparse(ast.parse(path.read_text()).body[-1])
        ran = r"if __name__ == '__main__':\n    (cli\.)?run\(main, define_flags\b"
        assert re.match(ran, last), path


def test_naming() -> None:
    with pytest.raises(InputError, match="^--size: is 3$"), naming("size"):
        raise InputError("is 3")


def test_a_device_that_is_not_there(ends: dict[str, tuple[int, list[str]]]) -> None:
    code, lines = ends["device"]
    assert (code, len(lines)) == (1, 2)
    assert lines[-1].startswith("error: JAX_PLATFORMS=nothing: no such device (")


def test_letters_that_the_stream_has_not(ends: dict[str, tuple[int, list[str]]]) -> None:
    assert ends["letters"] == (0, ["begins", "\\xe4"])


def test_without_a_home_folder_no_program_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        use_compilation_cache()
        assert jax.config.values["jax_compilation_cache_dir"] is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_closed_streams_lead_nowhere() -> None:
    code = "import os, sys, experiments; print(1, file=sys.stderr, flush=True); "
    code += "sys.stdout.flush(); os._exit(os.open('.', 0) < 3)"
    command = f'exec "{sys.executable}" -c "{code}" >&- 2>&-'
    subprocess.run(["sh", "-c", command], check=True, cwd=os.getcwd(), timeout=60)
