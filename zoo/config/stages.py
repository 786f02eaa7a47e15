"""Stages of a training: the recipe that is in force after some steps (`stages` of a recipe)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zoo.config.overrides import BATCHES, Change
from zoo.config.recipe import Recipe, from_plain
from zoo.config.schema import StageOptions
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.suggestions import join_words

LENGTH = "data.length"
FIXED = ("name", "memory_length")
"""Options of the model that no stage can change: the loss and the state of a run depend on them."""


def count_stages(recipe: Recipe, step: int) -> int:
    """Return how many stages have begun after so many optimizer steps."""
    return sum(stage.from_step <= step for stage in recipe.stages)


def resolve_stage(recipe: Recipe, step: int) -> Recipe:
    """Return the recipe in force after so many optimizer steps, without the stages.

    Changes add up: a stage keeps what earlier ones changed. A step has as many tokens in every
    stage, so that windows twice as long come in half the number.

    Args:
        recipe: A resolved recipe.
        step: Optimizer steps done.

    Raises:
        RecipeError: A change is not possible.
    """
    if not recipe.stages:
        return recipe
    plain = {key: value for key, value in recipe.plain().items() if key != "stages"}
    plain["model"] = _shorten_encodings(plain["model"])
    # in their order, so that later stages change what earlier ones set
    edits: list[Change] = []
    for stage in recipe.stages[: count_stages(recipe, step)]:
        if issues := [*_find_issues(stage)]:
            raise RecipeError(*issues)
        edits += [Change(section, options) for section, options in stage.changes.items()]
        if stage.data and isinstance(plain["data"].get("length"), int):
            plain["data"] = _keep_tokens(plain["data"], stage.data["length"])
    return from_plain(plain, edits, origin=recipe.name, name=recipe.name)


def _find_issues(stage: StageOptions) -> Iterator[ConfigIssue]:
    """Yield which options of a stage no run can change on its way."""
    hint = f"a stage changes data.length, and options of model except {join_words(FIXED)}"
    keys = [f"model.{word}" for word in stage.model or () if word in FIXED]
    keys += [f"data.{word}" for word in stage.data or () if word != "length"]
    for key in keys:
        yield ConfigIssue(ARGUMENT, key, "cannot change within a run", hint)


def _keep_tokens(data: Mapping[str, Any], length: Any) -> dict[str, Any]:
    """Return options of the data with as many tokens in a batch of windows of another length.

    Raises:
        RecipeError: They are no whole number of windows.
    """
    changed = dict(data)
    for key in BATCHES:
        batch = data.get(key)
        # a length of a wrong type is refused with the recipe
        if not isinstance(batch, int) or not isinstance(length, int) or length < 1:
            continue
        tokens = batch * data["length"]
        if tokens % length:
            message = f"the {tokens:,} tokens of {key} {batch} do not fill windows of {length}"
            hint = f"choose a divisor of {tokens}"
            raise RecipeError(ConfigIssue(ARGUMENT, LENGTH, message, hint))
        changed |= {key: tokens // length, "length": length}
    return changed


def _shorten_encodings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a model in which a list of one encoding is the encoding.

    A stage then writes `encoding: {base: 500000}`, as a recipe does.
    """
    short = dict(options)
    if isinstance(one := options.get("encoding"), list) and len(one) == 1:
        (short["encoding"],) = one
    if types := options.get("layer_types"):
        short["layer_types"] = {name: _shorten_encodings(own) for name, own in types.items()}
    return short
