"""Mutants of files in the layouts that others publish, a kind for each of `formats.FORMATS`."""

import functools
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st

from appo_jax.data import formats, minari_io
from appo_jax.data.formats import Imported, Request
from tests.helpers import published
from tests.mutants.core import Draw, mutate_bytes, outcome, pick
from tests.mutants.data import mutate_array, shape_of

ID = "imported/mutant-v0"


def own_arrays(place: Path) -> Path:
    np.savez(place.with_suffix(".npz"), **published.own_arrays())
    return place.with_suffix(".npz")


def minari_set(place: Path) -> Path:
    found = formats.read("arrays", Request(own_arrays(place), "sets/own-v0")).dataset
    assert found is not None
    folder = minari_io.save(found, place)
    metadata = folder / "data" / "metadata.json"
    foreign = json.loads(metadata.read_text())
    del foreign["appo_jax"]  # its digest would refuse any change
    metadata.write_text(json.dumps(foreign, indent=1))
    return folder


SOURCES: dict[str, Callable[[Path], Path]] = {
    "lire": published.lire,
    "lire-independent": published.lire_labels,
    "lire-seqrank": published.lire_labels,
    "lire-ranked": published.lire_labels,
    "ipl": lambda place: published.ipl(place.with_suffix(".npz")),
    "ipl-transitions": published.ipl_transitions,
    "cpl": lambda place: published.cpl(place.with_suffix(".npz")),
    "pt-labels": published.pt_labels,
    "crowd-labels": published.crowd_labels,
    "d4rl": lambda place: published.d4rl(place.with_suffix(".hdf5")),
    "arrays": own_arrays,
    "minari": minari_set,
}


@functools.cache
def source_of(format: str, shared: Path) -> tuple[Path, dict[str, Any], Imported]:
    """A valid source, what its reader has to be told, and what comes out."""
    options = {}
    if format in ("pt-labels", "crowd-labels"):
        trajectories = published.d4rl(shared / "hopper.hdf5")
        dataset = formats.read("d4rl", Request(trajectories, "mine/hopper-v0")).dataset
        options = {"dataset": dataset, "segment_length": 2}
    source = SOURCES[format](shared / format)
    return source, options, formats.read(format, Request(source, ID, **options))


def mutate_values(draw: Draw, values: Any) -> Any:
    """Arrays, lists and dicts of them, with a change somewhere."""
    if isinstance(values, np.ndarray):
        return mutate_array(draw, values)
    if isinstance(values, list) and values:
        place = draw(st.integers(0, len(values) - 1))
        new = pick(draw, (values[place], -1, 2, 0.5, None, "text", float("nan"), [1, 2], 10**30))
        return pick(
            draw, ([*values[:place], new, *values[place + 1 :]], values[:-1], [], values * 2)
        )
    if isinstance(values, dict) and values:
        name = pick(draw, sorted(values))
        rest = {other: array for other, array in values.items() if other != name}
        match pick(draw, ("change", "change", "change", "delete", "rename", "add")):
            case "change":
                return {**values, name: mutate_values(draw, values[name])}
            case "delete":
                return rest
            case "rename":
                return {**rest, "two\nlines": values[name]}
            case "add":
                return {**values, "more": np.zeros(3)}
    return values


WORDS = ("0", "1", "2", "3", "-1", "475", "1000", "9" * 30, "1.5", "nan", "[10]", "[", "ä", "")


def mutate_text(draw: Draw, text: str) -> str:
    lines = text.splitlines()
    place = draw(st.integers(0, len(lines) - 1))
    words = lines[place].split()
    match pick(draw, ("word", "word", "word", "more", "less", "twice", "line", "empty")):
        case "word":
            words[draw(st.integers(0, len(words) - 1))] = pick(draw, WORDS)
        case "more":
            words.append(pick(draw, WORDS))
        case "less":
            words.pop()
        case "twice":
            lines.append(lines[place])
        case "line":
            lines.insert(place, pick(draw, WORDS))
            return "\n".join(lines)
        case "empty":
            return ""
    lines[place] = pick(draw, (" ", "\t")).join(words)
    return "\n".join(lines)


def mutate_file(draw: Draw, path: Path) -> None:
    """A change that its format can express."""
    if path.suffix == ".npz":
        with np.load(path) as raw:
            arrays = mutate_values(draw, dict(raw))
        ragged = np.array([1.0, [2.0, 3.0]], object)
        for name, array in arrays.items():
            if isinstance(array, list):
                arrays[name] = ragged if shape_of(array) is None else np.array(array)
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    elif path.suffix == ".hdf5":
        with h5py.File(path, "a") as file:
            names: list[str] = []
            file.visititems(lambda name, one: names.append(name) if hasattr(one, "shape") else None)
            name = pick(draw, sorted(names))
            array = file[name][()]
            changed = mutate_array(draw, array) if isinstance(array, np.ndarray) else None
            del file[name]
            if isinstance(changed, np.ndarray) and changed.dtype.kind in "biufc":
                file[name] = changed
    elif path.suffix in (".txt", ".json"):
        path.write_text(mutate_text(draw, path.read_text()))
    else:
        content = pickle.loads(path.read_bytes())  # written by this process
        path.write_bytes(pickle.dumps(mutate_values(draw, content), draw(st.integers(2, 5))))


def mutant_of(format: str) -> Callable[[Draw, Path, Path], str]:
    """Mutants of one format's files: refused in a sentence, or read as what can be trained on."""

    def mutant(draw: Draw, folder: Path, shared: Path) -> str:
        original, options, expected = source_of(format, shared)
        source = folder / original.name
        (shutil.copytree if original.is_dir() else shutil.copy)(original, source)
        kind = pick(draw, ("none", *("content",) * 5, "bytes", "bytes", "place", "other"))
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        path = pick(draw, files)
        match kind:
            case "content":
                mutate_file(draw, path)
            case "bytes":
                path.write_bytes(mutate_bytes(draw, path.read_bytes()))
            case "place":  # gone, or a folder
                path.unlink()
                if draw(st.booleans()):
                    path.mkdir()
            case "other":  # a file of another format, beside it or in its place
                name = pick(draw, (path.name, "more.npz", "more.pkl", "more.txt"))
                published.ipl(path.with_name("other.npz")).rename(path.with_name(name))
        request = Request(source, ID, **options)
        found, refusal = outcome(lambda: formats.read(format, request), str(folder), ID, "data set")
        if kind == "none":
            assert refusal is None, refusal
            assert (found.dataset and found.dataset.digest()) == (
                expected.dataset and expected.dataset.digest()
            )
        if refusal:
            return "refused"
        check(found, request)
        return "warned of" if found.warnings else "accepted"

    mutant.__name__ = f"{format.replace('-', '_')}_files_mutant"
    return mutant


def check(found: Imported, request: Request) -> None:
    """What training relies on."""
    dataset = found.dataset or request.dataset
    assert dataset is not None
    for array in (dataset.observations, dataset.actions, dataset.rewards):
        assert array is None or np.isfinite(array).all()
    assert dataset.lengths.min() >= 1
    assert dataset.lengths.sum() + dataset.num_episodes == len(dataset.observations)
    if found.labels is not None:
        labels = found.labels
        assert len(labels) > 0
        assert ((labels.labels >= 0) & (labels.labels <= 1)).all()
        assert (labels.starts >= 0).all()
        ends = labels.starts + (labels.length if labels.lengths is None else labels.lengths)
        assert (ends <= dataset.label_lengths[labels.episodes]).all()


MUTANTS = [mutant_of(format) for format in formats.FORMATS]
