"""Weights of another recipe's checkpoint as the first weights of a model, each told of (`init_from`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from zoo.config import Recipe, from_plain
from zoo.errors import CheckpointError, OptionError
from zoo.run import checkpoint
from zoo.run.build import build_model

SHOWN = 12  # weights of a kind that are listed in a log
ABSENT = "not in the checkpoint"
PREFIX = "model."  # of a task's weights those of its model


@runtime_checkable
class Carries(Protocol):
    """A module that says itself what weights of another size are to it; for any other the shape alone counts."""

    def adapt_parameter(self, name: str, value: Tensor, source: Any) -> Tensor | None: ...


@dataclass(frozen=True)
class Source:
    """Weights by name, and the model that they are of, on no device: its modules know the sizes they were made for."""

    path: Path
    weights: Mapping[str, Tensor]
    model: nn.Module


@dataclass(frozen=True)
class Report:
    """What became of each weight: names, or {name: few words why}. `unused` are those of the checkpoint alone."""

    path: Path
    taken: tuple[str, ...]
    resampled: Mapping[str, str]
    left: Mapping[str, str]
    unused: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        """As plain data; what was taken as it is, by its number alone."""
        return {"checkpoint": str(self.path), "taken": len(self.taken)} | {
            kind: dict(getattr(self, kind)) for kind in ("resampled", "left", "unused")
        }

    def lines(self) -> Iterator[str]:
        """For a log: the counts, then a weight to a line, the first few of each kind."""
        counts = f"{len(self.taken)} weights as they are, {len(self.resampled)} resampled"
        yield f"from {self.path}: {counts}, {len(self.left)} left at their initial value; {len(self.unused)} not used"
        for kind in ("resampled", "left", "unused"):
            weights: Mapping[str, str] = getattr(self, kind)
            yield from (f"  {kind} {name}: {why}" for name, why in islice(weights.items(), SHOWN))
            if len(weights) > SHOWN:
                yield f"  {kind}: {len(weights) - SHOWN} more"


def find(recipe: Recipe) -> Path | None:
    """The file that `init_from` names now, None where it names nothing: `latest` is another once a run has begun.

    Raises CheckpointError where it is not to be read, and where not one of its weights fits.
    """
    if recipe.init_from is None:
        return None
    path = checkpoint.locate(recipe.init_from).resolve()
    _source(recipe, path)
    return path


def _source(recipe: Recipe, path: Path) -> Source:
    content = checkpoint.read(path)
    stored = from_plain(content["zoo"]["recipe"], origin=str(path), name=content["zoo"]["name"])
    weights = {key.removeprefix(PREFIX): value for key, value in content["state_dict"].items()}
    with torch.device("meta"):
        try:
            found = Source(path, weights, build_model(stored, checkpoint.recalled(content, path)))
        except OptionError as error:
            raise CheckpointError(
                f"{path}: its model cannot be made: {error.key}: {error}"
            ) from None
        _refuse_strangers(found, build_model(recipe), stored.model.name, recipe.model.name)
    return found


def begin(recipe: Recipe, model: nn.Module, path: Path) -> Report:
    """Have a model start from a checkpoint that was found. Raises as `find` does."""
    return adopt(model, _source(recipe, path))


@torch.no_grad()
def adopt(model: nn.Module, source: Source) -> Report:
    """Have a model start from what fits it of a source, in place. The same in every process."""
    taken: list[str] = []
    resampled, left = {}, {}
    own = model.state_dict()
    for name, weight in own.items():
        value = source.weights.get(name)
        found = None if value is None else _carried(model, source.model, name, value)
        if value is None:
            left[name] = ABSENT
        elif found is None or found.shape != weight.shape:
            left[name] = _difference(value, weight)
        else:
            weight.copy_(found)
            if found is value:
                taken.append(name)
            else:
                resampled[name] = f"{_shape(value)} to {_shape(weight)}"
    unused = {
        name: f"{_shape(value)}, not of this model"
        for name, value in source.weights.items()
        if name not in own
    }
    return Report(source.path, tuple(taken), resampled, left, unused)


def _carried(model: nn.Module, there: nn.Module, name: str, value: Tensor) -> Tensor | None:
    """A value as the innermost module that says so would have it."""
    words = name.split(".")
    for cut in range(len(words) - 1, -1, -1):
        module, origin = (_found(one, words[:cut]) for one in (model, there))
        if isinstance(module, Carries) and type(module) is type(origin):
            return module.adapt_parameter(".".join(words[cut:]), value, origin)
    return value


def _found(model: nn.Module, words: list[str]) -> nn.Module | None:
    try:
        return model.get_submodule(".".join(words))
    except AttributeError:
        return None


def _refuse_strangers(source: Source, model: nn.Module, name: str, own: str) -> None:
    """Raises CheckpointError where not one weight fits; tried on no device, before anything is started."""
    weights = {key: value.to("meta") for key, value in source.weights.items()}
    report = adopt(model, Source(source.path, weights, source.model))
    ranks = {key: weight.dim() for key, weight in model.state_dict().items()}
    if all(
        ranks[key] < 2 for key in (*report.taken, *report.resampled)
    ):  # at most a bias of the head
        key, why = next(
            ((key, why) for key, why in report.left.items() if why != ABSENT), ("weights", ABSENT)
        )
        told = f"of its {len(weights)} weights none fits: it holds a model {name}, this is a model {own}; {key}: {why}"
        raise CheckpointError(f"{source.path}: {told}")


def _difference(value: Tensor, weight: Tensor) -> str:
    if value.shape == weight.shape:
        return f"{_shape(value)} as here, of another meaning"
    return f"{_shape(value)} there, {_shape(weight)} here"


def _shape(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"
