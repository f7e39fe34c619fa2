"""A collection of medium-replay data: checkpoints, what they cost, and what is said meanwhile."""

from pathlib import Path

import numpy as np

from appo_jax import checkpoint
from appo_jax.collect import replay_collection
from appo_jax.collect.replay_collection import Collection
from experiments.collecting.sac_collection import go_on
from tests.helpers.agents import HOPPER, SteppersHere, run


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    hoppers: SteppersHere, tmp_path: Path
) -> None:
    warnings: list[str] = []
    undamaged = run(HOPPER, hoppers, tmp_path / "whole", 40).replay.actions[:, :40]
    for step in (10, 20, 30):
        run(HOPPER, hoppers, tmp_path, step).save()
    folder = replay_collection.checkpoints(tmp_path)
    assert checkpoint.updates(folder) == [20, 30]
    (folder / "30" / "metadata" / "metadata").write_text("{")
    collection = go_on(HOPPER, hoppers, tmp_path, warnings.append)
    assert collection.step == 20
    (warning,) = warnings
    assert "30: damaged" in warning
    assert "put aside" in warning
    while collection.step < 40:
        collection.advance()
    collection.save()
    assert Collection(HOPPER, hoppers, tmp_path).step == 40
    np.testing.assert_array_equal(collection.replay.actions[:, :40], undamaged)


def test_damaged_steps_cost_what_came_after_them(hoppers: SteppersHere, tmp_path: Path) -> None:
    for step in (10, 20, 30):
        run(HOPPER, hoppers, tmp_path, step).save()
    for damaged, left in ((30, 20), (10, 0)):
        (tmp_path / "steps" / f"steps-{damaged:08d}.npz").write_bytes(b"PK")
        warnings: list[str] = []
        assert go_on(HOPPER, hoppers, tmp_path, warnings.append).step == left
        assert f"steps-{damaged:08d}.npz: can't be read" in warnings[0]
