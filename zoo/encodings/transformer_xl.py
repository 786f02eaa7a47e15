"""Relative positions of Transformer-XL: content and place, each with a bias of its own (Dai et al. 2019, arXiv:1901.02860)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, disable_autocast, upcast
from zoo.encodings.common.layers import init_normal
from zoo.encodings.common.panels import Panels, head_panel
from zoo.encodings.common.relative_bias import offset_products
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class TransformerXL(Encoding):
    """scores ((q_i + content).k_j + (q_i + place).(W R_{i-j})) / sqrt(K), R_r = [sin(r w) | cos(r w)]

    w_t = base^(-2t/D). A wave of a difference is a product of waves, so the part of place is a factor of rank D.
    """

    shared, shift_invariant, causal_only, reads_keys = False, True, True, True
    axes_reason = "its authors define it on distances along a text; alibi and t5 take grids"

    def __init__(self, dims: Dims, *, base: Annotated[float, Between(1)] = 10000.0) -> None:
        super().__init__(dims)
        if dims.dim % 2:
            raise OptionError("name", f"transformer_xl needs an even dim, not {dims.dim}")
        self.base = base
        self.project = init_normal(nn.Linear(dims.dim, dims.dim, bias=False))  # [H K, D]
        self.content = nn.Parameter(torch.randn(dims.heads, dims.head_dim) * 0.02)
        self.place = nn.Parameter(torch.randn(dims.heads, dims.head_dim) * 0.02)

    def modify(self, call: AttentionCall) -> AttentionCall:
        call = self._towards_keys(call)
        sought = call.raw_query + self.place[:, None].to(call.raw_query.dtype)  # [B, H, N, K]
        weight = self.project.weight.unflatten(0, (self.dims.heads, -1)).to(
            call.raw_query.dtype
        )  # [H, K, D]
        if call.is_consecutive:
            return call.add_bias(
                offset_products(call, upcast(sought) * call.scale, self._projected(call, weight))
            )
        sine, cosine = upcast(sought @ weight).mul(call.scale).chunk(2, dim=-1)
        here = call.keys.pos[:, -1:]  # angles from the end are small where they matter
        rows, columns = (
            self._angles((one.pos - here)[:, None]) for one in (call.queries, call.keys)
        )
        left = [sine * rows.sin() + cosine * rows.cos(), cosine * rows.sin() - sine * rows.cos()]
        right = [columns.cos(), columns.sin()]
        return call.add_low_rank_bias(torch.cat(left, -1), torch.cat(right, -1))

    def _towards_keys(self, call: AttentionCall) -> AttentionCall:
        if call.q is call.raw_query:  # nothing turns heads, so that all queries are told the same
            one = call.raw_query.new_ones(1, 1, 1, 1)
            return call.add_low_rank_bias(
                one, call.k @ self.content[:, :, None].to(call.k.dtype) * call.scale
            )
        return call.add_low_rank_bias(
            call.transform_query(self.content[:, None].expand(call.raw_query.shape)) * call.scale,
            call.k,
        )

    def _projected(self, call: AttentionCall, weight: Tensor) -> Tensor:
        """W R_r of the offsets 0 to M - 1, [H, K, M]."""
        pos = call.keys.pos
        angles = self._angles(
            torch.arange(len(call.keys), device=pos.device, dtype=pos.dtype)[:, None]
        )
        with disable_autocast(pos.device):
            return upcast(weight) @ torch.cat([angles.sin(), angles.cos()], dim=-1).mT

    def _angles(self, places: Tensor) -> Tensor:
        even = torch.arange(0, self.dims.dim, 2, device=places.device, dtype=places.dtype)
        return places * self.base ** (-even / self.dims.dim)  # [.., D/2]

    def panels(self, call: AttentionCall) -> Panels:
        told = "How large the vector is that stands for every query: beside it, a head tells {} whatever the query is."
        for bias, what in ((self.content, "keys"), (self.place, "distances")):
            yield head_panel(
                f"Bias towards {what}",
                "norm of the vector",
                upcast(bias).norm(dim=-1),
                told.format(what),
            )
