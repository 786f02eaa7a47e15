"""Transformer blocks, and the stack of them that every model of zoo is built on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zoo.attention.chain import Chain, build_chains
from zoo.attention.encoding import Dims, EncodingFactories
from zoo.attention.layer import Context, Encoded, LayerOptions, Projection, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError
from zoo.options import Between

Rate = Annotated[float, Between(0, 0.99)]


@dataclass(frozen=True, kw_only=True)
class BlockOptions(LayerOptions):
    """Options of a transformer block."""

    norm: Literal["layer", "rms"] = "layer"
    """Layer norm or RMS norm."""

    norm_eps: Annotated[float, Between(1e-12, 1)] = 1e-6
    """Epsilon of these norms."""

    embed_norm: bool = False
    """A norm before the first block, after encodings have added to the embeddings (BERT)."""

    norm_position: Literal["pre", "post", "parallel"] = "pre"
    """Norms before the branches, after the residual sums, or one norm for both branches."""

    mlp: Literal["gelu", "gelu_tanh", "swiglu"] = "gelu"
    """Activation of the MLP; gelu_tanh is the approximation of GPT-2, swiglu has a gate
    (arXiv:2002.05202)."""

    mlp_ratio: Annotated[float, Between(0.01)] = 4.0
    """Hidden size of the MLP as a multiple of dim."""

    mlp_bias: bool = True
    """Biases of the layers of the MLP."""

    layer_scale: float | None = None
    """Initial value of a learned factor on each residual branch (arXiv:2103.17239)."""

    dropout: Rate = 0.0
    """Probability of dropping a hidden unit of the MLP or an output of a branch."""

    drop_path: Rate = 0.0
    """Probability of skipping a branch of the last block, growing from 0 (arXiv:1603.09382)."""


class Block(nn.Module):
    """One transformer block: attention and an MLP, each with a norm and a residual connection.

    pre:       x = x + attn(norm1(x));  x = x + mlp(norm2(x))
    post:      x = norm1(x + attn(x));  x = norm2(x + mlp(x))      (Vaswani et al. 2017)
    parallel:  x = x + attn(norm1(x)) + mlp(norm1(x))              (PaLM, arXiv:2204.02311)
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
        self.norm_position = options.norm_position
        self.norm1 = make_norm(dims.dim, options)
        self.attn = SelfAttention(
            dims, options, causal=causal, backend=backend, window=window, attention=attention
        )
        self.attn_branch = ResidualBranch(dims, options)
        is_parallel = options.norm_position == "parallel"
        self.norm2 = None if is_parallel else make_norm(dims.dim, options)
        self.mlp = MLP(dims.dim, options)
        self.mlp_branch = ResidualBranch(dims, options)

    def forward(self, tokens: Tokens, chain: Chain, context: Context) -> Tokens:
        """Apply the block to tokens with states [B, N, D]."""
        is_post = self.norm_position == "post"
        x = tokens.x  # [B, N, D]

        normed = x if is_post else self.norm1(x)
        tokens, extra = self.attn(tokens.replace(x=normed), chain, context)
        x = x + self.attn_branch(tokens.x)
        tokens = tokens.replace(x=self.norm1(x) if is_post else x)
        if extra is not None:
            tokens = chain.after_attention(tokens, extra)

        x = tokens.x
        if self.norm2 is None:
            return tokens.replace(x=x + self.mlp_branch(self.mlp(normed)))
        if is_post:
            return tokens.replace(x=self.norm2(x + self.mlp_branch(self.mlp(x))))
        return tokens.replace(x=x + self.mlp_branch(self.mlp(self.norm2(x))))


class MLP(nn.Module):
    """Two linear layers with a GELU between them, or the three of SwiGLU (arXiv:2002.05202)."""

    def __init__(self, dim: int, options: BlockOptions) -> None:
        super().__init__()
        hidden, bias = int(dim * options.mlp_ratio), options.mlp_bias
        is_gated = options.mlp == "swiglu"
        self.gelu = "tanh" if options.mlp == "gelu_tanh" else "none"
        self.gate_proj = Projection(dim, hidden, bias=bias) if is_gated else None
        self.up_proj = Projection(dim, hidden, bias=bias)
        self.down_proj = Projection(hidden, dim, bias=bias)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, N, D] to [B, N, D]."""
        up = self.up_proj(x)
        if self.gate_proj is None:
            hidden = F.gelu(up, approximate=self.gelu)
        else:
            hidden = F.silu(self.gate_proj(x)) * up
        return self.down_proj(self.dropout(hidden))


class ResidualBranch(nn.Module):
    """Layer scale, dropout and stochastic depth of a branch before it is added."""

    def __init__(self, dims: Dims, options: BlockOptions) -> None:
        super().__init__()
        start = options.layer_scale
        self.scale = None if start is None else nn.Parameter(torch.full((dims.dim,), start))
        self.dropout = nn.Dropout(options.dropout)
        self.drop_path = options.drop_path * dims.layer / max((dims.depth or 1) - 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scale x [B, N, D] and, in training, drop parts of it."""
        x = x if self.scale is None else x * self.scale
        if not self.training:
            return x
        x = self.dropout(x)
        if self.drop_path == 0:
            return x
        kept = x.new_empty(len(x), 1, 1).bernoulli_(1 - self.drop_path)
        return x * kept / (1 - self.drop_path)


def make_norm(dim: int, options: BlockOptions) -> nn.Module:
    """Create the norm that the options choose."""
    kind = nn.LayerNorm if options.norm == "layer" else nn.RMSNorm
    return kind(dim, eps=options.norm_eps)


class Transformer(nn.Module, Encoded):
    """The encodings, blocks and final norm of a model.

    A subclass creates its embeddings, then calls `add_blocks`, then creates its head:
    parameters are drawn in this order. Its forward pass makes `Tokens` of its inputs and
    passes them to `run_blocks`.

    `encoding` holds each encoding once, or once per layer if it is not shared; `chains` are
    the encodings of each layer, as views without parameters of their own.
    """

    encoding: nn.ModuleDict
    blocks: nn.ModuleList
    embed_norm: nn.Module | None
    norm: nn.Module
    activation_checkpointing = False

    def __init__(self) -> None:
        super().__init__()
        self.token_hooks = []

    def add_blocks(
        self,
        dims: Dims,
        factories: EncodingFactories,
        options: BlockOptions,
        *,
        causal: bool = False,
        backend: str = "auto",
        window: int | None = None,
        attention: str = "softmax",
    ) -> None:
        """Create the encodings, the blocks and the final norm.

        Args:
            dims: Sizes of a layer; `dims.depth` is the number of blocks.
            factories: The encodings by name, each a function of the sizes of its layer.
            options: Options of the blocks.
            causal: Use a causal attention mask.
            backend: The attention backend, or "auto".
            window: Number of tokens in the sliding window of attention, or None.
            attention: "softmax" or "linear".

        Raises:
            OptionError: An encoding does not fit the model.
        """
        self.encoding, self.chains = build_chains(dims, factories, causal=causal)
        self.blocks = nn.ModuleList(
            Block(
                chain.dims,
                options,
                causal=causal,
                backend=backend,
                window=window,
                attention=attention,
            )
            for chain in self.chains
        )
        self.embed_norm = make_norm(dims.dim, options) if options.embed_norm else None
        is_post = options.norm_position == "post"
        self.norm = nn.Identity() if is_post else make_norm(dims.dim, options)

    def run_blocks(self, tokens: Tokens, context: Context | None = None) -> Tokens:
        """Apply the encodings, all blocks and the final norm to tokens with states [B, N, D]."""
        context = context or Context()
        for hook in self.token_hooks:
            tokens = hook(tokens)

        tokens = self.chains[0].embed(tokens)
        if self.embed_norm is not None:
            tokens = tokens.replace(x=self.embed_norm(tokens.x))
        for block, chain in zip(self.blocks, self.chains, strict=True):
            if self.activation_checkpointing and self.training:
                tokens = _run_checkpointed(block, tokens, chain, context)
            else:
                tokens = block(tokens, chain, context)
        return tokens.replace(x=self.norm(tokens.x))


def find_transformers(model: nn.Module) -> list[Transformer]:
    """List the transformers of a model: itself, unless it wraps others or is none."""
    return [module for module in model.modules() if isinstance(module, Transformer)]


def enable_activation_checkpointing(model: nn.Module) -> None:
    """Store only the inputs of blocks in training, and recompute the rest in the backward pass.

    Chen et al. 2016, arXiv:1604.06174.

    Raises:
        OptionError: The model is no Transformer.
    """
    transformers = find_transformers(model)
    if not transformers:
        problem = "the model has no transformer blocks to recompute; leave it out"
        raise OptionError("activation_checkpointing", problem)
    for transformer in transformers:
        transformer.activation_checkpointing = True


def _run_checkpointed(block: nn.Module, tokens: Tokens, chain: Chain, context: Context) -> Tokens:
    """Run a block under checkpointing; the recomputation sees the context of the first run."""
    before = context.copy()

    def run(x: Tensor) -> tuple[Tokens, Context]:
        after = before.copy()
        return block(tokens.replace(x=x), chain, after), after

    # The states are an argument, since torch looks there for the device whose random numbers
    # it restores. The result has another name, because `run` reads `tokens` again later.
    result, after = checkpoint(run, tokens.x, use_reentrant=False)
    context.restore(after)
    return result
