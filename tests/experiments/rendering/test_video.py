"""Videos of policies and of pairs: what is written, and what marks success."""

import functools
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from appo_jax import policy
from appo_jax.types import InputError
from experiments import render
from experiments.rendering import episodes, graphics, video
from experiments.rendering.scene import Scene
from tests.helpers import environments as odd
from tests.helpers.commands import call
from tests.helpers.runs import TINY, Command
from tests.test_policy import save


def border(frame: np.ndarray) -> tuple[int, ...]:
    return tuple(frame[1, 1].tolist())


def gif(path: Path) -> tuple[list[np.ndarray], int]:
    """Its frames, and milliseconds of one."""
    with Image.open(path) as image:
        frames = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB")))
        return frames, image.info["duration"]


def near(frame: np.ndarray, colour: tuple[int, int, int]) -> bool:
    return bool((np.abs(frame.astype(int) - colour).max(axis=-1) < 12).any())


main = functools.partial(call, render)


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """A run's folder whose environment needs no graphics library, and succeeds in step 2."""
    run = {"env_name": odd.name(odd.Seen), "seed": 3}
    save(tmp_path / "checkpoints" / "policy", 10, 1, (3, 1), run)
    (tmp_path / "config.json").touch()
    return tmp_path


def test_success_is_marked(seen: Path) -> None:
    scene = Scene(odd.name(odd.Seen), 80, 60)
    saved = policy.load(seen)

    def shown(**shot: int) -> list[np.ndarray]:
        return list(episodes.frames(saved, 0, scene, episodes.Shot(**shot)))

    found = shown(stride=1, linger=10)
    assert [border(frame) for frame in found] == [video.GREY] * 2 + [video.GREEN] * 3
    assert [int(frame[20, 40, 0]) for frame in found] == [0, 50, 100, 150, 200]
    assert len(shown(stride=1, linger=1)) == 4  # the first, three steps
    assert [int(frame[20, 40, 0]) for frame in shown(stride=3, linger=10)] == [0, 150, 200]
    assert episodes.frames_per_second(scene, 2) == 10
    assert episodes.natural_stride(scene) == 1


def test_the_episodes_are_the_evaluations(seen: Path) -> None:
    from appo_jax import evaluation
    from appo_jax.envs.environment import Environment

    name, saved = odd.name(odd.Seen), policy.load(seen)
    seeds = [evaluation.episode_seed(3, 10, episode) for episode in range(2)]
    judged = evaluation._run_episodes(saved.policy, [Environment(name), Environment(name)], seeds)
    scene = Scene(name, 80, 60)
    for episode in range(2):
        list(episodes.frames(saved, episode, scene, episodes.Shot(1, 10)))
        last: Any = scene.env.unwrapped
        np.testing.assert_array_equal(np.float32(last.place), judged.last_observations[episode])


def test_a_gif_has_every_second_frame(tmp_path: Path) -> None:
    pictures = [np.full((60, 80, 3), [40 * number, 0, 90], np.uint8) for number in range(5)]
    colours = [video.GREY] * 3 + [video.GREEN] * 2
    frames = [video.captioned(p, "text", c) for p, c in zip(pictures, colours, strict=True)]
    assert frames[0].shape == (92, 88, 3)
    written = video.write(frames, 20.0, tmp_path / "found")
    assert written[-1] == tmp_path / "found.gif"
    images, milliseconds = gif(written[-1])
    assert (len(images), milliseconds) == (3, 100)
    assert images[0].shape == (61, 59, 3)
    assert [near(image, video.GREEN) for image in images] == [False, False, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(p.name for p in written)


def test_an_mp4_has_every_frame(tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip(
        "imageio_ffmpeg", reason="the extra `video` isn't installed"
    )
    frames = [np.full((60, 80, 3), 40 * number, np.uint8) for number in range(5)]
    path, _ = video.write(frames, 20.0, tmp_path / "found")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo"]
    read = subprocess.run([*command, "-pix_fmt", "rgb24", "-"], capture_output=True, check=True)
    assert re.search(rb"h264.*, yuv420p.*, 80x60.*, 20 fps", read.stderr)
    found = np.frombuffer(read.stdout, np.uint8).reshape(-1, 60, 80, 3)
    assert len(found) == 5
    assert np.abs(found[:, 30, 40, 0].astype(int) - 40 * np.arange(5)).max() < 5
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")  # plays while it comes


def test_the_command(
    seen: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(graphics, "set_for_this_process", lambda: "")  # not needed here
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda _: None)
    main(f"--checkpoint={seen}", "--episodes=2", "--width=80", "--height=60")
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"10 frames, 0 s: {seen / 'video-0.gif'}"
    assert told[1].startswith(f"{seen / 'video-0'}.mp4 isn't there: it needs imageio-ffmpeg")
    assert len(gif(seen / "video-0.gif")[0]) == 5
    (seen / "video-0.gif").unlink()
    checkpoint = seen / "checkpoints" / "policy" / "10"
    main(f"--checkpoint={checkpoint}", "--episodes=1", "--width=80", "--height=60")
    assert (seen / "video-0.gif").exists()


def test_what_cannot_be_shown(seen: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"format": "appo-preferences", "version": 1, "dataset": "a/b-v0"}\n{}\n')
    for arguments, expected in {
        (): "^found neither of --checkpoint and --labels, expected",
        ("--checkpoint=a", "--labels=b"): "^found both of --checkpoint and --labels",
        (f"--checkpoint={seen}", "--width=81"): "^--width=81: expected an even number",
        (f"--checkpoint={seen}", "--stride=0"): "^--stride=0: expected a whole number from 1",
        (f"--checkpoint={seen}", "--output=no/where"): "^--output=no/where: no folder no, expected",
        (
            "--checkpoint=a",
            "--pair=0",
        ): "^--pair: given with --checkpoint, expected with --labels o",
        ("--labels=b", "--episodes=2"): "^--episodes: given with --labels, expected with --checkpo",
        (f"--labels={labels}",): "^--pair is missing, expected a pair of .*labels.jsonl, from 0",
        (f"--labels={labels}", "--pair=0"): "line 2: length None, expected a whole number of",
        (f"--labels={tmp_path / 'none'}", "--pair=0"): "none: ",
    }.items():
        with pytest.raises(InputError, match=expected):
            main(*arguments)


@pytest.mark.slow
def test_meta_world_in_a_process(data_dir: Path, tmp_path: Path) -> None:
    """As a user types it, with a graphics library."""
    try:
        graphics.choose()
    except InputError as error:
        pytest.skip(str(error))
    run = tmp_path / "run"
    assert Command(tmp_path, *TINY, f"--data_dir={data_dir}", f"--workdir={run}").finish()[0] == 0
    flags = (f"--checkpoint={run}", "--episodes=1", "--stride=50", "--width=160", "--height=120")
    status, lines, stderr = Command(tmp_path, *flags, name="render").finish()
    assert (status, stderr) == (0, "")
    assert lines[0].startswith("11 frames, 7 s: ")
    images, _ = gif(run / "video-0.gif")
    assert len(images) == 6
    assert all(near(image, video.GOAL) for image in images)
    assert np.abs(images[0].astype(int) - images[-1]).mean() > 0.5
    labels = run / "preferences.jsonl"
    flags = (f"--labels={labels}", "--pair=3", f"--data_dir={data_dir}", "--width=160")
    status, lines, stderr = Command(tmp_path, *flags, "--height=120", name="render").finish()
    assert (status, stderr) == (0, "")
    assert lines[0].startswith("label ")  # of noise, which no simulator explains
    assert lines[1].startswith("6 frames, 1 s: ")
    assert len(gif(tmp_path / "pair.gif")[0]) == 3
