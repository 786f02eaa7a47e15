"""Initialise a model with weights of another recipe's checkpoint (`init_from`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from zoo.config import from_plain
from zoo.config.stages import resolve_stage
from zoo.errors import CheckpointError, OptionError
from zoo.run import checkpoint
from zoo.run.build import Experiment, build_model

LOGGED = 12  # weights of a kind that are listed in the log
ABSENT = "not in the checkpoint"
PREFIX = "model."  # of the names of a task's weights that are its model's


@runtime_checkable
class AdaptsParameters(Protocol):
    """A module that adapts weights of another size itself; of others the shape must be equal."""

    def adapt_parameter(self, name: str, value: Tensor, source: Any) -> Tensor | None: ...


@dataclass(frozen=True)
class Source:
    """Weights by name, and their model on the meta device, whose modules know their sizes."""

    path: Path
    weights: Mapping[str, Tensor]
    model: nn.Module


@dataclass(frozen=True)
class TransferReport:
    """The outcome of a transfer, weight by weight.

    Attributes:
        path: The checkpoint.
        copied: Names of weights that were copied.
        resampled: Adapted weights, with both shapes.
        left: Weights that keep their initial value, each with the reason.
        unused: Weights of the checkpoint that the model does not have.
    """

    path: Path
    copied: tuple[str, ...]
    resampled: Mapping[str, str]
    left: Mapping[str, str]
    unused: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        """Return the report as plain data, with the copied weights counted."""
        return {
            "checkpoint": str(self.path),
            "copied": len(self.copied),
            "resampled": dict(self.resampled),
            "left": dict(self.left),
            "unused": dict(self.unused),
        }

    def lines(self) -> Iterator[str]:
        """Yield lines for a log: the counts, then the first few weights of each kind."""
        counts = f"{len(self.copied)} weights copied, {len(self.resampled)} resampled"
        remainder = f"{len(self.left)} left at their initial value; {len(self.unused)} not used"
        yield f"Initialised from {self.path}: {counts}, {remainder}"
        kinds = {"resampled": self.resampled, "left": self.left, "unused": self.unused}
        for kind, weights in kinds.items():
            for name, reason in islice(weights.items(), LOGGED):
                yield f"  {kind} {name}: {reason}"
            if len(weights) > LOGGED:
                yield f"  {kind}: {len(weights) - LOGGED} more"


def find_donor(experiment: Experiment) -> Path:
    """Return the checkpoint file that `init_from` names now.

    `latest` is another run once this one has begun, so the file is looked up once.

    Raises:
        CheckpointError: It cannot be read, or not one of its weights fits.
    """
    recipe = experiment.recipe
    assert recipe.init_from is not None
    # `latest` may point elsewhere by the time the weights are read
    path = checkpoint.locate(recipe.init_from)
    path = path.parent.resolve() / path.name
    source, name = _read_source(path)
    _check_any_fits(source, experiment.meta_model, name, recipe.model.name)
    return path


def _read_source(path: Path) -> tuple[Source, str]:
    """Read a checkpoint's weights; returns them with the name of their model."""
    content = checkpoint.read(path)
    metadata = content["zoo"]
    stored = from_plain(metadata["recipe"], origin=str(path), name=metadata["name"])
    stored = resolve_stage(stored, content.get("global_step", 0))
    spec = checkpoint.read_spec(content, path)
    weights = {key.removeprefix(PREFIX): value for key, value in content["state_dict"].items()}
    try:
        # its modules know the sizes for which their weights were made
        with torch.device("meta"):
            model = build_model(stored, spec)
    except OptionError as error:
        raise CheckpointError(f"{path}: its model cannot be built: {error.key}: {error}") from None
    return Source(path, weights, model), stored.model.name


def initialise(model: nn.Module, path: Path) -> TransferReport:
    """Initialise a model from the checkpoint that `find_donor` returned."""
    return copy_weights(model, _read_source(path)[0])


@torch.no_grad()
def copy_weights(model: nn.Module, source: Source) -> TransferReport:
    """Copy all weights that fit into a model, in place. Gives the same in every process."""
    copied: list[str] = []
    resampled, left = {}, {}
    state = model.state_dict()
    for name, weight in state.items():
        if name not in source.weights:
            left[name] = ABSENT
            continue
        value = source.weights[name]
        adapted = _adapt(model, source.model, name, value)
        if adapted is None or adapted.shape != weight.shape:
            left[name] = _describe_difference(value, weight)
            continue
        # a tensor of the state shares its memory with the parameter
        weight.copy_(adapted)
        if adapted is value:
            copied.append(name)
        else:
            resampled[name] = f"{_format_shape(value)} to {_format_shape(weight)}"
    unused = {
        name: f"{_format_shape(value)}, not of this model"
        for name, value in source.weights.items()
        if name not in state
    }
    return TransferReport(source.path, tuple(copied), resampled, left, unused)


def _adapt(model: nn.Module, donor: nn.Module, name: str, value: Tensor) -> Tensor | None:
    """Return a value as the innermost module that adapts its weights itself would have it."""
    parts = name.split(".")
    # from the innermost module outwards: the closest one knows most about its weight
    for cut in range(len(parts) - 1, -1, -1):
        module, origin = (_find_module(side, parts[:cut]) for side in (model, donor))
        if isinstance(module, AdaptsParameters) and type(module) is type(origin):
            return module.adapt_parameter(".".join(parts[cut:]), value, origin)
    return value


def _find_module(model: nn.Module, names: list[str]) -> nn.Module | None:
    try:
        return model.get_submodule(".".join(names))
    except AttributeError:
        return None


def _check_any_fits(source: Source, model: nn.Module, theirs: str, ours: str) -> None:
    """Raise CheckpointError where not one weight fits; tried on the meta device."""
    weights = {key: value.to("meta") for key, value in source.weights.items()}
    with torch.device("meta"):
        # the same code as for real weights, without memory for them
        report = copy_weights(model, Source(source.path, weights, source.model))
    ranks = {key: weight.dim() for key, weight in model.state_dict().items()}
    # vectors, such as the bias of a head, fit by chance
    if any(ranks[key] >= 2 for key in (*report.copied, *report.resampled)):
        return
    differing = [(key, reason) for key, reason in report.left.items() if reason != ABSENT]
    key, reason = next(iter(differing), ("weights", ABSENT))
    message = f"of its {len(weights)} weights none fits: it holds a model {theirs}"
    raise CheckpointError(f"{source.path}: {message}, this is a model {ours}; {key}: {reason}")


def _describe_difference(value: Tensor, weight: Tensor) -> str:
    if value.shape == weight.shape:
        return f"{_format_shape(value)} as here, of another meaning"
    return f"{_format_shape(value)} there, {_format_shape(weight)} here"


def _format_shape(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"
