"""Environments in processes of their own: the same as here, and what happens when one is lost."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import Pipe

import numpy as np
import pytest

from appo_jax.collect.stepping import Steppers, _serve, steppers
from appo_jax.envs.environment import Environment
from appo_jax.types import InputError


def test_each_steps_as_it_would_here(hoppers: Steppers) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 2, 3)).astype(np.float32)
    assert (hoppers.observation_dim, hoppers.action_dim) == (11, 3)
    here = [Environment("Hopper-v5") for _ in range(2)]
    for index, env in enumerate(here):
        np.testing.assert_array_equal(hoppers.reset(index, 7 + index), env.reset(7 + index))
    for step in actions:
        hoppers.begin(step)
        for outcome, env, action in zip(hoppers.end(), here, step, strict=True):
            expected = env.step(action)
            np.testing.assert_array_equal(outcome.observation, expected.observation)
            assert outcome[1:] == expected[1:]


def test_a_bad_name_is_the_callers_error(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(InputError, match="'Nothing-v0' is no Meta-World task"),
        steppers("Nothing-v0", 2),
    ):
        pass
    assert capfd.readouterr().err == ""  # the second process finds nobody to tell


def test_a_process_ends_in_silence_with_its_parent() -> None:
    ours, theirs = Pipe()
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(_serve, theirs, "Pendulum-v1")
        assert ours.poll(60)
        ours.close()  # with something in it that nobody read: the other end is reset
        assert served.result(60) is None


def test_a_failing_environment_tells_why() -> None:
    with steppers("Pendulum-v1", 1) as running:
        running.reset(0, 0)
        with pytest.raises(InputError, match="'Pendulum-v1' failed at step 1 .*reshape"):
            running.step(0, np.zeros(7, np.float32))


def test_a_lost_process_is_told() -> None:
    with steppers("Pendulum-v1", 2) as running:
        running.reset(0, 0)
        running.reset(1, 0)
        lost = running._processes[1].pid
        assert lost
        os.kill(lost, signal.SIGKILL)
        running._processes[1].join()
        with pytest.raises(BrokenProcessPool):
            running.step(1, np.zeros(1, np.float32))
        assert running.step(0, np.zeros(1, np.float32)).reward <= 0  # the other one is there
