"""Import files of others: `python -m experiments.import_data --format=ipl --source=pairs.npz`.

Trajectories become a Minari data set in --data_dir, labels a JSON Lines file, which
`experiments.train` takes as --dataset and --preferences. Nothing is written unless all of it is in
order. `--format=lire --download=sweep` fetches what is published before that.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import flags

from appo_jax.data import atomic, checks, formats, minari_io, preferences
from appo_jax.data.formats import FORMATS, Imported, Request
from appo_jax.envs import environment, origin
from appo_jax.types import InputError
from experiments.importing.describe import dataset_lines, label_lines
from experiments.importing.download import PUBLISHERS, fetch
from experiments.runs.experiment import Experiment
from experiments.terminal.cli import naming, run
from experiments.terminal.flags import define
from experiments.terminal.progress import Terminal

_WHAT, _OPTIONS = "What to import", "Of some formats"


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags."""
    whats = "; ".join(f"{name}: {found.help}" for name, found in FORMATS.items())
    define(values, "format", str, whats, _WHAT)
    define(values, "source", Path, "the file or folder", _WHAT)
    names = ", or ".join(publisher.help for publisher in PUBLISHERS.values())
    define(values, "download", str, f"in place of --source, what to fetch: {names}", _WHAT)
    define(values, "data_dir", Path, "folder of the data sets (default: Minari's)", _WHAT)
    define(values, "id", str, "of the new data set (default: imported/<format>-<name>-v0)", _WHAT)
    where = "file to write labels to (default: <data_dir>/<id>.jsonl)"
    define(values, "preferences", Path, where, _WHAT)
    define(values, "task", str, "the Meta-World task that the data are from", _WHAT)
    define(values, "env", str, "or the id of Gymnasium that they are from", _WHAT)
    text = "id of an imported data set that labels point into, or that is to come along with them"
    define(values, "dataset", str, text, _OPTIONS)
    define(values, "size", int, "transitions to take (lire; default: all)", _OPTIONS)
    text = "steps of a labelled segment (default: as the files or their format say)"
    define(values, "segment_length", int, text, _OPTIONS)
    text = f"array whose larger value is better (cpl; default: {Request.score})"
    define(values, "score", str, text, _OPTIONS)
    text = "leave out the last step of each segment (ipl, cpl), so that all algorithms read labels"
    define(values, "drop_last_step", bool, text, _OPTIONS, Request.drop_last_step)


def request_from_flags(values: flags.FlagValues) -> Request:
    """What is asked for. Raises InputError naming the first wrong flag."""
    for name in ("format", "source"):
        if values[name].value is None and (name == "format" or values.download is None):
            raise InputError(f"--{name} is missing, expected --format=<name> --source=<path>")
    with naming("format"):
        if values.format not in FORMATS:
            raise InputError(f"{values.format!r}, expected {', '.join(FORMATS)}")
    for name in ("size", "segment_length"):
        value = values[name].value
        if value is not None and value < 1:
            raise InputError(f"--{name}={value}: expected a whole number from 1")
    source = Path(values.source) if values.download is None else _downloaded(values)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", source.name.removesuffix(source.suffix)).strip("-")
    name, stays = name or "data", values.format == "minari" and values.download is not None
    dataset = None
    if values.dataset is not None:
        with naming("dataset"):
            dataset = minari_io.load(values.dataset, values.data_dir)
    return Request(
        source=source,
        id=values.id or (stays and values.download) or f"imported/{values.format}-{name}-v0",
        dataset=dataset,
        size=values.size,
        segment_length=values.segment_length,
        score=values.score or Request.score,
        drop_last_step=values.drop_last_step,
    )


def _downloaded(values: flags.FlagValues) -> Path:
    """Where what --download names will lie."""
    for name in ("source", *(("task", "env") if values.format == "lire" else ())):
        if values[name].value is not None:
            raise InputError(
                f"--{name}={values[name].value}: found with --download={values.download}, which "
                "says it, expected one of the two"
            )
    if values.format not in PUBLISHERS:
        raise InputError(
            f"--download: format {values.format} is published nowhere that this command knows, "
            f"expected --format={' or '.join(PUBLISHERS)}, or --source"
        )
    with naming("download"):
        return PUBLISHERS[values.format].place(values.download, minari_io.root(values.data_dir))


def main(values: flags.FlagValues) -> None:
    """Import what the flags say."""
    request = request_from_flags(values)
    made_in = _environment(values)
    folder = minari_io.root(values.data_dir)
    file = Path(values.preferences or folder / f"{request.id}.jsonl")
    stays = request.id == values.download  # fetched, with nothing to be changed
    if stays and made_in is not None:
        raise InputError(
            f"{made_in}: a set that is fetched stays as it is, expected also --id=<new>"
        )
    if not stays:
        minari_io.check_writable(request.id, folder)
    if file.exists():
        raise InputError(f"--preferences={file}: exists, expected a new file")
    if values.download is not None:
        terminal = Terminal()
        try:
            fetch(values.format, values.download, folder, terminal)
        finally:
            terminal.close()
    found = formats.read(values.format, request)
    if found.dataset is not None and made_in is not None:
        metadata = {**found.dataset.metadata, "environment_id": made_in}
        found = dataclasses.replace(
            found,
            dataset=dataclasses.replace(found.dataset, metadata=metadata),
            warnings=(*found.warnings, *origin.about(found.dataset, made_in)),
        )
    if not stays:
        _save(found, folder, file)
    print("\n".join([*_lines(found), *(f"warning: {odd}" for odd in found.warnings)]))
    if found.labels is not None:
        for odd in checks.about_labels(found.labels):
            print(f"warning: {odd}")
    print(_next(found, request, file))


def _environment(values: flags.FlagValues) -> str | None:
    if values.format == "lire" and values.download is not None:
        return environment.canonical_name(values.download, "task")
    if values.task is not None and values.env is not None:
        raise InputError(f"--env={values.env}: found with --task, expected one of the two")
    if values.task is None and values.env is None:
        return None
    return environment.canonical_name(values.task or values.env, "task" if values.task else "env")


def _save(found: Imported, folder: Path, file: Path) -> None:
    """Write both, or neither: the labels wait beside their place for the data set."""
    if found.labels is None:
        assert found.dataset is not None
        minari_io.save(found.dataset, folder)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(file) as partial:
        preferences.save(found.labels, partial)
        if found.dataset is not None:
            minari_io.save(found.dataset, folder)


def _lines(found: Imported) -> list[str]:
    lines = [] if found.dataset is None else dataset_lines(found.dataset)
    return lines + ([] if found.labels is None else label_lines(found.labels))


def _next(found: Imported, request: Request, file: Path) -> str:
    dataset = found.dataset or request.dataset
    assert dataset is not None
    length = Experiment.segment_length
    if found.labels is None or found.labels.any_length:
        # Training wants two episodes that hold a segment.
        length = min(length, int(np.sort(dataset.lengths)[-2:][0]))
    else:
        length = found.labels.length
    named = [
        f"--dataset={dataset.id}",
        *([] if found.labels is None else [f"--preferences={file}"]),
        *([] if length == Experiment.segment_length else [f"--segment_length={length}"]),
    ]
    return f"train with    {' '.join(named)}"


if __name__ == "__main__":
    run(main, define_flags, "nothing was imported")
