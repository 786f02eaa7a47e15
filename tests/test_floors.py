"""Imports go down only: the floors of the package, read off its source."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "zoo"
FLOORS = [
    {"errors", "registry", "samples", "panels", "heap", "plain"},
    {"attention"},
    {"models", "encodings"},
    {"functions"},
    {"bench", "laws"},
    {"recipe", "tasks", "data", "launch"},
    {"diagnostics"},
    {"run"},
    {"build"},
    {"extension"},
    {"asked"},
    {"check", "transfer", "conversion"},
    {"loading"},
    {"compare"},
    {"verbs"},
    {"cli"},
    {"__main__"},
]
BESIDE = {"registry": {"errors"}}  # within the lowest floor
LIGHTNING = {"tasks", "data", "diagnostics", "run", "build", "loading", "verbs"}
ONLY_TORCH = {"attention", "encodings"}


def floor(part):
    return next(number for number, parts in enumerate(FLOORS) if part in parts)


def part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    """Modules that a file imports, those for type checking included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (
                f"{node.module}.{alias.name}" if node.module == "zoo" else node.module
                for alias in node.names
            )


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    own = part(path)
    for module in imported(path):
        words = module.split(".")
        if words[0] != "zoo" or len(words) == 1 or words[1] in (own, "__version__"):
            continue
        assert floor(words[1]) < floor(own) or words[1] in BESIDE.get(own, ()), (
            f"{own} imports {module}"
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_libraries_stay_where_they_belong(path):
    tops = {module.partition(".")[0] for module in imported(path)}
    assert "lightning" not in tops or part(path) in LIGHTNING
    assert not tops & {"omegaconf", "yaml"} or part(path) == "recipe"
    assert not tops & {"numpy", "torchmetrics", "matplotlib"} or part(path) not in ONLY_TORCH


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_branch_asks_which_encoding(path):
    if part(path) not in ("attention", "models", "functions", "laws"):
        return
    names = {p.stem for p in (PACKAGE / "encodings").glob("*.py")} - {"none", "__init__"}
    words = {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not words & names
    assert "hasattr" not in path.read_text()


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "encodings").rglob("*.py")), ids=lambda path: path.stem
)
def test_an_encoding_is_read_at_a_glance(path):
    most = 70 if path.parent.name == "encodings" else 100  # what several are made of
    assert len(path.read_text().splitlines()) <= most
