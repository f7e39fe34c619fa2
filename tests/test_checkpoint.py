"""Checkpoints: an exact round trip, and everything that may happen to the files."""

import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from appo_jax import appo, checkpoint
from appo_jax.types import InputError

# Orbax leaves its other reads behind when one fails.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def make(scale: float = 1.0) -> dict[str, Any]:
    return {
        "weights": {"kernel": scale * jnp.arange(12, dtype=jnp.float32).reshape(3, 4)},
        "key": jax.random.key(3),
        "run_keys": jax.random.split(jax.random.key(4), 2),
        "step": jnp.int32(7),
        "mean": np.array([1.5, -0.0], np.float32),
        "mask": jnp.array([True, False]),
        # Too random to be compressed, so that a flipped bit on the disk is one in the array.
        "noise": np.random.default_rng(0).integers(-(2**31), 2**31, 1000, np.int32),
    }


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert left.dtype == right.dtype
        if jax.dtypes.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of updates 0 and 10."""
    folder = tmp_path / "checkpoints" / "policy"
    checkpoint.save(folder, 0, make(), {"config": {"dims": (3, 4)}, "seconds": 0.1})
    checkpoint.save(folder, 10, make(2.0), {"config": {}, "seconds": 1 / 3})
    return folder


def test_round_trip(folder: Path) -> None:
    assert checkpoint.updates(folder) == [0, 10]
    arrays, metadata = checkpoint.restore(folder, 10, make())
    assert_same(arrays, make(2.0))
    assert metadata["seconds"] == 1 / 3
    assert (metadata["update"], metadata["format_version"]) == (10, checkpoint.FORMAT_VERSION)
    arrays, metadata = checkpoint.restore(folder, 0, make(5.0))
    assert_same(arrays, make())
    assert metadata["config"] == {"dims": [3, 4]}


def test_shapes_alone_are_template_enough(folder: Path) -> None:
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), make())
    assert_same(checkpoint.restore(folder, 10, shapes)[0], make(2.0))


def test_a_whole_training_state(tmp_path: Path) -> None:
    def shapes(hidden_dim: int) -> appo.TrainState:
        config = appo.Config(hidden_dim=hidden_dim)
        return jax.eval_shape(lambda: appo.init(config, jax.random.key(0), 5, 2))

    def fill(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(5)
        return jnp.asarray(draw.integers(-99, 99, leaf.shape), leaf.dtype)

    draw = np.random.default_rng(0)
    state = jax.tree.map(fill, shapes(8))
    checkpoint.save(tmp_path, 3, {"states": state}, {})
    assert_same(checkpoint.restore(tmp_path, 3, {"states": shapes(8)})[0], {"states": state})
    wider = shapes(9)
    with pytest.raises(InputError, match=r"\['states'\].*is float32\[8\], expected float32\[9\]"):
        checkpoint.restore(tmp_path, 3, {"states": wider})


def test_the_digest_is_of_values_places_shapes_and_types() -> None:
    base = {"a": jnp.zeros(4), "b": jnp.zeros(4)}
    digests = [
        checkpoint.digest(tree)
        for tree in (
            base,
            {"a": jnp.zeros(4), "c": jnp.zeros(4)},
            {"a": jnp.zeros(8), "b": jnp.zeros(0)},
            {"a": jnp.zeros((2, 2)), "b": jnp.zeros(4)},
            {"a": jnp.zeros(4, jnp.int32), "b": jnp.zeros(4)},
            {"a": -jnp.zeros(4), "b": jnp.zeros(4)},
            {"key": jax.random.key_data(jax.random.key(0))},
            {"key": jax.random.key(0)},
            {"key": jax.random.key(1)},
        )
    ]
    assert len(set(digests)) == len(digests)
    assert checkpoint.digest(jax.tree.map(np.asarray, base)) == digests[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": jnp.int32([7])}, r"\['step'\] is int32\[\], expected int32\[1\]"),
        ({"step": jnp.float32(7)}, r"\['step'\] is int32\[\], expected float32\[\]"),
        ({"key": jnp.zeros(2, jnp.uint32)}, r"\['key'\] is key<fry>\[\], expected uint32\[2\]"),
        (
            {"weights": {"kernel": jnp.zeros((4, 3))}},
            r"\['weights'\]\['kernel'\] is float32\[3, 4\], expected float32\[4, 3\]",
        ),
        ({"extra": jnp.zeros(2)}, r"\['extra'\] is missing, expected float32\[2\]"),
        ({"mask": {}}, r"\['mask'\] is bool\[2\], expected nothing of that name"),
    ],
)
def test_other_shapes_are_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"policy/10: {message}"):
        checkpoint.restore(folder, 10, make() | change)


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = checkpoint.FORMAT_VERSION
    for version, whose in ((own - 1, "an earlier"), (own + 1, "a newer")):
        monkeypatch.setattr(checkpoint, "FORMAT_VERSION", version)
        checkpoint.save(tmp_path, version, make(), {})
        assert checkpoint.restore(tmp_path, version, make())[1]["format_version"] == version
        monkeypatch.undo()
        message = f"/{version}: format version {version} of {whose} appo-jax, expected {own}"
        with pytest.raises(InputError, match=message):
            checkpoint.restore(tmp_path, version, make())


def test_a_checkpoint_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="policy/5: no such checkpoint, expected .* there: 0, 10"):
        checkpoint.restore(folder, 5, make())
    with pytest.raises(InputError, match="absent/0: no such checkpoint, .* there: none"):
        checkpoint.restore(tmp_path / "absent", 0, make())
    assert checkpoint.updates(tmp_path / "absent") == []
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("update", [10, 5])
def test_a_save_that_orbax_declines_raises(folder: Path, update: int) -> None:
    with pytest.raises(RuntimeError, match=f"declined to save update {update}"):
        checkpoint.save(folder, update, make(9.0), {})
    assert checkpoint.updates(folder) == [0, 10]
    assert_same(checkpoint.restore(folder, 10, make())[0], make(2.0))


_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from appo_jax import checkpoint
from test_checkpoint import make
folder = Path(sys.argv[2])
checkpoint.save(folder, 1, make(), {})
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    checkpoint.save(folder, 2, make(2.0), {})
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "room", [*(pytest.param(room, marks=pytest.mark.slow) for room in (0, 3000)), 100]
)
def test_a_disk_that_is_full_leaves_the_earlier_ones(tmp_path: Path, room: int) -> None:
    """The kernel refuses to let a file grow beyond `room` bytes."""
    folder = tmp_path / "checkpoints"
    found = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(Path(__file__).parent), str(folder), str(room)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{folder}/2: the checkpoint can't be written (" in found.stdout
    assert len(found.stdout.splitlines()) == 1
    assert checkpoint.updates(folder) == [1]
    assert_same(checkpoint.restore(folder, 1, make())[0], make())
    checkpoint.save(folder, 2, make(2.0), {})
    assert_same(checkpoint.restore(folder, 2, make())[0], make(2.0))


def test_set_aside(folder: Path) -> None:
    place = checkpoint.set_aside(folder, 10)
    assert checkpoint.updates(folder) == [0]
    assert place.parent == folder.with_name("policy-damaged")
    checkpoint.save(folder, 10, make(3.0), {})
    assert checkpoint.set_aside(folder, 10) != place
    shutil.copytree(place, folder / "10")
    assert_same(checkpoint.restore(folder, 10, make())[0], make(2.0))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << position % 8
    path.write_bytes(content)


def test_a_flipped_bit_in_any_file_is_noticed_or_harmless(folder: Path) -> None:
    noticed = {"arrays": 0, "metadata": 0}
    expected, metadata = checkpoint.restore(folder, 10, make())
    files = [path for path in (folder / "10").rglob("*") if path.is_file()]
    for path in files:
        content = path.read_bytes()
        for position in range(0, len(content), max(1, len(content) // 5)):
            flip(path, position)
            try:
                found = checkpoint.restore(folder, 10, make())
            except InputError as error:
                assert "policy/10: " in str(error)  # noqa: PT017
                noticed[path.relative_to(folder / "10").parts[0]] += 1
            else:  # in a file, or a copy, that restoring doesn't read
                assert_same(found[0], expected)
                assert found[1] == metadata
            path.write_bytes(content)
    assert noticed["arrays"] >= 10
    assert noticed["metadata"] >= 5
    gc.collect()


def test_a_flipped_bit_of_an_array_or_of_the_metadata_is_damage(folder: Path) -> None:
    arrays = max((folder / "10" / "arrays").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = arrays.read_bytes()
    noise = content.find(make()["noise"].tobytes())
    assert noise >= 0
    for position in (0, 1003, 1998, 3999):
        flip(arrays, noise + position)
        with pytest.raises(InputError, match="policy/10: damaged, its arrays differ"):
            checkpoint.restore(folder, 10, make())
        arrays.write_bytes(content)
    checkpoint.restore(folder, 10, make())
    text = (folder / "10" / "metadata" / "metadata").read_text()
    for old, new in (
        ("0.3333", "0.3733"),
        ('"config"', '"conFig"'),
        ('"update": 10', '"update": 90'),
    ):
        assert old in text
        (folder / "10" / "metadata" / "metadata").write_text(text.replace(old, new))
        with pytest.raises(InputError, match="policy/10: damaged, its metadata differ"):
            checkpoint.restore(folder, 10, make())
    assert_same(checkpoint.restore(folder, 0, make())[0], make())


def test_missing_and_truncated_files_are_damage(folder: Path) -> None:
    whole = folder.parent / "whole"
    shutil.copytree(folder / "10", whole)
    for name in ("metadata", "arrays"):
        shutil.rmtree(folder / "10" / name)
        with pytest.raises(InputError, match=f"policy/10: damaged, Orbax can't read its {name}"):
            checkpoint.restore(folder, 10, make())
        shutil.copytree(whole / name, folder / "10" / name)
    metadata = folder / "10" / "metadata" / "metadata"
    metadata.write_text(metadata.read_text()[:50])
    with pytest.raises(InputError, match="damaged, Orbax can't read its metadata"):
        checkpoint.restore(folder, 10, make())


def test_delete(folder: Path) -> None:
    checkpoint.delete(folder, 0)
    assert checkpoint.updates(folder) == [10]
    assert_same(checkpoint.restore(folder, 10, make())[0], make(2.0))
    assert os.listdir(folder) == ["10"]


def test_a_killed_delete_leaves_nothing_that_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die_halfway(path: Path) -> None:
        next(path.rglob("manifest.ocdbt")).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.shutil, "rmtree", die_halfway)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.delete(folder, 0)
    monkeypatch.undo()
    assert checkpoint.updates(folder) == [10]
    checkpoint.save(folder, 20, make(), {})
    checkpoint.delete(folder, 10)
    assert os.listdir(folder) == ["20"]


def _save_and_hang(folder: Path, mark: Path) -> None:
    checkpoint.save(folder, 1, make(), {})
    finalize = ocp.StandardCheckpointHandler.finalize

    def hang(*args: Any) -> None:
        finalize(*args)
        mark.touch()
        time.sleep(60)

    ocp.StandardCheckpointHandler.finalize = hang
    checkpoint.save(folder, 2, make(2.0), {})


def test_a_killed_save_leaves_the_earlier_ones(tmp_path: Path) -> None:
    folder, mark = tmp_path / "checkpoints", tmp_path / "mark"
    process = multiprocessing.get_context("spawn").Process(
        target=_save_and_hang, args=(folder, mark)
    )
    process.start()
    while not mark.exists():
        assert process.is_alive()
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    (partial,) = (path for path in folder.iterdir() if path.name != "1")
    assert any(path.stat().st_size for path in partial.rglob("d/*"))  # arrays were written
    assert checkpoint.updates(folder) == [1]
    assert_same(checkpoint.restore(folder, 1, make())[0], make())
    with pytest.raises(InputError, match="checkpoints/2: no such checkpoint"):
        checkpoint.restore(folder, 2, make())
    for update in (2, 3):  # the next save clears up, whichever it is
        again = shutil.copytree(folder, tmp_path / f"again-{update}")
        checkpoint.save(again, update, make(3.0), {})
        assert_same(checkpoint.restore(again, update, make())[0], make(3.0))
        assert sorted(os.listdir(again)) == ["1", str(update)]


def test_metadata_are_plain_json(folder: Path) -> None:
    stored = json.loads((folder / "10" / "metadata" / "metadata").read_text())
    assert stored["leaves"]["['key']"] == "key<fry>[]"
    assert stored["digest"] == checkpoint.digest(make(2.0))


ODD_PLACES = ("[x]", "a*", "a?", "back\\slash", "bucket:", "\udcff")


@pytest.mark.parametrize("name", ODD_PLACES)
def test_places_that_orbax_takes_for_others_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "policy"
    with pytest.raises(InputError, match="in the path, expected a path of text without"):
        checkpoint.save(folder, 0, make(), {})
    assert not folder.exists()
    (folder / "0" / "metadata").mkdir(parents=True)
    with pytest.raises(InputError, match="in the path, expected") as error:
        checkpoint.read_metadata(folder, 0)
    assert not isinstance(error.value, checkpoint.Damaged)


def _damaged(*_: Any) -> Any:
    raise checkpoint.Damaged("it can't be read")


def test_what_cannot_be_read_back_is_not_saved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "restore", _damaged)
    with pytest.raises(OSError, match="it can't be read, right after it was saved; expected"):
        checkpoint.save(folder, 20, make(), {})
    assert checkpoint.updates(folder) == [0, 10]


def test_nothing_is_put_aside_where_nothing_can_be_read_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "restore", _damaged)
    with pytest.raises(OSError, match="right after it was saved"):
        checkpoint.set_aside(folder, 10)
    assert checkpoint.updates(folder) == [0, 10]
    assert os.listdir(folder.parent) == ["policy"]


def test_a_file_that_cannot_be_opened_is_not_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "10" / "metadata" / "metadata").write_text("{")

    def refuse(path: Path, _: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError):
        checkpoint.read_metadata(folder, 10)
