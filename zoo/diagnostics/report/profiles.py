"""Mean weight against offset: how each layer's heads look about themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from zoo.diagnostics import measures
from zoo.diagnostics.looking import Look
from zoo.diagnostics.report.measured import Pairs
from zoo.panels import Curves, Mosaic, Panel

FARTHEST = 256  # tokens or patches to either side that are drawn


def profiles(looks: Sequence[Look], unit: str) -> tuple[Panel, ...]:
    """A panel for each layer; of clips one along time and one within frames."""
    return tuple(panel for look in looks for panel in _panels(look, Pairs.of(look), unit))


def _panels(look: Look, pairs: Pairs, unit: str) -> Iterator[Panel]:
    axes = pairs.offsets.shape[-1]
    title = f"layer {look.layer}"
    if axes == 1:
        yield _curves(look, pairs, title, f"how many {unit} the key stands behind the query")
    elif axes == 2:
        yield _mosaic(look, pairs, title, unit)
    else:
        yield _curves(
            look, _along(pairs, slice(0, 1)), f"{title}, in time", "how many time steps the key stands before the query"
        )
        yield _mosaic(look, _along(pairs, slice(1, None)), f"{title}, within frames", unit)


def _along(pairs: Pairs, axes: slice) -> Pairs:
    """The same pairs by some of their axes."""
    return Pairs(pairs.offsets[..., axes], pairs.queries, pairs.keys, pairs.visible)


def _profile(look: Look, pairs: Pairs) -> tuple[tuple[Tensor, ...], Tensor]:
    """Offsets along each axis and mean weights [H, ...], of tokens on the grid: a class token may stand between them."""
    whole = (pairs.offsets == pairs.offsets.round()).all(-1)[:, None]
    near = (pairs.offsets.abs() <= FARTHEST).all(-1)[:, None]
    places, values = measures.profile(look.weights, pairs.offsets, pairs.visible, pairs.where & whole & near)
    return tuple(one.float().cpu() for one in places), values.float().cpu()


def _curves(look: Look, pairs: Pairs, title: str, x: str) -> Curves:
    (places,), values = _profile(look, pairs)
    met = values.isfinite().any(0)
    lines = {f"head {head}": line for head, line in enumerate(values[:, met])}
    return Curves(
        title=title, x=x, y="mean weight", places=places[met], lines=lines,
        says="A peak at 0 looks at itself, one beside it at a neighbour; a flat line takes no notice of distance.",
    )  # fmt: skip


def _mosaic(look: Look, pairs: Pairs, title: str, unit: str) -> Mosaic:
    (rows, columns), values = _profile(look, pairs)
    flipped = values.flip(1, 2)  # an offset is query less key: a key to the right has a negative one
    return Mosaic(
        title=title, x=f"{unit} to the right", y=f"{unit} downwards", values=flipped, unit="mean weight",
        labels=tuple(f"head {head}" for head in range(len(values))), mark=(len(rows) // 2, len(columns) // 2),
        says="The query stands at the mark, and each point is a key so far from it: a bright middle is a local head.",
    )  # fmt: skip
