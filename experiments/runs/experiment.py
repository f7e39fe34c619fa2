"""What a run is: everything that changes a number, and, apart from it, what doesn't."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from appo_jax import registry, training
from appo_jax.data import schemes
from appo_jax.settings import MAX_INT, MAX_ROWS, Settings, setting
from appo_jax.types import InputError


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """Which data set a run trains on.

    requested: as on the command line. reason: why it led here. recipe: "medium-replay",
    "medium-expert" or "minari". source: who loads it, a name in `sources.SOURCES`. id: under which
    people know it. size: transitions, None where the set decides.
    """

    requested: str
    reason: str
    recipe: str
    source: str
    id: str
    size: int | None
    data_seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """All that changes a number.

    algorithm: name in the registry. policy, swept: its policy learner's `Config` and `Swept`.
    reward_model: its reward learner's `Config`, None where it has none. preferences_digest: of the
    file of labels, None for the scripted teacher's. `num_updates` too is part of what a run is, but
    without a schedule over the whole run a longer run extends a shorter one.
    """

    algorithm: str
    env_name: str
    dataset: DatasetSpec
    policy: Any
    swept: Any
    reward_model: Any = None
    preferences_digest: str | None = None
    num_feedback: int = setting(
        1000, "labelled pairs; where --preferences is given, all of them", high=MAX_ROWS
    )
    normalise_observations: bool = setting(
        True, "train on observations of mean 0 and standard deviation 1, else as they are"
    )
    segment_length: int = setting(25, "steps of a segment")
    tie_threshold: float = setting(0.0, "returns that differ by no more are a tie", low=0)
    feedback: schemes.Feedback = setting(
        "independent",
        "what --num_feedback comparisons of the scripted teacher become: independent pairs, or all "
        "pairs of the ranked lists of a chain (seqrank) or of binary searches (ranked, LiRE's)",
    )
    label_noise: float = setting(0.0, "chance that a label becomes another one", low=0, high=1)
    reward: Literal["learned", "shuffled", "negated", "true", "zero", "none"] = setting(
        "learned",
        "what trains the policy, to see what the labels give: the algorithm's own (learned, true, "
        "or none), or in its place shuffled (permuted over the transitions), negated (upside "
        "down), true (the data set's own, scaled to [0, 1]) or zero",
    )
    ending: Literal["unknown", "fall", "goal"] = setting(
        "unknown",
        "what an end in a terminal state, which is worth 0, is to the learned rewards: a fall (no "
        "step is worth less: rewards from 0 up), the goal (each costs something: below 0), or "
        "unknown (their zero stays where --reward_scale puts it; minmax: a fall)",
    )
    seed: int = setting(
        0, "decides labels, initialisation, batches and evaluations", low=0, high=MAX_INT
    )
    num_updates: int = setting(
        250_000,
        "updates of the policy; more of them extend a run, unless a schedule of its algorithm is "
        "over all of it",
    )
    eval_interval: int = setting(5_000, "updates between evaluations")
    eval_episodes: int = setting(50, "episodes of one evaluation", high=MAX_ROWS)
    eval_stop_at_success: bool = setting(
        False, "end an episode at its first success: the return is then no true one"
    )

    def resolved(self) -> dict[str, Any]:
        """Every field, JSON-able."""
        return dataclasses.asdict(self)

    def identity(self) -> dict[str, Any]:
        """What two runs must share for one to go on where the other stopped."""
        resolved = self.resolved()
        del resolved["num_updates"]
        if self.horizon() is None:
            resolved["policy"].pop("num_updates", None)
        # A set that was collected by one start is found on disk by the next.
        resolved["dataset"] = {"id": self.dataset.id}
        return resolved

    def horizon(self) -> int | None:
        """The updates that the run has to have, for a schedule over all of it, else None."""
        return training.horizon(registry.algorithm(self.algorithm).policy_learner, self.policy)

    def digest(self) -> str:
        """A short name for `identity`."""
        return identity_digest(self.identity())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution(Settings):
    """Where and how runs are carried out: what changes no number."""

    workdir: Path
    data_dir: Path
    preferences: Path | None = None
    num_workers: int = setting(1, "simulator processes", high=1000)
    chunk_updates: int | None = setting(
        None, "updates before signals and progress are looked at; if left out 500, on a CPU 100"
    )
    runs_axis: Literal["auto", "map", "vmap"] = setting(
        "auto", "runs of a grid in turn (map), together (vmap), or what suits the device (auto)"
    )
    allow_other_environment: bool = setting(
        False, "train on data whose metadata name another environment than --task or --env"
    )
    on_bad_label: Literal["refuse", "drop"] = setting(
        "refuse",
        "a pair of --preferences that pairs a segment with itself: refuse the file, or drop (leave "
        "the pair out and say how many were)",
    )
    runs_per_group: int = setting(
        0, "runs of a grid that train in one program; 0: as many as fit into memory", low=0
    )
    track: str = setting(
        "",
        "who else gets what metrics.csv gets, with commas: tensorboard, wandb, or module:name of "
        "your own",
    )


def digest(runs: Sequence[Experiment]) -> str:
    """A short name for one run, or for all the runs of a grid."""
    return runs[0].digest() if len(runs) == 1 else _digest(" ".join(run.digest() for run in runs))


# Settings that came after the first runs of this format, with what held before: such runs stay the
# same runs.
_ADDED = {"normalise_observations": True}


def completed(found: Mapping[str, Any]) -> dict[str, Any]:
    """Settings or an identity of a file, with the settings that it was written too early for."""
    return {**found, **{name: _ADDED[name] for name in _ADDED if name not in found}}


def identity_digest(identity: Mapping[str, Any]) -> str:
    """`Experiment.digest`, from an identity as it is or as a file holds it."""
    own = {k: v for k, v in identity.items() if k not in _ADDED or v != _ADDED[k]}
    return _digest(json.dumps(own, sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def of_resolved(resolved: Mapping[str, Any]) -> Experiment:
    """The experiment that `Experiment.resolved` was made of, from a file.

    A data set that was collected for it is one that is there. Raises InputError for the fields of
    another release.
    """
    try:
        return _of_resolved(resolved)
    except (TypeError, KeyError) as error:
        raise InputError(f"settings of another release ({error}), expected this one's") from error


def _of_resolved(resolved: Mapping[str, Any]) -> Experiment:
    algorithm = registry.algorithm(resolved["algorithm"])
    spec = DatasetSpec(**resolved["dataset"])
    if spec.source == "collected":
        spec = dataclasses.replace(spec, source="minari")
    model = resolved["reward_model"]
    learners: dict[str, Any] = {
        "policy": algorithm.policy_learner.Config(**resolved["policy"]),
        "swept": algorithm.policy_learner.Swept(**resolved["swept"]),
        "reward_model": algorithm.reward_learner and algorithm.reward_learner.Config(**model),
    }
    return Experiment(**{**resolved, "dataset": spec, **learners})


def named_settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings, of `Experiment.resolved`, by the names that their flags have."""
    return dict(_named(completed(resolved)))


def _named(resolved: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    prefixes = {"policy": "", "swept": "", "reward_model": "reward_"}
    for name, value in resolved.items():
        if name == "dataset":
            yield "dataset", value["id"]
        elif isinstance(value, Mapping) and name in prefixes:
            yield from ((prefixes[name] + inner, own) for inner, own in value.items())
        elif name not in prefixes:
            yield name, value


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that aren't the same in all runs.

    The data set is left out where it differs because the environment does.
    """
    names = list(dict.fromkeys(name for own in settings for name in own))
    found = [name for name in names if len({repr(own.get(name)) for own in settings}) > 1]
    pairs = {(own.get("env_name"), own.get("dataset")) for own in settings}
    if len(pairs) == len({env_name for env_name, _ in pairs}) and "dataset" in found:
        found.remove("dataset")
    return found


def label(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    """`lam 0.1, seed 3`: the settings of these names, for a legend or a message."""
    return ", ".join(f"{name} {shown(settings.get(name))}" for name in names)


def shown(value: Any) -> str:
    """A setting's value, for a person."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def difference(found: Any, expected: Any) -> str | None:
    """The first field in which two identities differ, as words, or None.

    Fields of `found` alone count inside a field, not at the top. Either may come from a file, so
    that it is anything.
    """
    if not (isinstance(found, Mapping) and isinstance(expected, Mapping)):
        return None if found == expected else f"{found!r}, not {expected!r}"
    for field, value in expected.items():
        inner = found.get(field)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            differs = difference(inner, {**dict.fromkeys(inner), **value})
            if differs:
                return f"{field}: {differs}"
        elif inner != value:
            return f"{field} {inner!r}, not {value!r}"
    return None


def file_digest(path: Path) -> str:
    """SHA-256 of a file's contents. Raises InputError if it can't be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error
