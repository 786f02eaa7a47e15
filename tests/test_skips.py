"""A missing package fails the run instead of skipping tests: the extra `dev` brings all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ONE = "import pytest\ndef test_one():\n    pytest.importorskip('no_such_package')\n"
ALL = "import pytest\npytest.importorskip('no_such_module.part')\ndef test_all(): pass\n"
OTHER = "import pytest\ndef test_other():\n    pytest.skip('for another reason')\n"


def run(folder, content, *options):
    (folder / "test_it.py").write_text(content)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "skips", *options, "test_it.py"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("content", "name"), [(ONE, "no_such_package"), (ALL, "no_such_module.part")]
)
@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=["one process", "xdist"])
def test_a_test_skipped_for_want_of_a_package_fails_the_run(tmp_path, content, name, options):
    done = run(tmp_path, content, *options)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert f"not installed: {name}; pip install" in done.stdout


def test_another_skip_is_none_of_it(tmp_path):
    assert run(tmp_path, OTHER).returncode == pytest.ExitCode.OK
