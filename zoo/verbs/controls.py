"""What a test gives where tokens are put in other places: the negative controls of a diagnosis."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from zoo.build import build_trainer
from zoo.data.source import Source
from zoo.diagnostics.places import Change, changed
from zoo.diagnostics.report.contents import Control
from zoo.diagnostics.report.verdict import AS_THEY_ARE
from zoo.errors import Invalid
from zoo.recipe import Recipe
from zoo.run.progress import Tested
from zoo.tasks.task import Task
from zoo.verbs.tested import tested

log = logging.getLogger("zoo")


def controls(
    recipe: Recipe, task: Task, data: Source, limit: int | None, changes: Mapping[str, Change]
) -> Iterator[Control]:
    """The metrics of `zoo eval`, of `limit` batches where there is one; first with places as they are, then changed.

    Raises Invalid where the data cannot be read as what the model was trained on.
    """
    limits: dict[str, Any] = {} if limit is None else {"limit_test_batches": limit}
    trainer = build_trainer(recipe, logger=False, callbacks=[Tested()], **limits)
    log.info("%s: testing with places %s", recipe.name, AS_THEY_ARE)
    yield Control(name=AS_THEY_ARE, metrics=tested(trainer, task, data)["metrics"])
    for name, change in changes.items():
        log.info("%s: testing with places %s", recipe.name, name)
        try:
            with changed(task.model, change):
                yield Control(name=name, metrics=tested(trainer, task, data)["metrics"])
        except Invalid as error:
            yield Control(name=name, metrics={}, refused=str(error))
