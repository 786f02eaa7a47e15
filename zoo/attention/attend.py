"""The interpreters of an attention call: `dense` defines it, `sdpa` and `flex` compute it fused where they can.

Which one runs is read off the fields of Terms, never off an encoding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from zoo.attention.terms import Terms
from zoo.attention.tokens import precise, unrounded
from zoo.errors import Invalid

BACKENDS = ("auto", "dense", "sdpa", "flex")


_PRODUCTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0))  # parts of a split factor whose products matter


def choose(terms: Terms, device: str | None = None) -> tuple[str, str]:
    """The fastest interpreter that can compute `terms` on a type of device, and why."""
    whole = [name for name in ("rescore", "weigh", "readout") if getattr(terms, name) is not None]
    if whole:
        return "dense", f"{' and '.join(whole)} needs whole rows of scores"
    if terms.biases and (device or terms.q.device.type) == "cuda":
        return "flex", "a bias for each pair, fused as an index function"
    if terms.biases:
        return "sdpa", "a bias for each pair, as a mask"
    if terms.factors and not _slim(terms):
        return "sdpa", "a factor of large rank, as a mask"
    if terms.windowed:
        flexible = (device or terms.q.device.type) == "cuda"
        return ("flex", "a window, as blocks") if flexible else ("sdpa", "a window, as a mask")
    return "sdpa", "factors ride on q and k, no mask" if terms.factors else "nothing but q, k and v"


def attend(terms: Terms, backend: str = "auto") -> tuple[Tensor, Tensor | None]:
    """Output [B, H, N, V] and mixed riders [B, H, N, E] of an attention call."""
    if backend not in BACKENDS:
        raise Invalid("backend", f"no backend {backend!r}; known are {', '.join(BACKENDS)}")
    able, reason = choose(terms)
    name = able if backend == "auto" else backend
    if able == "dense" and name != "dense":
        raise Invalid("backend", f"{name} cannot compute this attention: {reason}; use dense")
    out = {"dense": dense, "sdpa": sdpa, "flex": flex}[name](terms)
    width = terms.v.shape[-1]
    return out[..., :width], None if terms.riders is None else out[..., width:]


def scores(terms: Terms) -> Tensor:
    """Scores [B, H, N, M] as they enter the normalisation, in at least float32; -inf where a pair may not attend."""
    with unrounded(terms.q.device):
        values = precise(terms.q) @ precise(terms.k).mT * terms.scale
        bias, visible = terms.added(), mask(terms)
        if bias is not None:
            values = values + bias
        if terms.rescore is not None:
            values = terms.rescore(values, visible)
        return values.masked_fill(~visible, float("-inf"))


def weights(terms: Terms) -> Tensor:
    """Attention weights [B, H, N, M] in at least float32; a row that may attend to nothing is zero."""
    return weighed(terms, scores(terms))


def weighed(terms: Terms, values: Tensor) -> Tensor:
    """The weights that scores [B, H, N, M] of the call come to."""
    visible = mask(terms)
    with unrounded(terms.q.device):
        if terms.weigh is not None:
            return terms.weigh(values, visible)
        blind = ~visible.any(-1, keepdim=True)
        return values.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)


def mask(terms: Terms) -> Tensor:
    """bool [1|B, 1, N, M]: which keys a query may attend to."""
    if terms.visible is None:
        return terms.q.new_ones((1, 1, terms.q.shape[2], terms.k.shape[2]), dtype=torch.bool)
    return terms.grid(terms.visible)


def dense(terms: Terms) -> Tensor:
    """The definition: all scores at once, [B, H, N, V + E]."""
    return mix(terms, weights(terms))


def mix(terms: Terms, weights: Tensor) -> Tensor:
    """What given weights [B, H, N, M] make of values and riders, [B, H, N, V + E]."""
    values = _values(terms)
    with unrounded(terms.q.device):
        out = weights @ precise(values)
        if terms.readout is not None:
            out = out + F.pad(terms.readout(weights), (0, values.shape[-1] - terms.v.shape[-1]))
    return out.to(values.dtype)


def sdpa(terms: Terms) -> Tensor:
    """PyTorch's fused attention: slim factors as further channels of q and k, biases and large factors as a mask."""
    q, k, v = terms.q, terms.k, _values(terms)
    bias = terms.replace(factors=() if _slim(terms) else terms.factors).added()
    if _slim(terms):
        left, right = _channels(terms)
        q, k = torch.cat([q, *left], dim=-1), torch.cat([k, *right], dim=-1)
    visible, square = terms.visible, terms.square
    diagonal = terms.causal and square and bias is None and terms.queries.document is None and not terms.windowed
    blocked = None if visible is None or diagonal else terms.grid(visible)
    if bias is not None:
        values = bias.to(q.dtype)
        blocked = values if blocked is None else values.masked_fill(~blocked, float("-inf"))
    if q.shape[-1] != v.shape[-1]:  # one width, a multiple of eight, keeps the flash kernel
        width = -(-max(q.shape[-1], v.shape[-1]) // 8) * 8
        q, k, padded = (F.pad(one, (0, width - one.shape[-1])) for one in (q, k, v))
    else:
        padded = v
    out = F.scaled_dot_product_attention(q, k, padded, blocked, is_causal=diagonal, scale=terms.scale)
    return out[..., : v.shape[-1]]


def flex(terms: Terms) -> Tensor:
    """FlexAttention: biases as a score modification, visibility as a block mask. Compiled where there is a kernel."""
    q, v = terms.q, _values(terms)
    bias, visible, block_mask = terms.bias(), terms.visible, None
    if visible is not None:
        sizes = (q.shape[0], None, q.shape[2], terms.k.shape[2])
        block_mask = create_block_mask(visible, *sizes, device=q.device.type)
    modify = None if bias is None else lambda score, b, h, i, j: score + bias(b, h, i, j).to(score.dtype)
    kernel = torch.compile(flex_attention) if q.is_cuda and not torch.compiler.is_compiling() else flex_attention
    return kernel(q, terms.k, v, score_mod=modify, block_mask=block_mask, scale=terms.scale)


def _values(terms: Terms) -> Tensor:
    return terms.v if terms.riders is None else torch.cat([terms.v, terms.riders.to(terms.v.dtype)], dim=-1)


def _slim(terms: Terms) -> bool:
    """Whether the factors are narrow enough to be cheaper as channels than as a mask."""
    if not terms.factors or terms.q.dtype == torch.float16:  # positions overflow float16
        return False
    parts = 1 if torch.finfo(terms.q.dtype).bits >= 32 else len(_PRODUCTS)
    return parts * sum(left.shape[-1] for left, right in terms.factors if right.shape[2] > 1) <= 2 * terms.q.shape[-1]


def _channels(terms: Terms) -> tuple[list[Tensor], list[Tensor]]:
    """Factors as channels to append to q and k, so that scale (q k^T + left right^T) holds in q's own dtype.

    What is constant along a row is dropped: a softmax does not see it.
    """
    lefts, rights = [], []
    for left, right in terms.factors:
        if right.shape[2] == 1:
            continue
        for a, b in _split(precise(left) / terms.scale, precise(right), terms.q.dtype):
            lefts.append(a.expand(*terms.q.shape[:3], -1))
            rights.append(b.expand(*terms.k.shape[:3], -1))
    return lefts, rights


def _split(left: Tensor, right: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Pairs of tensors of `dtype` whose products add up to left right^T, to the precision of float32."""
    if torch.finfo(dtype).bits >= 32:
        return [(left.to(dtype), right.to(dtype))]

    def parts(tensor: Tensor) -> list[Tensor]:
        found = []
        for _ in range(3):  # three times eight bits are float32's twenty-four
            found.append(tensor.to(dtype))
            tensor = tensor - found[-1]
        return found

    a, b = parts(left), parts(right)
    return [(a[m], b[n]) for m, n in _PRODUCTS]
