"""Freed memory is kept and threads spin shortly, unless the user chose otherwise."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from zoo import utils

PAGES = 8 * 2**20 // resource.getpagesize()


def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.empty(2**21).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_is_used_again():
    assert utils.keep_freed_memory({})
    faults()
    assert faults() < PAGES


def test_what_the_user_chose_stays():
    for name in ("MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD", "GLIBC_TUNABLES"):
        assert not utils.keep_freed_memory({name: "something"})


def test_openmp_threads_spin_shortly_unless_the_user_chose():
    fresh, policy, count = {}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}
    for environment in (fresh, policy, count):
        utils.limit_spinning(environment)

    assert fresh == {"GOMP_SPINCOUNT": utils.SPIN_COUNT}
    assert policy == {"OMP_WAIT_POLICY": "active"}
    assert count == {"GOMP_SPINCOUNT": "7"}


def test_the_command_line_is_loaded_without_torch():
    code = "import sys, zoo.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


HOSTILE = "cat\x1b[2J\u202egnp\ndog\udcff"
SHOWN = r"cat\x1b[2J\u202egnp\ndog\udcff"


def test_hostile_names_are_escaped_wherever_they_are_shown(capsys, monkeypatch):
    from zoo.cli.main import main
    from zoo.errors import DataError
    from zoo.evaluation import predict
    from zoo.reporting.tables import format_markdown, format_table

    assert utils.escape_text("Größe 猫 a b") == "Größe 猫 a b"
    assert format_table([[HOSTILE, "1"]]) == f"{SHOWN}  1"
    assert SHOWN in format_markdown([HOSTILE], [["1"]])
    predict._print(HOSTILE)
    assert capsys.readouterr().out == SHOWN + "\n"
    assert predict._format_problems({Path(HOSTILE): "bad"}) == [f"{SHOWN}: bad"]

    def fail(words):
        raise DataError("\x1b[2J\u202e: no such file")

    monkeypatch.setattr(sys.modules["zoo.cli.main"], "_parse", fail)
    assert main(["list"]) == 4
    assert capsys.readouterr().err == "zoo: \\x1b[2J\\u202e: no such file\n"
