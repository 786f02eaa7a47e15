"""A recipe that trains in a second, and a place of its own for its runs."""

import pytest
from tiny import MORE, TINY


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Overrides of vit_comrope that make it tiny; runs go to a temporary folder."""
    monkeypatch.chdir(tmp_path)
    return [*TINY, *MORE]
