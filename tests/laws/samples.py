"""Sound little encodings, one for each way of rewriting attention, so that each way is under the laws."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.call import AttentionCall, Span
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens, upcast


class Slope(Encoding):
    """A bias of distance, which under a causal mask is two factors, one of them constant along a row."""

    shift_invariant = True
    axes = (1, 2, 3)

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.register_buffer("slopes", 0.5 ** torch.arange(1, dims.heads + 1))

    def modify(self, call: AttentionCall) -> AttentionCall:
        slopes = upcast(self.slopes)
        if not call.causal or self.dims.axes > 1:
            return call.add_bias(lambda b, h, i, j: -slopes[h] * call.offset(b, i, j).abs().sum(-1))
        places = call.queries.pos, call.keys.pos
        rows, columns = (pos[:, None] * slopes[:, None, None] for pos in places)  # [1|B, H, N, 1]
        one = rows.new_ones(1, 1, 1, 1)
        return call.add_low_rank_bias(-rows, one).add_low_rank_bias(one, columns)


class Forget(Encoding):
    """Gates that a token writes down and later tokens add up."""

    shared, shift_invariant, causal_only, reads_states = False, True, True, True

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.gate = nn.Linear(dims.dim, dims.heads)

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens.with_per_token(kept=F.logsigmoid(upcast(self.gate(tokens.x))))  # [B, N, H]

    def modify(self, call: AttentionCall) -> AttentionCall:
        sums = call.keys.per_token["kept"].cumsum(1).mT[..., None]  # [B, H, M, 1]
        one = sums.new_ones(1, 1, 1, 1)
        return call.add_low_rank_bias(call.select_queries(sums), one).add_low_rank_bias(one, -sums)


class Breaking(Encoding):
    """Weights that break a stick, from the nearest key on, and a vector for what is left."""

    shared, shift_invariant, causal_only = False, True, True

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.remainder = nn.Parameter(torch.zeros(dims.heads, dims.head_dim))

    def modify(self, call: AttentionCall) -> AttentionCall:
        def weigh(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            before = visible & call.evaluate(lambda b, h, i, j: j < call.key_index(i), span)
            z = scores.masked_fill(~before, 0)
            passed = F.softplus(z) * before
            after = passed.flip(-1).cumsum(-1).flip(-1)  # over keys from j on
            return torch.exp(z - after) * before

        def readout(weights: Tensor, span: Span) -> Tensor:
            return (1 - weights.sum(-1, keepdim=True)) * upcast(self.remainder)[:, None]

        return call.replace(normalize=weigh, extra_output=readout)


class Vectors(Encoding):
    """Vectors by clipped distance, for the content of queries and for what is read."""

    shared, shift_invariant = False, True

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.sought = nn.Parameter(torch.randn(9, dims.head_dim))
        self.read = nn.Parameter(torch.randn(9, dims.head_dim))

    def modify(self, call: AttentionCall) -> AttentionCall:
        def bucket(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return call.offset(b, i, j)[..., 0].round().long().clamp(-4, 4) + 4

        def readout(weights: Tensor, span: Span) -> Tensor:
            read = upcast(self.read)[call.evaluate(bucket, span)[:, 0]]  # [1|B, n, m, K]
            return torch.einsum("bhnm,bnmk->bhnk", weights, read.expand(len(weights), -1, -1, -1))

        products = upcast(call.raw_query) @ upcast(self.sought).T * call.scale  # [B, H, N, 9]
        biased = call.add_bias(lambda b, h, i, j: products[b, h, i, bucket(b, h, i, j)])
        return biased.replace(extra_output=readout)


class Mixing(Encoding):
    """Scores that see all heads of their pair, after all biases."""

    shared, shift_invariant = False, True
    axes = (1, 2, 3)

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.net = nn.Linear(dims.heads, dims.heads, bias=False)

    def modify(self, call: AttentionCall) -> AttentionCall:
        def rescore(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            return scores + torch.einsum("bgnm,hg->bhnm", scores, upcast(self.net.weight)).tanh()

        return call.replace(transform_scores=rescore)


class Carried(Encoding):
    """A note that rides along with the values and tilts the queries of the next layer."""

    shared, shift_invariant, reads_states = False, True, True

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.last = dims.layer == (dims.depth or 1) - 1
        self.mix = None if self.last else nn.Linear(4, 4, bias=False)

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.with_per_token(carried=tokens.x[..., :4])

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return q * (1 + tokens.per_token["carried"].mean(-1)[:, None, :, None]).to(q.dtype)

    def modify(self, call: AttentionCall) -> AttentionCall:
        if self.last:
            return call
        return call.replace(
            extra_values=call.keys.per_token["carried"][:, None].expand(-1, self.dims.heads, -1, -1)
        )

    def after_attention(self, tokens: Tokens, extra: Tensor) -> Tokens:
        return tokens.with_per_token(carried=tokens.per_token["carried"] + self.mix(extra.mean(1)))


SAMPLES = (Slope, Forget, Breaking, Vectors, Mixing, Carried)
