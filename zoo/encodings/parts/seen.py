"""What encodings say of themselves, as panels: a number per head, a spread over tokens, a size per row of a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from zoo.attention import Tokens, precise
from zoo.panels import Curves, Map, Mosaic, Numbers, Panel, Points, distinct, named

Panels = Iterable[Panel]

AXES = {1: ("text",), 2: ("rows", "columns"), 3: ("time", "rows", "columns")}  # what is counted along each axis
SHARES = {"a tenth lies below": 0.1, "half lies below": 0.5, "nine tenths lie below": 0.9}


def outside(values: Tensor) -> Tensor:
    """The same values on the CPU, in at least float32, with no gradient to where they came from."""
    return precise(values.detach().cpu())


def per_head(title: str, y: str, values: Tensor, says: str, *, kind: str = "head") -> Numbers:
    """A number for each of [H]."""
    numbers = {head: float(value) for head, value in named(outside(values), kind).items()}
    return Numbers(title=title, x=kind, y=y, says=says, values=numbers)


def curves(title: str, x: str, y: str, places: Tensor, lines: Tensor, says: str) -> Curves:
    """Lines [H, N] over places [N]: one for each head, or one in all."""
    shown = named(distinct(outside(lines)))
    return Curves(title=title, x=x, y=y, says=says, places=outside(places), lines=shown)


def pairs(title: str, y: str, values: Tensor, says: str, *, steep: bool = True, x: str = "pair of channels") -> Points:
    """Values [H, pairs] of pairs of channels in their order; on a steep axis by their size, and NaN where there is none."""
    found = outside(values)
    found = found.abs().where(found != 0, torch.nan) if steep else found
    places = torch.arange(found.shape[-1]) + 1
    groups = {head: (places, one) for head, one in named(distinct(found)).items()}
    return Points(title=title, x=x, y=y, says=says, groups=groups, steep=steep)


def spread(title: str, y: str, values: Tensor, tokens: Tokens, says: str, *, kind: str = "head") -> list[Panel]:
    """The mean and what shares of the tokens lie below, of values [1|B, n, H] of the last n tokens, padding left out.

    Nothing where no token is left.
    """
    found = real(values, tokens)  # [.., H]
    if not len(found):
        return []
    heads = torch.arange(found.shape[-1]) + 1
    marks = {"mean": found.mean(0), **{label: found.quantile(share, dim=0) for label, share in SHARES.items()}}
    groups = {label: (heads, mark) for label, mark in marks.items()}
    return [Points(title=title, x=kind, y=y, says=says, groups=groups)]


def half_lives(logs: Tensor, tokens: Tokens, says: str) -> list[Panel]:
    """log(1/2) over the mean of log gates [1|B, n, H]: the number of tokens that halve what passes them."""
    found = real(logs, tokens)
    return [per_head("Half-life", "tokens", math.log(0.5) / found.mean(0), says)] if len(found) else []


def real(values: Tensor, tokens: Tokens) -> Tensor:
    """Of values [1|B, n, ..] of the last n tokens, those of tokens that are no padding, [.., ..]."""
    found, document = outside(values), tokens.document
    if document is None:
        return found.flatten(0, 1)
    kept = document[:, document.shape[1] - found.shape[1] :].cpu() >= 0
    batch = max(len(found), len(kept))
    return found.expand(batch, *found.shape[1:])[kept.expand(batch, -1)]


def pair_means(values: Tensor, visible: Tensor) -> Tensor:
    """Means [H] of finite values [B, H, N, M] over the pairs that may attend, bool [1|B, 1, N, M]."""
    pairs = visible.expand_as(values)
    return (values * pairs).sum((0, 2, 3)) / pairs.sum((0, 2, 3)).clamp(min=1)


def row_means(values: Tensor, visible: Tensor) -> Tensor:
    """Means [H] of values [B, H, N] over the queries that see anything, given what they see, bool [1|B, 1, N, M]."""
    rows = visible.any(-1).expand_as(values)
    return (values * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1)


def sizes(title: str, table: Tensor, grid: Sequence[int], says: str) -> Panel:
    """The norm of each row of a table [tokens, D], along a text, over an image, or frame by frame."""
    norms = outside(table).norm(dim=-1).view(*grid)
    unit = "norm of the row"
    if len(grid) == 1:
        places = torch.arange(len(norms))
        return Curves(title=title, x="place, in tokens", y=unit, says=says, places=places, lines={"all heads": norms})
    x, y = "column of patches", "row of patches"
    if len(grid) == 2:
        return Map(title=title, x=x, y=y, says=says, values=norms, unit=unit, signed=False)
    labels = tuple(f"frame {frame + 1}" for frame in range(len(norms)))
    return Mosaic(title=title, x=x, y=y, says=says, values=norms, labels=labels, unit=unit)
