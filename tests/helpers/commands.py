"""Commands in the tests' own process."""

from types import ModuleType

from absl import flags


def call(command: ModuleType, *arguments: object) -> None:
    """What `python -m experiments.<command>` does with these arguments; its flags are its own."""
    values, line = flags.FlagValues(), [command.__name__, *map(str, arguments)]
    command.define_flags(values, line)
    values(line)
    command.main(values)
