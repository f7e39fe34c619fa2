"""The flags of `experiments.train`: which values are refused, and what each one sets."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from absl import flags
from train_helpers import TINY, parse, write_buffers

from appo_jax import appo, reward_model
from appo_jax.types import InputError

BAD_VALUES = {
    "--task=": "--task: task '' is none",
    "--task=swep": "--task: task 'swep' is none of Meta-World's 50, expected a name like sweep",
    "--lam=-1": "--lam=-1.0: expected a number from 0",
    "--lam=nan": "--lam=nan: expected a number from 0, not infinite",
    "--lam=inf": "--lam=inf: expected a number from 0, not infinite",
    "--lam=1e39": "--lam=1e+39: expected a number from 0, not infinite in float32",
    f"--num_updates={10**400}": f"--num_updates={10**400}: expected a number from 1 to 2147483647",
    "--discount=1.5": "--discount=1.5: expected a number from 0 to 1",
    "--tau=0": "--tau=0.0: expected a number above 0 to 1",
    "--tau=1.1": "--tau=1.1: expected a number above 0 to 1",
    "--tie_threshold=-1": "--tie_threshold=-1.0: expected a number from 0",
    "--label_noise=1.1": "--label_noise=1.1: expected a number from 0 to 1",
    "--seed=-1": "--seed=-1: expected a number from 0 to 2147483647",
    "--seed=2147483648": "--seed=2147483648: expected a number from 0 to 2147483647",
    "--data_seed=-1": "--data_seed=-1: expected a number from 0",
    "--reward=foo": "--reward=foo: expected learned, shuffled, negated, true or zero",
    "--reward_scale=foo": "--reward_scale=foo: expected minmax or raw",
    "--dataset=nothing": "--dataset=nothing: expected auto, medium-replay, medium-expert or",
    "--dataset_size=501": "--dataset_size=501: expected a multiple of",
    "--dataset_size=0": "--dataset_size=0: expected a number from 1",
    "--segment_length=501": "--segment_length=501: expected a number from 1 to 500",
    "--preferences=missing": "--preferences: missing: can't be read",
    "--negative_slope=-1": "--negative_slope=-1.0: expected a number from 0 to 1",
    "--reward_decay_rate=2": "--reward_decay_rate=2.0: expected a number above 0 to 1",
}
COUNTS = (
    *("num_updates", "eval_interval", "eval_episodes", "num_feedback", "segment_length"),
    *("chunk_updates", "num_workers", "hidden_layers", "hidden_dim", "batch_size", "num_pairs"),
    *("reward_hidden_layers", "reward_hidden_dim", "reward_ensemble_size"),
    *("reward_decay_epochs", "reward_num_epochs", "reward_batch_size"),
)
RATES = (
    *("critic_learning_rate", "value_learning_rate", "actor_learning_rate"),
    *("temperature_learning_rate", "initial_temperature", "reward_learning_rate"),
)
OTHERS = (
    *("lam", "discount", "tau", "tie_threshold", "label_noise", "seed", "reward", "reward_scale"),
    *("negative_slope", "reward_negative_slope", "reward_decay_rate"),
)
BAD_VALUES |= {f"--{name}=0": f"--{name}=0: expected a number from 1" for name in COUNTS}
BAD_VALUES |= {f"--{name}=0": f"--{name}=0.0: expected a number above 0" for name in RATES}
BAD_VALUES |= {f"--{name}=nan": f"--{name}=nan: expected a number above 0" for name in RATES}


@pytest.mark.parametrize("bad", BAD_VALUES)
def test_bad_values(bad: str, data_dir: Path) -> None:
    with pytest.raises(InputError) as error:
        parse(*TINY, f"--data_dir={data_dir}", bad)
    assert str(error.value).startswith(BAD_VALUES[bad])


def test_bad_values_without_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--task is missing, expected a Meta-World task"):
        parse(f"--data_dir={tmp_path}")
    with pytest.raises(InputError, match=r"^--dataset=medium-replay: .* holds no folder"):
        parse("--task=sweep", f"--data_dir={tmp_path}", "--dataset=medium-replay")
    with pytest.raises(InputError, match=r"^--dataset_size=501: expected a multiple of 500"):
        parse("--task=sweep", f"--data_dir={tmp_path}", "--dataset_size=501")
    with pytest.raises(flags.IllegalFlagValueError, match="--num_updates=1.5"):
        parse("--task=sweep", "--num_updates=1.5")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", [*COUNTS, *RATES, *OTHERS])
def test_each_flag_sets_the_field_of_its_name(name: str, data_dir: Path) -> None:
    values = {"reward": "shuffled", "reward_scale": "raw"}
    before = _flat(*parse(*TINY, f"--data_dir={data_dir}"))
    value = values.get(name, 7 if name in COUNTS or name == "seed" else 0.125)
    after = _flat(*parse(*TINY, f"--data_dir={data_dir}", f"--{name}={value}"))
    different = {field for field in before if before[field] != after[field]} - {"local.workdir"}
    if name == "reward_scale":
        expected = {"reward_model.reward_scale"}
    elif name == "segment_length":
        expected = {name, f"policy.{name}"}
    elif name.startswith("reward_"):
        expected = {f"reward_model.{name.removeprefix('reward_')}"}
    elif hasattr(appo.Config(), name):
        expected = {f"policy.{name}"}
    else:
        expected = {f"local.{name}" if name in ("num_workers", "chunk_updates") else name}
    assert different == expected
    assert all(after[field] == value for field in different)


def _flat(runs: list[Any], local: Any) -> dict[str, Any]:
    (experiment,) = runs
    found = {f"local.{key}": value for key, value in dataclasses.asdict(local).items()}
    for key, value in experiment.resolved().items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{key}.{name}".strip("."): field for name, field in inner.items()}
    return found


def test_paper_settings_are_the_defaults(tmp_path: Path) -> None:
    (experiment,), local = parse("--task=sweep-v2", f"--data_dir={tmp_path}")
    assert experiment.policy == appo.Config()
    assert experiment.reward_model == reward_model.Config()
    found = {field: value for field, value in experiment.resolved().items() if value is not None}
    assert (
        found.items()
        >= {
            "task": "sweep-v3",
            "reward": "learned",
            "num_feedback": 1000,
            "segment_length": 25,
            "tie_threshold": 12.5,
            "lam": 0.03,
            "discount": 0.99,
            "tau": 0.001,
            "eval_interval": 5000,
            "eval_episodes": 50,
            "num_updates": 250_000,
        }.items()
    )
    assert local.workdir == Path("runs") / "sweep" / "appo" / experiment.digest()
    assert local.chunk_updates == 500


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
