"""A folder of weights for others: zoo reads it from a disk or from the Hugging Face Hub."""

from __future__ import annotations

import hashlib
from pathlib import Path

from zoo.data.spec import PointSpec, SegmentationSpec, TextClassificationSpec, TextSpec
from zoo.formats.export import ExportSource
from zoo.formats.model_card import write_card
from zoo.formats.safetensors import write_recipe
from zoo.formats.targets import ExportOptions
from zoo.run import checkpoint
from zoo.utils import write_json
from zoo.weights import SAFETENSORS

SUMS = "SHA256SUMS"
CONFIG = "config.json"
HALF_NOTE = (
    "Weights are stored in float16 and read as float32. Results were measured before they were "
    "rounded."
)


def write_hub_folder(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write weights, recipe, config.json, a card and the checksums of all files.

    The checksums are in the form that `sha256sum --check` reads.
    """
    weights, dtype = source.task.state_dict(), options.dtype or "float32"
    if dtype == "float16":
        weights = {
            name: weight.half() if weight.is_floating_point() else weight
            for name, weight in weights.items()
        }
    checkpoint.write_safetensors(weights, source.metadata(), folder / SAFETENSORS)
    write_recipe(source, folder)
    recipe = source.recipe
    config = {
        # what the Hub shows of a model, and counts downloads by
        "model_type": "zoo",
        "library_name": "transformer-zoo",
        "dtype": dtype,
        "recipe": recipe.name,
        "encodings": [*recipe.encodings],
        "parameters": sum(weight.numel() for weight in source.task.model.parameters()),
        "command": "zoo eval FOLDER",
        "zoo": source.metadata(),
    }
    write_json(config, folder / CONFIG)
    card = write_card(source, _name_task(source), "zoo", options.licence)
    if dtype == "float16":
        card = f"{card}\n{HALF_NOTE}\n"
    (folder / "README.md").write_text(card, encoding="utf-8")
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}"
        for file in sorted(folder.iterdir())
    ]
    (folder / SUMS).write_text("\n".join([*sums, ""]), encoding="utf-8")


def _name_task(source: ExportSource) -> str:
    """Return what the Hub calls the task of a model."""
    match source.task.spec:
        case TextSpec():
            return "fill-mask" if source.recipe.task.name == "masked_lm" else "text-generation"
        case TextClassificationSpec():
            return "text-classification"
        case SegmentationSpec():
            return "image-segmentation"
        case PointSpec():
            is_class = source.task.spec.classes is not None
            return "tabular-classification" if is_class else "tabular-regression"
    return "image-classification"
