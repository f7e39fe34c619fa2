"""The graphics library is found by trying."""

import os
import subprocess

import pytest

from appo_jax.types import InputError
from experiments.rendering import graphics


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No choice from before, and none of the surroundings."""
    graphics._choose.cache_clear()
    monkeypatch.delenv(graphics.VARIABLE, raising=False)


def test_where_none_draws_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphics, "LIBRARIES", ("disable",))
    with pytest.raises(InputError, match=r"^nothing can draw here \(disable: .*apt-get install"):
        graphics.choose()


def test_the_one_that_is_set_is_the_only_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(graphics.VARIABLE, "metal")
    with pytest.raises(
        InputError,
        match=r"^MUJOCO_GL=metal can't draw \(metal: RuntimeError: invalid value .*expected: anot",
    ):
        graphics.choose()
    assert os.environ[graphics.VARIABLE] == "metal"


def test_a_library_that_ends_the_process_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphics, "_PROBE", "/dev/stdin")
    assert graphics._why_not("egl") is None  # an empty script
    killed = subprocess.CompletedProcess([], -11, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    assert graphics._why_not("egl") == "ended by SIGSEGV"
