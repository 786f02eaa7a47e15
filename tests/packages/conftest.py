"""An environment of its own that holds what was built, and sees the libraries of this one but not the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tiny import ROOT

QUIET = ["--quiet", "--no-index", "--no-deps"]


def pip(*words):
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)], check=True
    )


def build(source, folder):
    """The wheel of a project, built by the backend that is installed here."""
    pip("wheel", *QUIET, "--no-build-isolation", "--wheel-dir", folder, source)
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


class Environment:
    """A fresh virtual environment; the libraries of this one are seen behind its own."""

    def __init__(self, folder):
        self.bin, self.home = folder / "bin", folder / "empty"
        venv.create(folder, symlinks=True)
        self.home.mkdir()

    def install(self, *wheels):
        pip("--python", self.bin / "python", "install", *QUIET, "--force-reinstall", *wheels)

    def see_libraries(self):
        (site,) = self.bin.parent.glob("lib/python*/site-packages")
        (site / "libraries.pth").write_text(
            "\n".join({sysconfig.get_path(kind) for kind in ("purelib", "platlib")})
        )

    def run(self, program, *words, **more):
        """Standard output of a program of the environment, run in an empty folder."""
        kept = {
            key: os.environ[key] for key in ("HOME", "PATH", "XDG_CACHE_HOME") if key in os.environ
        }
        message = subprocess.run(
            [self.bin / program, *map(str, words)],
            capture_output=True,
            text=True,
            cwd=self.home,
            env=kept | {"OMP_NUM_THREADS": "1"},
            **more,
        )
        assert message.returncode == 0, message.stderr
        return message.stdout


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    words = ["-m", "hatchling", "build", "--target", "sdist", "--directory", folder]
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT, capture_output=True)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory):
    """Built from what a source distribution holds, as an index would."""
    return build(sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """The wheel of the example, built from a copy as a user would make it."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(ROOT / "docs" / "plugin", folder / "copy")
    return build(folder / "copy", folder)


@pytest.fixture(scope="session")
def environment(wheel, plugin, tmp_path_factory):
    made = Environment(tmp_path_factory.mktemp("environment"))
    made.install(wheel, plugin)
    made.see_libraries()  # only now, so that pip does not find the checkout's zoo among them
    return made
