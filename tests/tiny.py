"""Overrides that make a recipe train in a second."""

from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
TINY = [
    "model.dim=16",
    "model.depth=1",
    "model.heads=2",
    "model.patch_size=4",
    "model.encoding=rope_axial",
    "data.test=0.4",
    "data.val=0.4",
    "data.batch_size=64",
    "trainer.max_epochs=1",
    "trainer.accelerator=cpu",
]
MORE = [
    "model.depth=2",
    "model.encoding=rope_mixed",
    "model.block.dropout=0.1",
    "trainer.max_epochs=3",
]
LANGUAGE = [
    "model.dim=16",
    "model.depth=1",
    "model.heads=2",
    "data.length=16",
    "data.batch_size=8",
    "trainer.max_epochs=1",
    "trainer.accelerator=cpu",
]
LETTERS = "".join(np.random.default_rng(0).choice(list("abcdefgh \n"), 2000))


def language(file: Path, *overrides: str) -> list[str]:
    """Overrides that make a recipe of text tiny, and have it read a file of LETTERS that is written for it."""
    file.write_text(LETTERS)
    return ["data.name=text", f"data.files=[{file}]", *LANGUAGE, *overrides]
