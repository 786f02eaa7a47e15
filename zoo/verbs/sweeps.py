"""A model measured at other sizes, on variants of its data, and by rules past the size of its training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import lightning as L
from torch import Tensor

from zoo import asked, extension
from zoo.build import build_data
from zoo.errors import Invalid
from zoo.recipe import Recipe
from zoo.tasks.task import Task
from zoo.verbs.tested import tested

log = logging.getLogger("zoo")

Found = dict[str, Any]


def swept(recipe: Recipe, trainer: L.Trainer, task: Task, weights: Mapping[str, Tensor]) -> dict[str, dict[str, Found]]:
    """What `evaluate` asks for: resolutions, lengths, variants and rules, {name: metrics} of each, or why there are none.

    `weights` are those of the task.
    """
    found: dict[str, dict[str, Found]] = {}
    for kind, sizes in (("resolutions", asked.resolutions), ("lengths", asked.lengths)):
        if sweep := sizes(recipe, task.samples):
            found[kind] = {name: _measured(recipe, trainer, task, sized.options) for name, sized in sweep.items()}
    if variants := recipe.evaluate.variants:
        found["variants"] = {name: _measured(recipe, trainer, task, changes) for name, changes in variants.items()}
    if recipe.evaluate.rules:
        plain = found.get("resolutions", {}) | found.get("lengths", {})
        found["rules"] = {
            rule: _ruled(recipe, trainer, task, weights, rule, plain) for rule in dict.fromkeys(recipe.evaluate.rules)
        }
    return found


def _ruled(
    recipe: Recipe, trainer: L.Trainer, task: Task, weights: Mapping[str, Tensor], rule: str, plain: Mapping[str, Found]
) -> dict[str, Found]:
    """Metrics by one rule, at each size past that of training. `plain` are those without one, at all sizes."""
    sizes = {name: sized for name, sized in asked.sizes(recipe, task.samples).items() if sized.beyond}
    if rule == extension.NONE:
        return {name: plain[name] for name in sizes}
    found = {}
    for name, sized in sizes.items():
        log.info("%s: by the rule %s at %s", recipe.name, rule, name)
        try:
            other = extension.extended(recipe, task, weights, rule, sized.factors)
        except Invalid as error:
            found[name] = {"refused": str(error)}
            continue
        found[name] = _measured(recipe, trainer, other, sized.options)
    return found


def _measured(recipe: Recipe, trainer: L.Trainer, task: Task, options: Mapping[str, Any]) -> Found:
    """Metrics with options of the data changed; where the model cannot follow, why."""
    try:
        measured = tested(trainer, task, build_data(recipe, **options))
    except Invalid as error:
        return {"refused": str(error)}
    beside = {key: value for key, value in measured.items() if key not in ("count", "metrics")}
    return measured["metrics"] | beside
