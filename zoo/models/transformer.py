"""One transformer block: attention and a perceptron, each behind a norm and beside a residual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims, Encoding, EncodingFactories
from zoo.attention.kv_cache import Context
from zoo.attention.layer import LayerOptions, Projection, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError
from zoo.registry import Between

Rate = Annotated[float, Between(0, 0.99)]


@dataclass(frozen=True, kw_only=True)
class BlockOptions(LayerOptions):
    """What a block is made of. Rates are probabilities; `drop_path` is that of the last block, growing from 0 by depth."""

    norm: Literal["layer", "rms"] = "layer"
    norm_position: Literal["pre", "post", "parallel"] = (
        "pre"  # norms before branches, after sums, one for both
    )
    mlp: Literal["gelu", "swiglu"] = "gelu"
    mlp_ratio: Annotated[float, Between(0.01)] = 4.0  # hidden size of the perceptron over dim
    layer_scale: float | None = (
        None  # initial value of a learned factor on each residual branch (arXiv:2103.17239)
    )
    dropout: Rate = 0.0
    drop_path: Rate = 0.0  # stochastic depth (arXiv:1603.09382)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); norms come last in post order (Vaswani et al. 2017).

    In parallel order x + attention(norm(x)) + mlp(norm(x)), with one norm (GPT-J; PaLM, arXiv:2204.02311); what rode along
    with the values is still taken back after attention.
    """

    def __init__(
        self,
        dims: Dims,
        options: BlockOptions,
        *,
        causal: bool = False,
        backend: str = "auto",
        window: int | None = None,
        attention: str = "softmax",
    ) -> None:
        super().__init__()
        self.post = options.norm_position == "post"
        self.norm1 = norm(dims.dim, options)
        self.attn = SelfAttention(
            dims, options, causal=causal, backend=backend, window=window, attention=attention
        )
        self.attn_branch = ResidualBranch(dims, options)
        self.norm2 = None if options.norm_position == "parallel" else norm(dims.dim, options)
        self.mlp = MLP(dims.dim, options)
        self.mlp_branch = ResidualBranch(dims, options)

    def forward(self, tokens: Tokens, chain: Chain, context: Context) -> Tokens:
        x = tokens.x  # [B, N, D]
        read = tokens if self.post else tokens.replace(x=self.norm1(x))
        tokens, riders = self.attn(read, chain, context)
        tokens = tokens.replace(x=x + self.attn_branch(tokens.x))
        if self.post:
            tokens = tokens.replace(x=self.norm1(tokens.x))
        if riders is not None:
            tokens = chain.after_attention(tokens, riders)
        x = tokens.x
        if self.norm2 is None:
            return tokens.replace(x=x + self.mlp_branch(self.mlp(read.x)))
        if self.post:
            return tokens.replace(x=self.norm2(x + self.mlp_branch(self.mlp(x))))
        return tokens.replace(x=x + self.mlp_branch(self.mlp(self.norm2(x))))


class MLP(nn.Module):
    """Two layers with a GELU between them, or SwiGLU's gated three (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, dim: int, options: BlockOptions) -> None:
        super().__init__()
        hidden = int(dim * options.mlp_ratio)
        self.gate_proj = Projection(dim, hidden) if options.mlp == "swiglu" else None
        self.up_proj = Projection(dim, hidden)
        self.down_proj = Projection(hidden, dim)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (
            F.gelu(self.up_proj(x))
            if self.gate_proj is None
            else F.silu(self.gate_proj(x)) * self.up_proj(x)
        )
        return self.down_proj(self.dropout(hidden))


class ResidualBranch(nn.Module):
    """What a residual branch goes through before it is added: scale, dropout, stochastic depth."""

    def __init__(self, dims: Dims, options: BlockOptions) -> None:
        super().__init__()
        start = options.layer_scale
        self.scale = None if start is None else nn.Parameter(torch.full((dims.dim,), start))
        self.dropout = nn.Dropout(options.dropout)
        self.rate = options.drop_path * dims.layer / max((dims.depth or 1) - 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.scale is None else x * self.scale
        if not self.training:
            return x
        x = self.dropout(x)
        if self.rate == 0:
            return x
        kept = x.new_empty(len(x), 1, 1).bernoulli_(1 - self.rate)
        return x * kept / (1 - self.rate)


def norm(dim: int, options: BlockOptions) -> nn.Module:
    return nn.LayerNorm(dim, eps=1e-6) if options.norm == "layer" else nn.RMSNorm(dim, eps=1e-6)


class Transformer(nn.Module):
    """Blocks and a last norm. `encoding` holds each link once, or once per layer; a layer sees its own as a chain."""

    def __init__(
        self,
        dims: Dims,
        links: EncodingFactories,
        options: BlockOptions,
        *,
        causal: bool = False,
        backend: str = "auto",
        window: int | None = None,
        attention: str = "softmax",
    ) -> None:
        super().__init__()
        layers = [replace(dims, layer=layer) for layer in range(dims.depth or 1)]
        self.encoding = nn.ModuleDict()
        chained: list[dict[str, Encoding]] = [{} for _ in layers]
        for name, make in links.items():
            first = make(layers[0])
            if first.causal_only and not causal:
                told = (
                    f"{name} is meaningful only under a causal mask, which this model does not have"
                )
                raise OptionError("encoding", f"{told}; choose model decoder, or another encoding")
            if first.needs_full_sequence and causal:
                told = f"{name} under these options reads the whole text, whose end a causal model has not seen"
                raise OptionError("encoding", f"{told}; choose model encoder, or other options")
            each = [first] * len(layers) if first.shared else [first, *map(make, layers[1:])]
            self.encoding[name] = first if first.shared else nn.ModuleList(each)
            for chain, link in zip(chained, each, strict=True):
                chain[name] = link
        # views: not registered
        self.chains = tuple(Chain(at, links) for at, links in zip(layers, chained, strict=True))
        self.blocks = nn.ModuleList(
            Block(at, options, causal=causal, backend=backend, window=window, attention=attention)
            for at in layers
        )
        self.activation_checkpointing = False
        self.norm = nn.Identity() if options.norm_position == "post" else norm(dims.dim, options)

    def forward(self, tokens: Tokens, context: Context | None = None) -> Tokens:
        context = context or Context()
        tokens = self.chains[0].embed(tokens)
        for block, chain in zip(self.blocks, self.chains, strict=True):
            if self.activation_checkpointing and self.training:
                tokens = _recomputed(block, tokens, chain, context)
            else:
                tokens = block(tokens, chain, context)
        return tokens.replace(x=self.norm(tokens.x))


def enable_activation_checkpointing(model: nn.Module) -> None:
    """Have the trunk of a model store only what enters its blocks, in training, and compute them again going backward.

    Chen et al. 2016, arXiv:1604.06174. Raises OptionError where the model has no trunk.
    """
    trunks = [module for module in model.modules() if isinstance(module, Transformer)]
    if not trunks:
        raise OptionError(
            "activation_checkpointing",
            "the model has no trunk whose blocks could be computed again; leave it out",
        )
    for trunk in trunks:
        trunk.activation_checkpointing = True


def _recomputed(block: nn.Module, tokens: Tokens, chain: Chain, context: Context) -> Tokens:
    """What the block gives; the second time it sees the context as it was the first time."""
    before = context.copy()

    def run(x: Tensor) -> tuple[Tokens, Context]:
        after = before.copy()
        return block(tokens.replace(x=x), chain, after), after

    # the state is an argument, since torch looks there for the device whose random numbers it has to draw again
    given, after = checkpoint(
        run, tokens.x, use_reentrant=False
    )  # another name: `run` reads `tokens` later
    context.restore(after)
    return given
