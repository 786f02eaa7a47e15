"""The examples run."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def minimal():
    spec = importlib.util.spec_from_file_location("minimal", ROOT / "examples" / "minimal.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("encoding", ["rope", "rope_axial", "kerple+dape", "learned"])
def test_the_training_loop_takes_any_encoding(encoding, minimal, capsys):
    accuracy = minimal.main(["--encoding", encoding, "--steps", "3"])
    assert 0 <= accuracy <= 1
    assert re.search(r"step +3  loss \d\.\d{4}\n.*test accuracy \d\.\d{4}", capsys.readouterr().out)


def test_rope_learns_the_task(minimal):
    assert minimal.main(["--encoding", "rope", "--steps", "60"]) > 0.95


def test_the_training_loop_is_short():
    assert len((ROOT / "examples" / "minimal.py").read_text().splitlines()) < 120
