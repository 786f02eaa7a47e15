"""Householder products from key to query (PaTH; Yang et al. 2025, arXiv:2505.16381)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import (
    AttentionCall,
    Dims,
    Encoding,
    Tokens,
    bias_from_table,
    disable_autocast,
    repeat_kv_heads,
    upcast,
)
from zoo.encodings.common.householder import compute_path_bias, update_keys
from zoo.encodings.common.layers import apply_linear, convolve, init_normal
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.registry import Between, register


@register
class PaTH(Encoding):
    """scores k_j^T H_{j+1} .. H_i q_i / sqrt(K), H_t = I - beta_t w_t w_t^T

    beta_t = 2 sigmoid(strength(x_t)), and w_t = filter_0 direction(x_t) + filter_1
    direction(x_{t-1}) + .. at norm 1, per key head. `direction` has rank `rank`; `convolution`
    tokens make a w_t, channel by channel, 1 for x_t alone. (The published code puts a SiLU after
    the convolution, which the paper has not, and makes `direction` of full rank if query heads
    share key heads.) Products follow the order of tokens, with or without positions. With `fox` it
    is PaTH-FoX, as in the paper: log forget gates are added to scores that are scaled already; the
    published kernels scale the gates by 1 / sqrt(K) too.
    """

    shared, shift_invariant, causal_only, handles_special_tokens = False, True, True, True

    def __init__(
        self,
        dims: Dims,
        *,
        rank: Annotated[int, Between(1)] = 32,
        convolution: Annotated[int, Between(1)] = 3,
    ) -> None:
        super().__init__(dims)
        width, self.lookback = dims.num_kv_heads * dims.head_dim, convolution - 1
        down, up = nn.Linear(dims.dim, rank, bias=False), nn.Linear(rank, width, bias=False)
        self.direction = nn.Sequential(init_normal(down), init_normal(up))
        self.strength = init_normal(nn.Linear(dims.dim, dims.num_kv_heads))
        # as PyTorch initialises convolutions; the weight of the token itself comes first
        weights = torch.empty(convolution, width).uniform_(-1, 1) * convolution**-0.5
        self.filter = nn.Parameter(weights) if convolution > 1 else None

    def prepare(self, tokens: Tokens) -> Tokens:
        down, up = self.direction
        direction = apply_linear(up, apply_linear(down, tokens.x))  # [B, N, G K]
        strength = 2 * apply_linear(self.strength, tokens.x).sigmoid()  # [B, N, G]
        return tokens.with_per_token(path_direction=direction, path_strength=strength)

    def update_cached_keys(self, k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        direction, strength = tokens.per_token["path_direction"], tokens.per_token["path_strength"]
        rest = direction[:, max(direction.shape[1] - self.lookback, 0) :]
        with disable_autocast(k.device):
            k = update_keys(upcast(k), *self._reflections(tokens, k.shape[0]))
        return k, tokens.with_per_token(path_direction=rest, path_strength=strength[:, :0])

    def modify(self, call: AttentionCall) -> AttentionCall:
        with disable_autocast(call.q.device):
            w, beta = self._reflections(call.keys, call.q.shape[0])
            w, beta = repeat_kv_heads(w, self.dims.heads), repeat_kv_heads(beta, self.dims.heads)
            queries = call.scatter_queries(upcast(call.q))
            bias = compute_path_bias(queries, upcast(call.k), w, beta) * call.scale  # [B, H, .., M]
        return call.add_bias(bias_from_table(call.gather_queries(bias)))

    def panels(self, call: AttentionCall) -> Panels:
        strength = call.keys.per_token["path_strength"]
        caption = "Effect of a token on earlier keys: 0 none, 1 erases a direction, 2 reflects it."
        title, unit = "Strength", "beta, 0 to 2"
        return spread_panel(title, unit, strength, call.keys, caption, kind="key head")

    def _reflections(self, tokens: Tokens, batch: int) -> tuple[Tensor, Tensor]:
        """Return w [B, G, n, K] and beta [B, G, n] of the last n tokens, not in keys yet."""
        direction, strength = tokens.per_token["path_direction"], tokens.per_token["path_strength"]
        if self.filter is not None:
            direction = convolve(direction, self.filter, tokens.document)
        last = direction[:, direction.shape[1] - strength.shape[1] :]
        w = F.normalize(last.unflatten(-1, (self.dims.num_kv_heads, -1)).transpose(1, 2), dim=-1)
        return w.expand(batch, -1, -1, -1), strength.mT.expand(batch, -1, -1)
