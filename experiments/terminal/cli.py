"""What the commands share: flags, exit codes, and errors that are one sentence."""

import contextlib
import io
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import jax
from absl import app, flags, logging

from appo_jax.types import Diverged, InputError, first_line
from experiments.runs import signals

GOES_ON = "the same command goes on from what is on disk"
ALL_CORES = "all cores of this machine"  # of `available_cores`, for a person
_HELP_COLUMN = 35  # at which a flag's description begins in `--help`


def run(
    main: Callable[[flags.FlagValues], None],
    define_flags: Callable[[flags.FlagValues, Sequence[str]], None],
    kept: str | Callable[[flags.FlagValues], str] = GOES_ON,
) -> None:
    """Define the flags, parse them, and call `main`; the process ends with its exit code.

    define_flags: gets the flags to add to, and the command line, on which they may depend.
    kept: what the user has after an interruption or a full disk, or a function of the flags that
        says it.
    Status 0 after success, 1 after an error, 128 + the number of a signal that stopped the work.
    """

    def parse(argv: Sequence[str]) -> list[str]:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see experiments/__init__.py
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            define_flags(flags.FLAGS, argv)
            return parse_flags(flags.FLAGS, argv, (main.__globals__["__doc__"] or "").strip())
        except InputError as error:
            sys.exit(f"error: {error}")

    def what_is_kept() -> str:
        return kept if isinstance(kept, str) else kept(flags.FLAGS)

    def guarded(_: Sequence[str]) -> None:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # Orbax tells of every file it touches
        # To the process of Python that tidies up after those that were ended at once.
        sys.warnoptions.append("ignore:resource_tracker:UserWarning")
        # Figures go to files; Matplotlib falls over the name of a backend that it hasn't.
        os.environ.pop("MPLBACKEND", None)
        try:
            try:
                main(flags.FLAGS)
            finally:
                signals.end_at_once()
        except (InputError, Diverged) as error:
            sys.exit(f"error: {error}")
        except OSError as error:  # a full disk, above all
            sys.exit(f"error: {error}; {what_is_kept()}")
        except signals.Stopped as stopped:
            print(stopped, file=sys.stderr)
            sys.exit(stopped.exit_code)
        except KeyboardInterrupt:
            print(f"interrupted; {what_is_kept()}", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        except BrokenProcessPool:
            sys.exit(f"error: a worker process died (killed, or out of memory); {what_is_kept()}")
        except Exception as error:
            reason = _of_the_machine(error)
            if reason is None:
                raise
            sys.exit(f"error: {reason}")

    if isinstance(sys.stdout, io.TextIOWrapper):
        # A pipe or a file shows lines at once, too; a path may hold what the stream's code can't.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    app.run(guarded, flags_parser=parse)


def _of_the_machine(error: Exception) -> str | None:
    """What the machine lacks where that is why, else None."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        less = "a smaller task"
        if "runs_per_group" in flags.FLAGS:
            less = "smaller settings (--batch_size, ...) or fewer runs at once (--runs_per_group)"
        return f"out of memory ({first_line(error)}), expected {less}"
    try:
        jax.devices()
    except Exception as no_device:  # depends on the platform
        return (
            f"JAX_PLATFORMS={jax.config.values['jax_platforms']}: no such device "
            f"({first_line(no_device)}), expected one of this machine, or the variable left out"
        )
    return None


def parse_flags(values: flags.FlagValues, argv: Sequence[str], about: str = "") -> list[str]:
    """Parse the command line. Raises InputError for a flag that can't be; `--help` exits."""
    if any(word in ("--help", "-help", "-h") for word in argv[1:]):
        try:
            print(f"{about}\n\n{help_text(values)}", flush=True)
        except BrokenPipeError:  # `--help | head`; what is left would be written at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    try:
        rest = values(argv)
    except flags.Error as error:
        named = re.match(r"flag --(\w+)=", str(error))
        expected = f", expected: {values[named.group(1)].help}" if named else ""
        if re.search(r"should be one of|, expected ", str(error)):  # says it already
            expected = ""
        if isinstance(error, flags.UnrecognizedFlagError) and "Did you mean" not in str(error):
            expected = _begun_alike(values, error.flagname)
        raise InputError(f"{str(error).removeprefix('flag ')}{expected}") from error
    if rest[1:]:
        raise InputError(
            f"found {' '.join(rest[1:])!r} after the flags, expected flags only (--name=value)"
        )
    return rest


def _begun_alike(values: flags.FlagValues, name: str) -> str:
    """A hint at flags of which the name is the beginning, or that it begins with."""
    alike = [
        flag.name
        for group, members in values.flags_by_module_dict().items()
        if group not in sys.modules
        for flag in members
        if len(name) > 1 and (name.startswith(flag.name) or flag.name.startswith(name))
    ]
    return f". Did you mean: {', '.join(alike)} ?" if alike else ""


def help_text(values: flags.FlagValues) -> str:
    """All flags of the project, under the groups that they were defined in, in that order.

    A flag's group is the module name that it was registered with. Libraries register their flags
    under real modules, and theirs are left out.
    """
    lines = []
    for group, members in values.flags_by_module_dict().items():
        if group in sys.modules:
            continue
        lines.append(f"{group}:")
        for flag in members:
            default = (flag.default_as_str or "").strip("'")
            shown = f"  --{flag.name}={default}" if default else f"  --{flag.name}"
            if len(shown) >= _HELP_COLUMN:
                lines.append(shown)
                shown = ""
            text = textwrap.fill(
                " ".join((flag.help or "").split()),
                width=100,
                initial_indent=f"{shown:<{_HELP_COLUMN}}",
                subsequent_indent=" " * _HELP_COLUMN,
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines.append(text)
        lines.append("")
    return "\n".join([*lines, "--helpfull shows JAX's and absl's own too."])


@contextlib.contextmanager
def naming(flag: str) -> Iterator[None]:
    """Put the flag's name before the message of an InputError of the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"--{flag}: {error}") from error


def output_file(path: str | None) -> Path | None:
    """What `--output` names, to ask before long work. Raises InputError for no place of a file."""
    if not path:
        return None
    file = Path(path)
    if not file.parent.is_dir():
        raise InputError(f"--output: no folder {file.parent}, expected one that exists")
    if file.exists() and not file.is_file():
        kind = "a folder" if file.is_dir() else "a device or a pipe"
        raise InputError(f"--output: {file} is {kind}, expected a file")
    if not os.access(file.parent, os.W_OK):
        raise InputError(f"--output: {file.parent} can't be written to, expected a folder that can")
    return file
