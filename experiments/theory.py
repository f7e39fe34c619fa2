"""Look at the theorems: `python -m experiments.theory --workdir=runs/theory`.

A figure is a function that returns rows, one for each setting and measured quantity: its mean over
random MDPs and the standard error. Everything measured is exact given the data (values, occupancies
and the pair loss are computed, not sampled). Settings of one figure share their MDPs.
"""

import csv
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from flax import struct

from appo_jax.tabular import (
    analysis,
    appo,
    appo_rollout,
    comparators,
    estimation,
    generators,
    policy_evaluation,
)
from appo_jax.tabular.mdp import (
    MDP,
    Trajectories,
    occupancy,
    optimal_policy,
    q_values,
    step_concentrability,
    trajectory_concentrability,
    value,
)
from appo_jax.types import InputError
from experiments.cli import parse_flags

Row = dict[str, Any]
Measured = dict[str, np.ndarray]  # quantity to its value in each MDP

FAMILIES: dict[str, Callable[[jax.Array], MDP]] = {
    "garnet": generators.garnet,
    "chain": lambda _: generators.chain(),
    "lock": generators.combination_lock,
    "lure": lambda _: generators.lure(),
}
# Of the reference policy: how often it takes the optimal action on purpose.
SHARE = {"garnet": 0.3, "chain": 0.3, "lock": 0.3, "lure": 0.96}
CHUNK = 25  # MDPs of one vmap: all of them at once would not fit the caches
CHECKED_ITERATIONS = 16  # of a run, at which the bound on (II) is checked by enumeration
FAILURE = 0.1  # delta in the width of FREEHAND's confidence sets


@dataclasses.dataclass(frozen=True)
class Setting:
    """One point of a figure. num_labelled, num_unlabelled: M and N, pairs; num_iterations: T.

    lam_factor: lambda / C_TR. share: of `mixture_reference`. known: "reward" or "transition" puts
    the truth in the estimate's place. rollouts: K_1 and K_2 of Algorithm 1; 0 is Algorithm 2.
    """

    family: str = "garnet"
    num_labelled: int = 2048
    num_unlabelled: int = 1024
    num_iterations: int = 256
    lam_factor: float = 1.5
    share: float | None = None
    known: str = ""
    rollouts: int = 0


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The grids of the figures."""

    labels: Sequence[int] = (64, 256, 1024, 4096, 16384)
    unlabelled: Sequence[int] = (4, 16, 64, 256, 1024)
    iterations: Sequence[int] = (16, 64, 256, 1024, 4096)
    shares: Sequence[float] = (0.9, 0.6, 0.3, 0.0, -0.3)
    lam_factors: Sequence[float] = (0.03, 0.1, 0.3, 1.0, 3.0, 30.0)
    rollouts: Sequence[int] = (16, 64, 256)
    few_labels: int = 100  # where pessimism matters
    base_iterations: int = 256
    many_iterations: int = 512


PRESETS = {
    "full": Sizes(),
    "quick": Sizes(
        labels=(16, 64),
        unlabelled=(16, 64),
        iterations=(4, 16),
        shares=(0.6, 0.3),
        lam_factors=(0.3, 3.0),
        rollouts=(8, 32),
        few_labels=30,
        base_iterations=16,
        many_iterations=16,
    ),
}


class Problem(struct.PyTreeNode):
    """An MDP, what the proof knows of it, and what the learner estimated."""

    mdp: MDP
    reference: jax.Array
    optimal: jax.Array
    concentrability: jax.Array
    model: MDP
    data: estimation.OfflineData
    pairs: Trajectories
    key: jax.Array


def chunked(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function` of one problem over a leading axis, in chunks of `CHUNK`."""
    size = len(jax.tree.leaves(arguments)[0])
    places = [slice(begin, begin + CHUNK) for begin in range(0, size, CHUNK)]
    parts = [jax.vmap(function)(*jax.tree.map(lambda a, p=p: a[p], arguments)) for p in places]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def make_problem(
    key: jax.Array,
    share: jax.Array,
    *,
    family: str,
    num_labelled: int,
    num_unlabelled: int,
    known: str,
) -> Problem:
    """One MDP of the family, its data and the estimates."""
    mdp_key, data_key, run_key = jax.random.split(key, 3)
    mdp = FAMILIES[family](mdp_key)
    optimal, reference = optimal_policy(mdp), generators.mixture_reference(mdp, share)
    data = estimation.collect(mdp, reference, data_key, num_labelled, num_unlabelled)
    first, second = estimation.split_half(data.unlabelled)
    reward, transition = mdp.reward, mdp.transition
    if known != "reward":
        reward = estimation.fit_reward(mdp, data.labelled, data.labels)
    if known != "transition":
        transition = estimation.fit_transition(mdp, first)
    return Problem(
        mdp=mdp,
        reference=reference,
        optimal=optimal,
        concentrability=trajectory_concentrability(mdp, optimal, reference),
        model=mdp.replace(reward=reward, transition=transition),
        data=data,
        pairs=second,
        key=run_key,
    )


@functools.partial(jax.jit, static_argnames=("num_iterations", "rollouts"))
def optimise(
    problem: Problem, lam_factor: jax.Array, *, num_iterations: int, rollouts: int
) -> appo.Run:
    """Algorithm 2, or 1 if there are rollouts; in float32, which is twice as fast."""
    single = functools.partial(
        jax.tree.map, lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf
    )
    problem, lam = single(problem), single(lam_factor * problem.concentrability)
    if not rollouts:
        return appo.optimise(problem.model, problem.pairs, lam, num_iterations=num_iterations)
    return appo_rollout.optimise(
        problem.mdp,
        problem.model.reward,
        problem.reference,
        problem.data.unlabelled,
        lam,
        problem.key,
        num_iterations=num_iterations,
        num_rollouts=rollouts,
        num_evaluations=rollouts,
    )


def measure(
    problem: Problem, run: appo.Run, lam_factor: jax.Array, *, rollouts: int
) -> dict[str, jax.Array]:
    """All quantities of one run, in float64, each a scalar."""
    mdp, optimal, reference = problem.mdp, problem.optimal, problem.reference
    run = jax.tree.map(lambda leaf: leaf.astype(float), run)
    lam = lam_factor * problem.concentrability
    rewards = run.answers if rollouts else analysis.induced_rewards(mdp, run)
    parts = analysis.decompose(mdp, optimal, reference, problem.model.reward, rewards, run.policies)
    best = value(mdp, optimal)
    suboptimality = best - appo.mixture_value(mdp, run.policies)
    total = parts.mle + parts.optimisation + parts.regret
    num_iterations = len(run.policies)
    every = max(1, num_iterations // CHECKED_ITERATIONS)
    # f^t, also for Algorithm 1, where r^t = r^{pi^t}_{P*, f^t} for f^t = Q^{pi^t}_{r^t}.
    exact = jax.vmap(lambda r, policy: q_values(mdp.replace(reward=r), policy))(
        rewards[::every], run.policies[::every]
    )
    gap = jax.vmap(
        lambda f, policy: analysis.optimisation_gap(
            mdp, reference, problem.model.reward, lam, f, policy
        )
    )(exact, run.policies[::every])
    error = analysis.pair_loss(mdp, reference, mdp.reward, problem.model.reward)
    missed = jnp.sum(jnp.abs(problem.model.transition - mdp.transition)[:-1], axis=-1)
    regret = jnp.sum(analysis.estimated_regret(mdp, optimal, run))
    horizon, _, num_actions = mdp.reward.shape
    bound = analysis.regret_bound(mdp.bound, horizon, num_actions, num_iterations)
    squared = jax.vmap(
        lambda r, policy, scores: policy_evaluation.squared_error(
            mdp.replace(reward=r), reference, policy, scores
        )
    )(rewards[::every], run.policies[::every], run.scores[::every])
    return {
        "suboptimality": suboptimality,
        "last_iterate": parts.suboptimality[-1],
        "greedy": best - value(mdp, optimal_policy(problem.model)),
        "reference": best - value(mdp, reference),
        "mle": parts.mle,
        "optimisation": jnp.mean(parts.optimisation),
        "regret": jnp.mean(parts.regret),
        "decomposition_residual": jnp.max(jnp.abs(total - parts.suboptimality)),
        "reward_error": error,
        "transition_error": jnp.sum(occupancy(mdp, reference)[:-1] * missed),
        "optimisation_bound": lam * error + jnp.mean(gap),
        "optimisation_excess": jnp.max(parts.optimisation[::every] - lam * error - gap),
        "solver_certificate": jnp.mean(run.gaps),
        "regret_over_bound": regret / bound,
        "pe_regret": jnp.mean(parts.regret) - regret / num_iterations,
        "pe_squared_error": jnp.mean(squared),
        "c_tr": problem.concentrability,
        "c_st": step_concentrability(mdp, optimal, reference),
    }


def run_setting(setting: Setting, keys: jax.Array) -> Measured:
    """All quantities of one setting in each MDP."""
    share = SHARE[setting.family] if setting.share is None else setting.share
    shares, factors = (jnp.full(len(keys), number) for number in (share, setting.lam_factor))
    problems = chunked(
        functools.partial(
            make_problem,
            family=setting.family,
            num_labelled=setting.num_labelled,
            num_unlabelled=setting.num_unlabelled,
            known=setting.known,
        ),
        keys,
        shares,
    )

    def both(problem: Problem, factor: jax.Array) -> dict[str, jax.Array]:
        run = optimise(
            problem,
            factor,
            num_iterations=setting.num_iterations,
            rollouts=setting.rollouts,
        )
        return measure(problem, run, factor, rollouts=setting.rollouts)

    found = chunked(both, problems, factors)
    return {name: np.asarray(values) for name, values in found.items()}


Points = list[tuple[float | str, Callable[[jax.Array], Measured]]]


def _points(name: str, base: Setting, values: Sequence[Any]) -> Points:
    return [
        (number, functools.partial(run_setting, dataclasses.replace(base, **{name: number})))
        for number in values
    ]


def labels_figure(sizes: Sizes) -> Points:
    """Against M; the last point has the true reward."""
    base = Setting(num_iterations=sizes.base_iterations)
    known = dataclasses.replace(base, known="reward", num_labelled=sizes.labels[0])
    points = _points("num_labelled", base, sizes.labels)
    return [*points, (np.inf, functools.partial(run_setting, known))]


def unlabelled_figure(sizes: Sizes) -> Points:
    """Against N; the last point has the true transition."""
    base = Setting(num_iterations=sizes.base_iterations, num_labelled=sizes.labels[-1])
    known = dataclasses.replace(base, known="transition", num_unlabelled=sizes.unlabelled[-1])
    points = _points("num_unlabelled", base, sizes.unlabelled)
    return [*points, (np.inf, functools.partial(run_setting, known))]


def iterations_figure(sizes: Sizes) -> Points:
    """Against T, with the most data there is."""
    base = Setting(num_labelled=sizes.labels[-1], num_unlabelled=sizes.unlabelled[-1])
    return _points("num_iterations", base, sizes.iterations)


def concentrability_figure(sizes: Sizes) -> Points:
    """Against C_TR, with few labels."""
    base = Setting(num_labelled=sizes.few_labels, num_iterations=sizes.base_iterations)
    return _points("share", base, sizes.shares)


def lam_figure(sizes: Sizes, family: str) -> Points:
    """Against lambda / C_TR, with few labels."""
    base = Setting(family, sizes.few_labels, num_iterations=sizes.many_iterations)
    return _points("lam_factor", base, sizes.lam_factors)


def families_figure(sizes: Sizes) -> Points:
    """The other families, with few labels."""
    base = Setting(num_labelled=sizes.few_labels, num_iterations=sizes.many_iterations)
    return _points("family", base, tuple(FAMILIES))


def rollouts_figure(sizes: Sizes) -> Points:
    """Algorithm 1 against K_1 = K_2."""
    base = Setting(num_iterations=sizes.base_iterations)
    return _points("rollouts", base, sizes.rollouts)


def freehand_figure(sizes: Sizes) -> Points:
    """APPO, greedy and FREEHAND on MDPs of two states and two steps, against M."""
    labels = [number for number in sizes.labels if number <= 1024]  # the table grows with M
    return [
        (number, functools.partial(run_freehand, number, sizes.many_iterations))
        for number in labels
    ]


def finite_classes() -> tuple[jax.Array, jax.Array]:
    """All rewards with values 0, R / 2 H and R / H, and all transitions with chances 0.2 and 0.8.

    For two steps, states and actions and R = 1: `[6561, 2, 2, 2]` and `[16, 2, 2, 2, 2]`.
    """
    levels = np.array(np.meshgrid(*[[0.0, 0.25, 0.5]] * 8)).reshape(8, -1).T
    chances = np.array(np.meshgrid(*[[0.2, 0.8]] * 4)).reshape(4, -1).T
    first = np.stack([chances, 1 - chances], axis=-1).reshape(-1, 1, 2, 2, 2)
    transitions = np.concatenate([first, np.full_like(first, 0.5)], axis=1)
    return jnp.asarray(levels.reshape(-1, 2, 2, 2)), jnp.asarray(transitions)


@functools.partial(jax.jit, static_argnames=("num_labelled", "num_iterations"))
def _freehand_trial(
    key: jax.Array,
    rewards: jax.Array,
    transitions: jax.Array,
    num_labelled: int,
    num_iterations: int,
) -> dict[str, jax.Array]:
    reward_key, transition_key, data_key = jax.random.split(key, 3)
    mdp = MDP(
        transition=jax.random.choice(transition_key, transitions),
        reward=jax.random.choice(reward_key, rewards),
        initial=jnp.array([1.0, 0.0]),
    )
    num_unlabelled = 512
    optimal, reference = optimal_policy(mdp), generators.mixture_reference(mdp, SHARE["garnet"])
    data = estimation.collect(mdp, reference, data_key, num_labelled, num_unlabelled)
    first, second = estimation.split_half(data.unlabelled)
    model = mdp.replace(
        reward=estimation.fit_reward(mdp, data.labelled, data.labels),
        transition=estimation.fit_transition(mdp, first),
    )
    pessimist = comparators.freehand(
        mdp,
        data,
        rewards,
        transitions,
        jnp.log(len(rewards) / FAILURE) / num_labelled,
        jnp.log(len(transitions) / FAILURE) / (2 * num_unlabelled),
    )
    lam = 1.5 * trajectory_concentrability(mdp, optimal, reference)
    run = appo.optimise(model, second, lam, num_iterations=num_iterations)
    best = value(mdp, optimal)
    return {
        "suboptimality": best - appo.mixture_value(mdp, run.policies),
        "last_iterate": best - value(mdp, run.policies[-1]),
        "greedy": best - value(mdp, optimal_policy(model)),
        "freehand": best - value(mdp, pessimist),
        "reference": best - value(mdp, reference),
    }


def run_freehand(num_labelled: int, num_iterations: int, keys: jax.Array) -> Measured:
    """The three algorithms on the same data of MDPs drawn from the finite classes."""
    rewards, transitions = finite_classes()

    @jax.jit
    def all_keys(keys: jax.Array) -> dict[str, jax.Array]:
        # One after another: the table of all policies, models and rewards is large.
        return jax.lax.map(
            lambda key: _freehand_trial(key, rewards, transitions, num_labelled, num_iterations),
            keys,
        )

    return {name: np.asarray(values) for name, values in all_keys(keys).items()}


FIGURES: dict[str, tuple[Callable[[Sizes], Points], str]] = {
    "iterations": (iterations_figure, "iterations T"),
    "labels": (labels_figure, "labelled pairs M"),
    "unlabelled": (unlabelled_figure, "unlabelled pairs N"),
    "concentrability": (concentrability_figure, "C_TR"),
    "lam": (functools.partial(lam_figure, family="garnet"), "lambda / C_TR"),
    "lam-lure": (functools.partial(lam_figure, family="lure"), "lambda / C_TR"),
    "families": (families_figure, "family"),
    "rollouts": (rollouts_figure, "rollouts K1 = K2"),
    "freehand": (freehand_figure, "labelled pairs M"),
}

# What a figure draws against its settings.
CURVES: dict[str, tuple[str, ...]] = {
    "iterations": ("suboptimality", "last_iterate", "regret"),
    "labels": ("suboptimality", "greedy", "reward_error"),
    "unlabelled": ("suboptimality", "greedy", "transition_error"),
    "concentrability": ("suboptimality", "greedy", "reference", "mle"),
    "lam": ("suboptimality", "last_iterate", "greedy", "reference"),
    "lam-lure": ("suboptimality", "last_iterate", "greedy", "reference"),
    "families": ("suboptimality", "last_iterate", "greedy", "reference"),
    "rollouts": ("suboptimality", "regret", "pe_squared_error"),
    "freehand": ("suboptimality", "last_iterate", "greedy", "freehand"),
}
DECOMPOSITION = ("mle", "optimisation", "regret", "suboptimality")  # (I), (II), (III), their sum
# Figure, quantity, exponent in the theorem (or in its lemma), and whether the quantity's value with
# the truth known (at infinity) is taken off first.
SLOPES: tuple[tuple[str, str, float, bool], ...] = (
    ("labels", "suboptimality", -0.5, False),
    ("labels", "suboptimality", -0.5, True),
    ("labels", "reward_error", -0.5, False),
    ("unlabelled", "suboptimality", -0.5, False),
    ("unlabelled", "suboptimality", -0.5, True),
    ("unlabelled", "transition_error", -0.5, False),
    ("iterations", "suboptimality", -0.5, False),
    ("iterations", "regret", -0.5, False),
    ("concentrability", "suboptimality", 1.0, False),
    ("rollouts", "pe_squared_error", -1.0, False),
)


class Figure:
    """A figure's settings and what was measured at each."""

    def __init__(self, name: str, settings: Sequence[float | str], found: Sequence[Measured]):
        self.name = name
        self.found = list(found)
        # C_TR is measured, not set.
        self.settings = list(settings)
        if name == "concentrability":
            self.settings = [float(np.mean(measured["c_tr"])) for measured in found]

    def curve(self, quantity: str) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard errors, one for each setting."""
        values = [measured[quantity] for measured in self.found]
        means = np.array([np.mean(value) for value in values])
        return means, np.array([np.std(value, ddof=1) / len(value) ** 0.5 for value in values])

    def finite(self) -> tuple[np.ndarray, list[int]]:
        """The settings that are numbers, and their places."""
        places = [
            place
            for place, setting in enumerate(self.settings)
            if not isinstance(setting, str) and np.isfinite(setting)
        ]
        return np.array([self.settings[place] for place in places], float), places

    def slope(self, quantity: str, above_truth: bool, last: int = 0) -> float:
        """Of the log of the quantity against the log of the setting, by least squares.

        Over the last settings only if their number is given. nan if the quantity isn't positive.
        """
        settings, places = self.finite()
        means = self.curve(quantity)[0]
        values = means[places] - (means[-1] if above_truth else 0)
        if np.any(values[-last:] <= 0):
            return float("nan")
        return float(np.polyfit(np.log(settings[-last:]), np.log(values[-last:]), 1)[0])

    def rows(self) -> list[Row]:
        """One for each setting and quantity."""
        rows = []
        for quantity in self.found[0]:
            for setting, mean, error in zip(self.settings, *self.curve(quantity), strict=True):
                row = {"figure": self.name, "setting": setting, "quantity": quantity}
                row |= {"mean": float(mean), "standard_error": float(error)}
                rows.append(row | {"num_mdps": len(self.found[0][quantity])})
        return rows


def claims(figures: Mapping[str, Figure]) -> list[str]:
    """What the theorems say beside what was measured, one line each, of these figures."""
    lines = []
    for name, quantity, exponent, above_truth in SLOPES:
        if name in figures:
            kind = f"{quantity} above that with the truth known" if above_truth else quantity
            every, tail = (figures[name].slope(quantity, above_truth, last) for last in (0, 3))
            lines.append(
                f"slope of {kind} against {FIGURES[name][1]}: {every:+.2f},"
                f" over the last three {tail:+.2f} (theorem: {exponent:+.1f})"
            )
    if "iterations" in figures:
        means, errors = figures["iterations"].curve("suboptimality")
        lines.append(
            f"sub-optimality with the most data and iterations: {means[-1]:.4f} +- {errors[-1]:.4f}"
            " R (expected: below 0.05)"
        )
    if "families" in figures:
        lure = figures["families"].found[figures["families"].settings.index("lure")]
        saved = lure["greedy"] - lure["suboptimality"]
        error = np.std(saved, ddof=1) / len(saved) ** 0.5
        lines.append(
            f"lure: greedy loses {np.mean(saved):.4f} R more than APPO, that is"
            f" {np.mean(saved) / error:.1f} standard errors (expected: above 2)"
        )
    return lines + _checks(figures)


def _checks(figures: Mapping[str, Figure]) -> list[str]:
    """What must hold in every single run."""
    measured = [
        (figure.name, setting, found)
        for figure in figures.values()
        for setting, found in zip(figure.settings, figure.found, strict=True)
        if "c_tr" in found
    ]
    covered = [
        found["optimisation_excess"]
        for name, setting, found in measured
        if not (name.startswith("lam") and float(setting) < 1)
    ]
    checks = (
        (
            "(I) + (II) + (III) against the sub-optimality: off by at most {:.1e}",
            [found["decomposition_residual"] for _, _, found in measured],
        ),
        (
            "(II) - lambda E(Q^pi; P*, r_hat) - gap where lambda >= C_TR: at most {:.1e}"
            " (theory: not above 0)",
            covered,
        ),
        (
            "regret / (R H sqrt(2 T log|A|)): at most {:.3f} (theory: not above 1; the printed"
            " bound would be 0.5)",
            [found["regret_over_bound"] for _, _, found in measured],
        ),
        (
            "C_ST / C_TR: at most {:.3f} (theory: not above 1)",
            [found["c_st"] / found["c_tr"] for _, _, found in measured],
        ),
    )
    return [text.format(np.max(np.concatenate(values))) for text, values in checks if values]


def table(figures: Mapping[str, Figure]) -> str:
    """Every figure's curves as numbers."""
    lines = []
    for name, figure in figures.items():
        quantities = CURVES[name]
        lines.append("".join([f"{FIGURES[name][1]:<20}", *(f"{q:>18}" for q in quantities)]))
        curves = [figure.curve(quantity)[0] for quantity in quantities]
        for place, setting in enumerate(figure.settings):
            shown = setting if isinstance(setting, str) else f"{setting:g}"
            numbers = "".join(f"{curve[place]:>18.4f}" for curve in curves)
            lines.append(f"{shown:<20}{numbers}")
    return "\n".join(lines)


def draw(path: Path, figure: Figure, against: str, quantities: Sequence[str]) -> None:
    """Means with bands of two standard errors; the truth known is a dashed line."""
    from matplotlib.figure import Figure as Canvas  # no pyplot: it would look for a display

    canvas = Canvas(figsize=(6, 4), layout="constrained")
    axes = canvas.add_subplot()
    settings, places = figure.finite()
    for quantity in quantities:
        means, errors = figure.curve(quantity)
        if not places:
            axes.errorbar(figure.settings, means, 2 * errors, fmt="o", capsize=3, label=quantity)
            continue
        (line,) = axes.plot(settings, means[places], marker="o", markersize=3, label=quantity)
        low, high = (means + sign * 2 * errors for sign in (-1, 1))
        axes.fill_between(settings, low[places], high[places], alpha=0.2, color=line.get_color())
        if len(places) < len(means) and quantity == "suboptimality":
            axes.axhline(means[-1], linestyle="--", linewidth=1, color=line.get_color())
    if places:
        axes.set_xscale("log")
        positive = all(np.all(figure.curve(quantity)[0] > 0) for quantity in quantities)
        if positive and not figure.name.startswith(("lam", "concentrability")):
            axes.set_yscale("log")
    axes.set(xlabel=against, ylabel="in units of R", title=figure.name)
    axes.grid(alpha=0.3)
    axes.legend()
    canvas.savefig(path, dpi=150)


def measure_all(
    names: Sequence[str], sizes: Sizes, keys: jax.Array, report: Callable[[str], None]
) -> dict[str, Figure]:
    """These figures, one setting after another."""
    start = time.time()
    figures = {}
    for name in names:
        settings, found = [], []
        for setting, trial in FIGURES[name][0](sizes):
            settings.append(setting)
            found.append(trial(keys))
            report(f"{time.time() - start:6.0f} s  {name}, {FIGURES[name][1]} = {setting}")
        figures[name] = Figure(name, settings, found)
    return figures


def write(folder: Path, figures: Mapping[str, Figure], lines: Sequence[str]) -> None:
    """The table, the claims and the figures."""
    rows = [row for figure in figures.values() for row in figure.rows()]
    with (folder / "theory.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (folder / "claims.txt").write_text("\n".join(lines) + "\n")
    for name, figure in figures.items():
        draw(folder / f"{name}.png", figure, FIGURES[name][1], CURVES[name])
        if "mle" in figure.found[0]:
            draw(folder / f"decomposition-{name}.png", figure, FIGURES[name][1], DECOMPOSITION)


def define_flags() -> None:
    """Define the flags; only an entry point does."""
    flags.DEFINE_string("workdir", None, "folder for the figures and the table")
    flags.DEFINE_integer("num_mdps", 100, "random MDPs of each setting, at least 2", lower_bound=2)
    flags.DEFINE_integer("seed", 0, "seed of the MDPs and the data, 0 or more", lower_bound=0)
    flags.DEFINE_multi_enum(
        "figures", list(FIGURES), list(FIGURES), "figure to make, can be given again; default: all"
    )
    flags.DEFINE_enum("preset", "full", list(PRESETS), "sizes of the grids: full or quick")


def make_folder(workdir: str | None) -> Path:
    """The folder, made if need be. Raises InputError if there is none or it can't be written to."""
    if not workdir:
        raise InputError("flag --workdir is missing, expected a folder like --workdir=runs/theory")
    folder = Path(workdir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--workdir={folder}: can't be made ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"--workdir={folder}: can't be written to")
    return folder


def main(_: Sequence[str]) -> None:
    """Measure, print and write."""
    jax.config.update("jax_enable_x64", True)
    values = flags.FLAGS
    try:
        folder = make_folder(values.workdir)
    except InputError as error:
        sys.exit(str(error))
    keys = jax.random.split(jax.random.key(values.seed), values.num_mdps)
    print(f"{values.num_mdps} MDPs of each setting, to {folder}")
    begin = time.time()
    figures = measure_all(
        values.figures, PRESETS[values.preset], keys, lambda line: print(line, flush=True)
    )
    lines = claims(figures)
    write(folder, figures, lines)
    print(table(figures))
    print("\n".join(lines))
    print(f"{time.time() - begin:.0f} s; figures, theory.csv and claims.txt are in {folder}")


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=parse_flags)
