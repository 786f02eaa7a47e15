"""Check folders that a command will write to."""

from __future__ import annotations

import tempfile
from pathlib import Path

WRITE_TEST = ".zoo-write-test-"  # prefix of the name of a file that is created and removed


def check_writable(folder: Path) -> None:
    """Raise OSError where a file cannot be created in a folder."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=WRITE_TEST):
        pass
