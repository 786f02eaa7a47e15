"""What `evaluate` asks for beside the data as they are, as options of the data, and whether they can be given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from zoo.config import Recipe
from zoo.config.schema import format_size, parse_length, parse_sides
from zoo.config.validate import explain_misfit
from zoo.data.spec import ImageSpec, Samples
from zoo.errors import OptionError
from zoo.run import extrapolation
from zoo.run.build import build_data, sample


class Sized(NamedTuple):
    """A size in tokens, or height and width in pixels, as options of the data; and how many times that of training it is
    along each axis of the model.
    """

    size: tuple[int, ...]
    options: dict[str, Any]
    factors: tuple[float, ...]

    @property
    def beyond(self) -> bool:
        """Whether it is past the size of training."""
        return max(self.factors) > 1


def resolutions(recipe: Recipe, trained: Samples) -> dict[str, Sized]:
    """By the name that a result has for each. Raises OptionError where one is no whole number of pixels."""
    found = {}
    for at, word in enumerate(recipe.evaluate.resolutions or ()):
        assert isinstance(trained, ImageSpec)
        size = parse_sides(word, (trained.height, trained.width), f"resolutions.{at}")
        options = {"size": size[0] if size[0] == size[1] else size}
        found[format_size(size)] = Sized(size, options, extrapolation.factors(trained, size))
    return found


def lengths(recipe: Recipe, trained: Samples) -> dict[str, Sized]:
    """Likewise for lengths in tokens, with about as many of them in a batch as in training."""
    options, found = recipe.data.options, {}
    stride = {"stride": recipe.evaluate.stride} if recipe.evaluate.stride else {}
    for at, word in enumerate(recipe.evaluate.lengths or ()):
        assert not isinstance(trained, ImageSpec)
        size = parse_length(word, trained.length, f"lengths.{at}")
        batch = max(1, options["length"] * options["batch_size"] // size)
        changes = {"length": size, "batch_size": batch, **stride}
        found[format_size(size)] = Sized((size,), changes, extrapolation.factors(trained, (size,)))
    return found


def sizes(recipe: Recipe, trained: Samples) -> dict[str, Sized]:
    """Those of either kind, for the data have but one."""
    return resolutions(recipe, trained) | lengths(recipe, trained)


def faults(recipe: Recipe, trained: Samples) -> Iterator[OptionError]:
    """What the data cannot be asked for, whatever the model."""
    evaluate = recipe.evaluate
    if evaluate.stride and not evaluate.lengths:
        yield OptionError(
            "stride", "it is told without lengths, whose windows it parts; add evaluate.lengths"
        )
    for kind, option, found in (
        ("resolutions", "size", resolutions),
        ("lengths", "length", lengths),
    ):
        if not getattr(evaluate, kind):
            continue
        if option not in recipe.data.options:
            yield OptionError(
                kind, f"data {recipe.data.name} has no option {option}, so it cannot vary"
            )
            continue
        if isinstance(trained, ImageSpec) != (kind == "resolutions"):
            yield OptionError(
                kind, f"data {recipe.data.name} yields {trained.noun}, which have none"
            )
            continue
        try:
            asked = found(recipe, trained)
        except OptionError as error:
            yield error
            continue
        for sized in asked.values():
            yield from _refused(recipe, kind, {option: sized.options[option]})
            if "stride" in sized.options:
                yield from _refused(
                    recipe, "stride", {key: sized.options[key] for key in (option, "stride")}
                )
    for name, changes in (evaluate.data_variants or {}).items():
        yield from _refused(recipe, f"data_variants.{name}", changes)


def misfits(recipe: Recipe, model: nn.Module, trained: Samples) -> Iterator[OptionError]:
    """What the model cannot follow, of what the data can be asked for."""
    evaluate = recipe.evaluate
    for sized in resolutions(recipe, trained).values():
        assert isinstance(trained, ImageSpec)
        try:
            model(sample(replace(trained, height=sized.size[0], width=sized.size[1])))
        except OptionError as error:
            yield OptionError("resolutions", str(error))
    beyond = [sized.factors for sized in sizes(recipe, trained).values() if sized.beyond]
    if evaluate.extrapolation and not beyond:
        yield OptionError(
            "extrapolation",
            "there is no size past that of training to try them at; add evaluate.lengths=[2x]",
        )
    for at, rule in enumerate(evaluate.extrapolation if evaluate.extrapolation and beyond else ()):
        if told := extrapolation.unknown(model, rule, beyond[0]):
            yield OptionError(f"extrapolation.{at}", told)


def _refused(recipe: Recipe, key: str, changes: Mapping[str, Any]) -> Iterator[OptionError]:
    """Why the data cannot have other options, which reads nothing yet."""
    for option, value in changes.items():
        if option not in recipe.data.options:
            yield OptionError(
                key, f"data {recipe.data.name} has no option {option}, so it cannot vary"
            )
            return
        if told := explain_misfit(recipe.data, option, value):
            yield OptionError(key, told)
            return
    try:
        build_data(recipe, **changes)
    except OptionError as error:
        yield OptionError(key, str(error))
