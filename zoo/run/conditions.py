"""Evaluation conditions (sizes, strides, data variants, extrapolation methods), validated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from zoo.attention.encoding import Encoding
from zoo.attention.layer import find_encoded
from zoo.config import Recipe
from zoo.config.schema import format_size, parse_length, parse_sides
from zoo.config.validate import explain_misfit
from zoo.data.spec import DataSpec, ImageSpec
from zoo.errors import OptionError, nearest
from zoo.options import Choice
from zoo.run.build import Experiment, build_sample, build_task
from zoo.tasks.base import Task

SIZE_OPTIONS = {"resolutions": "size", "lengths": "length"}  # the option of the data that varies
NONE = "none"  # the encodings unchanged

Changes = Mapping[str, Mapping[str, Any]]
"""Changed options of encodings, by the name of the encoding."""


class Sized(NamedTuple):
    """A size to evaluate at.

    Attributes:
        size: Tokens, or height and width in pixels.
        options: Options of the data that give samples of this size.
        factors: How many times the size of training it is, along each axis of the model.
    """

    size: tuple[int, ...]
    options: dict[str, Any]
    factors: tuple[float, ...]

    @property
    def is_beyond_training(self) -> bool:
        """Is it larger than the size of training?"""
        return max(self.factors) > 1


def list_resolutions(recipe: Recipe, trained: DataSpec) -> dict[str, Sized]:
    """Return the resolutions to evaluate at, by their names in results.

    Raises:
        OptionError: A resolution is no whole number of pixels.
    """
    found = {}
    for index, word in enumerate(recipe.evaluate.resolutions or ()):
        assert isinstance(trained, ImageSpec)
        size = parse_sides(word, (trained.height, trained.width), f"resolutions.{index}")
        options = {"size": size[0] if size[0] == size[1] else size}
        factors = compute_factors(trained, size)
        found[format_size(size)] = Sized(size, options, factors)
    return found


def list_lengths(recipe: Recipe, trained: DataSpec) -> dict[str, Sized]:
    """Return the lengths in tokens to evaluate at; a batch has about as many tokens as in training.

    Raises:
        OptionError: A length is no whole number of tokens.
    """
    options, found = recipe.data.options, {}
    stride = {"stride": recipe.evaluate.stride} if recipe.evaluate.stride else {}
    for index, word in enumerate(recipe.evaluate.lengths or ()):
        assert not isinstance(trained, ImageSpec)
        size = parse_length(word, trained.length, f"lengths.{index}")
        batch_size = max(1, options["length"] * options["batch_size"] // size)
        changes = {"length": size, "batch_size": batch_size, **stride}
        factors = compute_factors(trained, (size,))
        found[format_size(size)] = Sized((size,), changes, factors)
    return found


def list_sizes(recipe: Recipe, trained: DataSpec) -> dict[str, Sized]:
    """Return the sizes of either kind; data has resolutions or lengths, never both."""
    return list_resolutions(recipe, trained) | list_lengths(recipe, trained)


def check_data(experiment: Experiment) -> Iterator[OptionError]:
    """Yield why the data cannot be given under some condition, whatever the model."""
    evaluate = experiment.recipe.evaluate
    if evaluate.stride and not evaluate.lengths:
        yield OptionError(
            "stride", "a stride applies to windows of other lengths; add evaluate.lengths"
        )
    if evaluate.resolutions:
        yield from _check_sizes(experiment, "resolutions")
    if evaluate.lengths:
        yield from _check_sizes(experiment, "lengths")
    for name, changes in (evaluate.data_variants or {}).items():
        refusal = _find_refusal(experiment, changes, changes)
        if refusal:
            yield OptionError(f"data_variants.{name}", str(refusal))


def _check_sizes(experiment: Experiment, kind: str) -> Iterator[OptionError]:
    recipe, trained, option = experiment.recipe, experiment.spec, SIZE_OPTIONS[kind]
    if option not in recipe.data.options:
        problem = f"data {recipe.data.name} has no option {option}, so it cannot vary"
        yield OptionError(kind, problem)
        return
    if isinstance(trained, ImageSpec) != (kind == "resolutions"):
        problem = f"data {recipe.data.name} yields {trained.noun}, which have none"
        yield OptionError(kind, problem)
        return

    list_own = list_resolutions if kind == "resolutions" else list_lengths
    try:
        sizes = list_own(recipe, trained)
    except OptionError as error:
        yield error
        return
    for sized in sizes.values():
        chosen = {key: sized.options[key] for key in (option, "stride") if key in sized.options}
        refusal = _find_refusal(experiment, chosen, sized.options)
        if refusal:
            yield OptionError("stride" if refusal.key == "stride" else kind, str(refusal))


def _find_refusal(
    experiment: Experiment, chosen: Mapping[str, Any], options: Mapping[str, Any]
) -> OptionError | None:
    """Return why the data refuses options, of which a user chose some; reads no data yet."""
    data = experiment.recipe.data
    for option, value in chosen.items():
        if option not in data.options:
            problem = f"data {data.name} has no option {option}, so it cannot vary"
            return OptionError(option, problem)
        if problem := explain_misfit(data, option, value):
            return OptionError(option, problem)
    try:
        experiment.data_variant(options)
    except OptionError as error:
        return error
    return None


def check_model(experiment: Experiment) -> Iterator[OptionError]:
    """Yield why the model cannot follow some condition; called within torch's meta device."""
    recipe, model, trained = experiment.recipe, experiment.meta_model, experiment.spec
    for sized in list_resolutions(recipe, trained).values():
        assert isinstance(trained, ImageSpec)
        height, width = sized.size
        try:
            model(build_sample(replace(trained, height=height, width=width)))
        except OptionError as error:
            yield OptionError("resolutions", str(error))

    sizes = list_sizes(recipe, trained).values()
    beyond = [sized.factors for sized in sizes if sized.is_beyond_training]
    methods = recipe.evaluate.extrapolation or ()
    if methods and not beyond:
        problem = "no size exceeds that of training; add evaluate.lengths=[2x]"
        yield OptionError("extrapolation", problem)
        return
    for index, method in enumerate(methods):
        if problem := explain_unknown(model, method, beyond[0]):
            yield OptionError(f"extrapolation.{index}", problem)


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


def changes_encodings(model: nn.Module, method: str, factors: tuple[float, ...]) -> bool:
    """Return if a method changes an option of some encoding of the model."""
    return any(find_methods(model, factors).get(method, {}).values())


def _list_encodings(model: nn.Module) -> list[Encoding]:
    return [link for part in find_encoded(model) for link in part.chains[0]]


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
