"""Extrapolation methods (`evaluate.extrapolation`): encodings changed for sizes beyond training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from zoo.attention.encoding import Encoding
from zoo.config import Recipe
from zoo.data.spec import DataSpec, ImageSpec
from zoo.models.transformer import find_transformers
from zoo.registry import Choice, nearest
from zoo.run.build import build_task
from zoo.tasks.base import Task

NONE = "none"  # the encodings unchanged

Changes = Mapping[str, Mapping[str, Any]]
"""Changed options of encodings, by the name of the encoding."""


def compute_factors(trained: DataSpec, size: Sequence[int]) -> tuple[float, ...]:
    """Return how many times the size of training a size is, per axis.

    Args:
        trained: The samples of training.
        size: A length, or height and width; the frames of videos stay.
    """
    before = trained.grid if isinstance(trained, ImageSpec) else (trained.length,)
    after = (*before[: len(before) - len(size)], *size)
    return tuple(now / then for now, then in zip(after, before, strict=True))


def find_methods(model: nn.Module, factors: tuple[float, ...]) -> dict[str, Changes]:
    """Return the methods that encodings of a model know, each with the options it changes."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for link in _list_encodings(model):
        if _has_other_coordinates(link):
            continue
        for method, options in link.extrapolations(factors).items():
            found.setdefault(method, {})[link.name] = options
    return dict(found)


def _list_encodings(model: nn.Module) -> list[Encoding]:
    return [link for transformer in find_transformers(model) for link in transformer.chains[0]]


def _has_other_coordinates(link: Encoding) -> bool:
    """Tell whether the recipe chose other coordinates than the encoding declares.

    Methods are made for the declared ones, and would stretch other ones twice.
    """
    return link.coordinates != type(link).coordinates


def explain_unknown(model: nn.Module, method: str, factors: tuple[float, ...]) -> str:
    """Return why a method cannot be tried; empty where an encoding of the model knows it."""
    methods = find_methods(model, factors)
    if method == NONE or method in methods:
        return ""
    names = [
        f"{link.name} with coordinates {link.coordinates}"
        if _has_other_coordinates(link)
        else link.name
        for link in _list_encodings(model)
    ]
    remedy = "it knows none; leave evaluate.extrapolation out"
    if methods:
        remedy = nearest(method, [NONE, *methods])
    encodings = " and ".join(names) or "none"
    return f"the encoding of the model, {encodings}, knows no extrapolation {method}; {remedy}"


def build_extended_task(
    recipe: Recipe,
    task: Task,
    weights: Mapping[str, Tensor],
    method: str,
    factors: tuple[float, ...],
) -> Task:
    """Build a task with the same weights whose encodings follow a method that they know."""
    changes = find_methods(task.model, factors)[method]
    options = {
        key: _change_encodings(value, changes) for key, value in recipe.model.options.items()
    }
    changed = replace(recipe, model=Choice(recipe.model.name, options))
    extended = build_task(changed, task.spec)
    extended.load_state_dict(weights, strict=True)
    return extended.eval()


def _change_encodings(value: Any, changes: Changes) -> Any:
    """Change the options of encodings, where an option of the model is a list of encodings."""
    if not isinstance(value, tuple) or not all(isinstance(one, Choice) for one in value):
        return value
    return tuple(Choice(one.name, {**one.options, **changes.get(one.name, {})}) for one in value)
