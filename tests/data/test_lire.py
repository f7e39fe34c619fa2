"""The reader of LiRE's replay buffers, on tiny folders and, where they are, on real ones."""

import io
import os
import pickle
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appo_jax.data import lire, plain_pickle
from appo_jax.types import InputError

REAL = Path(__file__).parents[3] / "shared" / "data" / "sac_replay"
LABELS = REAL.parent / "pt_human_labels"
FILE_NAME = "saved_replay_buffer_1000000_seed{}.pkl"


def buffer(episodes: int, first_row: int = 0) -> dict[str, np.ndarray]:
    """Observation t of episode e is (1000 e + t, ...), so that each row shows where it is from."""
    steps = np.arange(501) + 1000 * np.arange(episodes)[:, None] + first_row
    before, after = steps[:, :-1].reshape(-1), steps[:, 1:].reshape(-1)
    return {
        "observations": np.stack([before, before, -before], axis=1).astype(np.float32),
        "actions": (before[:, None] + np.array([0.25, 0.5])).astype(np.float32),
        "rewards": (before[:, None] + 0.125).astype(np.float32),
        "next_observations": np.stack([after, after, -after], axis=1).astype(np.float32),
        "dones": np.zeros((len(before), 1), np.float32),
    }


def write(path: Path, content: Any, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two agents, of three and of two episodes."""
    folder = tmp_path / "sweep-v2"
    write(folder / FILE_NAME.format(0), buffer(3))
    write(folder / FILE_NAME.format(1), buffer(2, first_row=100_000))
    return folder


def test_the_first_episodes_of_each_agent(folder: Path) -> None:
    dataset = lire.load(folder, 2000)
    assert dataset.id == "lire/sweep-v2/n2000"
    np.testing.assert_array_equal(dataset.lengths, [500] * 4)
    firsts = dataset.episode_starts
    np.testing.assert_array_equal(dataset.observations[firsts, 0], [0, 1000, 100_000, 101_000])
    # The last next observation of an episode is its last row, not the next episode's first.
    np.testing.assert_array_equal(
        dataset.observations[firsts + 500, 0], [500, 1500, 100_500, 101_500]
    )
    rows = dataset.transition_rows()
    following = dataset.observations[rows] + [1, 1, -1]
    np.testing.assert_array_equal(dataset.observations[rows + 1], following)
    np.testing.assert_array_equal(dataset.actions[rows, 1], dataset.observations[rows, 0] + 0.5)
    np.testing.assert_array_equal(dataset.rewards[rows], dataset.observations[rows, 0] + 0.125)
    assert not dataset.terminations.any()
    assert dataset.successes is None
    assert dataset.metadata["recipe"] == "medium-replay"
    assert dataset.metadata["buffers"] == [FILE_NAME.format(0), FILE_NAME.format(1)]


def test_dones_are_time_limits(tmp_path: Path) -> None:
    arrays = buffer(1)
    arrays["dones"][-1] = 1
    write(tmp_path / FILE_NAME.format(0), arrays)
    assert not lire.load(tmp_path, 500).terminations.any()


def test_arrays_of_numbers_may_be_flat_and_float64(folder: Path, tmp_path: Path) -> None:
    arrays = {name: array.astype(np.float64) for name, array in buffer(3).items()}
    arrays |= {name: arrays[name].reshape(-1) for name in ("rewards", "dones")}
    flat = tmp_path / "flat" / "sweep-v2"
    write(flat / FILE_NAME.format(0), arrays)
    write(flat / FILE_NAME.format(1), buffer(2, first_row=100_000))
    assert lire.load(flat, 2000).digest() == lire.load(folder, 2000).digest()


def test_folders_and_files_are_found_by_name(tmp_path: Path) -> None:
    assert lire.folder_of(tmp_path, "sweep-v3") is None
    (tmp_path / "sweep-v2").mkdir()
    (tmp_path / "sweep-v2" / "notes.txt").touch()
    assert lire.folder_of(tmp_path, "sweep-v3") is None  # no buffer in it
    files = [f"saved_replay_buffer_1000000_seed{seed}" for seed in (10, 9, 0)]
    for name in (files[0], f"{files[1]}.pkl", files[2]):
        write(tmp_path / "sweep-v3" / name, buffer(1, first_row=2000 * int(name[-1:] == "l")))
    (tmp_path / "sweep-v3" / f"{files[0]}.zip").touch()
    assert lire.folder_of(tmp_path, "sweep-v3") == tmp_path / "sweep-v3"
    assert lire.folder_of(tmp_path, "sweep-into-v3") is None
    names = [path.name for path in lire.buffer_files(tmp_path / "sweep-v3")]
    assert names == [files[2], f"{files[1]}.pkl", files[0]]  # by number: 0, 9, 10
    dataset = lire.load(tmp_path / "sweep-v3", 1500)
    np.testing.assert_array_equal(dataset.observations[dataset.episode_starts, 0], [0, 2000, 0])
    write(tmp_path / "sweep-v2" / files[2], buffer(1))
    assert lire.folder_of(tmp_path, "sweep-v3") == tmp_path / "sweep-v2"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol(folder: Path, protocol: int) -> None:
    expected = lire.load(folder, 2000).digest()
    for seed, arrays in enumerate((buffer(3), buffer(2, first_row=100_000))):
        write(folder / FILE_NAME.format(seed), arrays, protocol)
    assert lire.load(folder, 2000).digest() == expected


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_what_else_may_be_in_a_pickle(folder: Path, protocol: int) -> None:
    others = {
        "empty": np.zeros(0),
        "number": np.float32(1.5),
        "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big-endian": np.arange(3, dtype=">i2"),
        "nothing": None,
        "objects": np.array([None, 1]),
    }
    path = write(folder / "others.pkl", others, protocol)
    found = plain_pickle.load(path)
    assert list(found) == list(others)
    assert found["nothing"] is None
    for name in ("empty", "number", "columns first", "big-endian"):
        np.testing.assert_array_equal(found[name], others[name])
        assert found[name].dtype == others[name].dtype
    assert (found["objects"].dtype, found["objects"].shape) == (object, (2,))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_are_numpys_wherever_they_are(folder: Path, protocol: int) -> None:
    def load(content: Any) -> Any:
        return plain_pickle.load(write(folder / "others.pkl", content, protocol))

    starts = np.arange(5, dtype=np.int32)
    bare = load(starts)  # as the indices of labels are published
    assert (type(bare), bare.dtype) == (np.ndarray, np.int32)
    np.testing.assert_array_equal(bare, starts)
    assert load([1, 0, -1]) == [1, 0, -1]
    assert load(np.dtype("f4")) == np.dtype("f4")
    nested = load({"a": [starts, (starts, {"b": starts})]})
    for found in (nested["a"][0], nested["a"][1][0], nested["a"][1][1]["b"]):
        np.testing.assert_array_equal(found, starts)
    cycle: list[Any] = [starts]
    cycle.append((cycle, {"again": cycle}))
    found = load(cycle)
    assert found[1][0] is found[1][1]["again"] is found
    many: Any = [starts]
    for _ in range(60):  # 2^60 places, of 60 lists
        many = [many, many]
    assert load(many)[0] is not None


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_damaged_state_of_an_array_does_not_reach_numpy(folder: Path, protocol: int) -> None:
    # NumPy's own `dtype.__setstate__` crashed the process on some of these.
    path = folder / FILE_NAME.format(0)
    written = pickle.dumps({"a": np.arange(3.0), "b": np.array(["x"])}, protocol)
    for place in range(len(written)):
        for byte in (0, 1, 0x28, 0x4E, 0x81, 0xFF):
            path.write_bytes(written[:place] + bytes([byte]) + written[place + 1 :])
            try:
                plain_pickle.load(path)
            except InputError as error:
                assert str(error).startswith(f"{path}: not a pickle of plain")  # noqa: PT017


@pytest.mark.parametrize("module", [b"numpy.core.", b"numpy._core."])
def test_pickles_of_both_numpys(folder: Path, module: bytes) -> None:
    expected = lire.load(folder, 2000).digest()
    path = folder / FILE_NAME.format(0)
    # Protocol 2 writes module names as text, which differ between NumPy 1 and 2.
    written, count = re.subn(rb"numpy\._?core\.", module, pickle.dumps(buffer(3), 2))
    assert count
    path.write_bytes(written)
    assert lire.load(folder, 2000).digest() == expected


class _Call:
    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_code_is_refused_unrun(folder: Path, protocol: int) -> None:
    mark = folder / "mark"
    attacks = {
        "system": _Call(os.system, f"touch {mark}"),
        "eval": _Call(eval, f"open({str(mark)!r}, 'w')"),
        "open": _Call(io.open, str(mark), "w"),
        "tofile": _Call(np.ndarray.tofile, np.zeros(1), str(mark)),
        "savetxt": _Call(np.savetxt, str(mark), np.zeros(1)),
    }
    path = folder / FILE_NAME.format(1)
    for name, attack in attacks.items():
        pickle.loads(pickle.dumps(attack, protocol))  # it works where it is let
        assert mark.exists()
        mark.unlink()
        for content in (attack, buffer(2) | {"extra": attack}):
            write(path, content, protocol)
            with pytest.raises(InputError, match="not a pickle of plain NumPy arrays") as raised:
                lire.load(folder, 2000)
            assert str(path) in str(raised.value)
            assert not mark.exists(), name


def test_a_truncated_pickle(folder: Path) -> None:
    path = folder / FILE_NAME.format(0)
    written = path.read_bytes()
    cuts = [*range(300), *range(300, len(written), 4999), len(written) - 1]
    for cut in cuts:
        path.write_bytes(written[:cut])
        with pytest.raises(InputError, match="seed0.pkl: not a pickle of plain NumPy arrays"):
            lire.load(folder, 2000)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<!DOCTYPE html><html>Google Drive: sign in</html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"PK\x03\x04zip",
        b"\x80\x7f.",  # a protocol of the future
        b"Ione\n.",  # ValueError
        b"X\x02\0\0\0\xff\xff.",  # UnicodeDecodeError
        b"K\x01)R.",  # calls a number: TypeError
        b"cnumpy\nnot_there\n.",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a frame of 2**63 - 1 bytes
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # bytes as long
    ],
)
def test_files_that_are_no_pickle(folder: Path, content: bytes) -> None:
    path = folder / FILE_NAME.format(0)
    path.write_bytes(content)
    with pytest.raises(InputError, match="seed0.pkl: not a pickle of plain NumPy arrays"):
        lire.load(folder, 2000)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04Nr\xff\xff\xff\x0f.",  # a place in the memo that 2**28 - 1 others come before
        b"\x80\x05\x96\0\0\0\x40\0\0\0\0ab.",  # 2**30 bytes, of which there are three
        b"\x80\x05\x8e\0\0\0\x40\0\0\0\0ab.",
        b"\x80\x05\x95\0\0\0\x40\0\0\0\0N.",  # in a frame
    ],
)
def test_a_number_in_a_pickle_does_not_fill_the_memory(folder: Path, content: bytes) -> None:
    path = folder / FILE_NAME.format(0)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"seed0.pkl: (holds NoneType|not a pickle of plain)"):
            lire.load(folder, 2000)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_broken_chain_of_observations(folder: Path) -> None:
    arrays = buffer(3)
    arrays["next_observations"][777, 2] += 1
    write(folder / FILE_NAME.format(0), arrays)
    with pytest.raises(InputError, match="seed0.pkl row 777: next_observations differ"):
        lire.load(folder, 2000)
    # Other episodes' ends don't chain, so a last row can't be checked, nor one that isn't read.
    arrays = buffer(3)
    arrays["next_observations"][[499, 999, 1200]] += 1
    write(folder / FILE_NAME.format(0), arrays)
    lire.load(folder, 2000)


def episodes_of_250(dones: bool, joined: bool) -> dict[str, np.ndarray]:
    """Four episodes; joined: each next observation is the next row's, as a shifted array gives."""
    arrays = buffer(2)
    late = np.arange(1000) % 500 >= 250
    for name in ("observations", "next_observations"):
        arrays[name] = arrays[name] + np.float32(30) * late[:, None]
    if joined:
        arrays["next_observations"][:-1] = arrays["observations"][1:]
    arrays["dones"][249::250] = dones
    return arrays


@pytest.mark.parametrize("dones", [True, False])
@pytest.mark.parametrize("joined", [True, False])
def test_episodes_of_another_length(folder: Path, dones: bool, joined: bool) -> None:
    write(folder / FILE_NAME.format(0), episodes_of_250(dones, joined))
    message = "row 249: next_observations differ"
    if joined:
        message = "row 249: dones hold 1, expected" if dones else "row 499: next_observations are"
    with pytest.raises(InputError, match=rf"seed0.pkl {message}"):
        lire.load(folder, 2000)


def test_ends_that_are_the_next_episodes_beginning(folder: Path) -> None:
    arrays = buffer(3)
    arrays["next_observations"][:-1] = arrays["observations"][1:]
    write(folder / FILE_NAME.format(0), arrays)
    for size in (2000, 1000):  # also where the row that follows isn't one of those asked for
        with pytest.raises(InputError, match="row 499: next_observations are the observations of"):
            lire.load(folder, size)
    arrays = buffer(3)
    arrays["next_observations"][999] = arrays["observations"][1000]
    write(folder / FILE_NAME.format(0), arrays)
    with pytest.raises(InputError, match="seed0.pkl row 999: .*expected an episode of 500 steps"):
        lire.load(folder, 2000)
    lire.load(folder, 1000)


@pytest.mark.parametrize("value", [7.0, 0.5, -1.0, 1e-60])
def test_dones_that_are_no_flags(folder: Path, value: float) -> None:
    arrays = {name: array.astype(np.float64) for name, array in buffer(3).items()}
    arrays["dones"][499] = value
    write(folder / FILE_NAME.format(0), arrays)
    with pytest.raises(InputError, match=rf"seed0.pkl: dones hold {value} in row 499, expected 0"):
        lire.load(folder, 2000)
    arrays["dones"][499], arrays["dones"][1200] = 1, value  # a row that isn't read
    write(folder / FILE_NAME.format(0), arrays)
    lire.load(folder, 2000)


def change(name: str, value: Any) -> dict[str, Any]:
    return buffer(2) | {name: value}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (buffer(1), "500 transitions, expected at least 1000"),
        (change("actions", np.zeros((999, 2))), r"actions \[999, 2\].*expected obs"),
        (change("rewards", np.zeros((1000, 2))), r"rewards \[1000, 2\].*expected obs"),
        (change("dones", np.zeros(1)), r"dones \[1\].*expected obs"),
        (change("observations", np.zeros(1000)), r"observations \[1000\].*expected obs"),
        (change("observations", np.zeros(())), r"observations \[\].*expected obs"),
        (change("next_observations", np.zeros((1000, 1))), "next_observations .*expected obs"),
        (change("actions", np.full((1000, 2), "x")), "actions have dtype <U1, expected numbers"),
        (change("rewards", np.full(1000, None)), "rewards have dtype object, expected numb"),
        (change("dones", [0] * 1000), "holds observations, .*expected arrays"),
        (
            {name: array for name, array in buffer(2).items() if name != "actions"},
            "holds observations, rewards, next_observations, dones, expected arrays",
        ),
        ([1, 2], "holds list, expected arrays observations, next_observations, actions, rewards"),
    ],
)
def test_errors_name_the_file(folder: Path, content: Any, message: str) -> None:
    path = write(folder / FILE_NAME.format(1), content)
    with pytest.raises(InputError, match=message) as raised:
        lire.load(folder, 2000)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
@pytest.mark.parametrize("name", buffer(0))
def test_values_that_are_not_finite_are_named_by_file_and_row(
    folder: Path, name: str, value: float
) -> None:
    arrays = {field: array.astype(np.float64) for field, array in buffer(3).items()}
    arrays[name][777, -1] = value
    path = write(folder / FILE_NAME.format(0), arrays)
    column = arrays[name].shape[1] - 1
    with pytest.raises(
        InputError, match=rf"{name} hold {re.escape(str(value))} in row 777, column {column}, exp"
    ) as raised:
        lire.load(folder, 2000)
    assert str(raised.value).startswith(f"{path}: ")
    arrays[name][777, -1] = 0
    arrays[name][1200, -1] = value  # a row that isn't read
    if "observations" in name:
        arrays = {**buffer(3), "rewards": arrays["rewards"]}
    write(path, arrays)
    lire.load(folder, 2000)


@pytest.mark.parametrize("size", [0, -1000, 500, 1001, 1500, 1999])
def test_a_size_that_the_agents_cannot_share(folder: Path, size: int) -> None:
    message = f"{size} transitions from 2 buffers, expected a positive multiple of 1000"
    with pytest.raises(InputError, match=message):
        lire.load(folder, size)


def test_folders_without_buffers_or_with_one_twice(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(InputError, match=f"{name}: holds no buffers, expected one file"):
            lire.load(tmp_path / name, 1000)
    write(folder / FILE_NAME.format(0).removesuffix(".pkl"), buffer(3))
    with pytest.raises(InputError, match=r"seed0, .*seed0\.pkl, .*seed1\.pkl, expected one file"):
        lire.load(folder, 3000)


@pytest.mark.skipif(not REAL.is_dir(), reason="no real buffers in ../shared/data")
def test_real_buffers() -> None:
    folder = lire.folder_of(REAL, "button-press-topdown-v3")
    assert folder is not None
    dataset = lire.load(folder, 300_000)
    assert (dataset.num_transitions, dataset.num_episodes) == (300_000, 600)
    assert np.all(dataset.lengths == 500)
    assert (dataset.observation_dim, dataset.action_dim) == (39, 4)
    assert len(dataset.segment_rows(25)) == 600 * 476
    assert np.abs(dataset.actions).max() <= 1
    assert np.isfinite(dataset.normaliser()(dataset.observations)).all()
    small = lire.load(folder, 3 * 500)
    np.testing.assert_array_equal(small.rewards[:501], dataset.rewards[:501])
    assert small.rewards[501] == dataset.rewards[200 * 501]  # the second agent's first step


@pytest.mark.skipif(not LABELS.is_dir(), reason="no published labels in ../shared/data")
def test_published_labels_are_plain_arrays_and_lists() -> None:
    files = sorted(LABELS.glob("*/*"))
    assert len(files) == 54
    for path in files:
        found = plain_pickle.load(path)
        if path.name == "label_human":
            assert set(found) <= {-1, 0, 1}
        else:
            assert (type(found), found.ndim, found.dtype.kind) == (np.ndarray, 1, "i")
