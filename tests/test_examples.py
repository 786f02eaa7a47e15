"""The examples run."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def minimal():
    return load_example("minimal")


@pytest.mark.parametrize("encoding", ["rope", "rope_axial", "kerple+dape", "learned"])
def test_the_training_loop_takes_any_encoding(encoding, minimal, capsys):
    accuracy = minimal.main(["--encoding", encoding, "--steps", "3"])
    assert 0 <= accuracy <= 1
    assert re.search(r"step +3  loss \d\.\d{4}\n.*test accuracy \d\.\d{4}", capsys.readouterr().out)


def test_rope_learns_the_task(minimal):
    assert minimal.main(["--encoding", "rope", "--steps", "60"]) > 0.95


def test_the_training_loop_is_short():
    assert len((ROOT / "examples" / "minimal.py").read_text().splitlines()) < 120


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_is_stored_with_its_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]

    outputs = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]


@pytest.mark.notebook
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_runs(path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if missing := load_example("execute").find_missing(path):
        pytest.skip(f"without {', '.join(missing)}")
    lines = [
        "import nbformat",
        "from nbclient import NotebookClient",
        f"notebook = nbformat.read({str(path)!r}, as_version=4)",
        f"resources = {{'metadata': {{'path': {str(path.parent)!r}}}}}",
        "NotebookClient(notebook, timeout=300, resources=resources).execute()",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, env=environment)
