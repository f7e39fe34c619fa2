"""Commands and code of the documents: flags that there are, code that runs as it stands."""

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from absl import flags

from appo_jax import appo, reward_model
from appo_jax.data import dataset, minari_io
from experiments.terminal.cli import help_text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "library.md"
SMALLER = {
    "num_epochs=300": "num_epochs=2, hidden_dim=8, hidden_layers=1",
    "appo.Config()": "appo.Config(hidden_dim=8, hidden_layers=1, batch_size=8, num_pairs=2)",
    "appo, config, 1000": "appo, config, 3",
    "num_feedback=500": "num_feedback=20",
}


def test_from_labels_to_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    episodes = [
        dataset.Episode(
            draw.normal(size=(61, 5)),
            draw.uniform(-1, 1, (60, 2)),
            draw.normal(size=60) * 9,
            np.zeros(60),
        )
        for _ in range(3)
    ]
    small = dataset.from_episodes(episodes, "small")
    monkeypatch.setattr(minari_io, "load", lambda id: small)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks[:3]:
        for full, less in SMALLER.items():
            block = block.replace(full, less)
        exec(block, names)
    assert all(full in "".join(blocks[:3]) for full in SMALLER)
    assert names["labels"].rows(small).tolist() == [[3, 2 * 61 + 20], [61, 31]]
    assert int(names["state"].step) == 4
    assert names["action"].shape == (2,)
    rewards = np.asarray(names["store"].rewards)[small.transition_rows()]
    assert (rewards.min(), rewards.max()) == (0, 1)
    assert (names["appo"], names["reward_model"]) == (appo, reward_model)


def test_help_shows_every_flag_of_the_documents() -> None:
    seen = set()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text().replace("\\\n", " ")
        for command, line in re.findall(r"-m experiments\.(\w+)([^`\n]*)", text):
            arguments = re.findall(r"--\w+(?:=[^ ]+)?", line)
            values = flags.FlagValues()
            module = importlib.import_module(f"experiments.{command}")
            module.define_flags(values, [command, *(one for one in arguments if "<" not in one)])
            shown = help_text(values) + "--help"
            for argument in arguments:
                name = argument.split("=")[0]
                assert re.search(rf"{name}\b", shown), f"{page.name}: {command} {name}"
                seen.add((command, name))
    assert {("collect", "--num_seeds"), ("evaluate", "--checkpoint")} <= seen
