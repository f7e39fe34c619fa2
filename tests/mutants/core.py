"""How the mutants of tests/mutants/test_properties.py are made and run."""

import collections
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from appo_jax.types import InputError

Draw = Callable[[st.SearchStrategy], Any]
Outcome = tuple[Any, str | None]


def outcome(call: Callable[[], Any], *names: str) -> Outcome:
    """What a call returns, or its refusal: one line that holds one of `names`; nothing else."""
    began = time.monotonic()
    try:
        return call(), None
    except InputError as error:
        message = str(error)
        assert len(message.splitlines()) == 1, message
        assert any(name in message for name in names), message
        return None, message
    finally:
        assert time.monotonic() - began < 20


def pick(draw: Draw, values: Sequence[Any]) -> Any:
    return draw(st.sampled_from(values))


def mutate_bytes(draw: Draw, content: bytes) -> bytes:
    mutated = bytearray(content)
    match pick(draw, ("flip", "flip", "flip", "cut", "insert", "empty")):
        case "cut":
            del mutated[draw(st.integers(0, len(content))) :]
        case "insert":
            place = draw(st.integers(0, len(content)))
            mutated[place:place] = draw(st.binary(max_size=9))
        case "empty":
            mutated.clear()
        case "flip" if content:
            for _ in range(draw(st.integers(1, 4))):
                # Half of them near the beginning, where a format says what it is.
                end = len(content) if draw(st.booleans()) else min(300, len(content))
                mutated[draw(st.integers(0, end - 1))] = draw(st.integers(0, 255))
    return bytes(mutated)


JSON_VALUES = (
    None,
    True,
    -1,
    0,
    2,
    4,
    12,
    10**13,
    0.5,
    "",
    "text",
    "two\nlines",
    [],
    [1],
    {},
    "[]",
)


def run(
    mutant: Callable[[Draw, Path, Path], str], count: int, shared: Path
) -> collections.Counter[str]:
    """Make `count` mutants, always the same; how they ended.

    Each gets an empty folder, and one in which it may leave what all can use.
    """
    ends: collections.Counter[str] = collections.Counter()

    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def each(data: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ends[mutant(data.draw, Path(folder), shared)] += 1

    each()
    return ends
