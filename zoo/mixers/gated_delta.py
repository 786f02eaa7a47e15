"""Gated delta rule (arXiv:2412.06464), with a decay by head or channel (KDA, arXiv:2510.26692)."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.encoding import Dims
from zoo.attention.layer import Projection
from zoo.attention.mixer import Mixer, MixerStream
from zoo.attention.tokens import disable_autocast, silu, upcast
from zoo.errors import OptionError
from zoo.mixers.common.convolution import CausalConvolution
from zoo.mixers.common.delta_rule import DeltaInputs, scan_chunks, scan_tokens
from zoo.options import Between, Count
from zoo.registry import register

FEW_TOKENS = 4  # so many tokens are computed one by one
MAX_RATE = 16.0  # initial decay rates are exp(a_log) in [1, MAX_RATE)
MIN_STEP, MAX_STEP = 1e-3, 1e-1  # initial step sizes are softplus(dt_bias) between them
LEAST_STEP = 1e-4
# Up to here softplus is computed by its formula; beyond, it is x to the last bit of a float64.
SOFTPLUS_END = 40.0


@register
class GatedDelta(Mixer):
    """S <- exp(g_t) S;   S <- S + k_t (beta_t (v_t - S' k_t))';   o_t = S' q_t

    S [K, V] is a state for each value head, in at least float32. Queries, keys and values pass a
    causal convolution with SiLU; then q and k are divided by sqrt(sum of squares + norm_eps), and q
    by sqrt(K). With a = softplus(W_decay x + dt_bias), for each head or for each channel of K:

        g_t = -exp(a_log) a,   beta_t = sigmoid(W_beta x), doubled with negative_eigenvalues

    The outputs of each head are normalized (RMS), multiplied by gate(W_gate x), and projected.

    Args:
        dims: The sizes of the layer.
        heads: Number of heads of queries and keys; those of the model by default.
        value_heads: Number of heads of values, a multiple of `heads`; `heads` by default. The value
            head h reads the key head h // (value_heads / heads).
        key_dim: Channels K of a query or key; the model dim divided by `heads` by default.
        value_dim: Channels V of a value; `key_dim` by default.
        conv: Number of tokens that the convolution of queries, keys and values reads; 0: none.
        decay: One decay for each head, or one for each channel of K (Kimi Delta Attention), whose
            projection is then a product through K channels.
        negative_eigenvalues: Let beta reach 2, so that the state may flip (arXiv:2411.12537).
        norm_eps: Epsilon of the norms of queries, keys and outputs.
        output_norm_eps: Epsilon of the norm of outputs; `norm_eps` by default.
        gate: Activation of the gate of the outputs. null: no gate. "auto": silu with decay head,
            sigmoid with decay channel.
        gate_rank: Channels through which the projection of the gate is a product. null: one matrix.

    Raises:
        OptionError: Sizes do not fit each other.
    """

    no_export_reason = "its chunks follow each other in a loop as long as the text"

    def __init__(
        self,
        dims: Dims,
        *,
        heads: Count | None = None,
        value_heads: Count | None = None,
        key_dim: Count | None = None,
        value_dim: Count | None = None,
        conv: Annotated[int, Between(0, 1024)] = 4,
        decay: Literal["head", "channel"] = "head",
        negative_eigenvalues: bool = False,
        norm_eps: Annotated[float, Between(1e-12, 1)] = 1e-6,
        output_norm_eps: Annotated[float, Between(1e-12, 1)] | None = None,
        gate: Literal["auto", "silu", "sigmoid"] | None = "auto",
        gate_rank: Count | None = None,
    ) -> None:
        super().__init__(dims)
        self.heads = heads or dims.heads
        self.value_heads = value_heads or self.heads
        if self.value_heads % self.heads:
            problem = f"{self.value_heads} value heads are no multiple of {self.heads} heads"
            raise OptionError("value_heads", problem)
        if key_dim is None and dims.dim % self.heads:
            problem = f"dim {dims.dim} is not divisible by {self.heads} heads; write key_dim"
            raise OptionError("heads", problem)
        if gate is None and gate_rank is not None:
            raise OptionError("gate_rank", "there is no gate; leave it out, or choose a gate")
        self.key_dim = key_dim or dims.dim // self.heads
        self.value_dim = value_dim or self.key_dim
        self.by_channel = decay == "channel"
        self.negative_eigenvalues, self.norm_eps = negative_eigenvalues, norm_eps
        default = "sigmoid" if self.by_channel else "silu"
        self.activation = default if gate == "auto" else gate
        dim, key_width = dims.dim, self.heads * self.key_dim
        value_width = self.value_heads * self.value_dim

        self.query = Projection(dim, key_width, bias=False)
        self.key = Projection(dim, key_width, bias=False)
        self.value = Projection(dim, value_width, bias=False)
        self.beta = Projection(dim, self.value_heads, bias=False)
        if self.by_channel:
            self.decay_down = Projection(dim, self.key_dim, bias=False)
            self.decay_up = Projection(self.key_dim, key_width, bias=False)
        else:
            self.decay = Projection(dim, self.value_heads, bias=False)
        if gate is not None and gate_rank is None:
            self.gate = Projection(dim, value_width, bias=False)
        elif gate_rank is not None:
            self.gate_down = Projection(dim, gate_rank, bias=False)
            self.gate_up = Projection(gate_rank, value_width, bias=False)
        self.gate_rank = gate_rank
        self.conv = CausalConvolution(2 * key_width + value_width, conv) if conv else None
        self.norm = nn.RMSNorm(self.value_dim, eps=output_norm_eps or norm_eps)
        self.out = Projection(value_width, dim, bias=False)

        self.a_log = nn.Parameter(torch.empty(self.value_heads).uniform_(1, MAX_RATE).log())
        steps = torch.empty(key_width if self.by_channel else self.value_heads)
        steps = steps.uniform_(log(MIN_STEP), log(MAX_STEP)).exp().clamp(min=LEAST_STEP)
        # the inverse of softplus
        self.dt_bias = nn.Parameter(steps + (-(-steps).expm1()).log())

    @property
    def output_projection(self) -> nn.Module:
        return self.out

    def mix(
        self, stream: MixerStream, past: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        x = stream.x
        channels, kept = self._convolve(stream, past)
        inputs = self.describe(stream, channels)
        scan = scan_tokens if x.shape[1] <= FEW_TOKENS else scan_chunks
        with disable_autocast(x.device):
            out, kept["state"] = scan(inputs, stream.segment, past.get("state"))
            out = self.norm(out.flatten(1, 2).transpose(1, 2))  # [B, N, value heads, V]
            gate = self._compute_gate(x)
            out = (out if gate is None else out * gate).flatten(2)
        return self.out(out.to(x.dtype)), kept

    def measure_state(self, stream: MixerStream, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the norm of the state, its decay and its span, by value head."""
        matrix = state["state"].flatten(1, 2)  # [B, value heads, K, V]
        g = self.describe(stream, self._convolve(stream, {})[0]).g.flatten(1, 2)
        g = g.expand(-1, self.value_heads, -1, -1)
        real = g.new_ones(g.shape[0], g.shape[2])
        if stream.is_real is not None:
            real = real * stream.is_real
        # Logarithms of decays are 0 at padding.
        mean = g.sum((0, 2)) / real.sum()  # [value heads, 1|K]
        return {
            "norm of the state": matrix.square().mean((0, 2, 3)).sqrt(),
            "decay of the state": mean.exp().mean(-1),
            "span of the state": (-1 / mean).mean(-1),
        }

    def _convolve(
        self, stream: MixerStream, past: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return queries, keys and values [B, N, E], and what the convolution keeps."""
        x = stream.x
        channels = torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)
        if self.conv is None:
            return channels, {}
        channels, inputs = self.conv(channels, stream, past.get("inputs"))
        # The convolution reads the last tokens at padding, which must not change the state.
        return stream.clear_padding(silu(channels)), {"inputs": inputs}

    def describe(self, stream: MixerStream, channels: Tensor) -> DeltaInputs:
        """Return the inputs of the delta rule for queries, keys and values [B, N, E]."""
        x, width = stream.x, self.heads * self.key_dim
        beta, decay = self.beta(x), self._project_decay(x)
        with disable_autocast(x.device):
            values = self.value_heads * self.value_dim
            q, k, v = upcast(channels).split([width, width, values], dim=-1)
            q, k = (_normalize(self._split(one, self.heads), self.norm_eps) for one in (q, k))
            beta = upcast(beta).sigmoid() * (2 if self.negative_eigenvalues else 1)
            steps = F.softplus(upcast(decay) + upcast(self.dt_bias), threshold=SOFTPLUS_END)
            # A decay of padding would change the state after the last token.
            steps = self._split(stream.clear_padding(steps), self._count_decays())
            rates = upcast(self.a_log).exp().view(self.heads, -1, 1, 1)
            return DeltaInputs(
                q * self.key_dim**-0.5,
                k,
                self._split(v, self.value_heads),
                self._split(beta, self.value_heads),
                -rates * steps,
            )

    def _count_decays(self) -> int:
        """Count the heads of the projected decays: those of keys, or of values."""
        return self.heads if self.by_channel else self.value_heads

    def _project_decay(self, x: Tensor) -> Tensor:
        return self.decay_up(self.decay_down(x)) if self.by_channel else self.decay(x)

    def _compute_gate(self, x: Tensor) -> Tensor | None:
        """Return the gate of the outputs [B, N, value heads, V], if there is one."""
        if self.activation is None:
            return None
        values = self.gate(x) if self.gate_rank is None else self.gate_up(self.gate_down(x))
        values = upcast(values).unflatten(-1, (self.value_heads, self.value_dim))
        return silu(values) if self.activation == "silu" else values.sigmoid()

    def _split(self, values: Tensor, heads: int) -> Tensor:
        """Split [B, N, heads C] into [B, G, heads / G, N, C], for G key heads."""
        return values.unflatten(-1, (self.heads, heads // self.heads, -1)).permute(0, 2, 3, 1, 4)


def _normalize(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()
