"""A run's folder, and the one owner of its config.json."""

import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from appo_jax.data.dataset import Dataset
from appo_jax.types import InputError
from experiments.runs import files
from experiments.runs.experiment import Execution, Experiment, completed, difference, digest

FORMAT_VERSION = 2
_PACKAGES = ("appo-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class RunFolder:
    """What is on disk of one or more runs that train together; held by one process at a time."""

    def __init__(self, runs: Sequence[Experiment], execution: Execution):
        """Look at what is there. Raises InputError for a folder that holds other runs."""
        self.path = execution.workdir
        self._config = self._checked(runs)
        self.metrics = files.MetricsFile(self.path / "metrics.csv")

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.json, as it is or will be."""
        return self._config

    def write(self) -> None:
        """Write config.json: once it is clear that the runs can begin."""
        files.write_json(self.path / "config.json", self._config)

    def check_dataset(self, dataset: Dataset) -> None:
        """Note a data set's contents. Raises InputError if they aren't those that runs began on."""
        found = {
            "id": dataset.id,
            "digest": dataset.digest(),
            "num_episodes": dataset.num_episodes,
            "num_transitions": dataset.num_transitions,
        }
        # For the plot; not compared, since means may round otherwise elsewhere.
        returns = dataset.returns()
        self._config.setdefault("dataset_means", {})[dataset.id] = {
            "success_rate": dataset.success_rate(),
            "return": None if returns is None else float(returns.mean()),
        }
        before = self._config["dataset_contents"].setdefault(dataset.id, found)
        differs = difference(found, before)
        if differs:
            raise InputError(
                f"data set {dataset.id}: {differs} as when this run began; expected its contents "
                "to stay the same"
            )

    def dataset_digest(self, id: str) -> str:
        """The digest of a data set that was checked."""
        return str(self._config["dataset_contents"][id]["digest"])

    def group_size(self) -> int | None:
        """Runs that train in one program, once it is settled."""
        return self._config.get("runs_per_group")

    def settle_group_size(self, size: int) -> None:
        """Keep that number: checkpoints lie in a folder for each group."""
        self._config["runs_per_group"] = size
        self.write()

    def policy_checkpoints(self, first: int, num_runs: int) -> Path:
        """Where the group of runs that begins with `first` keeps its policies."""
        size = self.group_size() or num_runs
        name = "policy" if size >= num_runs else f"policy-{first}"
        return self.path / "checkpoints" / name

    def reward_checkpoints(self, num_labels: int) -> Path:
        """Where reward models of so many labels are kept."""
        return self.path / "checkpoints" / f"reward-{num_labels}"

    def _checked(self, runs: Sequence[Experiment]) -> dict[str, Any]:
        config = files.read_json(self.path / "config.json")
        identities = json.loads(json.dumps([run.identity() for run in runs]))
        if config is None:
            for name in ("metrics.csv", "checkpoints"):
                if (self.path / name).exists():
                    raise InputError(
                        f"--workdir={self.path}: holds {name} of a run but not its config.json, "
                        "expected both or an empty folder"
                    )
            return {
                "format_version": FORMAT_VERSION,
                "runs": [run.resolved() for run in runs],
                "identities": identities,
                "digest": digest(runs),
                "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
                "device": str(jax.devices()[0].device_kind),
                "matmul_precision": jax.config.values["jax_default_matmul_precision"],
                "dataset_contents": {},
            }
        try:
            check_config(config, self.path)
        except InputError as error:
            raise InputError(f"--workdir={error}, or an empty folder") from error
        self._check_identities(config["identities"], identities, runs)
        for run in config["runs"]:  # on disk once it is clear that the runs can grow
            run["num_updates"] = runs[0].num_updates
        return config

    def _check_identities(
        self, found: list[Any], expected: list[Any], runs: Sequence[Experiment]
    ) -> None:
        differs = f"{len(found)} runs, not {len(expected)}" if len(found) != len(expected) else None
        for one, other, run in zip(found, expected, runs, strict=False):
            one = completed(one) if isinstance(one, dict) else one
            differs = differs or difference(one, other)
            policy = one.get("policy") if isinstance(one, dict) else None
            begun = policy.get("num_updates") if isinstance(policy, dict) else None
            if run.horizon() is not None and isinstance(begun, int) and begun != run.horizon():
                raise InputError(
                    f"--num_updates={run.num_updates}: {self.path} holds a run of {begun}, over "
                    f"all of which {run.algorithm} has a schedule, expected the same number or "
                    "another --workdir"
                )
        if differs:
            raise InputError(
                f"--workdir={self.path}: holds a run with {differs}; expected the same run or an "
                "empty folder"
            )


def check_config(config: Any, path: Path) -> None:
    """Raise InputError unless `config` is the content of a run's config.json of this format."""
    version = config.get("format_version", 1) if isinstance(config, dict) else None
    is_run = (
        isinstance(config, dict)
        and isinstance(config.get("identities"), list)
        and isinstance(config.get("runs"), list)
        and all(isinstance(run, dict) for run in config["runs"])
        and isinstance(config.get("dataset_contents", {}), dict)
        and type(config.get("runs_per_group", 1)) is int
        and config.get("runs_per_group", 1) >= 1
        and isinstance(version, int)
    )
    if not is_run:
        raise InputError(f"{path}: its config.json is not from a run, expected a run's folder")
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path}: holds a run of another release (format {version}), expected format "
            f"{FORMAT_VERSION}, this one's"
        )
