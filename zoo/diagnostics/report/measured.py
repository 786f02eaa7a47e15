"""The measures of a report: a number of each head in each layer that was looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from zoo.attention.dense import mask
from zoo.diagnostics import measures
from zoo.diagnostics.looking import Look
from zoo.diagnostics.report.contents import Measure
from zoo.diagnostics.summary import kinds

COMPARED = ("entropy", "distance", "near", "self", "first", "unplaced")  # with attention that is spread evenly
Others = Sequence[Look] | None


def measured(looks: Sequence[Look], content: Others, shifted: Others) -> tuple[Measure, ...]:
    """All measures of the layers looked at, as far as they mean something there.

    `content` is what the same layers do where all tokens are in one place, `shifted` where all have moved alike; None where
    the model refuses that.
    """
    return (*_alone(looks), *_against(looks, content, shifted))


def _alone(looks: Sequence[Look]) -> Iterator[Measure]:
    even = _even(looks[0])
    for kind in kinds(looks[0]):
        values = torch.stack([kind.of(look) for look in looks])
        if kind.name == "total" and torch.allclose(values, torch.ones_like(values), atol=1e-4):
            continue  # as of every softmax
        compared = kind.name.split("_")[0] in COMPARED
        yield Measure(
            name=kind.name, title=kind.title, unit=kind.unit, says=kind.says, values=values.float().cpu(),
            even=float(kind.of(even)[0]) if compared else None,
        )  # fmt: skip


def _even(look: Look) -> Look:
    """The same with all that a query may see at the same weight."""
    visible = mask(look.terms).expand(look.weights.shape).to(look.weights.dtype)
    return replace(look, weights=visible)


def _against(looks: Sequence[Look], content: Others, shifted: Others) -> Iterator[Measure]:
    if pairs := _pairs(looks, content):
        yield Measure(
            name="by_content", title="Explained without places", unit="of variance",
            says="At 1 scores are what they would be with all tokens in one place: content, and order as far as it needs no "
            "places, explain all of them.",
            values=_each(pairs, measures.explained_by),
        )  # fmt: skip
    if pairs := _pairs(looks, shifted):
        yield Measure(
            name="departure", title="Departure from relativity", unit="of scores",
            says="How much scores change when all tokens move alike, by half a grid or half a text: at 0 only the offsets "
            "between tokens count.",
            values=_each(pairs, measures.departure),
        )  # fmt: skip


def _pairs(looks: Sequence[Look], others: Others) -> list[tuple[Tensor, Tensor]]:
    """Scores of each layer and the others', as far as both tokens have a place; none where linear attention has none."""
    return [
        (_on_places(one, one.scores), other.scores)
        for one, other in zip(looks, others or (), strict=others is not None)
        if one.scores is not None and other.scores is not None
    ]


def _on_places(look: Look, scores: Tensor) -> Tensor:
    """A class token has no place that could change, and turns beside it leave it where it is."""
    return scores.masked_fill(~measures.both(*look.grid), -torch.inf)


def _each(pairs: Sequence[tuple[Tensor, Tensor]], measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return torch.stack([measure(*pair) for pair in pairs]).float().cpu()
