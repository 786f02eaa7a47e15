"""Convert published weights to a checkpoint, which works like any other one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.config import Recipe
from zoo.config.command_line import parse_options, split_words
from zoo.convert import ropevit
from zoo.errors import CheckpointError, ConfigIssue, RecipeError
from zoo.run import atomic_io, checkpoint
from zoo.run.build import build_task
from zoo.run.load import load_recipe

MAX_LISTED = 20
"""Issues of one kind that a message lists."""
WRONG_LAYOUT = "not RoPE-ViT in timm's layout"


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of `zoo convert`."""

    to: str | None = None
    """Checkpoint to write; null: the name of the file with the ending .ckpt."""


def convert(file: Path, name: str, words: Sequence[str]) -> dict[str, Any]:
    """Write published weights as a checkpoint of a recipe.

    Args:
        file: The published weights: a file of `torch.save` or of safetensors.
        name: The recipe whose model has these weights.
        words: Options of the command and overrides of the recipe, `key=value`.

    Returns:
        The recipe, the checkpoint and the number of weights; `zoo convert --json` prints it.

    Raises:
        RecipeError: The recipe is wrong, or the checkpoint exists already.
        CheckpointError: The file is unreadable, or its weights are not those of the recipe.
    """
    own, overrides = split_words(words, [ConvertOptions])
    options = ConvertOptions(**parse_options(own, [ConvertOptions])[0])
    target = Path(options.to) if options.to else file.with_suffix(".ckpt")
    if target.exists():
        issue = ConfigIssue("command line", "to", f"{target} exists already", "name another file")
        raise RecipeError(issue)

    published = read_published(file)
    sizes = ropevit.read_sizes(published)
    _refuse(file, WRONG_LAYOUT, _compare_layout(published, ropevit.layout(sizes)))

    recipe = load_recipe(name, overrides)
    wrong_recipe = f"not the weights of recipe {recipe.name}"
    _refuse(file, wrong_recipe, _compare_recipe(recipe, sizes))

    task = build_task(recipe)
    weights = dict(ropevit.rename_weights(published, sizes, recipe.model.options["heads"]))
    _refuse(file, wrong_recipe, _compare_model(task.model, weights))
    task.model.load_state_dict(weights)

    content = {"zoo": checkpoint.build_metadata(recipe, task.spec), "state_dict": task.state_dict()}
    atomic_io.write_sealed(atomic_io.serialise(content), target)
    return {"recipe": recipe.name, "checkpoint": str(target), "weights": len(published)}


def read_published(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name.

    Raises:
        CheckpointError: The file is unreadable, or lacks a tensor that tells the model's sizes.
    """
    is_safetensors = file.suffix == ".safetensors"
    content = ropevit.unwrap(_read_safetensors(file) if is_safetensors else _read_pickle(file))
    weights = {key: value for key, value in content.items() if isinstance(value, Tensor)}

    issues = []
    for key, rank in ropevit.SIZED_WEIGHTS.items():
        if key not in weights:
            issues.append(f"missing: {key}")
        elif weights[key].dim() != rank:
            issues.append(f"wrong number of dimensions: {key} has {weights[key].dim()}, not {rank}")
    issues += [f"not a tensor: {key}" for key in content if key not in weights]
    _refuse(file, WRONG_LAYOUT, issues)
    return weights


def _read_pickle(file: Path) -> Mapping[str, object]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except Exception as error:
        # torch raises errors of several kinds
        cause = str(error).strip().partition("\n")[0][:120]
        problem = "unreadable as plain data and tensors, no code in it was run"
        raise CheckpointError(f"{file}: {problem}: {cause}") from None
    if not isinstance(content, Mapping):
        problem = f"expected a mapping of names to weights, got {type(content).__name__}"
        raise CheckpointError(f"{file}: {problem}")
    return content


def _read_safetensors(file: Path) -> Mapping[str, object]:
    try:
        from safetensors.torch import load_file
    except ImportError:
        remedy = "reading it needs the package safetensors; pip install safetensors"
        raise CheckpointError(f"{file}: {remedy}") from None
    try:
        return load_file(file)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except Exception as error:
        # its error class is not public
        raise CheckpointError(f"{file}: unreadable: {str(error)[:120]}") from None


def _refuse(file: Path, problem: str, issues: Sequence[str]) -> None:
    """Raise CheckpointError with all issues, if there are any."""
    rest = len(issues) - MAX_LISTED
    more = [f"and {rest} more"] if rest > 0 else []
    if issues:
        raise CheckpointError("\n  ".join([f"{file}: {problem}", *issues[:MAX_LISTED], *more]))


def _compare_layout(
    weights: Mapping[str, Tensor], layout: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """List missing keys, unknown keys and wrong shapes."""
    issues = []
    for key, shape in layout.items():
        if key not in weights:
            issues.append(f"missing: {key} {list(shape)}")
        elif weights[key].shape != shape:
            found = list(weights[key].shape)
            issues.append(f"wrong shape: {key} is {found}, expected {list(shape)}")
    unknown = [key for key in weights if key not in layout]
    return issues + [f"unknown: {key} {list(weights[key].shape)}" for key in unknown]


def _compare_recipe(recipe: Recipe, sizes: ropevit.Architecture) -> list[str]:
    """List options of the recipe that differ from the file, each with the override that fits."""
    if recipe.model.name != "vit":
        return [f"model.name is {recipe.model.name}; RoPE-ViT is a vit"]
    options = recipe.model.options
    given = {f"model.{key}": value for key, value in options.items()}
    given |= {f"model.block.{key}": value for key, value in asdict(options["block"]).items()}
    given["model.encoding"] = [choice.name for choice in options["encoding"]]

    issues = []
    for key, right in ropevit.list_options(sizes).items():
        if given[key] != right:
            value = _format(right)
            issues.append(f"{key} is {_format(given[key])}, expected {value}: {key}={value}")
    if given["model.block.layer_scale"] is None:
        issues.append("model.block.layer_scale is null: model.block.layer_scale=1e-5")
    return issues


def _format(value: object) -> str:
    text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
    return text.lower() if isinstance(value, bool) else text


def _compare_model(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """List weights that only the model or only the file has, and those of different shapes."""
    expected = {key: value.shape for key, value in model.state_dict().items()}
    issues = [f"{key}: not in the file" for key in expected if key not in weights]
    issues += [f"{key}: not in the recipe's model" for key in weights if key not in expected]
    for key in expected:
        if key in weights and weights[key].shape != expected[key]:
            found = list(weights[key].shape)
            issues.append(f"{key}: {found} in the file, {list(expected[key])} by the recipe")
    return issues
