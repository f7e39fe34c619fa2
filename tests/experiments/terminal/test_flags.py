"""The flags of `experiments.train`: which values are refused, and what each one sets."""

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from absl import flags

from appo_jax import appo, registry, reward_model, settings
from appo_jax.envs import meta_world
from appo_jax.types import InputError
from experiments import train
from experiments.runs.experiment import Execution, Experiment
from experiments.runs.reward_controls import own_kind
from experiments.terminal import cli
from experiments.terminal.flags import decimal_commas, define
from tests.helpers.commands import call
from tests.helpers.runs import TINY, parse, tiny, write_buffers

_ANY = "that float32 can hold"
BAD_VALUES = {
    "--task=": "--task: task '' is none",
    "--task=swep": "--task: task 'swep' is none of Meta-World's 50, expected a name like sweep",
    "--lam=-1": f"--lam=-1.0: expected a number from 0 {_ANY}",
    "--lam=nan": f"--lam=nan: expected a number from 0 {_ANY}",
    "--lam=inf": f"--lam=inf: expected a number from 0 {_ANY}",
    "--lam=1e39": f"--lam=1e+39: expected a number from 0 {_ANY}",
    "--lam=1e-50": f"--lam=1e-50: expected a number from 0 {_ANY}",
    "--lam=0.1,-1": "--lam=-1.0: expected a number from 0",
    f"--num_updates={10**400}": f"--num_updates={10**400}: expected a whole number from 1 to 2147",
    "--discount=1.5": "--discount=1.5: expected a number from 0 to 1",
    "--tau=0": "--tau=0.0: expected a number above 0 to 1",
    "--tau=1.1": "--tau=1.1: expected a number above 0 to 1",
    "--tau=1e-50": "--tau=1e-50: expected a number above 0 to 1",
    "--initial_temperature=1e-50": "--initial_temperature=1e-50: expected a number above 0",
    "--tie_threshold=-1": "--tie_threshold=-1.0: expected a number from 0",
    "--label_noise=1.1": "--label_noise=1.1: expected a number from 0 to 1",
    "--seed=-1": "--seed=-1: expected a whole number from 0 to 2147483647",
    "--seed=2147483648": "--seed=2147483648: expected a whole number from 0 to 2147483647",
    "--batch_size=2147483647": "--batch_size=2147483647: expected a whole number from 1 to 1048576",
    "--num_workers=1001": "--num_workers=1001: expected a whole number from 1 to 1000",
    "--data_seed=-1": "--data_seed=-1: expected a whole number from 0",
    "--reward=foo": "--reward=foo: expected learned, shuffled, negated, true, zero or none",
    "--reward=none": "--reward=none: expected learned, shuffled, negated, zero or true with",
    "--reward_scale=foo": "--reward_scale=foo: expected minmax or raw",
    "--runs_axis=pmap": "--runs_axis=pmap: expected auto, map or vmap",
    "--dataset=nothing": "--dataset=nothing: for button-press-topdown-v3 expected auto, medium-re",
    "--dataset_size=501": "--dataset_size=501: expected a multiple of",
    "--dataset_size=0": "--dataset_size=0: expected a whole number from 1",
    "--segment_length=501": "--segment_length=501: expected a number from 1 to 500",
    "--preferences=missing": "--preferences: missing: can't be read",
    "--log_std_min=3": "--log_std_min=3.0: expected at most log_std_max=2.0",
    "--env=Hopper-v5": "--env=Hopper-v5: found with --task=button-press-topdown, expected one of",
    "--algorithm=appoo": "algorithm 'appoo': expected appo, ",
    "--expectile=0.7": "--expectile: a setting of --algorithm=mr, --algorithm=pt, "
    "--algorithm=pvo, --algorithm=oracle, --algorithm=ipl, not of --algorithm=appo, which has "
    "--lam, --discount, --tau and what --help shows",
}


@pytest.mark.parametrize("bad", BAD_VALUES)
def test_bad_values(bad: str, data_dir: Path) -> None:
    with pytest.raises(InputError) as error:
        parse(*TINY, f"--data_dir={data_dir}", bad)
    assert str(error.value).startswith(BAD_VALUES[bad])


def test_a_flag_of_another_algorithm(data_dir: Path) -> None:
    flags_of_iql = [flag for flag in TINY if "num_pairs" not in flag]
    with pytest.raises(InputError, match=r"^--lam: a setting of --algorithm=appo, .*, not of"):
        parse(*flags_of_iql, f"--data_dir={data_dir}", "--algorithm=mr", "--lam=1")
    with pytest.raises(
        InputError, match=r"^--reward_num_epochs: a setting of .*appo, .*mr, .*, not of"
    ):
        parse("--task=sweep", "--algorithm=oracle", "--reward_num_epochs=3")


def test_values_that_are_no_list(data_dir: Path) -> None:
    for bad, expected in {
        "--seed=0-4": "'0-4' is not an integer, expected one, or several with commas between them",
        "--lam=0.1;0.2": "'0.1;0.2' is not a number, expected one, or several with commas between",
        "--lam=": "'' is not a number, expected one, or several",
    }.items():
        values, argv = flags.FlagValues(), ["train", bad]
        train.define_flags(values, argv)
        with pytest.raises(InputError, match=f"^{bad}: {expected}.*, like 0,1,2$"):
            cli.parse_flags(values, argv)


def test_a_decimal_comma_is_told(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: str) -> list[str]:
        values, argv = flags.FlagValues(), ["train", *arguments]
        train.define_flags(values, argv)
        cli.parse_flags(values, argv)
        return decimal_commas(values)

    assert told("--lam", "0,03") == [
        "--lam=0,03 has two values, which are a grid; one number is written with a point, "
        "--lam=0.03"
    ]
    assert told("--lam=0.5,3", "--seed=0,3", "--discount=0.9") == []
    assert told("--lam=1,2,3", "--discount=0,1.0") == []
    place = (f"--data_dir={data_dir}", "--workdir=/dev/null/run", "--nocompilation_cache")
    with pytest.raises(InputError, match="--workdir=/dev/null/run: can't be written to"):
        call(train, *TINY, *place, "--lam=0,3")
    assert "\nwarning: --lam=0,3 has two values, which are a grid" in capsys.readouterr().out


def test_bad_values_without_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--task is missing, expected a Meta-World task"):
        parse(f"--data_dir={tmp_path}")
    with pytest.raises(InputError, match=r"^--dataset=medium-replay: .* holds no folder"):
        parse("--task=sweep", f"--data_dir={tmp_path}", "--dataset=medium-replay")
    with pytest.raises(InputError, match=r"^--dataset_size=501: expected a multiple of 500"):
        parse("--task=sweep", f"--data_dir={tmp_path}", "--dataset_size=501")
    with pytest.raises(InputError, match=r"^--env=sweep: environment 'sweep' .* --task=sweep"):
        parse("--env=sweep", f"--data_dir={tmp_path}")
    with pytest.raises(flags.IllegalFlagValueError, match="--num_updates=1.5"):
        parse("--task=sweep", "--num_updates=1.5")
    assert not any(tmp_path.iterdir())


def learners(algorithm: str) -> dict[str, Any]:
    """An algorithm's learners, by where their configs end up."""
    found = registry.algorithm(algorithm)
    both = {"policy": found.policy_learner, "reward_model": found.reward_learner}
    return {name: learner for name, learner in both.items() if learner}


def own_settings(algorithm: str) -> list[tuple[str, str, settings.Field]]:
    """Where a setting ends up, the prefix of its flag, and the setting, of every flag made."""
    found = registry.algorithm(algorithm)
    classes = [("", "", Experiment), ("execution", "", Execution)]
    classes += [
        ("swept", "", found.policy_learner.Swept),
        ("policy", "", found.policy_learner.Config),
    ]
    if found.reward_learner:
        classes.append(("reward_model", "reward_", found.reward_learner.Config))
    return [
        (place, prefix, field)
        for place, prefix, cls in classes
        for field in settings.fields(cls)
        if not field.setting.of_run
    ]


def another(field: settings.Field, value: Any) -> Any:
    """A value that the field can have and doesn't."""
    if field.name == "reward":
        return "zero"
    if field.choices:
        return next(choice for choice in field.choices if choice != value)
    if field.type is bool:
        return not value
    if field.name == "crop_rows":  # at most the segment's
        return value - 1
    if field.type is int:
        return 7 if value != 7 else 9
    if field.type is str:
        return "tensorboard"
    return 0.125


@pytest.mark.parametrize("algorithm", registry.ALGORITHMS)
def test_each_flag_sets_the_field_of_its_name(algorithm: str, data_dir: Path) -> None:
    common = (*tiny(algorithm), f"--data_dir={data_dir}")
    before = _flat(*parse(*common))
    for place, prefix, field in own_settings(algorithm):
        if field.name == "reward" and own_kind(algorithm) == "none":
            continue  # it can have no other value
        if field.name == "ending" and algorithm not in ("appo", "mr", "pt", "pvo"):
            continue  # nor can the zero of rewards that aren't learned for each step
        target = f"{place}.{field.name}".strip(".")
        value = another(field, before[target])
        after = _flat(*parse(*common, f"--{prefix}{field.name}={value}"))
        different = {name for name in before if before[name] != after[name]}
        expected = {target} | {
            f"{part}.{own.name}"
            for part, learner in learners(algorithm).items()
            for own in settings.fields(learner.Config)
            if own.setting.of_run and own.name == field.name
        }
        assert different - {"execution.workdir"} == expected, field.name
        assert all(after[name] == value for name in expected)


@pytest.mark.parametrize("algorithm", registry.ALGORITHMS)
def test_each_flag_has_bounds(algorithm: str, data_dir: Path) -> None:
    common = (*tiny(algorithm), f"--data_dir={data_dir}")
    for _, prefix, field in own_settings(algorithm):
        if field.type is bool or (field.type is str and not field.choices):
            continue
        outside = {int: 2**31, float: "inf", str: "nothing"}[field.type]
        name = f"{prefix}{field.name}"
        with pytest.raises(InputError, match=rf"^--{name}={outside}: expected "):
            parse(*common, f"--{name}={outside}")


def _flat(runs: list[Any], execution: Any) -> dict[str, Any]:
    (experiment,) = runs
    found = {f"execution.{key}": value for key, value in dataclasses.asdict(execution).items()}
    for key, value in experiment.resolved().items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{key}.{name}".strip("."): field for name, field in inner.items()}
    return found


def test_help_shows_the_algorithms_own(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for algorithm in registry.ALGORITHMS:
        values, argv = flags.FlagValues(), ["train", f"--algorithm={algorithm}", "--help"]
        train.define_flags(values, argv)
        with pytest.raises(SystemExit) as end:
            cli.parse_flags(values, argv, "About.")
        assert end.value.code == 0
        shown[algorithm] = capsys.readouterr().out
        for _, prefix, field in own_settings(algorithm):
            assert f"  --{prefix}{field.name} " in shown[algorithm]
            assert " ".join(field.setting.help.split()[:3]) in " ".join(shown[algorithm].split())
    assert "--lam " in shown["appo"]
    assert "--lam " not in shown["mr"]
    assert "--reward_num_epochs" not in shown["oracle"]
    assert (
        shown["appo"].index("--task")
        < shown["appo"].index("--lam ")
        < shown["appo"].index("--tau ")
    )


def test_paper_settings_are_the_defaults(tmp_path: Path) -> None:
    (experiment,), execution = parse("--task=sweep-v2", f"--data_dir={tmp_path}")
    assert experiment.policy == appo.Config()
    assert experiment.swept == appo.Swept()
    assert experiment.reward_model == reward_model.Config()
    found = experiment.resolved()
    assert found["swept"] == {"lam": 0.03, "discount": 0.99, "tau": 0.001}
    expected = {
        "env_name": "sweep-v3",
        "reward": "learned",
        "num_feedback": 1000,
        "segment_length": 25,
        "tie_threshold": meta_world.TIE_THRESHOLD,
        "eval_interval": 5000,
        "eval_episodes": 50,
        "num_updates": 250_000,
    }
    assert expected.items() <= {k: v for k, v in found.items() if not isinstance(v, dict)}.items()
    assert execution.workdir == Path("runs") / "sweep" / "appo" / experiment.digest()
    assert execution.chunk_updates is None


def test_defaults_for_environments_that_can_terminate(tmp_path: Path, numbered: Any) -> None:
    from appo_jax.data import minari_io

    minari_io.save(numbered(), tmp_path)
    flags_of_env = ("--env=Hopper-v5", f"--data_dir={tmp_path}", "--dataset=tiny/numbered-v0")
    (run,), _ = parse(*flags_of_env)
    assert (run.policy.pairwise_error, run.tie_threshold) == (False, 0.0)
    (run,), _ = parse(*flags_of_env, "--pairwise_error", "--tie_threshold=2")
    assert (run.policy.pairwise_error, run.tie_threshold) == (True, 2.0)
    (run,), _ = parse(*flags_of_env, "--algorithm=mr")
    assert run.policy.follow_terminations


def test_every_swept_number_spans_a_grid(data_dir: Path) -> None:
    for algorithm in registry.ALGORITHMS:
        for field in settings.fields(registry.algorithm(algorithm).policy_learner.Swept):
            runs, _ = parse(
                *tiny(algorithm), f"--data_dir={data_dir}", f"--{field.name}=0.25,0.5", "--seed=0,1"
            )
            found = [(getattr(run.swept, field.name), run.seed) for run in runs]
            assert found == [(0.25, 0), (0.25, 1), (0.5, 0), (0.5, 1)]


def test_default_folder_is_one_for_all_places(tmp_path: Path, data_dir: Path) -> None:
    where = parse(*TINY, f"--data_dir={data_dir}")[1].workdir
    write_buffers(tmp_path / "other")
    for same in (
        "--num_workers=1",
        "--chunk_updates=9",
        "--num_updates=70",
        f"--data_dir={tmp_path / 'other'}",
        "--dataset=medium-replay",
    ):
        assert parse(*TINY, f"--data_dir={data_dir}", same)[1].workdir == where
    assert parse(*TINY, f"--data_dir={data_dir}", "--lam=0.1")[1].workdir != where


def test_the_last_of_several_seeds_has_the_bounds_of_one(data_dir: Path) -> None:
    common = (*TINY, f"--data_dir={data_dir}")
    assert parse(*common, "--seed=2147483646", "--num_seeds=2")[0][1].seed == 2**31 - 1
    with pytest.raises(InputError, match=r"^--num_seeds=2: .* the last one is 2147483648, expec"):
        parse(*common, "--seed=2147483647", "--num_seeds=2")


def test_the_home_folder_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_buffers(tmp_path / "data")
    write_buffers(tmp_path / "~")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    _, execution = parse(*TINY, "--data_dir=~/data", "--workdir=~/run")
    assert (execution.data_dir, execution.workdir) == (tmp_path / "data", tmp_path / "run")
    assert parse(*TINY, "--data_dir=./~")[1].data_dir == tmp_path / "~"


COMMANDS = [p.stem for p in Path(train.__file__).parent.glob("*.py") if p.stem != "__init__"]


def test_the_home_folder_in_paths_of_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = []
    for command in COMMANDS:
        values = flags.FlagValues()
        importlib.import_module(f"experiments.{command}").define_flags(values, [command])
        for name in {"experiment", "runs", *_paths(values)}.intersection(values):
            parsed: Any = values[name].parser.parse("~/a")
            assert parsed in ("/home/me/a", ("/home/me/a",)), f"{command} --{name}"
            found.append((command, name))
    assert {("evaluate", "output"), ("sweep", "workdir"), ("train", "preferences")} <= set(found)


@pytest.mark.parametrize(("algorithm", "reward"), [("appo", "learned"), ("oracle", "true")])
def test_help_tells_what_is_taken_where_nothing_is_told(algorithm: str, reward: str) -> None:
    values = flags.FlagValues()
    train.define_flags(values, ["train", f"--algorithm={algorithm}"])
    text = " ".join(cli.help_text(values).split())
    assert "simulator processes (default: all cores of this machine)" in text
    assert "are a tie (default: 12.5 with --task, 0 with --env)" in text
    assert f"or zero (default: {reward})" in text
    assert "(default: )" not in text


def _paths(values: flags.FlagValues) -> list[str]:
    """The flags whose help begins by saying that they are a file or a folder."""
    words = r"(a run's |the |JSON )?(Lines )?(file|folder)\b"
    return [name for name in values if re.match(words, values[name].help or "")]


@pytest.mark.parametrize(("value", "message"), [("", "is empty"), ("~no-one/x", "no such home fo")])
def test_paths_that_can_not_be(value: str, message: str) -> None:
    values = flags.FlagValues()
    define(values, "output", Path, "a file", "group")
    with pytest.raises(InputError, match=f"^--output={value}: {message}.*, expected: a file"):
        cli.parse_flags(values, ["command", f"--output={value}"])


def test_without_a_home_folder(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("MINARI_DATASETS_PATH", raising=False)
    parse(*TINY, f"--data_dir={data_dir}")
    with pytest.raises(InputError, match="no place for data sets .*, expected --data_dir, or a"):
        parse(*TINY)
