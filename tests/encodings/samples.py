"""Sound little encodings, one for each way of rewriting attention, so that each way is under the laws."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.call import Span, Terms
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens, precise


class Slope(Encoding):
    """A bias of distance, which under a causal mask is two factors, one of them constant along a row."""

    relative = True
    axes = (1, 2, 3)

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.register_buffer("slopes", 0.5 ** torch.arange(1, dims.heads + 1))

    def terms(self, terms: Terms) -> Terms:
        slopes = precise(self.slopes)
        if not terms.causal or self.dims.axes > 1:
            return terms.add_bias(
                lambda b, h, i, j: -slopes[h] * terms.offset(b, i, j).abs().sum(-1)
            )
        places = terms.queries.pos, terms.keys.pos
        rows, columns = (pos[:, None] * slopes[:, None, None] for pos in places)  # [1|B, H, N, 1]
        one = rows.new_ones(1, 1, 1, 1)
        return terms.add_factor(-rows, one).add_factor(one, columns)


class Forget(Encoding):
    """Gates that a token writes down and later tokens add up."""

    shared, relative, causal = False, True, True

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.gate = nn.Linear(dims.dim, dims.heads)

    def annotate(self, tokens: Tokens) -> Tokens:
        return tokens.note(kept=F.logsigmoid(precise(self.gate(tokens.x))))  # [B, N, H]

    def terms(self, terms: Terms) -> Terms:
        sums = terms.keys.notes["kept"].cumsum(1).mT[..., None]  # [B, H, M, 1]
        one = sums.new_ones(1, 1, 1, 1)
        return terms.add_factor(terms.rows(sums), one).add_factor(one, -sums)


class Breaking(Encoding):
    """Weights that break a stick, from the nearest key on, and a vector for what is left."""

    shared, relative, causal = False, True, True

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.remainder = nn.Parameter(torch.zeros(dims.heads, dims.head))

    def terms(self, terms: Terms) -> Terms:
        def weigh(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            before = visible & terms.grid(lambda b, h, i, j: j < terms.slot(i), span)
            z = scores.masked_fill(~before, 0)
            passed = F.softplus(z) * before
            after = passed.flip(-1).cumsum(-1).flip(-1)  # over keys from j on
            return torch.exp(z - after) * before

        def readout(weights: Tensor, span: Span) -> Tensor:
            return (1 - weights.sum(-1, keepdim=True)) * precise(self.remainder)[:, None]

        return terms.replace(weigh=weigh, readout=readout)


class Vectors(Encoding):
    """Vectors by clipped distance, for the content of queries and for what is read."""

    shared, relative = False, True

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.sought = nn.Parameter(torch.randn(9, dims.head))
        self.read = nn.Parameter(torch.randn(9, dims.head))

    def terms(self, terms: Terms) -> Terms:
        def bucket(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return terms.offset(b, i, j)[..., 0].round().long().clamp(-4, 4) + 4

        def readout(weights: Tensor, span: Span) -> Tensor:
            read = precise(self.read)[terms.grid(bucket, span)[:, 0]]  # [1|B, n, m, K]
            return torch.einsum("bhnm,bnmk->bhnk", weights, read.expand(len(weights), -1, -1, -1))

        products = precise(terms.content) @ precise(self.sought).T * terms.scale  # [B, H, N, 9]
        biased = terms.add_bias(lambda b, h, i, j: products[b, h, i, bucket(b, h, i, j)])
        return biased.replace(readout=readout)


class Mixing(Encoding):
    """Scores that see all heads of their pair, after all biases."""

    shared, relative = False, True
    axes = (1, 2, 3)

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.net = nn.Linear(dims.heads, dims.heads, bias=False)

    def terms(self, terms: Terms) -> Terms:
        def rescore(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            return scores + torch.einsum("bgnm,hg->bhnm", scores, precise(self.net.weight)).tanh()

        return terms.replace(rescore=rescore)


class Carried(Encoding):
    """A note that rides along with the values and tilts the queries of the next layer."""

    shared, relative = False, True

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.last = dims.layer == (dims.depth or 1) - 1
        self.mix = None if self.last else nn.Linear(4, 4, bias=False)

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.note(carried=tokens.x[..., :4])

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return q * (1 + tokens.notes["carried"].mean(-1)[:, None, :, None]).to(q.dtype)

    def terms(self, terms: Terms) -> Terms:
        if self.last:
            return terms
        return terms.replace(
            riders=terms.keys.notes["carried"][:, None].expand(-1, self.dims.heads, -1, -1)
        )

    def update(self, tokens: Tokens, riders: Tensor) -> Tokens:
        return tokens.note(carried=tokens.notes["carried"] + self.mix(riders.mean(1)))


SAMPLES = (Slope, Forget, Breaking, Vectors, Mixing, Carried)
