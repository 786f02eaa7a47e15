"""Overrides that let any registered recipe train in about a second, and the data it reads."""

from __future__ import annotations

from pathlib import Path

from pictures import pairs, parquet
from tables import corpus, text

from zoo.config import Recipe
from zoo.data.corpus.tokenizer import train_bpe

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
LARGE = [path for path in RECIPES if path.stem.endswith(("_124m", "_imagenet"))]
"""Recipes for eight GPUs. Those of a family differ in the encoding only."""
BASES = ("lm_rope_124m", "vit_s16_rope_mixed_imagenet", "vit_b16_comrope_imagenet")
"""The recipes that the others in LARGE extend."""

NARROW = [
    "model.dim=16",
    "model.heads=2",
    "trainer.precision=32-true",
    "trainer.accumulate_grad_batches=1",
]
FEW = ["data.train=64", "data.test=50", "data.val=50"]
DATA = {
    "digits": ["data.test=0.02", "data.val=0.02"],
    "python_docs": ["data.test=0.004", "data.val=0.004", "data.length=32"],
    "text": ["data.length=32"],
    "flipflop": ["data.test=50", "data.val=50", "data.length=16"],
    "counting": [*FEW, "data.steps=8"],
    "selective_copy": [*FEW, "data.symbols=6", "data.blanks=6"],
    "recall": [*FEW, "data.length=24", "data.pairs=4"],
    "addition": [*FEW, "data.digits=4"],
    "copying": [*FEW, "data.symbols=6"],
    "parity": [*FEW, "data.bits=6"],
    "passkey": [*FEW, "data.length=24"],
    "multikey_passkey": [*FEW, "data.length=80", "data.digits=3"],
    "variable_tracking": [*FEW, "data.length=96"],
    "irregular_series": [*FEW, "data.points=8", "data.least=4"],
    "common_words": [*FEW, "data.length=40", "data.common=2", "data.common_repeats=8"],
    "moving_digits": ["data.train=64", "data.test=32", "data.val=32"],
    "seg_digits": ["data.train=64", "data.test=32", "data.val=32"],
    "images": [
        "data.path=made",
        "data.val=0.25",
        "data.test=0.25",
        "data.size=32",
        "data.workers=0",
        "trainer.precision=32-true",
        "model.dim=64",
        "model.heads=4",
    ],
    "image_masks": [
        "data.path=made",
        "data.val=0.25",
        "data.test=0.25",
        "data.size=32",
        "data.workers=0",
        "trainer.precision=32-true",
        "model.dim=64",
        "model.heads=4",
    ],
    "marker_offset": ["data.test=50", "data.val=50", "data.length=16"],
    "text_table": [
        "data.path=made",
        "data.vocabulary=270",
        "data.length=32",
        "data.workers=0",
        *NARROW,
    ],
    "text_stream": [
        "data.path=made",
        "data.tokenizer=words.json",
        "data.length=32",
        "data.samples=16",
        "data.workers=0",
        "data.tokenizer_workers=0",
        *NARROW,
    ],
}
"""Overrides by data source: few samples, short sequences."""


def shrink(recipe: Recipe, *, steps: int = 2) -> list[str]:
    """List overrides that make a recipe train for a few steps on little data."""
    batch_size = 4 if recipe.data.name in ("images", "image_masks") else 16
    data = DATA.get(recipe.data.name, [])
    if recipe.data.options.get("vocabulary") is None:
        data = [word for word in data if not word.startswith("data.vocabulary=")]
    return [
        f"trainer.max_steps={steps}",
        "trainer.max_epochs=null",
        "trainer.accelerator=cpu",
        "trainer.devices=1",
        *data,
        f"data.batch_size={batch_size}",
    ]


def write_data(recipe: Recipe, folder: Path) -> None:
    """Write the files that a shrunken recipe reads from the folder it runs in."""
    if recipe.data.name == "images":
        parquet(folder / "made" / "train-0.parquet", 16, size=(40, 32), classes=10)
    if recipe.data.name == "image_masks":
        pairs(folder / "made", 16, split="training", mask=recipe.data.options["mask"])
    if recipe.data.name.startswith("text_"):
        corpus(folder / "made", column=recipe.data.options.get("text", "text"))
        (folder / "words.json").write_text(train_bpe([text(n) for n in range(9)], 300).json)
