"""Mean weight against offset: how each layer's heads look about themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from zoo.attention.dense import mask
from zoo.diagnostics import measures
from zoo.diagnostics.looking import Look
from zoo.panels import Curves, Mosaic, Panel, named

FARTHEST = 256  # tokens or patches to either side that are drawn


def profiles(looks: Sequence[Look]) -> tuple[Panel, ...]:
    """A panel for each layer; of clips one in time and one in space."""
    return tuple(panel for look in looks for panel in _panels(look, f"layer {look.layer}"))


def _panels(look: Look, title: str) -> Iterator[Panel]:
    axes = look.terms.keys.index.shape[-1]
    if axes == 1:
        yield _curves(look, slice(None), title, "tokens that the key stands before the query")
    elif axes == 2:
        yield _mosaic(look, slice(None), title)
    else:
        yield _curves(look, slice(0, 1), f"{title}, in time", "steps in time that the key stands before the query")
        yield _mosaic(look, slice(1, None), f"{title}, in space")


def _profile(look: Look, axes: slice) -> tuple[tuple[Tensor, ...], Tensor]:
    """Offsets along some axes, query less key, and mean weights [H, ...] of pairs of tokens that stand on the grid."""
    queries, keys = look.terms.queries, look.terms.keys
    offsets = measures.offsets(queries.index, keys.index)[..., axes]
    near = (offsets.abs() <= FARTHEST).all(-1)[:, None]
    where = measures.both(*look.grid) & near
    places, values = measures.profile(look.weights, offsets, mask(look.terms), where)
    return tuple(one.float().cpu() for one in places), values.float().cpu()


def _curves(look: Look, axes: slice, title: str, x: str) -> Curves:
    (places,), values = _profile(look, axes)
    met = values.isfinite().any(0)
    return Curves(
        title=title, x=x, y="mean weight", places=places[met], lines=named(values[:, met]),
        says="A peak at 0 looks at itself, one beside it at a neighbour; a flat line takes no notice of distance.",
    )  # fmt: skip


def _mosaic(look: Look, axes: slice, title: str) -> Mosaic:
    (rows, columns), values = _profile(look, axes)
    turned = torch.flip(values, (1, 2))  # a key further right has a smaller offset
    return Mosaic(
        title=title, x="patches to the right of the query", y="patches below the query", values=turned,
        labels=tuple(named(turned)), unit="mean weight",
        mark=(0, 0), corner=(-(len(rows) // 2), -(len(columns) // 2)),
        says="The query stands at the mark, each cell is a key so far from it: a strong middle is a local head.",
    )  # fmt: skip
