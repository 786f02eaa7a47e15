"""Overrides that make a digits recipe train in a second."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
TINY = [
    "model.dim=16", "model.depth=1", "model.heads=2", "model.patch=4", "model.encoding=rope_axial", "data.test=0.45",
    "data.val=0.45", "data.batch_size=32", "trainer.max_epochs=1", "trainer.accelerator=cpu",
]  # fmt: skip
