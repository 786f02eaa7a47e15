"""Find the tuned keys that change what a variant computes; a variant does not tune the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from zoo.comparison.design import Axis
from zoo.config import Recipe
from zoo.optim.base import find_encoding_parameters
from zoo.run.build import build_data, build_model

ENCODING_RATE = "optim.encoding_lr"
MODEL = "model."


def has_effect(axis: Axis, load: Callable[[Mapping[str, Any]], Recipe]) -> bool:
    """Return whether a key changes what a variant computes or how it is trained.

    Keys of the model are compared by what the initial model computes at both ends of the range, or
    at each choice. Other keys count as effective, apart from the learning rate of an encoding that
    has no parameters.

    Args:
        axis: The tuned key.
        load: Returns the recipe of the variant with {key: value} set.
    """
    if axis.key == ENCODING_RATE:
        recipe = load({})
        model = build_model(recipe, build_data(recipe).spec)
        return bool(find_encoding_parameters(model))
    if not axis.key.startswith(MODEL):
        return True
    # the ends of a range: a key without effect at both is taken to have none between them
    recipes = [load({axis.key: value}) for value in axis.list_extremes()]
    reference, *outputs = map(_compute, recipes)
    return any(not _is_equal(reference, output) for output in outputs)


def _compute(recipe: Recipe) -> list[torch.Tensor]:
    """Return initial weights, and what the model computes of a sample while it trains."""
    # one draw for all recipes, and none of the caller's
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(recipe.seed)
        spec = build_data(recipe).spec
        model = build_model(recipe, spec).train()
        initial = [value.clone() for value in model.state_dict().values()]
        inputs = spec.build_inputs()
        if (vocabulary := spec.token_vocabulary) is not None:
            size = len(vocabulary)
            inputs = tuple(torch.randint_like(numbers, size) for numbers in inputs)
        else:
            inputs = tuple(
                torch.randn_like(values) if values.is_floating_point() else values
                for values in inputs
            )
        # weights that begin at zero would hide what they multiply
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        torch.manual_seed(recipe.seed)
        return [*initial, model(*inputs)]


def _is_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    if len(left) != len(right):
        return False
    pairs = zip(left, right, strict=True)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)
