"""Importers, on files in the layouts that others publish, and, where they are, on real ones."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from appo_jax.data import formats, minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.data.formats import Imported, Request
from appo_jax.envs import origin
from appo_jax.types import InputError
from tests.helpers import published
from tests.helpers.published import LABELS, LENGTH, PAIRS, pickled

SHARED = Path(__file__).parents[4] / "shared" / "data"
ID = "imported/test-v0"


def read(format: str, source: Path, **options: Any) -> Imported:
    return formats.read(format, Request(source, ID, **options))


def steps_of(found: Dataset) -> list[int]:
    return found.lengths.tolist()


def labels_of(found: Imported) -> np.ndarray:
    assert found.labels is not None
    return found.labels.labels


def test_lire_replay(tmp_path: Path) -> None:
    folder = published.lire(tmp_path / "sweep-v2")
    dataset = read("lire", folder).dataset
    assert dataset is not None
    assert (dataset.id, steps_of(dataset)) == (ID, [500, 500])  # as many as the shorter has
    one = read("lire", folder, size=1000).dataset
    assert one is not None
    assert one.digest() == dataset.digest()
    (folder / "pairs.npz").touch()
    with pytest.raises(InputError, match="sweep-v2: holds pairs.npz beside 2 buffers, expected"):
        read("lire", folder)


def test_lire_labels_of_three_schemes(tmp_path: Path) -> None:
    folder = published.lire_labels(tmp_path / "labels")
    found = read("lire-independent", folder)
    assert found.dataset is not None
    assert found.labels is not None
    assert steps_of(found.dataset) == [500, 500]
    assert labels_of(found).tolist() == [0, 0.5, 1]
    # Row 700 is step 200 of the second episode; 475 is the last start of the first.
    np.testing.assert_array_equal(found.labels.episodes, [[0, 0], [0, 1], [0, 1]])
    np.testing.assert_array_equal(found.labels.starts, [[10, 475], [20, 0], [30, 200]])
    assert found.labels.length == 25

    pointing = {"dataset": found.dataset}
    found = read("lire-seqrank", folder, **pointing)
    assert found.dataset is None  # nothing new
    assert found.labels is not None
    rows = 500 * found.labels.episodes + found.labels.starts
    pairs = [(*pair, label) for pair, label in zip(rows.tolist(), labels_of(found), strict=True)]
    expected = [(10, 20, 1), (10, 30, 1), (10, 40, 1), (20, 30, 1), (20, 40, 1), (30, 40, 0.5)]
    assert pairs == [*expected, (50, 40, 1), (600, 610, 1)]

    found = read("lire-ranked", folder, **pointing)
    assert found.labels is not None
    rows = 500 * found.labels.episodes + found.labels.starts
    pairs = [(*pair, label) for pair, label in zip(rows.tolist(), labels_of(found), strict=True)]
    expected = [(10, 20, 1), (10, 500, 1), (20, 500, 0.5)]
    assert pairs == [*expected, (30, 40, 0.5), (30, 900, 1), (40, 900, 1)]

    (folder / "dataset.pkl").unlink()
    with pytest.raises(
        InputError, match=r"labels: 3 labels of _Independent.txt, whose indices, up"
    ):
        read("lire-independent", folder)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("_Independent.txt", "10 20 0\n", "_Independent.txt line 1: label 0, expected 1 .first., "),
        ("_Independent.txt", "10 20 1\n10 20 -1\n", "line 2: label -1, expected 1"),
        ("_Independent.txt", "10 20\n", "line 1: '10 20', expected three whole numbers"),
        ("_Independent.txt", "", "_Independent.txt: no lines, expected labels"),
        ("_Independent.txt", "10 1000 1\n", "index 1000 in row 0, expected 0 to 999"),
        ("_Independent.txt", "-3 10 1\n", "index -3 in row 0, expected 0 to 999"),
        ("_Independent.txt", "10 476 1\n", r"index 476 .* step 476 of episode 0, which has 500: "),
        ("_RLT_0.txt", "0 [10]\n2 [20]\n", r"_RLT_0.txt line 2: '2 \[20\]', expected 1 \[i, ...\]"),
        ("_RLT_0.txt", "0 [10]\n1 [20, 10]\n", "line 2: a segment stands twice in this list"),
        ("_RLT_0.txt", "0 []\n", r"line 1: '0 \[\]', expected 0 \[i, ...\]"),
        ("_RLT_0.txt", f"0 [{10**19}]\n", r"line 1: '0 \[10{19}\]', expected 0 \[i, ...\]"),
        ("_RLT_0.txt", f"{'9' * 5000} [5]\n", r"line 1: '9+', expected 0 \[i, ...\]"),
        ("_RLT_0.txt", "0 [5]\n", "labels: _RLT_0.txt: no list of two segments, expected pairs"),
    ],
)
def test_lire_labels_that_are_refused(tmp_path: Path, file: str, text: str, message: str) -> None:
    folder = published.lire_labels(tmp_path / "labels")
    (folder / "_RLT_1.txt").unlink()
    (folder / file).write_text(text)
    kind = "lire-ranked" if "RLT" in file else "lire-independent"
    with pytest.raises(InputError, match=message):
        read(kind, folder)


def test_ipl_preferences_carry_their_segments(tmp_path: Path) -> None:
    path = published.ipl(tmp_path / "pairs.npz")
    found = read("ipl", path)
    dataset, labels = found.dataset, found.labels
    assert dataset is not None
    assert labels is not None
    assert steps_of(dataset) == [LENGTH - 1] * 2 * PAIRS
    assert (dataset.rewards, labels.length, labels.any_length) == (None, LENGTH, True)
    assert labels.labels.tolist() == LABELS
    with np.load(path) as raw:
        rows = labels.rows(dataset)[..., None] + np.arange(LENGTH)  # also the last action
        for side in (0, 1):
            for name, array in (("obs", dataset.observations), ("action", dataset.actions)):
                expected = raw[f"{name}_{side + 1}"].astype(np.float32)
                np.testing.assert_array_equal(array[rows[:, side]], expected)
    found = read("ipl", path, drop_last_step=True)
    assert found.labels is not None
    assert found.dataset is not None
    assert (found.labels.length, found.labels.any_length) == (LENGTH - 1, False)
    assert found.dataset.has_last_action is None


def test_ipl_preferences_with_transitions(tmp_path: Path) -> None:
    trajectories = read("ipl-transitions", published.ipl_transitions(tmp_path / "episodes")).dataset
    assert trajectories is not None
    assert steps_of(trajectories) == [7, 30]
    np.testing.assert_array_equal(np.flatnonzero(trajectories.terminations), [6])
    # Transition t leads to row t's observation by row t's action, in a file whose row 0 is a reset.
    second = published.walk(31, 1)
    np.testing.assert_array_equal(trajectories.observations[8:], second["observations"])
    np.testing.assert_array_equal(trajectories.actions[8:38], second["actions"][1:])
    together = read("ipl", published.ipl(tmp_path / "pairs.npz"), dataset=trajectories)
    assert together.dataset is not None
    assert together.labels is not None
    assert steps_of(together.dataset) == [7, 30, *[LENGTH - 1] * 2 * PAIRS]
    np.testing.assert_array_equal(together.labels.episodes[0], [2, 3])
    assert together.warnings[0].startswith(f"the rewards of {ID} are left out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("discount"), r"_0_7.npz: holds .*, expected also discount"),
        (
            lambda a: a["discount"].__setitem__(3, 0),
            "discount holds 0 in row 3 of 8, expected a te",
        ),
        (lambda a: a["discount"].__setitem__(7, 0.5), "discount hold 0.5 in row 7, expected 0 or"),
    ],
)
def test_ipl_episodes_that_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    folder = published.ipl_transitions(tmp_path / "episodes")
    changed_npz(folder / "20230101T0000_0_7.npz", change)
    with pytest.raises(InputError, match=message):
        read("ipl-transitions", folder)


def test_what_segments_put_behind_trajectories_leave_of_them(
    tmp_path: Path, numbered: Callable[..., Dataset]
) -> None:
    made = numbered((9, 9))
    trajectories = dataclasses.replace(
        made,
        observations=np.repeat(made.observations[:, :1], 3, axis=1),
        actions=np.repeat(made.actions, 2, axis=1),
        successes=np.zeros(len(made.actions), bool),
        metadata={"environment_id": "Hopper-v5"},
    )
    found = read("ipl", published.ipl(tmp_path / "pairs.npz"), dataset=trajectories)
    assert found.dataset is not None
    assert origin.environment_of(found.dataset) == "Hopper-v5"
    assert found.dataset.successes is None
    (warning,) = found.warnings
    assert warning.startswith(f"the rewards and success flags of {made.id} are left out, since")
    found = read("cpl", published.cpl(tmp_path / "segments.npz"), dataset=trajectories)
    assert found.warnings[0].startswith(f"the success flags of {made.id} are left out, since")


def test_ipl_files_that_share_pairs(tmp_path: Path) -> None:
    train = published.ipl(tmp_path / "num6_train.npz")
    with np.load(train) as raw:
        np.savez(tmp_path / "num6_eval.npz", **{name: raw[name][-2:] for name in raw})
    (warning,) = read("ipl", train).warnings
    assert warning.startswith(
        "2 of 6 labelled pairs are also in num6_eval.npz (the first is pair 4, the last pair 5)"
    )


def test_cpl(tmp_path: Path) -> None:
    path = published.cpl(tmp_path / "segments.npz")
    found = read("cpl", path)
    assert found.dataset is not None
    assert found.dataset.rewards is not None
    with np.load(path) as raw:
        scores = raw["rl_sum"].reshape(2, PAIRS)
        expected = np.where(scores[0] == scores[1], 0.5, scores[0] < scores[1])
        # Episodes are pair by pair: the third is the first segment of pair 1.
        np.testing.assert_allclose(found.dataset.returns()[2], raw["reward"][1, :-1].sum(), 1e-5)
    np.testing.assert_array_equal(labels_of(found), expected)
    assert labels_of(found)[2] == 0.5
    np.testing.assert_array_equal(labels_of(read("cpl", path, score="rl_dir")), 1 - expected)
    with pytest.raises(InputError, match=r"segments.npz: holds obs, .*, expected also rl_dis"):
        read("cpl", path, score="rl_dis_sum")


def test_d4rl_has_the_transitions_of_its_q_learning_data(tmp_path: Path) -> None:
    found = read("d4rl", published.d4rl(tmp_path / "hopper.hdf5"))
    dataset = found.dataset
    assert dataset is not None
    assert dataset.has_last_action is not None
    # The timeout's step is none, and the file's last row has no next observation.
    assert steps_of(dataset) == [5, 6, 8]
    assert dataset.has_last_action.tolist() == [False, True, True]
    rows = dataset.transition_rows()
    order = [*range(5), *range(5, 11), *range(12, 20)]
    np.testing.assert_array_equal(dataset.observations[rows, 0], order)
    np.testing.assert_array_equal(
        dataset.observations[rows + 1, 0], [*range(1, 5), 4, *range(6, 12), *range(13, 21)]
    )
    np.testing.assert_array_equal(dataset.terminations[rows], np.arange(19) == 4)
    assert "behind 1 terminal steps isn't in the file" in found.warnings[0]


def test_a_terminal_step_that_a_time_limit_cuts_is_no_transition(tmp_path: Path) -> None:
    """`qlearning_dataset` skips every row with a timeout: later numbers depend on it."""

    def change(arrays: dict[str, Any]) -> None:
        arrays["timeouts"][4] = True  # the terminal row
        arrays["terminals"][12] = arrays["timeouts"][12] = True  # an episode of one row

    found = read("d4rl", published.d4rl(tmp_path / "hopper.hdf5", change))
    assert found.dataset is not None
    rows = found.dataset.transition_rows()
    order = [*range(4), *range(5, 11), *range(13, 20)]
    np.testing.assert_array_equal(found.dataset.observations[rows, 0], order)
    assert not found.dataset.terminations.any()
    assert found.warnings[0].startswith("1 of 4 episodes have one row")
    assert found.warnings[1].startswith("2 terminal steps are timeouts too, and no transitions, as")
    assert len(found.warnings) == 2


@pytest.mark.parametrize("kind", ["pt-labels", "crowd-labels"])
def test_labels_of_people_point_at_transitions(tmp_path: Path, kind: str) -> None:
    dataset = read("d4rl", published.d4rl(tmp_path / "hopper.hdf5")).dataset
    assert dataset is not None
    write = published.pt_labels if kind == "pt-labels" else published.crowd_labels
    folder = write(tmp_path / "labels")
    with pytest.raises(
        InputError, match=r"labels: 6 labels \(2 say first, 3 say second, 1 neither\) whose indices"
    ):
        read(kind, folder)
    with pytest.raises(InputError, match=r"index 1 in row 1 begins a segment of 5 .* of episode 0"):
        read(kind, folder, dataset=dataset)  # transitions 1 to 5 are of two episodes
    found = read(kind, folder, dataset=dataset, segment_length=2)
    assert found.labels is not None
    assert labels_of(found).tolist() == LABELS
    np.testing.assert_array_equal(found.labels.episodes[:4], [[0, 1], [0, 1], [0, 1], [1, 1]])
    np.testing.assert_array_equal(found.labels.starts[:4], [[0, 0], [1, 1], [2, 1], [0, 1]])


def test_the_last_action_of_an_episode_has_no_number(tmp_path: Path) -> None:
    """Transitions 5 to 10 are of the second episode, whose seventh action has no transition."""
    dataset = read("d4rl", published.d4rl(tmp_path / "hopper.hdf5")).dataset
    folder = published.pt_labels(tmp_path / "fits", np.int32([5]), np.int32([0]), [1])
    assert read("pt-labels", folder, dataset=dataset).labels is not None
    folder = published.pt_labels(tmp_path / "late", np.int32([7]), np.int32([0]), [1])
    with pytest.raises(
        InputError, match="index 7 in row 0 .* 5 steps at step 2 of episode 1, which has 6: expect"
    ):
        read("pt-labels", folder, dataset=dataset)


def test_more_pairs_than_labels(tmp_path: Path) -> None:
    dataset = read("d4rl", published.d4rl(tmp_path / "hopper.hdf5")).dataset
    folder = published.pt_labels(tmp_path / "labels", codes=[1, -1])
    found = read("pt-labels", folder, dataset=dataset, segment_length=2)
    assert labels_of(found).tolist() == [1, 0.5]
    assert found.warnings[0].startswith("6 pairs of segments for 2 labels")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codes": [1, 2, 3, 1, 2, 3]}, "label_human: label 2 in row 1, expected 0 .first., 1"),
        ({"codes": [0, 1] * 4}, "6 first segments, 6 second ones and 8 labels, expected a first"),
        ({"second": np.int32([1, 2])}, "6 first segments, 2 second ones and 6 labels, expected"),
        ({"first": np.int32([0, 1, 2, 5, 5, 19])}, "index 19 in row 5, expected 0 to 18, the tr"),
        ({"first": np.int32([0, 1, -2, 5, 5, 3])}, "index -2 in row 2, expected 0 to 18"),
        (
            {"first": np.array([0.5] * 6)},
            r"indices_num6_q5: ndarray \[6\] of float64, expected a l",
        ),
        ({"first": np.array([None] * 6)}, "indices_num6_q5: ndarray .* of object, expected a list"),
        ({"codes": []}, "label_human: list .*, expected a list of whole numbers"),
        ({"codes": {"a": 1}}, r"label_human: dict \[\] of object, expected a list of whole"),
    ],
)
def test_pickled_labels_that_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    dataset = read("d4rl", published.d4rl(tmp_path / "hopper.hdf5")).dataset
    folder = published.pt_labels(tmp_path / "labels", **changes)
    with pytest.raises(InputError, match=message):
        read("pt-labels", folder, dataset=dataset, segment_length=2)


def test_folders_and_files_of_other_kinds(tmp_path: Path) -> None:
    folder = published.pt_labels(tmp_path / "labels")
    (folder / "indices_num6_q5").rename(folder / "moved")
    with pytest.raises(InputError, match=r"expected one file indices_num\*"):
        read("pt-labels", folder)
    (folder / "moved").rename(folder / "indices_num6_q5")
    pickled(folder / "replay.pkl", [1])
    with pytest.raises(InputError, match="labels: holds replay.pkl beside .* expected one set"):
        read("pt-labels", folder)
    (folder / "replay.pkl").unlink()
    written = (folder / "label_human").read_bytes()
    (folder / "label_human").write_bytes(written[:-3])
    with pytest.raises(InputError, match="label_human: not a pickle of plain NumPy arrays"):
        read("pt-labels", folder)
    episodes = published.ipl_transitions(tmp_path / "episodes")
    (episodes / "notes.pkl").touch()
    with pytest.raises(InputError, match=r"episodes: holds notes.pkl, expected a folder of episod"):
        read("ipl-transitions", episodes)
    for kind in formats.FORMATS:
        with pytest.raises(InputError, match="absent: not there, expected "):
            read(kind, tmp_path / "absent")
        (tmp_path / "empty").touch()
        with pytest.raises(InputError, match=r"/empty"):
            read(kind, tmp_path / "empty")
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=r"/folder"):
            read(kind, tmp_path / "folder")
    with pytest.raises(InputError, match="size: format ipl reads no such option, expected it left"):
        read("ipl", tmp_path / "empty", size=3)
    with pytest.raises(InputError, match="format 'hdf5': expected lire, "):
        read("hdf5", tmp_path / "empty")


def changed_npz(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    with np.load(path) as raw:
        arrays = dict(raw)
    change(arrays)
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("label"), r"pairs.npz: holds .*, expected also label"),
        (
            lambda a: a.update(label=a["label"] - 1),
            "labelled pair 0: label -1.0, expected a number",
        ),
        (lambda a: a.update(label=a["label"][:5]), r"label have shape \[5\], expected \[6\]"),
        (
            lambda a: a.update(label=np.array([None] * 6)),
            "label: an array of objects, expected num",
        ),
        (
            lambda a: a.update(obs_2=a["obs_2"][..., :2]),
            r"obs_2 have shape .*2\], expected \[6, 5, 3",
        ),
        (
            lambda a: a.update(obs_1=a["obs_1"][:, 0]),
            r"obs_1 have shape \[6, 3\], expected \[pairs",
        ),
        (lambda a: a.update(obs_1=a["obs_1"] * np.nan), "obs_1 hold nan in row 0, column 0, expec"),
        (lambda a: a.update({name: v[:0] for name, v in a.items()}), "no labelled pairs, expected"),
        (
            lambda a: a.update({n: v[:, :1] for n, v in a.items() if n != "label"}),
            "segments of 1 step, expected two or more",
        ),
        (lambda a: a.update({"obs_1.x": a.pop("obs_1")}), "observations are several arrays"),
    ],
)
def test_ipl_files_that_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = changed_npz(published.ipl(tmp_path / "pairs.npz"), change)
    with pytest.raises(InputError, match=message):
        read("ipl", path)


def test_a_truncated_npz(tmp_path: Path) -> None:
    path = published.ipl(tmp_path / "pairs.npz")
    written = path.read_bytes()
    for cut in (0, 3, 100, len(written) // 2, len(written) - 1):
        path.write_bytes(written[:cut])
        with pytest.raises(InputError, match="pairs.npz: not a whole .npz file"):
            read("ipl", path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("timeouts"), "holds .*, expected also timeouts"),
        (
            lambda a: a.update(actions=a["actions"][:9]),
            r"actions have shape \[9, 2\], expected \[21",
        ),
        (
            lambda a: a.update(terminals=np.full(21, 2)),
            "terminals hold 2.0 in row 0, expected 0 or",
        ),
        (
            lambda a: a.update(next_observations=a["observations"]),
            "row 0: next_observations differ from the observations of the following row",
        ),
    ],
)
def test_d4rl_files_that_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = published.d4rl(tmp_path / "hopper.hdf5", change)
    with pytest.raises(InputError, match=message):
        read("d4rl", path)


def test_a_damaged_hdf5_file(tmp_path: Path) -> None:
    path = published.d4rl(tmp_path / "hopper.hdf5")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="hopper.hdf5: not a whole HDF5 file"):
        read("d4rl", path)
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", (10**9, 10**3), np.float32, chunks=(1, 1000))
    with pytest.raises(InputError, match=r"observations has shape \(1000000000, 1000\), but the f"):
        read("d4rl", path)


@pytest.mark.parametrize("with_next", [False, True])
@pytest.mark.parametrize("in_folder", [False, True])
def test_arrays_of_ones_own(tmp_path: Path, with_next: bool, in_folder: bool) -> None:
    arrays = published.own_arrays(with_next)
    path = tmp_path / ("own" if in_folder else "own.npz")
    if in_folder:
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / name, array)
    else:
        np.savez(path, **arrays)
    dataset = read("arrays", path).dataset
    assert dataset is not None
    np.testing.assert_array_equal(dataset.observations[:, 0], np.arange(22))
    assert steps_of(dataset) == [8, 12]
    np.testing.assert_array_equal(np.flatnonzero(dataset.terminations), [7])
    np.testing.assert_array_equal(dataset.actions[dataset.transition_rows()], arrays["actions"])
    changed = tmp_path / "unsigned.npz"
    np.savez(changed, **{**arrays, "lengths": arrays["lengths"].astype(np.uint64)})
    unsigned = read("arrays", changed).dataset
    assert unsigned is not None
    assert unsigned.digest() == dataset.digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("lengths"), "own.npz: holds .*, expected also lengths"),
        (
            lambda a: a.update(rewards=a["rewards"][:19]),
            "rewards have shape .19., expected 20 rows",
        ),
        (
            lambda a: a.update(observations=a["observations"][:20]),
            "last observation of each episod",
        ),
        (lambda a: a.update(lengths=np.array([8, -1])), "lengths .* expected a list of whole numb"),
        (lambda a: a.update(reward=a.pop("rewards")), "holds reward, expected only"),
        (
            lambda a: a.update(terminations=np.arange(20) == 3),
            "episode 0: terminations hold 1 in ro",
        ),
    ],
)
def test_own_arrays_that_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    np.savez(tmp_path / "own.npz", **published.own_arrays())
    with pytest.raises(InputError, match=message):
        read("arrays", changed_npz(tmp_path / "own.npz", change))


def test_next_observations_of_other_episodes(tmp_path: Path) -> None:
    arrays = published.own_arrays(with_next=True)
    arrays["lengths"] = np.array([9, 11])
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(InputError, match="own.npz row 7: next_observations differ"):
        read("arrays", tmp_path / "own.npz")


def test_a_minari_set(tmp_path: Path, numbered: Callable[..., Dataset]) -> None:
    stored = numbered(id="other/set-v0")
    folder = minari_io.save(stored, tmp_path)
    found = read("minari", folder).dataset
    assert found is not None
    assert (found.id, found.digest()) == (ID, stored.digest())
    with pytest.raises(InputError, match="no data/metadata.json, expected the folder of a Minari"):
        read("minari", tmp_path)


def test_real_files() -> None:
    if not (SHARED / "ipl_more").is_dir():
        pytest.skip(f"{SHARED} doesn't hold files of others")
    for path, counts in (
        ("ipl_human_lift/num100_q50_human_train.npz", (35, 10, 55)),
        ("ipl_human_lift/num100_q50_human_eval.npz", (2, 0, 8)),
        ("ipl_more/Can/num100_q50_human_eval.npz", (2, 4, 4)),
        ("ipl_more/Can/num100_q50_script_eval.npz", (0, 0, 10)),
        ("ipl_more/hopper-medium-replay-v2/num500_human_eval.npz", (9, 17, 24)),
        ("ipl_more/walker2d-medium-replay-v2/num500_script_eval.npz", (28, 22, 0)),
    ):
        found = read("ipl", SHARED / path)
        values = labels_of(found)
        assert counts == ((values == 0).sum(), (values == 1).sum(), (values == 0.5).sum())
        assert bool(found.warnings) == ("lift" in path)
    folders = sorted((SHARED / "pt_human_labels").iterdir())
    assert len(folders) == 18
    for folder in folders:
        with pytest.raises(
            InputError, match=r"\d labels \(.* point into a data set that isn't her"
        ):
            read("pt-labels", folder)


def test_the_table_names_options_of_requests() -> None:
    fields = {field.name for field in dataclasses.fields(Request)}
    for found in formats.FORMATS.values():
        assert set(found.options) < fields
