"""Rotations by angles that tokens add up: each turns all that comes after it a little further."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from zoo.attention import Encoding, Terms, Tokens, unrounded
from zoo.encodings.parts.rotation import circle, turn
from zoo.encodings.parts.seen import Panels, pairs, real
from zoo.errors import Invalid


class Summed(Encoding):
    """Pairs (2t, 2t + 1) of q and k turn by the sum of the steps of the tokens up to theirs.

    Between a key and its query lie the steps of their own document alone: what came before it cancels. Steps go by the order
    of tokens, whether these have a place or not. A key turns further with each token after it, hence after the cache.
    """

    shared, relative, causal, unplaced = False, True, True, True
    inclusive = True  # a token turns by its own step too, not by those before it alone

    @abstractmethod
    def steps(self, tokens: Tokens) -> Tensor:
        """Angles [B, M, 1|G, K/2], at least float32, made of what the tokens noted."""

    def findings(self, terms: Terms) -> Panels:
        steps = real(self.steps(terms.keys), terms.keys)  # [.., 1|G, K/2]
        if len(steps):
            told = "How far a token turns each pair of channels, on average and either way: slow pairs tell far places."
            yield pairs("Turns of tokens", "mean radians per token", steps.abs().mean(0), told)

    def terms(self, terms: Terms) -> Terms:
        if terms.q.shape[-1] != self.dims.head:
            raise Invalid("encoding", f"{self.name} turns pairs of channels, and a link before it has made heads wider")
        with unrounded(terms.q.device):
            steps = self.steps(terms.keys)
            sums = steps.cumsum(1) if self.inclusive else steps.cumsum(1) - steps
            columns = circle((sums - sums[:, -1:]).transpose(1, 2))  # from the end: small where it matters
        if columns.shape[1] > 1:  # one for each key head; query heads that share it turn alike
            columns = columns.repeat_interleave(terms.k.shape[1] // columns.shape[1], dim=1)  # [B, 1|H, M, K/2, 2]
        rows, before = terms.rows(columns), terms.turn

        def turned(x: Tensor) -> Tensor:
            return turn(before(x).expand(len(rows), -1, -1, -1), rows)

        return terms.replace(q=turn(terms.q, rows), k=turn(terms.k, columns), turn=turned)
