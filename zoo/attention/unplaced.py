"""What holds of tokens without a place, whatever the encoding: they are not turned, and their pairs are not biased."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import coordinates
from zoo.attention.encoding import Encoding
from zoo.attention.pairs import Rescore, Span, times
from zoo.attention.terms import Terms
from zoo.attention.tokens import Tokens, pick


def placed(link: Encoding, tokens: Tokens) -> Tokens:
    """The tokens as a link sees them: coordinates under its convention; what has no place stands at the origin."""
    seen = coordinates.place(tokens, link.coordinates, link.dims.length)  # type: ignore[arg-type]
    if tokens.placed is None:
        return seen
    return seen.replace(pos=torch.where(tokens.placed[..., None], seen.pos, 0.0))


def added(link: Encoding, old: Tokens, new: Tokens) -> Tokens:
    """Tokens as a link leaves them, with the state that they had where they have no place."""
    if new.x is old.x or link.unplaced or old.placed is None:
        return new
    return new.replace(x=torch.where(old.placed[..., None], new.x, old.x))


def turned(link: Encoding, old: Tensor, new: Tensor, tokens: Tokens) -> Tensor:
    """Heads [B, H, N, K] as a link leaves them: unchanged where a token has no place."""
    if new is old or link.unplaced or link.origin or tokens.placed is None:
        return new
    return torch.where(tokens.placed[:, None, :, None], new, old)


def confined(old: Terms, new: Terms) -> Terms:
    """The new terms with all that a link added confined to pairs of tokens that have a place."""
    rows, columns = new.queries.placed, new.keys.placed
    if rows is None or columns is None or new is old:
        return new

    def both(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return pick(rows, b, i) & pick(columns, b, j)

    def rescored(rescore: Rescore) -> Rescore:
        absorbed = _without(old, new)

        def confined(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            bias = absorbed.added(span)
            left = scores if bias is None else scores + bias
            return torch.where(new.grid(both, span), rescore(scores, visible, span), left)

        return confined

    def masked(side: Tensor, placed: Tensor) -> Tensor:  # [1|B, 1|H, N, R]
        return side * placed[:, None, :, None]

    def factored(factor: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return masked(factor[0], rows), masked(factor[1], columns)

    known = _parts(old)
    readout = new.readout
    changes: dict[str, object] = {
        "biases": tuple(b if id(b) in known else times(b, both) for b in new.biases),
        "factors": tuple(f if id(f) in known else factored(f) for f in new.factors),
    }
    if new.rescore is not None and new.rescore is not old.rescore:
        changes["rescore"] = rescored(new.rescore)
    if readout is not None and readout is not old.readout:
        changes["readout"] = lambda weights, span: readout(weights * new.grid(both, span), span)
    return new.replace(**changes)


def _parts(terms: Terms) -> set[int]:
    """The identities of biases and factors."""
    return {id(part) for part in (*terms.biases, *terms.factors)}


def _without(old: Terms, new: Terms) -> Terms:
    """The old terms with only those biases and factors that the new ones no longer have."""
    kept = _parts(new)
    return old.replace(
        biases=tuple(one for one in old.biases if id(one) not in kept),
        factors=tuple(one for one in old.factors if id(one) not in kept),
    )
