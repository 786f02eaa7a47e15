"""Imports go down only: the floors of the package, and the libraries that each may use."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import torch

import zoo

PACKAGE = Path(__file__).parent.parent / "zoo"
FLOORS = [
    {"version", "errors", "suggestions"},
    {"packages", "utils", "registry"},
    {"citations", "options", "reporting", "weights"},
    {"attention", "config", "data"},
    {"encodings", "mixers", "functional", "models", "tasks", "optim"},
    {"diagnostics", "laws", "integrations"},
    {"run", "auditing"},
    {"benchmark", "evaluation", "formats", "launch", "testing"},
    {"diagnosis", "comparison"},
    {"api"},
    {"cli"},
    {"__main__"},
]
"""The parts of the package from the bottom up. A part imports itself and parts of lower floors."""
LIGHTNING = {"tasks", "data", "diagnostics", "diagnosis", "run", "evaluation"}
CHARTS = {"altair", "vl_convert", "jinja2", "markupsafe"}
DRAWING = {"reporting", "benchmark", "comparison", "diagnostics", "diagnosis"}
ONLY_TORCH = {"attention", "encodings", "mixers"}
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def find_floor(part):
    return next(number for number, parts in enumerate(FLOORS) if part in parts)


def find_part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def list_imports(path):
    """Yield the modules that a file imports, those for type checking included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names if node.module == "zoo" else [node.module]


def test_every_part_has_a_floor():
    parts = {find_part(path) for path in FILES}
    assert parts == set().union(*FLOORS)
    assert len(FLOORS) <= 12  # eleven, and the entry point


def test_imports_go_down():
    for path in FILES:
        own = find_part(path)
        for module in list_imports(path):
            words = module.split(".")
            if words[0] != "zoo" or len(words) == 1 or words[1] == own:
                continue
            where = path.relative_to(PACKAGE)
            assert find_floor(words[1]) < find_floor(own), f"{where} imports {module}"


def test_only_the_edges_use_comparisons():
    """Nothing but a statement of `api` and one of `cli` imports or names `zoo.comparison`."""
    # texts count too: a module that is imported by its name is imported
    lines = [
        (str(path.relative_to(PACKAGE)), line)
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
        if find_part(path) != "comparison"
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bzoo\.comparison\b|from zoo import .*\bcomparison\b", line)
    ]
    assert sorted(lines) == [
        ("api/comparison.py", "from zoo.comparison.interface import ("),
        ("cli/compare.py", "    from zoo.comparison.suite_files import find_suite"),
    ]


def test_libraries_stay_where_they_belong():
    for path in FILES:
        part = find_part(path)
        tops = {module.partition(".")[0] for module in list_imports(path)}
        where = str(path.relative_to(PACKAGE))
        assert "lightning" not in tops or part in LIGHTNING, where
        assert not tops & {"omegaconf", "yaml"} or part == "config", where
        assert not tops & CHARTS or part in DRAWING, where
        assert not tops & {"numpy", "torchmetrics", "scipy", "PIL"} or part not in ONLY_TORCH, where


def test_no_branch_asks_which_data():
    """Specs answer, so that a plug-in adds a kind of data; sources and formats have one kind."""
    for path in FILES:
        if find_part(path) in ("data", "formats"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in (
                "isinstance",
                "type",
            ):
                continue
            kinds = re.findall(r"\b(?!Data)\w+Spec\b", ast.unparse(node))
            assert not kinds, f"{path.relative_to(PACKAGE)}:{node.lineno} asks for {kinds}"


def test_no_branch_asks_which_encoding():
    names = {file.stem for file in (PACKAGE / "encodings").glob("*.py")} - {"none", "__init__"}
    for path in FILES:
        if find_part(path) not in ("attention", "models", "laws"):
            continue
        text = path.read_text(encoding="utf-8")
        constants = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        written = {node.value for node in constants if isinstance(node.value, str)}
        assert not written & names, str(path.relative_to(PACKAGE))
        assert "hasattr" not in text, str(path.relative_to(PACKAGE))


def test_a_language_model_reads_from_few_files():
    """A reader who follows one forward pass of lm_rope opens at most fourteen files."""
    model = zoo.build_model(zoo.load_recipe("lm_rope")).train()
    entered = set()

    def note_file(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            entered.add(str(path.relative_to(PACKAGE)))

    tokens = torch.zeros(2, 64, dtype=torch.int64)
    sys.setprofile(note_file)
    try:
        model(tokens)
    finally:
        sys.setprofile(None)

    assert {"models/decoder.py", "attention/layer.py", "encodings/rope.py"} < entered
    assert len(entered) <= 14, sorted(entered)


ENTERED = """
import sys
from zoo.cli.imports import defer_imports
from zoo.cli.main import main

# imported before calls are noted, which takes several times as long
defer_imports()
import altair, lightning, tensorboard, torch, torchmetrics

root, *words = sys.argv[1:]
files, depth, deepest = set(), 0, 0

def note_call(frame, event, argument):
    global depth, deepest
    # 2 is the flag of functions: bodies of modules and classes run when they are imported
    code = frame.f_code
    if not code.co_filename.startswith(root) or not code.co_flags & 2:
        return
    if event == "call":
        files.add(code.co_filename)
        depth += 1
        deepest = max(deepest, depth)
    elif event == "return":
        depth -= 1

sys.setprofile(note_call)
code = main(words)
sys.setprofile(None)
print(code, deepest, *(file.removeprefix(root) for file in files), file=sys.stderr)
"""
"""Run a command; print its code, the depth of its deepest stack and the files that it enters."""


def enter_files(*words):
    """Return how deep a command's stack of zoo's functions is, and the files they are in."""
    given = [sys.executable, "-c", ENTERED, f"{PACKAGE}{os.sep}", *words]
    done = subprocess.run(
        given, cwd=PACKAGE.parent, capture_output=True, text=True, check=True, timeout=120
    )
    code, depth, *files = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    return int(depth), sorted(files)


def test_a_training_reads_from_few_files_and_a_shallow_stack(tmp_path):
    """A reader who follows `zoo fit` or `zoo eval` in a debugger opens a bounded part of zoo."""
    small = ["model.encoding=rope_axial", "model.dim=16", "model.depth=1", "model.heads=2"]
    once = ["data=digits", "trainer.max_epochs=1", "trainer.max_steps=1", "trainer.accelerator=cpu"]
    # measuring attention runs a model within a callback
    once.append("diagnostics.every_n_steps=null")
    run = tmp_path / "run"

    depth, files = enter_files("fit", "vit_comrope", *small, *once, "--run-dir", str(run))
    assert "run/fit.py" in files
    assert len(files) <= 58, files
    # options of encodings are read from the text of files, before torch is imported
    assert depth <= 25

    # with a test at each of several resolutions, and their figure
    _, files = enter_files("eval", str(run))
    assert "reporting/charts.py" in files
    assert len(files) <= 56, files


def test_test_modules_have_names_of_their_own():
    """pytest imports them by name alone, and refuses a second one in the same run."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_folder_with_modules_is_a_package_that_says_what_it_holds():
    # readers of the source, such as the site's reference, pass over folders that are none
    folders = {path.parent for path in FILES}
    assert PACKAGE / "comparison" in folders
    for folder in folders:
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert len(docstring.split()) > 2, folder
