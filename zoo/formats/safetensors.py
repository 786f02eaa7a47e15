"""Files of weights: what zoo reads again, with the recipe, and plain ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from zoo.errors import CheckpointError
from zoo.formats.export import ExportSource
from zoo.formats.targets import ExportOptions
from zoo.packages import explain_imports
from zoo.run import checkpoint
from zoo.utils import raise_if_out_of_memory
from zoo.weights import SAFETENSORS


def write_weights(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write `model.safetensors`, which carries the recipe, and `recipe.yaml`.

    Weights have the names of a checkpoint, `model.` and the name in the model. zoo reads the folder
    as it reads a run directory.
    """
    checkpoint.write_safetensors(source.task.state_dict(), source.metadata(), folder / SAFETENSORS)
    write_recipe(source, folder)


def write_recipe(source: ExportSource, folder: Path) -> None:
    """Write `recipe.yaml`, from which `zoo fit` repeats the run."""
    (folder / "recipe.yaml").write_text(source.recipe.yaml(), encoding="utf-8")


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights as safetensors."""
    with explain_imports():
        from safetensors.torch import save

    plain = {name: weight.contiguous() for name, weight in weights.items()}
    path.write_bytes(save(plain, metadata={"format": "pt"}))


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """Read the weights of a file by name. Raises CheckpointError if it is unreadable."""
    with explain_imports():
        from safetensors.torch import load_file

    try:
        return {name: _widen(weight) for name, weight in load_file(file).items()}
    except Exception as error:
        raise_if_out_of_memory(error)
        # its error class is not public
        raise CheckpointError(f"{file}: unreadable: {str(error)[:120]}") from None


def _widen(weight: Tensor) -> Tensor:
    """Return half precision as float32, in which zoo trains."""
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight
