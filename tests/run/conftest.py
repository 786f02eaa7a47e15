"""A recipe that trains in a second, and a place of its own for its runs."""

import pytest
import torch

TINY = [
    "model.dim=16", "model.depth=2", "model.heads=2", "model.patch=4", "model.encoding=rope_mixed", "model.block.dropout=0.1",
    "data.test=0.45", "data.val=0.45", "data.batch_size=32", "trainer.max_epochs=3", "trainer.accelerator=cpu",
]  # fmt: skip


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Overrides of vit_comrope that make it tiny; runs go to a temporary folder."""
    monkeypatch.chdir(tmp_path)
    return list(TINY)


@pytest.fixture
def weights():
    """Reads the weights of a checkpoint file."""
    return lambda path: torch.load(path, weights_only=True)["state_dict"]
