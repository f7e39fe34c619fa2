"""Label pairs of segments by hand: `python -m experiments.label --dataset=<id>`.

Prints an address; the page there shows two clips at a time and asks which one is better. An answer
is on the disk before the page counts it: stop with Ctrl-C at any time, the same command goes on.
`experiments.train --preferences=<workdir>/preferences.jsonl` learns from the labels.
"""

import dataclasses
import os
import re
import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from appo_jax import workers
from appo_jax.data import checks, minari_io
from appo_jax.data.dataset import Dataset
from appo_jax.envs import environment, meta_world, origin
from appo_jax.settings import MAX_INT, Settings, setting
from appo_jax.types import InputError
from experiments.labelling import server, strategies, teacher
from experiments.labelling.disagreement import Disagreement
from experiments.labelling.session import Plan, Session, opened
from experiments.labelling.strategies import Segmented, Strategy
from experiments.rendering.worker import Look, Renderer, check_frames
from experiments.runs import signals, sources
from experiments.runs.events import Event, Told
from experiments.runs.experiment import Execution
from experiments.terminal import cli
from experiments.terminal.flags import define, define_settings, given

_MAIN, _CLIPS, _DATA = "What to label", "The page and its clips", "The data set"
QUESTION = "Which clip is better?"
NAMES = ("random", "changing", "disagreement", "ranked")
PAIRS = f"{', '.join(NAMES)}, or a file of pairs (.jsonl)"


@dataclasses.dataclass(frozen=True)
class Options(Settings):
    """What is asked about, and how it looks."""

    labeller: str = setting("me", "who answers; names the journal (the teacher: scripted)")
    num_pairs: int = setting(500, "pairs to ask about, repeated ones too")
    pairs: str = setting("random", f"how they are found: {PAIRS}")
    segment_length: int = setting(25, "steps of a segment")
    seed: int = setting(0, "of pairs and sides", low=0, high=MAX_INT)
    repeats: float = setting(
        0.05, "share of pairs that are asked about once more, sides swapped", low=0, high=0.5
    )
    question: str = setting(QUESTION, "what stands above the clips")


@dataclasses.dataclass(frozen=True)
class Page(Settings):
    """How clips look, and where the page is."""

    fps: int = setting(10, "steps a second", high=60)
    size: str = setting("480x360", "pixels of a clip")
    port: int = setting(8765, "of the page; 0: any that is free", low=0, high=65535)


@dataclasses.dataclass(frozen=True)
class Source(Settings):
    """Which data set, where there are several."""

    dataset_size: int | None = setting(None, "with --task or --env: transitions to take")
    data_seed: int = setting(
        0, "with --task or --env: seed that the set was collected with", low=0, high=MAX_INT
    )


def define_flags(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Define the flags."""
    text = "id of a Minari data set; with --task also auto, medium-replay or medium-expert"
    define(values, "dataset", str, text, _MAIN)
    define(values, "task", str, "Meta-World task, where the data set doesn't say it", _MAIN)
    define(values, "env", str, "likewise an id of Gymnasium, e.g. Hopper-v5", _MAIN)
    text = "folder of the labels (default: labels/<dataset>; with --scripted "
    text += "labels/<dataset>-scripted-<pairs>-seed<seed>)"
    define(values, "workdir", Path, text, _MAIN)
    define_settings(values, Options, _MAIN)
    define_settings(values, Page, _CLIPS)
    define(values, "camera", str, "the view to begin with; C shows others", _CLIPS)
    text = "folder with 0.npy, 1.npy, ... of episodes, uint8 [steps + 1, height, width, 3], to show"
    define(values, "frames", Path, text, _CLIPS)
    define(values, "open", bool, "open the page in the browser", _CLIPS, False)
    text = "let the scripted teacher answer, by the true returns; to compare ways to find pairs"
    define(values, "scripted", bool, text, _MAIN, False)
    define(values, "data_dir", Path, "folder of the data sets (default: Minari's)", _DATA)
    define_settings(values, Source, _DATA)


def look_of(values: flags.FlagValues, page: Page) -> Look:
    """How clips look. Raises InputError for a size that no clip has."""
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", page.size)
    width, height = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (160 <= width <= 1280 and 120 <= height <= 960):
        raise InputError(f"--size={page.size}: expected 160x120 to 1280x960")
    return Look(width, height, values.camera, Path(values.frames) if values.frames else None)


def obtain(values: flags.FlagValues, source: Source) -> tuple[Dataset, str | None]:
    """The data set and its environment's name, None where nobody knows it.

    Raises InputError for flags that name no data set.
    """
    if values.dataset is None:
        there = minari_io.what_is_there(values.data_dir)
        raise InputError(f"--dataset is missing, expected an id; there are: {there}")
    if values.task is not None and values.env is not None:
        raise InputError(f"--env={values.env}: given with --task={values.task}, expected one")
    data_dir = minari_io.root(values.data_dir)
    flag, asked = ("task", values.task) if values.env is None else ("env", values.env)
    if asked is None:
        if found := given(values, Source):
            unread, value = next(iter(found.items()))
            raise InputError(
                f"--{unread}={value}: is read with --task or --env alone, expected one of these too"
            )
        dataset = minari_io.load(values.dataset, data_dir)
        name = origin.environment_of(dataset)
        return dataset, name and (
            meta_world.canonical_name(name) if meta_world.is_task(name) else name
        )
    name = environment.canonical_name(asked, flag)
    spec = sources.resolve(values.dataset, name, source.dataset_size, source.data_seed, data_dir)
    execution = Execution(workdir=Path(), data_dir=data_dir, num_workers=workers.available_cores())
    dataset = sources.SOURCES[spec.source].load(spec, name, execution, _tell)
    made_in = origin.environment_of(dataset)
    if made_in is not None and origin.is_other(made_in, name):
        raise InputError(
            f"--dataset={dataset.id}: data of {made_in}, expected data of {name}, or the flag "
            f"--{flag} left out"
        )
    return dataset, name


def strategy_of(options: Options, dataset: Dataset, scripted: bool = False) -> Strategy:
    """How pairs are found. scripted: nobody waits, so that fits need no background.

    Raises InputError for a name that is none, and a file that isn't one.
    """
    segmented = Segmented(dataset, options.segment_length)
    match options.pairs:
        case "random":
            return strategies.Random(segmented, options.seed)
        case "changing":
            return strategies.Changing(segmented, options.seed)
        case "disagreement":
            first = strategies.Changing(segmented, options.seed)
            return Disagreement(segmented, options.seed, first, waits=scripted)
        case "ranked":
            return strategies.Ranked(segmented, options.seed)
    path = Path(os.path.expanduser(options.pairs))
    if not path.is_file():
        raise InputError(f"--pairs={options.pairs}: expected {PAIRS}")
    return strategies.FromFile(path, dataset, options.segment_length)


def tie_threshold(env_name: str | None) -> float:
    """Returns of segments that differ by no more are a tie for the scripted teacher."""
    return environment.family(env_name).tie_threshold if env_name is not None else 0.0


def serve(session: Session, renderer: Renderer, page: Page, is_opened: bool) -> None:
    """Serve the page until a signal comes."""
    made = server.Server(session, renderer, page.port, page.fps)
    with signals.noted() as came, server.serving(made):
        made.look_ahead()
        print(f"open {made.url}")
        if is_opened:
            webbrowser.open(made.door().as_uri())
        print("stop with Ctrl-C; every answer is kept")
        while not came:
            time.sleep(0.2)


def main(values: flags.FlagValues) -> None:
    """Ask a person, and say at the end what they answered."""
    defaults = {"labeller": "scripted"} if values.scripted else {}
    options = Options(**{**defaults, **given(values, Options)})
    page = Page(**given(values, Page))
    look = look_of(values, page)
    dataset, env_name = obtain(values, Source(**given(values, Source)))
    if look.frames is not None:
        check_frames(look.frames, dataset)
    checks.check_episodes(dataset, options.segment_length)
    strategy = strategy_of(options, dataset, values.scripted)
    workdir = Path(values.workdir or _folder(options, dataset, values.scripted))
    planned = dataclasses.asdict(options)
    labeller = planned.pop("labeller")
    with opened(workdir, dataset, Plan(**planned), labeller, strategy) as session:
        print(f"data: {dataset.id}, {dataset.num_transitions:,} transitions, of {env_name}")
        print(f"labels: {workdir}, {len(session.answers)} answers by {labeller} so far")
        if isinstance(strategy, strategies.FromFile) and session.left_out:
            print(
                f"note: --num_pairs={options.num_pairs} leaves out {session.left_out} pairs of "
                f"--pairs={options.pairs}; --num_pairs={options.num_pairs + session.left_out} asks "
                "about all of them"
            )
        if values.scripted:
            teacher.answer_all(session, dataset, tie_threshold(env_name))
        else:
            renderer = Renderer(dataset, env_name, options.segment_length, look)
            for note in (*session.notes, *renderer.notes):
                print(f"note: {note}")
            try:
                serve(session, renderer, page, values.open)
            finally:
                renderer.close()
        print("\n".join(session.report()) or "no answers")
        print(f"labels are in {workdir / 'preferences.jsonl'}")


def _folder(options: Options, dataset: Dataset, scripted: bool) -> Path:
    """Where labels go that are told no place: a teacher's not where a person's or another's are."""
    if not scripted:
        return Path("labels", dataset.id)
    if options.pairs not in NAMES:
        raise InputError(
            "--workdir is missing, expected a folder for what --scripted says of a file"
        )
    return Path("labels", f"{dataset.id}-scripted-{options.pairs}-seed{options.seed}")


def _tell(event: Event) -> None:
    if isinstance(event, Told):
        print(event.text, file=sys.stderr)


if __name__ == "__main__":
    cli.run(main, define_flags, kept="every answer is on the disk; the same command goes on")
