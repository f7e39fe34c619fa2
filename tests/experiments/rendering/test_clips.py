"""Where the frames of a clip come from, and that they are what was stored."""

import ast
import io
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from appo_jax.data import preferences
from appo_jax.data.dataset import Episode, from_episodes
from appo_jax.types import InputError
from experiments.rendering import lines, pairs
from experiments.rendering.clips import Clips
from experiments.rendering.scene import fitted
from experiments.rendering.sources import Stored

# In a process of its own, which MUJOCO_GL is set for: the tests' own has no graphics library.
LOOK = """
import dataclasses, io, sys
import numpy as np
from PIL import Image
from appo_jax.types import InputError
from experiments.rendering import graphics
try:
    found = graphics.choose()
except InputError as error:
    print(error); sys.exit(77)
assert "mujoco" not in sys.modules  # whoever chooses need not draw
assert graphics.set_for_this_process() == found in graphics.LIBRARIES
from appo_jax.collect import scripted
from appo_jax.envs import environment
from experiments.rendering.clips import Clips
from experiments.rendering.scene import Scene
from experiments.rendering.sources import Stored, replayed

def frame(clip, number):
    sheet = np.asarray(Image.open(io.BytesIO(clip.sheet))).astype(int)
    down, across = number // clip.columns * clip.height, number % clip.columns * clip.width
    return sheet[down : down + clip.height, across : across + clip.width]

def meta_world_episode(task, steps=40):
    plan = next(p for p in scripted.plan_episodes(task, 12, 3) if p.source == "expert")
    own = scripted.run_episode(plan, *scripted.environments(plan), scripted._policy(task), steps)
    return plan.main_seed, own
"""


def looked(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOOK + textwrap.dedent(code)], capture_output=True, text=True
    )
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sweep_is_replayed_to_the_bit_and_a_changed_action_is_noticed() -> None:
    looked("""
    seed, own = meta_world_episode("sweep-v3")
    stored = Stored(0, 30, own.observations, own.actions, seed)
    scene = Scene("sweep-v3", 160, 120)
    clips = Clips(scene, 160, 120)
    clip = clips.make(stored, 0)
    assert (clip.source, clip.frames, clip.columns) == ("re-simulated", 11, 4)
    assert len(clip.points["hand"]) == len(clip.points["object"]) == 11
    assert len(clip.points["goal"]) == 24
    ring = np.mean(clip.points["goal"], axis=0)
    assert 0 < ring[0] < 160 and 0 < ring[1] < 120, ring

    changed = own.actions.copy()
    changed[3, 0] = np.nextafter(changed[3, 0], 0, dtype=np.float32) - np.float32(0.01)
    other = clips.make(dataclasses.replace(stored, actions=changed), 0)
    assert other.source != "re-simulated", other.source

    # Without the seed: the reset is found, and what is drawn is the same.
    found = clips.make(dataclasses.replace(stored, seed=None), 0)
    assert found.source == "re-simulated, reset recovered"
    assert np.abs(frame(found, 10) - frame(clip, 10)).mean() < 0.5
    assert np.abs(frame(clip, 0) - frame(clip, 10)).mean() > 0.3  # it moves

    # Neither seed nor reset: from the observations alone.
    clips._recovered.vectors[0] = None
    led = clips.make(dataclasses.replace(stored, seed=None), 0)
    assert led.source == "approximated"
    assert np.abs(frame(led, 10) - frame(clip, 10)).mean() < 8

    # Upright, which corner2 itself isn't: the bright floor is below, the dark wall above.
    corner = frame(clips.make(stored, scene.views.index("corner2")), 5)
    assert corner[-10:].mean() > corner[:10].mean() + 5, (corner[-10:].mean(), corner[:10].mean())
    scene.close()
    """)


@pytest.mark.slow
def test_hopper_is_replayed_to_the_bit_or_put_into_its_observations() -> None:
    looked("""
    hopper = environment.Environment("Hopper-v5")
    draw, seen, acted = np.random.default_rng(0), [hopper.reset(5)], []
    for _ in range(12):
        acted.append(draw.uniform(-1, 1, 3).astype(np.float32))
        seen.append(hopper.step(acted[-1]).observation)
    stored = Stored(0, 4, np.stack(seen), np.stack(acted), 5)
    scene = Scene("Hopper-v5", 96, 96)
    clips = Clips(scene, 96, 96)
    clip = clips.make(stored, 0)
    assert (clip.source, clip.frames, scene.views[0]) == ("re-simulated", 9, "track")
    put = clips.make(dataclasses.replace(stored, seed=6), 0)
    assert put.source == "approximated"
    assert np.abs(frame(put, 8) - frame(clip, 8)).mean() < 15
    scene.close()
    """)


def test_frames_of_a_folder(tmp_path: Path) -> None:
    stored = Stored(
        3, 2, np.zeros((6, 2), np.float32), np.zeros((5, 1), np.float32), None, tmp_path
    )
    clips = Clips(None, 160, 120)
    assert clips.make(stored, 0).source == "lines"  # no such file
    frames = np.zeros((6, 30, 40, 3), np.uint8)
    frames[:] = 40 * np.arange(6)[:, None, None, None]
    np.save(tmp_path / "3.npy", frames)
    clip = clips.make(stored, 0)
    assert (clip.source, clip.frames, clip.columns) == ("frames", 4, 2)
    sheet = np.asarray(Image.open(io.BytesIO(clip.sheet)))
    corners = [sheet[y, x, 0].item() for y in (9, 129) for x in (9, 199)]
    assert corners == [80, 120, 160, 200]
    for wrong in (frames[:5], frames.astype(float), frames[..., 0]):
        np.save(tmp_path / "3.npy", wrong)
        with pytest.raises(InputError, match=r"3.npy: holds .* expected uint8 \[steps \+ 1"):
            clips.make(stored, 0)
    (tmp_path / "3.npy").write_bytes(b"\x80\x04N.")  # a pickle
    with pytest.raises(InputError, match=r"3.npy: can't be read"):
        clips.make(stored, 0)


def test_lines_mark_each_step() -> None:
    draw = np.random.default_rng(0)
    for dim, places in ((7, {}), (39, {"hand": slice(0, 3), "object": slice(4, 7)})):
        observations, actions = draw.normal(size=(6, dim)), draw.normal(size=(5, 2))
        frames = lines.draw(observations, actions, 160, 120, places)
        assert [frame.shape for frame in frames] == [(120, 160, 3)] * 6
        assert all((a != b).any() for a, b in zip(frames, frames[1:], strict=False))
    still = lines.draw(np.zeros((2, 3)), np.zeros((1, 1)), 160, 120, {})
    assert len(still) == 2


def test_a_picture_of_another_size_is_fitted_into_the_frame() -> None:
    white = np.full((50, 100, 3), 255, np.uint8)
    for size, covered in (((40, 40), 0.5), ((200, 200), 0.5), ((100, 50), 1.0)):
        found = fitted(white, *size)
        assert found.shape == (size[1], size[0], 3)
        assert (found > 127).mean() == pytest.approx(covered, abs=0.03)


def test_a_pair_is_drawn_to_the_ends_of_its_segments() -> None:
    draw = np.random.default_rng(0)
    episodes = [
        Episode(
            draw.normal(size=(steps + 1, 3)),
            draw.uniform(-1, 1, (steps, 2)),
            np.zeros(steps),
            np.zeros(steps),
            last_action=np.zeros(2),
        )
        for steps in (9, 4)
    ]
    data, clips = from_episodes(episodes, "tiny/kept-v0"), Clips(None, 160, 120)
    # The last row's action is known, but not what it led to: a frame less.
    whole = preferences.from_arrays(data, [[0, 1]], [[5, 0]], [1.0], 5)
    frames, sources = pairs.frames(data, whole, 0, clips)
    assert (len(frames), sources) == (5, ["lines", "lines"])
    # Of two lengths: the shorter one waits at its end.
    mixed = preferences.from_arrays(data, [[0, 1]], [[0, 1]], [1.0], [[7, 2]])
    frames, _ = pairs.frames(data, mixed, 0, clips)
    assert len(frames) == 8
    left, right = np.split(np.stack(frames), 2, axis=2)
    assert (right[2:] == right[2]).all()
    assert (right[1] != right[2]).any()
    assert (left[6] != left[7]).any()


def test_a_clip_that_no_browser_takes_is_refused() -> None:
    with pytest.raises(InputError, match=r"2000 frames of 480x360 are too many"):
        Clips(None, 480, 360)._clip("lines", [np.zeros((0, 0, 3), np.uint8)] * 2000, {})


@pytest.mark.slow
def test_all_that_is_collected_is_replayed_to_the_bit(tmp_path: Path) -> None:
    """Every observation of every episode, by both recipes, through the command."""
    replay = ("--dataset=medium-replay", "--num_seeds=2", "--size=2000")
    sets = [
        *((f"--task={task}", "--size=6000") for task in ("sweep", "drawer-open")),
        *((f"--task={task}", *replay) for task in ("sweep", "drawer-open")),
        ("--env=Hopper-v5", *replay),
    ]
    for arguments in sets:
        command = [sys.executable, "-m", "experiments.collect", *arguments]
        done = subprocess.run([*command, f"--data_dir={tmp_path}"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    said = looked(f"""
    from appo_jax.data import minari_io
    for id in minari_io.local_ids({str(tmp_path)!r}):
        data = minari_io.load(id, {str(tmp_path)!r})
        scene = Scene(data.metadata["environment_id"], 160, 120)
        for episode, steps in enumerate(data.lengths.tolist()):
            stored = Stored.of(data, episode, steps - 1, 1)
            assert stored.seed is not None
            assert len(list(replayed(scene, stored))) == 2  # raises where a bit differs
        print(id, data.num_episodes, "of", data.num_episodes, "episodes")
        scene.close()
    """)
    print(said)
    assert len(said.splitlines()) == len(sets)


@pytest.mark.slow
def test_replay_buffers_render_without_seeds() -> None:
    buffers = Path(__file__).parents[4] / "shared" / "data" / "sac_replay"
    if not buffers.is_dir():
        pytest.skip("no replay buffers in ../shared/data/sac_replay")
    said = looked(f"""
    import collections
    from pathlib import Path
    from appo_jax.data import lire
    data = lire.load(Path({str(buffers)!r}) / "button-press-topdown-v3", 300_000)
    clips = Clips(Scene("button-press-topdown-v3", 160, 120), 160, 120)
    draw = np.random.default_rng(0)
    found = collections.Counter(
        clips.make(Stored.of(data, int(draw.integers(600)), int(draw.integers(476)), 25), 0).source
        for _ in range(60)
    )
    print(dict(found))
    clips._scene.close()
    """)
    print(said)
    found = ast.literal_eval(said)
    # The rest drifts: by more than 1 cm within the segment.
    assert found.pop("re-simulated, reset recovered") >= 57
    assert set(found) <= {"lines"}
