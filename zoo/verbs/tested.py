"""A test of a task on data, and whether that are data which its model can read."""

from __future__ import annotations

from typing import Any

import lightning as L

from zoo.data.source import Source
from zoo.errors import Invalid
from zoo.run.stopping import stoppable
from zoo.samples import Images, Passages, Samples, Text
from zoo.tasks.task import Task

BY_PLACE = ("positions", "accuracies", "asked")


def tested(trainer: L.Trainer, task: Task, data: Source) -> dict[str, Any]:
    """count, metrics, and of a text how it was cut and, where a task tells them, loss, accuracy and number of tokens by place.

    Raises Invalid where the data cannot be read, and Stopped where a signal comes.
    """
    adopt(task, data)
    if isinstance(data.samples, Text):
        task.longest = data.samples.length
    with stoppable(trainer):
        (metrics,) = trainer.test(task, datamodule=data, verbose=False)
    told = {"count": data.count("test"), "metrics": {name: float(value) for name, value in metrics.items()}}
    told |= {"windows": data.windows} if data.windows else {}
    if not isinstance(data.samples, Text):
        return told
    length = data.samples.length  # a task counts to the length of training at least
    return told | {key: found[:length] for key in BY_PLACE if (found := getattr(task, key, None))}


def adopt(task: Task, data: Source) -> None:
    """Raises Invalid where data cannot be read as what the model was trained on."""
    data.adopt(task.samples)
    known, found = task.samples, data.samples
    if isinstance(known, Images):
        _refuse_others(known, found, "channels", "classes")
        return
    vocabulary = None if isinstance(found, Images) else found.vocabulary
    if vocabulary is None or vocabulary.plain() != known.vocabulary.plain():
        told = f"{type(data).__name__.lower()} does not yield the vocabulary that the model was trained with"
        raise Invalid("name", f"{told}; measure on text")
    _refuse_others(known, found, *(("classes",) if isinstance(known, Passages) else ()))


def _refuse_others(known: Samples, found: Samples, *keys: str) -> None:
    """Raises Invalid where samples are not such as the model was trained on; their size may be another."""
    if type(found) is not type(known):
        raise Invalid("name", f"the model reads {type(known).__name__.lower()}")
    for key in keys:
        if getattr(found, key) != getattr(known, key):
            raise Invalid(key, f"{getattr(found, key)} {key}, the model was trained with {getattr(known, key)}")
