"""What rotations that are relative say of themselves: their wave vectors, in radians per token."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import Encoding, Terms
from zoo.attention.coordinates import spacing
from zoo.encodings.parts.seen import Panels, outside, pairs
from zoo.panels import Points, distinct, named

FREQUENCIES = (
    "How far one token turns each pair of channels of queries and keys: fast pairs tell near places apart, slow ones far"
    " places; a pair that is not drawn tells none."
)
WAVES = (
    "Each point is a pair of channels: it turns fastest along the direction from the middle to the point, the faster the"
    " farther out; points on the axes tell rows or columns alone."
)


def step(encoding: Encoding, terms: Terms) -> Tensor:
    """How far a token is from the next along each axis [P], in the coordinates of an encoding.

    Coordinates that were given as such, by somebody who said no size, are taken to count tokens.
    """
    if terms.keys.extent is None and encoding.dims.length is None:
        return torch.ones_like(terms.keys.pos[0, 0])
    found, extent = spacing(terms.keys, encoding.coordinates, encoding.dims.length), terms.keys.extent  # type: ignore[arg-type]
    if extent is None or found[..., 0].numel() == 1:
        return found[0, 0]
    longest = extent.expand_as(found).prod(-1).argmax()  # a class token beside documents is a document of its own
    return found.flatten(0, 1)[longest]


def seen_waves(waves: Tensor, encoding: Encoding, terms: Terms) -> Panels:
    """Wave vectors [P, H, pairs], in radians per unit of the coordinates, as radians per token."""
    found = outside(waves) * outside(step(encoding, terms))[:, None, None]
    if len(found) == 1:
        yield pairs("Frequencies of turns", "radians per token", found[0], FREQUENCIES)
        return
    if len(found) == 3:
        told = (
            "How far one step in time turns each pair of channels; a pair that is not drawn does not tell steps apart."
        )
        yield pairs("Turns along time", "radians per step", found[0], told)
    groups = {head: (one[1], one[0]) for head, one in named(distinct(found[-2:].transpose(0, 1))).items()}
    yield Points(
        title="Wave vectors of turns", x="radians per column", y="radians per row", says=WAVES, groups=groups, square=True
    )  # fmt: skip
