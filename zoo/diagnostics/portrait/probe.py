"""An encoding in an attention layer whose projections are known, so that what comes out is the encoding's own work."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Tokens
from zoo.attention.backends.reference import attention_mask, scores, weights
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Encoding
from zoo.attention.kv_cache import Context
from zoo.attention.layer import LayerOptions, SelfAttention

TELLING, PLAIN = (
    0.3,
    0.5,
)  # changes of weights, relative to the largest of a row: can be seen, cannot be missed
STEPS = (0.05, 0.1, 0.2, 0.4, 0.8)  # by which parameters are moved until their effect is plain
CONTENTS = 16  # random contents that scores are averaged over
SEED = 0


@dataclass(frozen=True)
class Probe:
    """A chain in float64, the sizes of the grid of tokens it is shown, and whether a causal mask hides later ones.

    Contents are vectors [B, K] with a square of sqrt(K), so that without an encoding the score of a token with its like is 1.
    """

    chain: Chain
    sizes: tuple[int, ...]
    causal: bool
    moved: bool = False  # parameters are not where they start, as they hardly tell there

    @property
    def dims(self) -> Dims:
        return self.chain.dims

    def contents(self, count: int = CONTENTS) -> Tensor:
        """Random contents [count, K]."""
        drawn = torch.randn(count, self.dims.head_dim, generator=_seeded(), dtype=torch.float64)
        return drawn * (self.dims.head_dim**0.25 / drawn.norm(dim=-1, keepdim=True))

    def noise(self, seed: int = SEED) -> Tensor:
        """Random tokens [1, N, D]."""
        count = torch.Size(self.sizes).numel()
        return torch.randn(1, count, self.dims.dim, generator=_seeded(seed), dtype=torch.float64)

    def alike(self, contents: Tensor) -> Tensor:
        """Tokens [B, N, D] all alike within a sample, as are their heads; contents [B, K]."""
        count = torch.Size(self.sizes).numel()
        return contents.repeat(1, self.dims.heads)[:, None].expand(-1, count, -1)

    def tokens(self, x: Tensor, index: Tensor | None = None) -> Tokens:
        """States x [B, N, D] at indices [N, P] of the grid of training; by default at those of this one."""
        index = grid(self.sizes, x) if index is None else index
        tokens = Tokens.at(x, index, ordered=self.dims.axes == 1)
        sizes = self.sizes if self.dims.length is None else self.dims.sizes
        return tokens.replace(grid_size=x.new_tensor([[sizes]]))

    def entered(self, x: Tensor) -> Tensor:
        """[B, N, D]: what the encoding makes of states x before they are projected."""
        return self.chain.prepare(self.chain.embed(self.tokens(x))).x

    def call(self, x: Tensor, index: Tensor | None = None) -> AttentionCall:
        """The call of a layer whose projections are the identity."""
        return self._described(x, torch.eye(self.dims.dim, dtype=x.dtype), 0.0, index)

    def held(self, x: Tensor, heads: float) -> AttentionCall:
        """The call of a layer whose queries and keys are one constant, before the encoding, whatever the tokens x are."""
        return self._described(
            x, torch.zeros(self.dims.dim, self.dims.dim, dtype=x.dtype), heads, None
        )

    def _described(
        self, x: Tensor, weight: Tensor, bias: float, index: Tensor | None
    ) -> AttentionCall:
        with torch.device("meta"):  # nothing is drawn for projections that are set
            layer = SelfAttention(self.dims, LayerOptions(key_bias=True), causal=self.causal)
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
            rows = projection.out_features
            projection.weight = nn.Parameter(weight[:rows], requires_grad=False)
            projection.bias = nn.Parameter(weight.new_full((rows,), bias), requires_grad=False)
        tokens = self.chain.embed(self.tokens(x, index))
        return layer.describe(tokens, self.chain, Context())[1]


def probe(encoding: Encoding, sizes: tuple[int, ...], causal: bool) -> Probe:
    """A probe of an encoding, which is brought to float64. Where its initial values hardly tell, they are moved."""
    chain = Chain.of(encoding.double().eval().requires_grad_(False))
    made = Probe(chain, sizes, causal)
    if effect(made) >= TELLING or not any(True for _ in chain.parameters()):
        return made
    start = [parameter.clone() for parameter in chain.parameters()]
    for step in STEPS:
        generator = _seeded()
        for parameter, value in zip(chain.parameters(), start, strict=True):
            parameter.copy_(
                value + step * torch.randn(value.shape, generator=generator, dtype=value.dtype)
            )
        if effect(made) >= PLAIN:
            break
    return Probe(chain, sizes, causal, moved=True)


def effect(probe: Probe) -> float:
    """How much weights differ from those without any encoding, relative to the largest of each row.

    Those of equal tokens, and those of random tokens whose queries and keys are held at one constant.
    """
    plain = Probe(Chain(probe.dims, {}), probe.sizes, probe.causal)
    pairs = [
        [one.call(one.alike(one.contents())), one.held(one.noise(), 1.0)] for one in (probe, plain)
    ]
    return max(
        float((shares(ours) - shares(others)).nan_to_num().abs().max())
        for ours, others in zip(*pairs, strict=True)
    )


def added_to_scores(call: AttentionCall, alike: float) -> Tensor:
    """Scores [B, H, N, M] less what equal tokens have without any encoding; NaN where a pair may not attend."""
    return (
        (scores(call) - alike).round(decimals=12).masked_fill(~attention_mask(call), float("nan"))
    )


def shares(call: AttentionCall) -> Tensor:
    """Weights [B, H, N, M], each row relative to its largest; NaN where a pair may not attend."""
    found = weights(call)
    largest = found.amax(-1, keepdim=True)
    return (found / largest.where(largest > 0, 1)).masked_fill(~attention_mask(call), float("nan"))


def _seeded(seed: int = SEED) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
