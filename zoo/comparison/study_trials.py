"""The trials of studies, before their recipes are known to be right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zoo.comparison.design import Axis, list_own_settings
from zoo.comparison.effects import has_effect
from zoo.comparison.grid import Combination
from zoo.config import Change, Recipe

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class StudyTrial:
    """A trial of a variant in a study: the number of both, and its settings."""

    variant: str
    study: int
    trial: int
    settings: Settings


def list_study_trials(
    keys: Sequence[Axis],
    effective: Mapping[str, Sequence[str]],
    studies: int,
    budget: int,
    seed: int,
) -> list[StudyTrial]:
    """Return the trials of all studies: study by study, variant by variant.

    Args:
        keys: The tuned keys.
        effective: {variant: the keys that have an effect on it}.
        studies: The number of studies.
        budget: Trials of each variant in each study.
        seed: Of the design.
    """
    trials = []
    for study in range(studies):
        for variant in effective:
            points = list_own_settings(
                keys, variant, lambda key, name: key in effective[name], study, budget, seed
            )
            for number, point in enumerate(points):
                trials.append(StudyTrial(variant, study, number, point))
    return trials


def find_effective_keys(
    keys: Sequence[Axis], variants: Sequence[Combination], load: Any
) -> dict[str, tuple[str, ...]]:
    """Return {variant: the tuned keys that have an effect on it}.

    Args:
        keys: The tuned keys.
        variants: The variants.
        load: Returns the recipe of a combination.
    """

    def load_changed(variant: Combination, settings: Settings) -> Recipe:
        edits = (Change(key, value) for key, value in settings.items())
        recipe: Recipe = load(replace(variant, edits=(*variant.edits, *edits)))
        return recipe

    return {
        variant.name: tuple(
            axis.key for axis in keys if has_effect(axis, partial(load_changed, variant))
        )
        for variant in variants
    }
