"""The command line, called in this process or in one of its own."""

import json
import subprocess
import sys

import pytest

from zoo.cli import main


@pytest.fixture
def zoo(capsys, tmp_path, monkeypatch):
    """zoo(*arguments) -> (exit code, standard output, standard error), in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_PLUGINS", "")  # what --plugin sets is gone after the test

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def predicted(zoo):
    """What `zoo predict` prints as JSON."""

    def run(*arguments):
        code, out, told = zoo("predict", *arguments, "--json")
        assert code == 0, told
        return json.loads(out)

    return run


@pytest.fixture
def process(tmp_path):
    """Starts `python -m zoo` in an empty folder."""

    def start(*arguments, **more):
        return subprocess.Popen(
            [sys.executable, "-m", "zoo", *map(str, arguments)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    return start
