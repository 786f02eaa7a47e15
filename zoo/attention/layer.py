"""The attention layer: everything there is to integrating an encoding."""

from __future__ import annotations

from torch import Tensor, nn

from zoo.attention.attend import attend
from zoo.attention.chain import Chain
from zoo.attention.context import Context
from zoo.attention.encoding import Dims
from zoo.attention.terms import Terms
from zoo.attention.tokens import Tokens


class SelfAttention(nn.Module):
    """Projects tokens to heads, lets the chain describe attention, computes it, projects back.

    Keys have no bias: under a softmax it has no effect. `qk_norm` brings each head's queries and keys to unit root mean
    square, with learned gains, before anything turns them.
    """

    def __init__(self, dims: Dims, *, causal: bool = False, qk_norm: bool = False, backend: str = "auto") -> None:
        super().__init__()
        self.dims, self.causal, self.backend = dims, causal, backend
        self.query = nn.Linear(dims.dim, dims.dim)
        self.key = nn.Linear(dims.dim, dims.dim, bias=False)
        self.value = nn.Linear(dims.dim, dims.dim)
        self.out = nn.Linear(dims.dim, dims.dim)
        self.query_norm = nn.RMSNorm(dims.head) if qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(dims.head) if qk_norm else nn.Identity()

    def describe(self, tokens: Tokens, chain: Chain, context: Context) -> tuple[Tokens, Terms]:
        """The attention call for tokens with states [B, N, D], not yet computed, and the tokens with what was noted."""
        tokens = chain.annotate(tokens)
        states = context.states(self.dims.layer, tokens)
        content = self.query_norm(self._heads(self.query(tokens.x)))  # [B, H, N, K]
        k = self.key_norm(self._heads(self.key(states.x)))  # [B, H, M, K]
        v = self._heads(self.value(states.x))  # [B, H, M, V]
        q, k = chain.turn_query(content, tokens), chain.turn_key(k, states)
        k, v, keys = context.keys(self.dims.layer, k, v, states)
        scale = self.dims.head**-0.5
        return tokens, chain.terms(Terms(q, k, v, content, tokens, keys, self.causal, scale))

    def forward(self, tokens: Tokens, chain: Chain, context: Context) -> tuple[Tokens, Tensor | None]:
        """Tokens with the layer's output [B, N, D] as their state, and mixed riders [B, H, N, E] for `chain.update`."""
        tokens, terms = self.describe(tokens, chain, context)
        out, riders = attend(terms, self.backend)
        return tokens.replace(x=self.out(out.transpose(1, 2).flatten(2))), riders

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.dims.heads, -1)).transpose(1, 2)
