"""Texts of the tests, and a cache of their own."""

import numpy as np
import pytest

from zoo.data.text import Text


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "zoo"


@pytest.fixture
def write(tmp_path):
    """Writes a file of text or bytes and returns its path."""

    def write(content, name="book.txt"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


@pytest.fixture
def text(write):
    """A source of 1,000 letters, or of other text, with options."""
    letters = "".join(np.random.default_rng(0).choice(list("abcdefgh"), 1000))
    return lambda content=letters, **options: Text(
        0, files=write(content), **{"length": 8, "batch_size": 4, **options}
    )
