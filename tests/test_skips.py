"""A missing package fails the run instead of skipping tests: the extra `dev` brings all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "test_one.py": "import pytest\ndef test_one(): pytest.importorskip('no_such_package')\n",
    "test_all.py": "import pytest\npytest.importorskip('no_such_module.part')\n",
}
OTHER = {"test_other.py": "import pytest\ndef test_other(): pytest.skip('for another reason')\n"}


def run(folder, files, *options):
    for name, content in files.items():
        (folder / name).write_text(content)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "skips", *options],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=["one process", "xdist"])
def test_tests_skipped_for_want_of_a_package_fail_the_run(tmp_path, options):
    done = run(tmp_path, FILES, *options)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "not installed: no_such_module.part, no_such_package; pip install" in done.stdout


def test_another_skip_fails_no_run(tmp_path):
    assert run(tmp_path, OTHER).returncode == pytest.ExitCode.OK
