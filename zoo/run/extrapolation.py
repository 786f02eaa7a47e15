"""Rules for sizes past those of training (`evaluate.extrapolation`): what the encodings of a model make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from zoo.attention.encoding import Encoding
from zoo.config import Recipe
from zoo.data.spec import ImageSpec, Samples
from zoo.models.transformer import find_transformers
from zoo.registry import Choice, nearest
from zoo.run.build import build_task
from zoo.tasks.base import Task

NONE = "none"  # the encodings as they are

Changes = Mapping[str, Mapping[str, Any]]
"""Options of encodings, by the name of each that has others under a rule."""


def factors(trained: Samples, size: Sequence[int]) -> tuple[float, ...]:
    """How many times as large as in training each axis is, for a length, or for the height and width of images."""
    before = trained.grid if isinstance(trained, ImageSpec) else (trained.length,)
    after = (*before[: len(before) - len(size)], *size)  # the frames of clips stay
    return tuple(now / then for now, then in zip(after, before, strict=True))


def known(model: nn.Module, factors: tuple[float, ...]) -> dict[str, Changes]:
    """The rules that encodings of a model know, and what each of them is to those that do."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for transformer in find_transformers(model):
        for link in transformer.chains[0]:
            if not _moved(link):
                for rule, options in link.extrapolations(factors).items():
                    found.setdefault(rule, {})[link.name] = options
    return dict(found)


def _moved(link: Encoding) -> bool:
    """Whether it has other coordinates than it declares: rules are made for those, and would stretch these once more."""
    return link.coordinates != type(link).coordinates


def unknown(model: nn.Module, rule: str, factors: tuple[float, ...]) -> str:
    """Why a rule cannot be tried, in words; empty where an encoding of the model knows it."""
    rules = known(model, factors)
    if rule == NONE or rule in rules:
        return ""
    links = [link for transformer in find_transformers(model) for link in transformer.chains[0]]
    own = " and ".join(
        f"{one.name} with coordinates {one.coordinates}" if _moved(one) else one.name
        for one in links
    )
    told = (
        nearest(rule, [NONE, *rules])
        if rules
        else "it knows none; leave evaluate.extrapolation out"
    )
    return f"the encoding of the model, {own or 'none'}, knows no rule {rule}; {told}"


def extended(
    recipe: Recipe, task: Task, weights: Mapping[str, Tensor], rule: str, factors: tuple[float, ...]
) -> Task:
    """A task with the same `weights` whose encodings go by a rule that is known."""
    changes = known(task.model, factors)[rule]
    options = {key: _changed(value, changes) for key, value in recipe.model.options.items()}
    other = build_task(replace(recipe, model=Choice(recipe.model.name, options)), task.samples)
    other.load_state_dict(weights, strict=True)
    return other.eval()


def _changed(value: Any, changes: Changes) -> Any:
    """An option of a model, with the options of encodings changed where it is a list of them."""
    if not isinstance(value, tuple) or not all(isinstance(one, Choice) for one in value):
        return value
    return tuple(Choice(one.name, {**one.options, **changes.get(one.name, {})}) for one in value)
