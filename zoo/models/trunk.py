"""The trunk: identical blocks, and the encodings that they share or have one each of."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from zoo.attention.chain import Chain
from zoo.attention.context import Context
from zoo.attention.encoding import Dims, Encoding, Links
from zoo.attention.tokens import Tokens
from zoo.errors import Invalid
from zoo.models.block import Block, BlockOptions, norm


class Trunk(nn.Module):
    """Blocks and a last norm. `encoding` holds each link once, or once per layer; a layer sees its own as a chain."""

    def __init__(
        self, dims: Dims, links: Links, options: BlockOptions, *, causal: bool = False, backend: str = "auto"
    ) -> None:
        super().__init__()
        layers = [replace(dims, layer=layer) for layer in range(dims.depth or 1)]
        self.encoding = nn.ModuleDict()
        chained: list[dict[str, Encoding]] = [{} for _ in layers]
        for name, make in links.items():
            first = make(layers[0])
            if first.causal and not causal:
                told = f"{name} is meaningful only under a causal mask, which this model does not have"
                raise Invalid("encoding", f"{told}; choose model decoder, or another encoding")
            each = [first] * len(layers) if first.shared else [first, *map(make, layers[1:])]
            self.encoding[name] = first if first.shared else nn.ModuleList(each)
            for chain, link in zip(chained, each, strict=True):
                chain[name] = link
        self.chains = tuple(
            Chain(at, links) for at, links in zip(layers, chained, strict=True)
        )  # views: not registered
        self.blocks = nn.ModuleList(Block(at, options, causal=causal, backend=backend) for at in layers)
        self.norm = nn.Identity() if options.order == "post" else norm(dims.dim, options)

    def forward(self, tokens: Tokens, context: Context | None = None) -> Tokens:
        context = context or Context()
        tokens = self.chains[0].embed(tokens)
        for block, chain in zip(self.blocks, self.chains, strict=True):
            tokens = block(tokens, chain, context)
        return tokens.replace(x=self.norm(tokens.x))
