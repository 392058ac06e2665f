"""The order of the rooms: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "transformers", "tokenizers", "torchvision"}


def imports(path: Path) -> set[str]:
    """Full names of everything that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def roots(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", sorted((ROOT / "app").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_page_never_touches_the_model_library(path: Path) -> None:
    assert not roots(imports(path)) & HEAVY


@pytest.mark.parametrize("path", sorted((ROOT / "engines").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_engines_know_nothing_of_the_page(path: Path) -> None:
    assert not roots(imports(path)) & {"app", "gradio", "plotly", "launch", "benchmarks", "tests"}


@pytest.mark.parametrize("room", ["pruning", "precision", "experts"])
def test_a_method_uses_its_base_and_nothing_beside_it(room: str) -> None:
    """Files that bring a room together may import its methods; a method's own file may not."""
    shared = {"__init__", "base", "stage", "pool", "calibrate"}
    # Of precision/: what its formats have in common, and what looks at the weights or a run.
    shared |= {"layers", "compensation", "native", "statistics", "probe", "collapse"}
    methods = [path for path in (ROOT / "engines" / room).glob("*.py") if path.stem not in shared]
    assert methods
    for path in methods:
        beside = {f"engines.{room}.{other.stem}" for other in methods if other != path}
        assert not imports(path) & beside, path.name


def test_no_circles_among_engine_modules() -> None:
    files = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "engines").rglob("*.py")}
    names = {name.removesuffix(".__init__"): path for path, name in files.items()}
    graph = {
        name: {found for found in top_level_imports(path) if found in names and found != name}
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def top_level_imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found
