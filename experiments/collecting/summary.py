"""What a person wants to know about a set that was collected here."""

from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset


def summary(dataset: Dataset, data_dir: str | None) -> str:
    """Its id and place, and a line for each source: episodes, success rate, mean return."""
    lines = [
        f"id       {dataset.id}",
        f"folder   {minari_io.folder(dataset.id, data_dir)}",
        f"digest   {dataset.digest()}",
        f"steps    {dataset.num_transitions:,} in {dataset.num_episodes} episodes",
        "",
        f"{'source':<24}{'episodes':>9}{'success':>9}{'return':>12}",
    ]
    for source, row in dataset.metadata["sources"].items():
        lines.append(_line(source, row["episodes"], row["success_rate"], row.get("mean_return")))
    returns = dataset.returns()
    assert returns is not None  # a simulator gives rewards
    lines.append(_line("all", dataset.num_episodes, dataset.success_rate(), returns.mean()))
    lines.append(f"{'best episode':<42}{returns.max():>12,.1f}")
    return "\n".join(lines)


def _line(name: str, episodes: int, success: float | None, mean_return: float | None) -> str:
    rate = "-" if success is None else f"{100 * success:.1f} %"
    value = "-" if mean_return is None else f"{mean_return:,.1f}"
    return f"{name:<24}{episodes:>9}{rate:>9}{value:>12}"
