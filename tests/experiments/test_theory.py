"""`python -m experiments.theory` as a user types it, and what the theory promises of much data."""

import csv
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from absl.flags import FlagValues

from appo_jax.types import InputError
from experiments import theory
from experiments.tabular import grids, sweeps
from experiments.terminal.cli import parse_flags
from tests.helpers.tabular import x64

LIMITS = {
    "decomposition_residual": 1e-9,
    "optimisation_excess": 1e-9,
    "regret_over_bound": 0.625,
    "pe_excess": 1e-9,
    "c_st_over_c_tr": 1 + 1e-9,
}


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.theory", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_prints_and_writes(tmp_path: Path) -> None:
    done = run(
        *(f"--workdir={tmp_path / 'new'}", "--preset=quick", "--num_mdps=2"),
        "--figures=lam,concentrability,adapting",
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "new" / "theory.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["figure"] for row in rows} == {"lam", "concentrability", "adapting"}
    assert all(np.isfinite(float(row["mean"])) and row["num_mdps"] == "2" for row in rows)
    # What the theorems say of every single run.
    checked = 0
    for row in rows:
        covered = row["figure"] == "concentrability" or row["setting"] == "3.0"  # lambda / C_TR
        if row["quantity"] in LIMITS and (covered or row["quantity"] != "optimisation_excess"):
            assert float(row["greatest"]) <= LIMITS[row["quantity"]], row
            checked += 1
    assert checked == 12 * len(LIMITS) - 9
    means = {(row["figure"], row["setting"], row["quantity"]): float(row["mean"]) for row in rows}
    for figure, setting in {key[:2] for key in means}:

        def mean(quantity: str, figure: str = figure, setting: str = setting) -> float:
            return means[figure, setting, quantity]

        bound = 4 * math.sqrt(2 * math.log(2) / 16)  # R H sqrt(2 log|A| / T)
        assert mean("regret_over_bound") == pytest.approx(mean("regret") / bound)
        if figure == "adapting":
            continue
        # pi* sees at most C_TR times mu's error, of either sign, so neither is (II) far below.
        factor = float(setting) if figure == "lam" else 1.5
        least = -(factor + 1) * mean("c_tr") * mean("answer_error") - 1e-9
        assert mean("optimisation_checked") - mean("optimisation_bound") >= least
    lams = [row for row in rows if row["quantity"] == "lam_over_c_tr"]
    assert len({row["mean"] for row in lams if "adapting" in row["setting"]}) == 4
    fixed = [float(row["mean"]) for row in lams if row["setting"].endswith(": 0.3")]
    np.testing.assert_allclose(fixed, [0.3] * 4, rtol=1e-6)
    shown = [row for row in rows if row["quantity"] == "suboptimality"]
    settings = [row["setting"] for row in shown if row["figure"] != "adapting"]
    # C_TR of a reference that takes the best action with probability 0.8 or 0.65: its -4th power.
    np.testing.assert_allclose([float(x) for x in settings], [0.3, 3, 0.8**-4, 0.65**-4])
    assert all(f"{float(row['mean']):.4f}" in done.stdout for row in shown)
    written = (tmp_path / "new" / "claims.txt").read_text()
    assert written in done.stdout
    for claim in ("slope of suboptimality against C_TR", "regret / (R H sqrt(2 T log|A|))"):
        assert claim in written
    for name in ("lam", "decomposition-lam", "concentrability", "decomposition-concentrability"):
        assert (tmp_path / "new" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def refused(*arguments: str) -> None:
    """The command with flags that end it before any work."""
    values = FlagValues()
    line = ["theory", *arguments]
    theory.define_flags(values, line)
    parse_flags(values, line)
    theory.main(values)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--workdir is missing, expected a folder"),
        (("--workdir={}/file/inside",), "--workdir=.*inside: can't be made"),
        (("--workdir={}", "--num_mdps=1"), "--num_mdps=1: .*, expected: random MDPs"),
        (("--workdir={}", "--seed=-1"), "--seed=-1: .*, expected: seed of the MDPs"),
        (("--workdir={}", "--preset=huge"), "--preset=huge: value should be one of <full|quick>"),
        (("--workdir={}", "--figures=all"), "--figures: 'all', expected some of iterations, "),
        (("--workdir={}", "--figures="), "--figures: '', expected some of iterations, "),
    ],
)
def test_bad_flag(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=f"^{expected}"):
        refused(*(argument.format(tmp_path) for argument in arguments))


@pytest.fixture
def keys() -> Iterator[jax.Array]:
    with x64():
        yield jax.random.split(jax.random.key(0), 100)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_most_data_and_iterations(keys: jax.Array) -> None:
    sizes = grids.PRESETS["full"]
    setting = sweeps.Setting(
        num_labelled=sizes.labels[-1],
        num_unlabelled=sizes.unlabelled[-1],
        num_iterations=sizes.iterations[-1],
    )
    assert np.mean(sweeps.run_setting(setting, keys)["suboptimality"]) < 0.05


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_pessimism_pays_on_the_lure(keys: jax.Array) -> None:
    found = sweeps.run_setting(sweeps.Setting("lure", 100, num_iterations=512), keys)
    saved = found["greedy"] - found["suboptimality"]
    assert np.mean(saved) > 2 * np.std(saved, ddof=1) / 10
    assert np.max(found["optimisation_excess"]) <= 1e-9
    assert np.max(found["regret_over_bound"]) <= 0.625


@pytest.mark.slow
def test_freehand_finds_the_best_policy_with_much_data(keys: jax.Array) -> None:
    few, many = (sweeps.run_freehand(number, 256, keys[:20]) for number in (16, 2048))
    assert np.mean(many["freehand"]) < 0.01
    assert np.mean(many["freehand"]) <= np.mean(few["freehand"])
    assert np.mean(many["reference_mode"]) > 0.05  # so that the labels are needed
