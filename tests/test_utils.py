"""Freed memory is kept and threads spin shortly, unless the user chose otherwise."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from zoo import utils
from zoo.run import machine

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


@pytest.mark.robustness
def test_hostile_names_are_escaped_wherever_they_are_shown(capsys, monkeypatch):
    from zoo.cli import predict
    from zoo.cli.main import main
    from zoo.errors import DataError
    from zoo.evaluation.predict import format_problems
    from zoo.reporting.tables import format_markdown, format_table

    assert utils.escape_text("Größe 猫 a b") == "Größe 猫 a b"
    assert format_table([[HOSTILE, "1"]]) == f"{SHOWN}  1"
    assert SHOWN in format_markdown([HOSTILE], [["1"]])
    predict._print(HOSTILE)
    assert capsys.readouterr().out == SHOWN + "\n"
    assert format_problems({Path(HOSTILE): "bad"}) == [f"{SHOWN}: bad"]

    def fail(words):
        raise DataError("\x1b[2J\u202e: no such file")

    monkeypatch.setattr(sys.modules["zoo.cli.main"], "_parse", fail)
    assert main(["list"]) == 4
    assert capsys.readouterr().err == "zoo: \\x1b[2J\\u202e: no such file\n"


def test_a_file_in_place_of_a_folder_is_called_that(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("")
    assert utils.describe_absence(file, "folder") == "it is a file, not a folder"
    assert utils.describe_absence(tmp_path, "file") == "it is a folder, not a file"
    assert utils.describe_absence(tmp_path / "b", "folder") == f"no such folder in {tmp_path}"
    # where both would do, neither is the wrong one
    assert utils.describe_absence(tmp_path / "b" / "c") == (
        f"no such file or folder, there is no b in {tmp_path}"
    )


def test_processors_of_one_name_are_told_apart(tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    core = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n\n"
    found = []
    for number in (1, 17):
        path.write_text(2 * core.format(number))
        found.append(machine.read_processor(path))
    assert found == ["AMD EPYC (family 25, model 1, AVX2)", "AMD EPYC (family 25, model 17, AVX2)"]
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    path.write_text("processor\t: 0\nCPU part\t: 0xd0c\n")
    assert machine.read_processor(path) == "aarch64 (AVX2)"
    assert machine.read_processor(tmp_path / "absent") == "aarch64 (AVX2)"
