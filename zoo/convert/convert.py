"""`zoo convert`: published weights as a checkpoint, which is evaluated, loaded and started from like any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.config import Recipe
from zoo.convert import ropevit
from zoo.errors import CheckpointError, ConfigIssue, RecipeError
from zoo.run import atomic_io, checkpoint
from zoo.run.build import build_task
from zoo.run.load import load_recipe

SHOWN = 20  # faults of a kind


def convert(file: Path, name: str, overrides: Sequence[str], to: Path | None) -> dict[str, Any]:
    """Write the weights of a file as a checkpoint of a recipe; returns what `--json` prints. Raises CheckpointError."""
    target = to or file.with_suffix(".ckpt")
    if target.exists():
        raise RecipeError(
            ConfigIssue("command line", "--to", f"{target} exists already", "name another file")
        )
    weights = _published(file)
    recipe = load_recipe(name, overrides)
    sizes = ropevit.sizes(weights)
    _refuse(file, "not RoPE-ViT as timm has it", _strange(weights, ropevit.layout(sizes)))
    _refuse(file, f"not the weights of recipe {recipe.name}", _unlike(recipe, sizes))
    task = build_task(recipe)
    own = dict(ropevit.translated(weights, sizes, recipe.model.options["heads"]))
    _refuse(file, f"not the weights of recipe {recipe.name}", _other(task.model, own))
    task.model.load_state_dict(own)
    content = {"zoo": checkpoint.about(recipe, task.samples), "state_dict": task.state_dict()}
    atomic_io.publish(atomic_io.serialised(content), target)
    return {"recipe": recipe.name, "checkpoint": str(target), "weights": len(weights)}


def _published(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name, among them those that tell the sizes of the model."""
    found = ropevit.inner(_safe(file) if file.suffix == ".safetensors" else _pickled(file))
    weights = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    ranks = dict(zip(ropevit.TELLING, (4, 3, 2, 2), strict=True))
    lacking = [key for key in ropevit.TELLING if key not in weights]
    wrong = [key for key, rank in ranks.items() if key in weights and weights[key].dim() != rank]
    if lacking or wrong or len(weights) < len(found):
        others = [key for key in found if key not in weights]
        faults = [f"missing: {key}" for key in lacking] + [
            f"of another rank: {key}" for key in wrong
        ]
        _refuse(
            file, "not RoPE-ViT as timm has it", [*faults, *(f"no tensor: {key}" for key in others)]
        )
    return weights


def _pickled(file: Path) -> Mapping[str, object]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except Exception as error:  # of several kinds
        told = str(error).strip().partition("\n")[0][:120]
        raise CheckpointError(
            f"{file}: unreadable as plain data and tensors, nothing of it was run: {told}"
        ) from None
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{file}: it holds no weights by name, but a {type(content).__name__}"
        )
    return content


def _safe(file: Path) -> Mapping[str, object]:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise CheckpointError(
            f"{file}: the package safetensors reads it; pip install safetensors"
        ) from None
    try:
        return load_file(file)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except Exception as error:  # of a class that is not public
        raise CheckpointError(f"{file}: unreadable: {str(error)[:120]}") from None


def _refuse(file: Path, told: str, faults: Sequence[str]) -> None:
    """Raises CheckpointError with all faults, if there are any."""
    more = [f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    if faults:
        raise CheckpointError("\n  ".join([f"{file}: {told}", *faults[:SHOWN], *more]))


def _strange(weights: Mapping[str, Tensor], layout: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Keys that a file lacks, those that are not known, and those of another shape."""
    faults = [
        f"missing: {key} {list(shape)}" for key, shape in layout.items() if key not in weights
    ]
    faults += [
        f"unknown: {key} {list(value.shape)}" for key, value in weights.items() if key not in layout
    ]
    for key, shape in layout.items():
        if key in weights and weights[key].shape != shape:
            faults.append(f"misshapen: {key} is {list(weights[key].shape)}, not {list(shape)}")
    return faults


def _unlike(recipe: Recipe, sizes: ropevit.Sizes) -> list[str]:
    """Options of the recipe that are not those of the file, with what would be right."""
    if recipe.model.name != "vit":
        return [f"model.name is {recipe.model.name}; RoPE-ViT is a vit"]
    options = recipe.model.options
    given = {f"model.{key}": value for key, value in options.items()}
    given |= {f"model.block.{key}": value for key, value in asdict(options["block"]).items()}
    given["model.encoding"] = [choice.name for choice in options["encoding"]]
    wanted = dict(_wanted(sizes))
    found = [
        f"{key} is {_word(given[key])}, not {_word(right)}: {key}={_word(right)}"
        for key, right in wanted.items()
        if given[key] != right
    ]
    if given["model.block.layer_scale"] is None:
        found.append("model.block.layer_scale is null: model.block.layer_scale=1e-5")
    return found


def _wanted(sizes: ropevit.Sizes) -> Iterator[tuple[str, object]]:
    yield from ((f"model.{key}", getattr(sizes, key)) for key in ("dim", "depth", "patch"))
    if sizes.heads is not None:
        yield "model.heads", sizes.heads
    yield (
        "model.encoding",
        [*(["learned"] if sizes.tokens else []), "rope_mixed" if sizes.mixed else "rope_axial"],
    )
    yield from {"model.pool": "class", "model.cls_position": "none", "model.registers": 0}.items()
    yield from {
        "model.block.norm": "layer",
        "model.block.norm_position": "pre",
        "model.block.mlp": "gelu",
    }.items()
    yield "model.block.mlp_ratio", sizes.hidden / sizes.dim
    yield "model.block.key_bias", True
    yield from (
        (f"model.block.{key}", False) for key in ("qk_norm", "output_norm", "output_gate", "shift")
    )


def _word(value: object) -> str:
    text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
    return text.lower() if isinstance(value, bool) else text


def _other(model: nn.Module, own: Mapping[str, Tensor]) -> list[str]:
    """Weights that a model has and a file does not give, or the other way round, and those of another shape."""
    asked = {key: value.shape for key, value in model.state_dict().items()}
    faults = [
        f"{key}: the recipe's model has it, the file does not give it"
        for key in asked
        if key not in own
    ]
    faults += [
        f"{key}: the file gives it, the recipe's model does not have it"
        for key in own
        if key not in asked
    ]
    both = [key for key in asked if key in own and own[key].shape != asked[key]]
    return faults + [
        f"{key}: {list(own[key].shape)} in the file, {list(asked[key])} by the recipe"
        for key in both
    ]
