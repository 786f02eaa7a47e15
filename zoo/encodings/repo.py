"""RoPE at positions that tokens choose (RePo; Li et al. 2025, arXiv:2512.14391)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Tokens, disable_autocast
from zoo.attention.tokens import silu
from zoo.encodings.common.frequencies import (
    check_head_dim,
    compute_angles,
    float64_like,
    rope_frequencies,
)
from zoo.encodings.common.layers import apply_linear
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.encodings.common.rotation import Rotary, cos_sin, rotation_tables
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register

STD = 0.02


@register
class RePo(Rotary):
    """pairs (2t, 2t+1) of q_i and k_i rotate by z_i w_t, z = position(silu(gate(x)) content(x))

    w_t = base^(-2t/K). Each head has its own positions z, real numbers in which no index enters:
    only the causal mask tells the order. Layers below `first_layer` are those of plain RoPE; by
    default it is round(5 depth / 16). gate and content have D/8 channels, rounded down.

    Args:
        first_layer: Number of the first layer with its own positions; those below are plain RoPE.
        base: The frequencies are base^(-2t/K).
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "gates"
    shared, reads_states, reads_positions = False, True, False
    axes_reason = "its authors choose positions in a text; rope_mixed accepts grids"

    def __init__(
        self,
        dims: Dims,
        *,
        first_layer: Annotated[int, Between(0)] | None = None,
        base: Annotated[float, Between(1)] = 10000.0,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        check_head_dim(self)
        if dims.num_kv_heads != dims.heads:
            message = "each query head has its own positions, which a shared key cannot have"
            raise OptionError("kv_heads", f"{message}; leave kv_heads out")
        if first_layer is None:
            first_layer = round(5 * (dims.depth or 1) / 16)
        self.base, self.chooses = base, dims.layer >= first_layer
        self.reads_states = self.chooses
        self.reads_positions = not self.chooses
        if not self.chooses:
            return
        width = max(dims.dim // 8, 1)
        self.gate = _draw(nn.Linear(dims.dim, width, bias=False))
        self.content = _draw(nn.Linear(dims.dim, width, bias=False))
        self.position = _draw(nn.Linear(width, dims.heads, bias=False))

    def prepare(self, tokens: Tokens) -> Tokens:
        if self.chooses:
            with disable_autocast(tokens.x.device):
                hidden = silu(apply_linear(self.gate, tokens.x)) * apply_linear(
                    self.content, tokens.x
                )
            chosen = apply_linear(self.position, hidden)  # [B, N, H]
            tokens = tokens.with_per_token(chosen_position=chosen)
        return super().prepare(tokens)

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return (cos_sin(compute_angles(pos, self._frequencies(pos))),)

    def _with_rotation(self, tokens: Tokens) -> Tokens:
        if not self.chooses:
            return super()._with_rotation(tokens)
        chosen = tokens.per_token["chosen_position"].transpose(1, 2)  # [B, H, N]
        if tokens.has_position is not None:
            chosen = torch.where(tokens.has_position[:, None], chosen, 0.0)
        with disable_autocast(chosen.device):
            pos = chosen.flatten(0, 1)[..., None]  # [B H, N, 1]
            angles = compute_angles(pos, self._frequencies(pos)).squeeze(1)  # [B H, N, K/2]
            tables = rotation_tables(angles.unflatten(0, (-1, self.dims.heads)))
        return tokens.replace(shared_tables={**tokens.shared_tables, self.name: tables})

    def panels(self, call: AttentionCall) -> Panels:
        if not self.chooses:
            yield from super().panels(call)
            return
        caption = (
            "Positions that tokens choose: equal ones are near, however far apart in the text."
        )
        chosen = call.keys.per_token["chosen_position"]
        yield from spread_panel("Chosen positions", "position", chosen, call.keys, caption)

    def wave_vectors(self, like: Tensor) -> Tensor | None:
        return None if self.chooses else self._frequencies(like)

    def _frequencies(self, like: Tensor) -> Tensor:
        """Return frequencies [1, 1, K/2]."""
        return rope_frequencies(self.base, self.dims.head_dim, float64_like(like))[None, None]


def _draw(layer: nn.Linear) -> nn.Linear:
    """Draw weights from N(0, 0.02^2), cut at three standard deviations."""
    nn.init.trunc_normal_(layer.weight, std=STD, a=-3 * STD, b=3 * STD)
    return layer
