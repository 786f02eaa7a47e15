"""The programs of examples/ and tests/benchmarks show their docstring as help, and refuse mistyped arguments."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    path.relative_to(ROOT)
    for folder in ("examples", "tests/benchmarks")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8")
]


@pytest.fixture(params=SCRIPTS, ids=lambda path: path.stem)
def start(request, monkeypatch, capsys):
    """Run a script with arguments that it does not survive; return exit code, output and errors."""

    def start_with(*words):
        monkeypatch.setattr(sys, "argv", [str(request.param), *words])
        monkeypatch.syspath_prepend(ROOT / "tests")
        monkeypatch.syspath_prepend(ROOT / request.param.parent)
        with pytest.raises(SystemExit) as stopped:
            runpy.run_path(str(ROOT / request.param), run_name="__main__")
        return stopped.value.code, *capsys.readouterr()

    return start_with


def test_a_script_explains_itself(start, request):
    code, shown, _ = start("--help")
    path = ROOT / request.node.callspec.params["start"]
    documentation = path.read_text(encoding="utf-8").split('"""')[1]
    assert code == 0
    assert documentation.strip() in shown


def test_a_script_refuses_a_mistyped_option_by_name(start):
    code, _, errors = start("1", "1", "--nonsense")
    assert code == 2
    assert errors.startswith("usage: ")
    assert "Traceback" not in errors
