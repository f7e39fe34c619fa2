"""Mutants of valid input: each is accepted as a simple model says, or refused in one sentence.

The models (in data.py, labels.py, stored.py and runs.py) state the rules of docs/input.md again, in
plain Python, for the input as it is after the mutation; files of others (published.py) are refused,
or read as what can be trained on. CI runs some hundreds of mutants, always the same; `pytest -m
slow -s -n 0 tests/mutants/test_properties.py` runs thousands and prints how they ended.
"""

from pathlib import Path

import pytest

from tests.mutants.core import run
from tests.mutants.data import episodes_mutant, lire_mutant, minari_mutant
from tests.mutants.labels import labels_mutant
from tests.mutants.published import MUTANTS as OF_FORMATS
from tests.mutants.runs import config_mutant, flags_mutant, metrics_mutant, results_mutant
from tests.mutants.stored import checkpoint_mutant, environment_mutant, pickle_mutant

MUTANTS = {
    episodes_mutant: 100,
    lire_mutant: 80,
    minari_mutant: 80,
    labels_mutant: 150,
    flags_mutant: 100,
    config_mutant: 60,
    metrics_mutant: 60,
    results_mutant: 90,
    pickle_mutant: 100,
    environment_mutant: 100,
    checkpoint_mutant: 30,
    **dict.fromkeys(OF_FORMATS, 50),
}
ENDS = {"accepted", "warned of", "refused"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants(mutant, tmp_path: Path) -> None:  # noqa: ANN001
    ends = run(mutant, MUTANTS[mutant], tmp_path)
    assert set(ends) <= ENDS
    assert ends["refused"] >= 10
    assert ends["accepted"] + ends["warned of"] >= 10
    assert ends["warned of"] or mutant not in (episodes_mutant, labels_mutant)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_thousands_of_mutants(mutant, tmp_path: Path) -> None:  # noqa: ANN001
    ends = run(mutant, 20 * MUTANTS[mutant], tmp_path)
    assert set(ends) <= ENDS
    print(f"\n{mutant.__name__}: {ends.total():,}, of them {dict(sorted(ends.items()))}")
