"""A model measured at other sizes, on variants of its data, and by rules past the size of its training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
from torch import Tensor

from zoo import asked, extension
from zoo.bench.memory import exhausted
from zoo.build import build_data
from zoo.errors import Invalid
from zoo.recipe import Recipe
from zoo.tasks.task import Task
from zoo.verbs.tested import tested

log = logging.getLogger("zoo")

Found = dict[str, Any]
Swept = dict[str, dict[str, Found]]


def swept(
    recipe: Recipe, trainer: L.Trainer, task: Task, weights: Mapping[str, Tensor], keep: Callable[[Swept], object]
) -> Swept:
    """What `evaluate` asks for: resolutions, lengths, variants and rules, {name: metrics} of each, or why there are none.

    `weights` are those of the task. What was found so far is given to `keep` after each measurement.
    """
    found: Swept = {}
    for kind, sizes in (("resolutions", asked.resolutions), ("lengths", asked.lengths)):
        for name, sized in sizes(recipe, task.samples).items():
            found.setdefault(kind, {})[name] = _measured(recipe, trainer, task, sized.options)
            keep(found)
    for name, changes in (recipe.evaluate.variants or {}).items():
        found.setdefault("variants", {})[name] = _measured(recipe, trainer, task, changes)
        keep(found)
    plain = found.get("resolutions", {}) | found.get("lengths", {})
    beyond = {name: sized for name, sized in asked.sizes(recipe, task.samples).items() if sized.beyond}
    for rule in dict.fromkeys(recipe.evaluate.rules or ()):
        found.setdefault("rules", {})[rule] = by_rule = {}
        for name, sized in beyond.items():
            known = plain[name] if rule == extension.NONE else None
            by_rule[name] = known or _ruled(recipe, trainer, task, weights, rule, name, sized)
            keep(found)
    return found


def _ruled(
    recipe: Recipe,
    trainer: L.Trainer,
    task: Task,
    weights: Mapping[str, Tensor],
    rule: str,
    name: str,
    sized: asked.Sized,
) -> Found:
    """Metrics by one rule at one size."""
    log.info("%s: by the rule %s at %s", recipe.name, rule, name)
    try:
        other = extension.extended(recipe, task, weights, rule, sized.factors)
    except Invalid as error:
        return {"refused": str(error)}
    return _measured(recipe, trainer, other, sized.options)


def _measured(recipe: Recipe, trainer: L.Trainer, task: Task, options: Mapping[str, Any]) -> Found:
    """Metrics with options of the data changed; where the model cannot follow, or the machine, why."""
    try:
        measured = tested(trainer, task, build_data(recipe, **options))
    except Invalid as error:
        return {"refused": str(error)}
    except (RuntimeError, MemoryError) as error:
        if trainer.world_size > 1 or not exhausted(error):  # other processes would wait for this one
            raise
        return {"refused": "out of memory"}
    beside = {key: value for key, value in measured.items() if key not in ("count", "metrics")}
    return measured["metrics"] | beside
