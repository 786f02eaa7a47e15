"""Gated short convolution (LFM2, Liquid AI 2025, arXiv:2511.23404)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor, nn

from zoo.attention.encoding import Dims
from zoo.attention.layer import Projection
from zoo.attention.mixer import Mixer, MixerStream
from zoo.mixers.common.convolution import CausalConvolution
from zoo.options import Between
from zoo.registry import register


@register
class ShortConv(Mixer):
    """b, c, x = split(W_in x);   y = W_out (c * conv(b * x))

    conv is a causal depthwise convolution over the last `width` tokens of the document.

    Args:
        dims: The sizes of the layer.
        width: Number of tokens that the convolution reads.
    """

    def __init__(self, dims: Dims, *, width: Annotated[int, Between(1, 1024)] = 3) -> None:
        super().__init__(dims)
        self.in_proj = Projection(dims.dim, 3 * dims.dim, bias=False)
        self.conv = CausalConvolution(dims.dim, width)
        self.out_proj = Projection(dims.dim, dims.dim, bias=False)

    @property
    def output_projection(self) -> nn.Module:
        return self.out_proj

    def mix(
        self, stream: MixerStream, past: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        b, c, x = self.in_proj(stream.x).chunk(3, dim=-1)  # [B, N, D]
        out, inputs = self.conv(b * x, stream, past.get("inputs"))
        return self.out_proj((c * out).to(x.dtype)), {"inputs": inputs}
