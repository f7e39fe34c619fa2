"""Commands and code of the documents: flags that there are, code that runs as it stands."""

import functools
import importlib
import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from absl import flags

from appo_jax import appo, registry, reward_model, settings
from appo_jax.data import dataset, minari_io
from appo_jax.trainable import Trainable
from experiments.terminal.cli import help_text
from tests.helpers.pages import PROGRAMS, ROOT

PAGE = ROOT / "docs" / "library.md"
PAGES = sorted({*(ROOT / "docs").glob("*.md")} - {*PROGRAMS})  # `test_tutorials` has the others
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
    for page in (ROOT / "README.md", *PAGES):
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


# Blocks that tests run, of each page.
RUN = {"library.md": 3, "adding_an_algorithm.md": 2, "export.md": 1, "running.md": 1}


def test_every_other_block_says_what_it_takes() -> None:
    for page in PAGES:
        text = page.read_text()
        marked = re.findall(
            r"^(?:<!-- (?:takes|needs) .* -->\n```(?:bash|python)"
            r"|```\{code-block\} (?:bash|python)\n:caption: Full size)",
            text,
            re.MULTILINE,
        )
        found = re.findall(r"^```(?:\{code-block\} )?(?:bash|python)$", text, re.MULTILINE)
        assert len(found) - len(marked) == RUN.get(page.name, 0), page.name


_ALL = re.MULTILINE | re.DOTALL
ALGORITHMS = (ROOT / "docs" / "algorithms.md").read_text()


def num_trainable(state: Any) -> int:
    parts = [part for part in vars(state).values() if isinstance(part, Trainable)]
    return sum(math.prod(leaf.shape) for part in parts for leaf in jax.tree.leaves(part.params))


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_the_table_of_algorithms(name: str) -> None:
    found = registry.ALGORITHMS[name]
    learner, reward_learner = found.policy_learner, found.reward_learner
    (row,) = re.findall(rf"^\| \[`{name}`\]\(#{name}\) \|(.*)\|$", ALGORITHMS, re.MULTILINE)
    *_, file, parameters, reward_file, reward_parameters, _, _ = map(str.strip, row.split("|"))
    init = functools.partial(learner.init, learner.Config(), observation_dim=39, action_dim=4)
    counted = num_trainable(jax.eval_shape(init, jax.random.key(0)))
    assert (file, parameters) == (f"{{py:mod}}`~{learner.__name__}`", f"{counted:,}")
    if reward_learner is None:
        assert (reward_file.startswith("{"), reward_parameters) == (False, "0")
    else:
        init = functools.partial(reward_learner.init, reward_learner.Config())
        state = jax.eval_shape(lambda key: init(key, 39, 4, 500), jax.random.key(0))
        assert reward_file == f"{{py:mod}}`~{reward_learner.__name__}`"
        assert reward_parameters == f"{num_trainable(state):,}"

    (own,) = re.findall(rf"^\({name}\)=\n.*?^\*\*Own settings\*\*:(.*?)\n\n", ALGORITHMS, _ALL)
    classes = [learner.Config, learner.Swept]
    classes += [reward_learner.Config] if reward_learner else []
    names = {field.name for cls in classes for field in settings.fields(cls)}
    assert set() < set(re.findall(r"`(\w+)`", own)) <= names
