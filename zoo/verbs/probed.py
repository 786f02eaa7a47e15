"""The samples that a diagnosis looks at: the first ones of the test part, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.data.source import Source
from zoo.diagnostics.looking import resting
from zoo.diagnostics.report.contents import Sample
from zoo.diagnostics.report.shown import pictures, pieces
from zoo.errors import DataError
from zoo.samples import Images, Passages, Text, Windows
from zoo.tasks.task import Task
from zoo.verbs.tested import adopt

PADDING = -1


def probed(task: Task, data: Source, count: int) -> Any:
    """A batch of so many samples, fewer if there are not more, as the model has it. Raises DataError where there is none."""
    adopt(task, data)
    data.setup("test")
    batch = _first(data.loader("test"), count)
    if batch is None:
        raise DataError(f"{data.title}: the test part has no sample to look at")
    return data.on_after_batch_transfer(move_data_to_device(batch, task.device), 0)


def _first(batches: Iterable[Any], count: int) -> Any:
    """The first samples of batches as one of the same kind, None where there is none."""
    found: list[Any] = []
    for batch in batches:
        found.append(batch)
        if sum(len(one[0]) for one in found) >= count:
            break
    if not found or not len(found[0][0]):
        return None
    joined: list[Any] = [None if column[0] is None else _joined(column)[:count] for column in zip(*found, strict=True)]
    return Windows(*joined) if isinstance(found[0], Windows) else tuple(joined)


def _joined(column: tuple[Tensor, ...]) -> Tensor:
    """Tensors one after the other; texts of batches that are not equally long are padded."""
    if column[0].dim() == 2:
        longest = max(one.shape[1] for one in column)
        column = tuple(F.pad(one, (0, longest - one.shape[1]), value=PADDING) for one in column)
    return torch.cat(column)


def samples(
    task: Task, data: Source, batch: Any, inputs: tuple[Tensor | None, ...], grid: tuple[int, ...]
) -> tuple[Sample, ...]:
    """The samples of a batch for people; `grid` is that of their tokens."""
    titles = _titles(task, batch, inputs)
    shown = inputs[0]
    assert shown is not None
    if isinstance(task.samples, Images):
        images = data.pictured(shown.float())
        pairs = zip(titles, images, strict=True)
        return tuple(Sample(title=title, pictures=pictures(image, grid[0])) for title, image in pairs)
    words = task.samples.vocabulary
    return tuple(Sample(title=title, tokens=pieces(words, row)) for title, row in zip(titles, shown, strict=True))


def _titles(task: Task, batch: Any, inputs: tuple[Tensor | None, ...]) -> list[str]:
    """Numbers, and of what has a class, which it is and which the model takes it for."""
    if isinstance(task.samples, Text):
        return [f"window {number + 1} of the test" for number in range(len(batch[0]))]
    names = _names(task.samples)
    pairs = zip(batch[1].tolist(), _said(task.model, inputs), strict=True)
    return [
        f"test sample {number + 1}: {names[label]}, {'recognised' if label == said else f'taken for {names[said]}'}"
        for number, (label, said) in enumerate(pairs)
    ]


def _names(facts: Images | Passages) -> list[str]:
    return [*facts.names] or [f"class {number}" for number in range(facts.classes)]


def _said(model: nn.Module, inputs: tuple[Tensor | None, ...]) -> list[int]:
    with resting(model):
        said: list[int] = model(*inputs).argmax(-1).tolist()
    return said
