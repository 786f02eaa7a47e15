"""SIGKILL at random moments loses nothing. `python tests/benchmarks/kill.py 50` takes longer and is surer."""

import importlib
import re
from pathlib import Path

from several import alone, run
from tiny import ROOT


def test_kills_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tests" / "benchmarks")
    kill = importlib.import_module("kill")
    ended, message = run(1, lambda rank: kill.elsewhere(3), alone), Path("rank-0.log").read_text()
    assert ended == [0], message
    assert re.match(
        r"3 kills, \d+ of them in the middle of a file, in \d+ runs: each ended", message
    )
