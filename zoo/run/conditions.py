"""Evaluation conditions (sizes, strides, data variants) and their validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from zoo.config import Recipe
from zoo.config.schema import format_size, parse_length, parse_sides
from zoo.config.validate import explain_misfit
from zoo.data.spec import DataSpec, ImageSpec
from zoo.errors import OptionError
from zoo.run import extrapolation
from zoo.run.build import Experiment, build_sample

SIZE_OPTIONS = {"resolutions": "size", "lengths": "length"}  # the option of the data that varies


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
        factors = extrapolation.compute_factors(trained, size)
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
        factors = extrapolation.compute_factors(trained, (size,))
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
        if problem := extrapolation.explain_unknown(model, method, beyond[0]):
            yield OptionError(f"extrapolation.{index}", problem)
