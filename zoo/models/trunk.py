"""The trunk: identical blocks, and the encodings that they share or have one each of."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.attention.chain import Chain
from zoo.attention.context import Context
from zoo.attention.encoding import Dims, Encoding, Links
from zoo.attention.tokens import Tokens
from zoo.errors import Invalid
from zoo.models.block import Block, BlockOptions, norm


class Trunk(nn.Module):
    """Blocks and a last norm. `encoding` holds each link once, or once per layer; a layer sees its own as a chain."""

    def __init__(
        self, dims: Dims, links: Links, options: BlockOptions, *, causal: bool = False, backend: str = "auto",
        window: int | None = None, kernel: str = "softmax",
    ) -> None:  # fmt: skip
        super().__init__()
        layers = [replace(dims, layer=layer) for layer in range(dims.depth or 1)]
        self.encoding = nn.ModuleDict()
        chained: list[dict[str, Encoding]] = [{} for _ in layers]
        for name, make in links.items():
            first = make(layers[0])
            if first.causal and not causal:
                told = f"{name} is meaningful only under a causal mask, which this model does not have"
                raise Invalid("encoding", f"{told}; choose model decoder, or another encoding")
            if first.whole and causal:
                told = f"{name} under these options reads the whole text, whose end a causal model has not seen"
                raise Invalid("encoding", f"{told}; choose model encoder, or other options")
            each = [first] * len(layers) if first.shared else [first, *map(make, layers[1:])]
            self.encoding[name] = first if first.shared else nn.ModuleList(each)
            for chain, link in zip(chained, each, strict=True):
                chain[name] = link
        # views: not registered
        self.chains = tuple(Chain(at, links) for at, links in zip(layers, chained, strict=True))
        self.blocks = nn.ModuleList(
            Block(at, options, causal=causal, backend=backend, window=window, kernel=kernel) for at in layers
        )
        self.recompute = False
        self.norm = nn.Identity() if options.order == "post" else norm(dims.dim, options)

    def forward(self, tokens: Tokens, context: Context | None = None) -> Tokens:
        context = context or Context()
        tokens = self.chains[0].embed(tokens)
        for block, chain in zip(self.blocks, self.chains, strict=True):
            if self.recompute and self.training:
                tokens = _recomputed(block, tokens, chain, context)
            else:
                tokens = block(tokens, chain, context)
        return tokens.replace(x=self.norm(tokens.x))


def recompute(model: nn.Module) -> None:
    """Have the trunk of a model store only what enters its blocks, in training, and compute them again going backward.

    Chen et al. 2016, arXiv:1604.06174. Raises Invalid where the model has no trunk.
    """
    trunks = [module for module in model.modules() if isinstance(module, Trunk)]
    if not trunks:
        raise Invalid(
            "activation_checkpointing", "the model has no trunk whose blocks could be computed again; leave it out"
        )
    for trunk in trunks:
        trunk.recompute = True


def _recomputed(block: nn.Module, tokens: Tokens, chain: Chain, context: Context) -> Tokens:
    """What the block gives; the second time it sees the context as it was the first time."""
    before = context.copy()

    def run(x: Tensor) -> tuple[Tokens, Context]:
        after = before.copy()
        return block(tokens.replace(x=x), chain, after), after

    # the state is an argument, since torch looks there for the device whose random numbers it has to draw again
    given, after = checkpoint(run, tokens.x, use_reentrant=False)  # another name: `run` reads `tokens` later
    context.take(after)
    return given
