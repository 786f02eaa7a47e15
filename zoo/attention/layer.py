"""The attention layer: everything there is to integrating an encoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zoo.attention.attend import attend
from zoo.attention.chain import Chain
from zoo.attention.context import Context
from zoo.attention.encoding import Dims
from zoo.attention.terms import Terms, repeated
from zoo.attention.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What an attention layer has beside its projections; the first four make the layer of FoX (Pro) (arXiv:2503.02130)."""

    qk_norm: bool = False  # each head's queries and keys at unit root mean square, before anything turns them
    output_norm: bool = False  # each head's output at unit root mean square
    output_gate: bool = False  # outputs times sigmoid of a projection of the input
    shift: bool = False  # keys and values mixed with those of the token before
    key_bias: bool = False  # of published models; tells in scores only where keys are turned


class SelfAttention(nn.Module):
    """Projects tokens to heads, lets the chain describe attention, computes it, projects back.

    Query heads may share key heads (`Dims.key_heads`, arXiv:2305.13245), and what is remembered has these alone.

    Keys have no bias unless asked: where nothing turns them, it adds to all scores of a row alike, which a softmax does not
    see. Turned, it differs from key to key.
    """

    def __init__(
        self, dims: Dims, options: LayerOptions = LayerOptions(), *, causal: bool = False, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.dims, self.causal, self.backend = dims, causal, backend
        self.query = nn.Linear(dims.dim, dims.dim)
        self.key = nn.Linear(dims.dim, dims.groups * dims.head, bias=options.key_bias)
        self.value = nn.Linear(dims.dim, dims.groups * dims.head)
        self.out = nn.Linear(dims.dim, dims.dim)
        self.shift = nn.Linear(dims.dim, 2 * dims.groups, bias=False) if options.shift else None
        self.gate = nn.Linear(dims.dim, dims.dim, bias=False) if options.output_gate else None
        self.query_norm = _norm(dims, options.qk_norm)
        self.key_norm = _norm(dims, options.qk_norm)
        self.output_norm = _norm(dims, options.output_norm)

    def describe(self, tokens: Tokens, chain: Chain, context: Context) -> tuple[Tokens, Terms]:
        """The attention call for tokens with states [B, N, D], not yet computed, and the tokens with what was noted."""
        tokens = chain.annotate(tokens)
        states = context.states(self.dims.layer, tokens)
        content = self.query_norm(self._heads(self.query(tokens.x)))  # [B, H, N, K]
        k, v = self._heads(self.key(states.x)), self._heads(self.value(states.x))  # [B, G, M, K]
        if self.shift is not None:
            k, v = self._shifted(self.shift, k, v, states, context)
        q, k = chain.turn_query(content, tokens), chain.turn_key(self.key_norm(k), states)
        k, v, keys = context.keys(self.dims.layer, k, v, states)
        k, v = repeated(k, self.dims.heads), repeated(v, self.dims.heads)  # [B, H, M, K]
        scale = self.dims.head**-0.5
        terms = Terms(q, k, v, content, tokens, keys, self.causal, scale, turn=lambda x: chain.turn_query(x, tokens))
        return tokens, chain.terms(terms)

    def forward(self, tokens: Tokens, chain: Chain, context: Context) -> tuple[Tokens, Tensor | None]:
        """Tokens with the layer's output [B, N, D] as their state, and mixed riders [B, H, N, E] for `chain.update`."""
        tokens, terms = self.describe(tokens, chain, context)
        out, riders = attend(terms, self.backend)
        out = self.output_norm(out).transpose(1, 2).flatten(2)  # [B, N, D]
        if self.gate is not None:
            out = out * self.gate(tokens.x).sigmoid()
        return tokens.replace(x=self.out(out)), riders

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.dims.head)).transpose(1, 2)

    def _shifted(
        self, rates: nn.Linear, k: Tensor, v: Tensor, states: Tokens, context: Context
    ) -> tuple[Tensor, Tensor]:
        """a_t of the token before and 1 - a_t of the token itself, for keys and values, a rate per key head."""
        own = k, v
        before = context.before(self.dims.layer, torch.cat(own, dim=-1), states).split([k.shape[-1], v.shape[-1]], -1)
        shares = rates(states.x).sigmoid().mT[..., None].chunk(2, dim=1)  # [B, G, M, 1]
        mixed = [a * earlier + (1 - a) * one for a, earlier, one in zip(shares, before, own, strict=True)]
        return mixed[0], mixed[1]


def _norm(dims: Dims, wanted: bool) -> nn.Module:
    return nn.RMSNorm(dims.head, eps=1e-6) if wanted else nn.Identity()
