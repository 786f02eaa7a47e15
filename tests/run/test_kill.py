"""SIGKILL at random moments loses nothing. `python tests/benchmarks/kill.py 50` takes longer and is surer."""

import os
import re
import subprocess
import sys

from tiny import ROOT


def test_kills_lose_nothing():
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / "kill.py"), "3"]
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert re.match(r"3 kills, \d+ of them in the middle of a file, in \d+ runs: each ended", found.stdout)
