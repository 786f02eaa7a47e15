"""Rotations that learn from context, layer by layer (TAPE; Zhu et al. 2025, arXiv:2501.00712)."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Tokens
from zoo.attention.tokens import silu
from zoo.encodings.common.frequencies import (
    axis_frequencies,
    check_head_dim,
    compute_angles,
    float64_like,
)
from zoo.encodings.common.layers import apply_linear, init_normal, init_zero
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.encodings.common.rotation import cos_sin, rotate_pairs
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class TAPE(Encoding):
    """q and k rotate by frames F = (C, S), initially those of RoPE, which each layer changes.

    F_h += sum_e mix[h, e] (A F)_e, then F += out(silu(read(x)) into(F))

    A are the attention weights, x is the normalized state after attention. `into` and `out` act on
    heads, and `read` gives a gate per token. `mix` and `into` start at zero, so that training
    starts as RoPE. The last layer has no parameters, because nothing reads its frames. In models of
    transformers, `zoo.equip` hands the frames from layer to layer.

    Args:
        base: The frequencies of the first frames are base^(-2t/K).
    """

    part = "rotation"
    shared, shift_invariant, causal_only = False, True, True

    def __init__(self, dims: Dims, *, base: Annotated[float, Between(1)] = 10000.0) -> None:
        super().__init__(dims)
        check_head_dim(self)
        if dims.num_kv_heads != dims.heads:
            message = (
                f"it mixes frames with the weights of each query head, so {dims.heads} heads "
                f"cannot share {dims.num_kv_heads} keys; leave kv_heads out"
            )
            raise OptionError("kv_heads", message)
        self.base, self.last = base, dims.depth is not None and dims.layer == dims.depth - 1
        if not self.last:
            heads, ranks = dims.heads, 4 * dims.heads
            self.mix = init_zero(nn.Linear(heads, heads, bias=False))
            self.read = init_normal(nn.Linear(dims.dim, ranks, bias=False))
            self.into = init_zero(nn.Linear(heads, ranks, bias=False))
            self.out = init_normal(nn.Linear(ranks, heads, bias=False))

    def embed(self, tokens: Tokens) -> Tokens:
        waves = axis_frequencies(self.dims, self.base, float64_like(tokens.pos))[0]
        angles = compute_angles(tokens.pos, waves[None, None])[:, 0]  # [1|B, N, K/2]
        frames = cos_sin(angles).mT[:, :, None]  # [1|B, N, 1, 2, K/2]
        return tokens.with_per_token(frames=frames.expand(-1, -1, self.dims.heads, -1, -1))

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        table = tokens.per_token["frames"].transpose(1, 2).mT.contiguous()  # [1|B, H, N, K/2, 2]
        return rotate_pairs(q, table)

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.transform_query(k, tokens)

    def modify(self, call: AttentionCall) -> AttentionCall:
        if self.last:
            return call
        frames = call.keys.per_token["frames"].transpose(1, 2).flatten(3)  # [1|B, H, M, K]
        return call.replace(extra_values=frames.expand(call.k.shape[0], -1, -1, -1))

    def after_attention(self, tokens: Tokens, extra: Tensor) -> Tokens:
        frames = tokens.per_token["frames"].flatten(3).mT  # [1|B, N, K, H]
        # Mix the frames that attention averaged into each head's own.
        frames = frames + apply_linear(self.mix, extra.permute(0, 2, 3, 1))
        # Then a gated MLP over heads; gates come from the token's state.
        x = F.rms_norm(tokens.x, (self.dims.dim,))
        gates = silu(apply_linear(self.read, x))[:, :, None]  # [B, N, 1, R]
        frames = frames + apply_linear(self.out, gates * apply_linear(self.into, frames))
        return tokens.with_per_token(frames=frames.mT.unflatten(-1, (2, -1)))  # [B, N, H, 2, K/2]

    def panels(self, call: AttentionCall) -> Panels:
        initial = self.embed(call.keys).per_token["frames"].flatten(3)
        frames = call.keys.per_token["frames"].flatten(3)
        change = (frames - initial).norm(dim=-1) / initial.norm(dim=-1)
        caption = "Relative change of the frames since the first layer: 0 is rope, without context."
        return spread_panel("Frame change", "change / norm", change, call.keys, caption)
