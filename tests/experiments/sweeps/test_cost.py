"""What a sweep costs."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from appo_jax import registry
from experiments.runs.groups import Slots
from experiments.sweeps import cost, plan
from experiments.sweeps.cost import Program, Rates
from experiments.sweeps.plan import Grid
from tests.helpers import sweeps

MIB = 2**20
RATES = Rates(
    policy=Program(seconds=0.02, compiling=8, bytes=2 * MIB),
    rewards={500: Program(0.1, 4, MIB), 1000: Program(0.2, 4, 3 * MIB)},
    episodes={"sweep-v3": 0.1},
)


def grid(tmp_path: Path, **flags: object) -> Grid:
    common = {"dataset": "medium-replay", "task": "sweep", "num_updates": 10_000, "num_seeds": 2}
    (found,) = plan.make(sweeps.of_flags(**{**common, **flags}), tmp_path).grids
    return dataclasses.replace(found, execution=dataclasses.replace(found.execution, num_workers=2))


def test_time_on_a_cpu(tmp_path: Path) -> None:
    one = grid(tmp_path, algorithm="appo", num_feedback=[500, 1000])
    found = cost.of_grid(one, RATES, cores=4, is_cpu=True)
    # Four runs of 10,000 updates; a fit is 300 epochs, of one batch and of two; of 3 x 50 episodes
    # for each run the workers' half of the cores is taken from training; three programs.
    training, evaluating = 4 * 10_000 * 0.02, 4 * 3 * 50 * 0.1 / 2
    fitting = 2 * (300 * 0.1 + 600 * 0.2)
    assert found.seconds == pytest.approx(training + evaluating + fitting + 16)


def test_time_beside_an_accelerator_is_the_slower_one_s(tmp_path: Path) -> None:
    one = grid(tmp_path, algorithm="appo", num_feedback=500)
    rates = dataclasses.replace(RATES, rewards={500: RATES.rewards[500]})
    slow = dataclasses.replace(rates, episodes={"sweep-v3": 9.0})
    common = 2 * 300 * 0.1 + 12
    assert cost.of_grid(one, rates, 4, False).seconds == pytest.approx(common + 400)
    assert cost.of_grid(one, slow, 4, False).seconds == pytest.approx(common + 2 * 3 * 50 * 9)


def test_runs_of_the_same_labels_share_a_fit(tmp_path: Path) -> None:
    one = grid(tmp_path, algorithm="appo", num_feedback=500, lam=[0.03, 0.1])
    alone = grid(tmp_path, algorithm="appo", num_feedback=500)
    rates = dataclasses.replace(RATES, episodes={"sweep-v3": 0.0})
    more = cost.of_grid(one, rates, 4, True).seconds - cost.of_grid(alone, rates, 4, True).seconds
    assert more == pytest.approx(2 * 10_000 * 0.02)


def test_room_on_the_disk(tmp_path: Path) -> None:
    one = grid(tmp_path, algorithm="oracle")
    rates = dataclasses.replace(RATES, rewards={})
    found = cost.of_grid(one, rates, 4, True).bytes
    # Two checkpoints for each of two runs, pictures, and metrics of 200 chunks.
    assert found == 2 * (2 * 2 * MIB + MIB + 200 * 20 * 60)
    # A grid's settings train one after another: their number doesn't make chunks shorter.
    more = grid(tmp_path, algorithm="oracle", task=["sweep", "dial-turn"])
    both = dataclasses.replace(rates, episodes={"sweep-v3": 0.1, "dial-turn-v3": 0.1})
    assert cost.of_grid(more, both, 4, True).bytes == 2 * found
    collected = grid(tmp_path, algorithm="oracle", dataset="medium-expert", dataset_size=100_000)
    added = cost.of_grid(collected, rates, 4, True).bytes - found
    assert added == 100_000 * (4 * (39 + 4) + 40)


@pytest.mark.parametrize(("first", "later"), [(4.0, 1.4), (2.0, 0.6), (0.3, 0.02), (0.1, 0.001)])
def test_costly_updates_are_timed_for_seconds_too(
    first: float, later: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, done = 0.0, 0

    def chunk(num_updates: int, states: object, *_: object) -> tuple[object]:
        nonlocal now, done
        now += num_updates * later + (first - later) * (done == 0)
        done += num_updates
        return (states,)

    program = SimpleNamespace(compile=lambda *_: None, chunk=chunk)
    monkeypatch.setattr(cost, "TrainingProgram", lambda *_: program)
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: now))
    run = grid(tmp_path, algorithm="bc").runs[0]
    setting = cost._Setting(run, Slots.of(1, "map", None))
    learner = registry.algorithm("bc").policy_learner
    assert cost._timed(learner, run.policy, setting).seconds == pytest.approx(later)
    # Two updates to begin with, then two seconds or three updates; a chunk is soon over.
    assert now < first + later + max(3, 3 * later) + 0.1


def test_rates_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_SECONDS", 0.01)
    monkeypatch.setattr(cost, "_timed_episodes", lambda run, num_workers: 0.25)
    small = {"hidden_dim": 8, "hidden_layers": 1, "batch_size": 8, "num_pairs": 2}
    model = {"reward_hidden_dim": 8, "reward_hidden_layers": 1, "segment_length": 5}
    first = grid(tmp_path, algorithm="appo", num_feedback=20, **small, **model)
    again = grid(tmp_path, algorithm="appo", num_feedback=20, lam=0.1, **small, **model)
    told: list[str] = []
    meter = cost.Meter(told.append)
    rates = meter.rates(first)
    assert meter.rates(again) == rates
    assert [line.split(",")[0] for line in told] == [
        "measured: reward model of 20 labels",
        "measured: appo",
        "measured: sweep-v3",
    ]
    assert rates.episodes == {"sweep-v3": 0.25}
    assert 0 < rates.policy.seconds < 0.05
    assert 0 < rates.rewards[20].seconds < 0.05
    # Two critics and their targets, V, pi, with Adam's two moments of all but the targets.
    critic, value, actor = (43 * 8 + 8 + 9), (39 * 8 + 8 + 9), (39 * 8 + 8 + 9 * 8)
    numbers = 2 * critic * 4 + 3 * (value + actor)
    assert rates.policy.bytes == pytest.approx(4 * numbers, rel=0.02)
