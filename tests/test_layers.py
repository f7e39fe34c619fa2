"""Imports go one way: commands, what they are made of, the library."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = {f"experiments.{path.stem}" for path in (ROOT / "experiments").glob("*.py")}


def imports(path: Path) -> set[str]:
    """The modules that a file imports, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_library_knows_no_experiment_and_no_terminal() -> None:
    for path in (ROOT / "appo_jax").rglob("*.py"):
        found = imports(path)
        assert not any(name.split(".")[0] in ("experiments", "absl", "tqdm") for name in found), (
            path
        )
        assert "print(" not in path.read_text(), path


def test_engines_know_no_command_and_no_terminal() -> None:
    folders = [path for path in (ROOT / "experiments").iterdir() if path.is_dir()]
    for folder in folders:
        for path in folder.rglob("*.py"):
            found = imports(path)
            assert not found & COMMANDS, path
            if folder.name != "terminal":
                assert not any(name.startswith("experiments.terminal") for name in found), path
                assert not {name.split(".")[0] for name in found} & {"absl", "tqdm"}, path


def test_the_engine_of_runs_prints_nothing() -> None:
    for folder in ("runs", "collecting"):
        for path in (ROOT / "experiments" / folder).rglob("*.py"):
            calls = (
                node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
            )
            assert not any(getattr(call.func, "id", None) == "print" for call in calls), path
