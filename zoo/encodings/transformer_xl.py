"""Relative positions of Transformer-XL (Dai et al. 2019, arXiv:1901.02860)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, disable_autocast, upcast
from zoo.encodings.common.frequencies import compute_angles, float64_like
from zoo.encodings.common.layers import init_normal
from zoo.encodings.common.panels import Panels, head_panel
from zoo.encodings.common.position_tables import offset_products
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class TransformerXL(Encoding):
    """scores ((q_i + content).k_j + (q_i + place).(W R_{i-j})) / sqrt(K)

    R_r = [sin(r w) | cos(r w)], w_t = base^(-2t/D). A wave of a difference is a sum of products of
    waves, so the positional part is a bias of rank D.

    Args:
        base: The frequencies are base^(-2t/D).
    """

    part = "bias"
    shared, shift_invariant, causal_only, reads_keys = False, True, True, True
    axes_reason = "its authors define it for distances in sequences; alibi and t5 accept grids"

    def __init__(self, dims: Dims, *, base: Annotated[float, Between(1)] = 10000.0) -> None:
        super().__init__(dims)
        if dims.dim % 2:
            raise OptionError("name", f"transformer_xl needs an even dim, not {dims.dim}")
        self.base = base
        self.project = init_normal(
            nn.Linear(dims.dim, dims.heads * dims.head_dim, bias=False)
        )  # [H K, D]
        self.content = nn.Parameter(torch.randn(dims.heads, dims.head_dim) * 0.02)
        self.place = nn.Parameter(torch.randn(dims.heads, dims.head_dim) * 0.02)

    def modify(self, call: AttentionCall) -> AttentionCall:
        call = self._add_content_bias(call)
        dtype = call.raw_query.dtype
        query = call.raw_query + self.place[:, None].to(dtype)  # [B, H, N, K]
        weight = self.project.weight.unflatten(0, (self.dims.heads, -1)).to(dtype)  # [H, K, D]
        if call.is_consecutive:
            columns = self._project_offsets(call, weight)
            return call.add_bias(offset_products(call, upcast(query) * call.scale, columns))

        sine, cosine = upcast(query @ weight).mul(call.scale).chunk(2, dim=-1)
        # sin(a - b) = sin a cos b - cos a sin b, and cos(a - b) likewise. Positions relative to the
        # last token stay small, and so exact, for recent tokens.
        latest = call.keys.pos[:, -1:]
        rows, columns = (self._angles(tokens.pos - latest) for tokens in (call.queries, call.keys))
        left = [sine * rows.sin() + cosine * rows.cos(), cosine * rows.sin() - sine * rows.cos()]
        right = [columns.cos(), columns.sin()]
        return call.add_low_rank_bias(torch.cat(left, -1), torch.cat(right, -1))

    def _add_content_bias(self, call: AttentionCall) -> AttentionCall:
        # content.k_j: if another encoding transformed keys, the vector is transformed as queries.
        if call.q is not call.raw_query:
            content = self.content[:, None].expand(call.raw_query.shape)
            return call.add_low_rank_bias(call.transform_query(content) * call.scale, call.k)
        bias = call.k @ self.content[:, :, None].to(call.k.dtype) * call.scale
        return call.add_low_rank_bias(call.raw_query.new_ones(1, 1, 1, 1), bias)

    def _project_offsets(self, call: AttentionCall, weight: Tensor) -> Tensor:
        """Return W R_r of the offsets 0 to M - 1, [H, K, M]."""
        pos = call.keys.pos
        offsets = torch.arange(call.k.shape[2], device=pos.device, dtype=pos.dtype)
        angles = self._angles(offsets[None, :, None])[0, 0]  # [M, D/2]
        with disable_autocast(pos.device):
            return upcast(weight) @ torch.cat([angles.sin(), angles.cos()], dim=-1).mT

    def _angles(self, pos: Tensor) -> Tensor:
        """Return angles [1|B, 1, N, D/2] of waves at positions [1|B, N, 1]."""
        like = float64_like(pos)
        even = torch.arange(0, self.dims.dim, 2, device=like.device, dtype=like.dtype)
        return compute_angles(pos, (self.base ** (-even / self.dims.dim))[None, None])

    def panels(self, call: AttentionCall) -> Panels:
        for bias, preferred in ((self.content, "keys"), (self.place, "distances")):
            norms = upcast(bias).norm(dim=-1)
            caption = f"Norm of the vector that prefers {preferred}, independently of the query."
            yield head_panel(f"Bias towards {preferred}", "norm of the vector", norms, caption)
