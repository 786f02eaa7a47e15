"""Every name that a document, an example or a script takes from zoo is there.

Notebooks and scripts run at night only, so that a name that is gone would otherwise stay unseen.
"""

import ast
import doctest
import importlib
import inspect
import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^( *)```(?:python|pycon|py)\b[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
MAGIC = re.compile(r"^\s*[%!]", re.MULTILINE)
LEAST_NAMES = 300


def list_programs():
    """Yield (where, text) of Python that is no part of the package and of no collected test."""
    files = subprocess.run(
        ["git", "ls-files", "docs", "examples", "tests", "README.md", "CONTRIBUTING.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in files:
        path = ROOT / name
        # collected tests would fail by themselves; a file may be removed and not committed yet
        if (path.name.startswith("test_") and name.startswith("tests/")) or not path.is_file():
            continue
        if path.suffix == ".py":
            yield name, path.read_text(encoding="utf-8")
        elif path.suffix == ".ipynb":
            for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
                if cell["cell_type"] == "code":
                    yield f"{name}, cell {number}", "".join(cell["source"])
        elif path.suffix == ".md":
            for block in FENCED.finditer(path.read_text(encoding="utf-8")):
                text = textwrap.dedent(block[2])
                if ">>>" in text:
                    text = doctest.script_from_examples(text)
                yield f"{name}, block at {block.start()}", text


def list_names(tree):
    """Yield each dotted name that a program takes from zoo, such as zoo.functional.attend."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "zoo":
                    yield alias.name
                    # "import zoo.data" binds zoo
                    aliases[alias.asname or "zoo"] = alias.name if alias.asname else "zoo"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "zoo":
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = []
            while isinstance(node, ast.Attribute):
                parts.insert(0, node.attr)
                node = node.value
            if isinstance(node, ast.Name) and node.id in aliases and node.id not in stored:
                yield ".".join((aliases[node.id], *parts))


def resolves(name):
    """Return whether a dotted name is there; what follows an instance is not judged."""
    thing, path = importlib.import_module("zoo"), "zoo"
    for part in name.split(".")[1:]:
        if not inspect.ismodule(thing) and not inspect.isclass(thing):
            return True
        path = f"{path}.{part}"
        try:
            thing = getattr(thing, part)
        except AttributeError:
            if inspect.isclass(thing):
                # fields of dataclasses without a default are attributes of instances only
                return part in inspect.get_annotations(thing) or part in dir(thing)
            try:
                thing = importlib.import_module(path)
            except ImportError:
                return False
    return True


def test_every_name_that_documents_and_scripts_take_from_zoo_is_there():
    names = {}
    for where, text in list_programs():
        try:
            tree = ast.parse(MAGIC.sub("pass #", text))
        except SyntaxError:
            # excerpts with dots are shown, not run
            continue
        for name in list_names(tree):
            names.setdefault(name, where)
    assert len(names) > LEAST_NAMES
    gone = {name: where for name, where in names.items() if not resolves(name)}
    assert not gone


@pytest.mark.parametrize(
    "text",
    [
        "from zoo.formats.export import gone",
        "import zoo\nzoo.gone()",
        "import zoo.gone",
        "from zoo import functional as F\nF.gone(1)",
        "import zoo as library\nlibrary.Dims.gone",
    ],
)
def test_a_name_that_is_gone_is_seen(text):
    assert not all(map(resolves, list_names(ast.parse(text))))
