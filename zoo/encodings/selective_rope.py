"""RoPE by angles that tokens choose (Selective RoPE; Movahedi et al. 2025, arXiv:2511.17388)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Tokens, upcast
from zoo.attention.tokens import silu
from zoo.encodings.common.frequencies import check_head_dim, rope_frequencies
from zoo.encodings.common.layers import apply_linear, convolve
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.encodings.common.rotation import CumulativeRotary
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class SelectiveRoPE(CumulativeRotary):
    """pairs (2t, 2t+1) of q_i rotate by w_t sum_{l <= i} c_l

    c = kernel * out(into(x)), w_t = base^(-2t/K). The convolution covers `width` tokens of one
    document; kernel[n] belongs to the n-th token before. `gate` scales c_l by sigmoid(gate(x_l)),
    and `silu` follows the convolution. Both are options of the published code, whose runs use
    neither, and rank 32. As in that code, each head's slice of x is normalized to length 1, and
    pairs have fixed frequencies, those of RoPE with a larger base. Networks keep PyTorch's
    initialization; the code draws them from N(0, .02^2), which initially rotates almost nothing.

    Args:
        rank: Channels between `into` and `out`.
        width: Tokens that the convolution covers.
        base: The frequencies w_t are base^(-2t/K).
        gate: Whether a sigmoid of the state scales each step.
        silu: Whether a SiLU follows the convolution.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "gates"
    reads_positions = False

    def __init__(
        self,
        dims: Dims,
        *,
        rank: Annotated[int, Between(1)] = 32,
        width: Annotated[int, Between(1)] = 4,
        base: Annotated[float, Between(1)] = 500000.0,
        gate: bool = False,
        silu: bool = False,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        check_head_dim(self)
        if dims.dim % dims.heads:
            # with a head_dim of its own a model need not have such a width
            message = (
                f"it normalizes each head's slice of the states, and {dims.heads} heads do not"
            )
            raise OptionError("heads", f"{message} divide dim {dims.dim}")
        self.lookback = width - 1
        self.base, self.silu = base, silu
        channels = dims.num_kv_heads * dims.head_dim // 2
        self.into = nn.Linear(dims.dim, rank, bias=False)
        self.out = nn.Linear(rank, channels, bias=False)
        kernel = (2 * torch.rand(width, channels) - 1) * width**-0.5
        self.kernel = nn.Parameter(kernel)  # [width, G K/2]
        self.gate = nn.Linear(dims.dim, dims.num_kv_heads) if gate else None

    def prepare(self, tokens: Tokens) -> Tokens:
        x = F.normalize(upcast(tokens.x).unflatten(-1, (self.dims.heads, -1)), dim=-1).flatten(-2)
        angles = apply_linear(self.out, apply_linear(self.into, x))  # [B, N, G K/2]
        tokens = tokens.with_per_token(selected=angles)
        if self.gate is None:
            return tokens
        gates = apply_linear(self.gate, x).sigmoid()  # [B, N, G]
        return tokens.with_per_token(rotation_gate=gates)

    def panels(self, call: AttentionCall) -> Panels:
        yield from super().panels(call)
        if self.gate is not None:
            gates = call.keys.per_token["rotation_gate"]
            caption = "Factor of the angle of a token: near 0 a head skips the token."
            title, unit = "Gates", "gate, 0 to 1"
            yield from spread_panel(title, unit, gates, call.keys, caption, kind="key head")

    def token_angles(self, tokens: Tokens) -> Tensor:
        angles = convolve(tokens.per_token["selected"], self.kernel, tokens.document)
        angles = silu(angles) if self.silu else angles
        angles = angles.unflatten(-1, (self.dims.num_kv_heads, -1))  # [B, M, G, K/2]
        # w_t c_l, with the frequencies of RoPE.
        angles = angles * rope_frequencies(self.base, self.dims.head_dim, angles)
        if self.gate is None:
            return angles
        return angles * tokens.per_token["rotation_gate"][..., None]
