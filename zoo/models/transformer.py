"""Transformer blocks, and the stack of blocks that is the base class of all models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Required, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from zoo.attention.chain import Chain, build_chains, embed_groups
from zoo.attention.encoding import Dims, EncodingFactories, EncodingFactory
from zoo.attention.layer import Context, Encoded, LayerOptions, Projection, SelfAttention
from zoo.attention.mixer import Mixer
from zoo.attention.soft_cap import SOFTCAP
from zoo.attention.temperature import Temperature
from zoo.attention.tokens import Tokens, is_transformed, silu
from zoo.errors import OptionError
from zoo.models.layer_types import LayerTypes, expand_pattern
from zoo.options import Between, Count

Rate = Annotated[float, Between(0, 0.99)]
Softcap = Annotated[float, SOFTCAP]
# Each layer is an object, so a number without bound would fill any memory before the model exists.
Depth = Annotated[int, Between(1, 10_000)]
Heads = Annotated[int, Between(1, 65_536)]
STORED = tuple(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
)
"""Operations whose outputs selective activation checkpointing stores."""
_CONTEXTS = partial(create_selective_checkpoint_contexts, [*STORED])
GRAPHS_PER_BLOCK = 8  # as many as torch allows by default for all blocks together


@dataclass(frozen=True, kw_only=True)
class BlockOptions(LayerOptions):
    """Options of a transformer block."""

    norm: Literal["layer", "rms"] = "layer"
    """Layer norm or RMS norm."""

    norm_eps: Annotated[float, Between(1e-12, 1)] = 1e-6
    """Epsilon of layer norms and RMS norms."""

    norm_bias: bool = True
    """Biases of layer norms. RMS norms have none."""

    embed_norm: bool = False
    """Normalize embeddings before the first block, after encodings have added to them (BERT)."""

    norm_position: Literal["pre", "branch", "both", "post", "parallel", "hybrid"] = "pre"
    """Norms before the branches, of their outputs, both, norms after the residual sums, or one norm
    for parallel branches. hybrid: branch in layers with attention, pre in those with a mixer."""

    mlp: Literal["gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh"] = "gelu"
    """Activation of the MLP. swiglu and geglu have a gate (arXiv:2002.05202); gelu_tanh and
    geglu_tanh approximate GELU as GPT-2 and Gemma do."""

    mlp_ratio: Annotated[float, Between(0.01, 10_000)] = 4.0
    """Hidden size of the MLP as a multiple of dim."""

    mlp_bias: bool = True
    """Biases of the layers of the MLP."""

    layer_scale: Annotated[float, Between(-1e6, 1e6)] | None = None
    """Initial value of a learned factor on each residual branch (arXiv:2103.17239)."""

    dropout: Rate = 0.0
    """Probability of dropping a hidden unit of the MLP or an output of a branch."""

    drop_path: Rate = 0.0
    """Probability of skipping a branch of the last block. It grows linearly with the depth, from 0
    (stochastic depth, arXiv:1603.09382)."""


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """Options of the attention of a layer that do not belong to its block.

    A type of layers may change the last four.
    """

    causal: bool = False
    """Whether attention has a causal mask."""

    backend: str = "auto"
    """The attention backend, or "auto"."""

    window: int | None = None
    """Number of tokens in the sliding window of attention. None: no window."""

    softcap: float | None = None
    """Bound of the scaled products of queries and keys. None: no bound."""

    sinks: bool = False
    """Whether a learned score per head joins the denominator of the softmax."""

    temperature: Temperature | None = None
    """Factors of queries that grow with the position. None: no factors."""


class Block(nn.Module):
    """A transformer block: attention and an MLP, each with a norm and a residual connection.

    A mixer may take the place of attention, attn below.

    pre:       x = x + attn(norm1(x));  x = x + mlp(norm2(x))
    branch:    x = x + norm1(attn(x));  x = x + norm2(mlp(x))      (OLMo 2, arXiv:2501.00656)
    both:      x = x + out_norm1(attn(norm1(x)));  x = x + out_norm2(mlp(norm2(x)))
                                                                   (Gemma 2, arXiv:2408.00118)
    post:      x = norm1(x + attn(x));  x = norm2(x + mlp(x))      (Vaswani et al. 2017)
    parallel:  x = x + attn(norm1(x)) + mlp(norm1(x))              (PaLM, arXiv:2204.02311)
    hybrid:    as branch with attention, as pre with a mixer       (OLMo Hybrid)

    Args:
        dims: The sizes.
        options: Options that all blocks of a model share.
        attention: Options of the attention.
        mixer: The mixer in place of attention. None: there is none.

    Attributes:
        reads_norm: Whether `norm1` is that of the input of attention.
        attn: The attention; None with a mixer.
    """

    def __init__(
        self,
        dims: Dims,
        options: BlockOptions,
        attention: AttentionOptions = AttentionOptions(),
        mixer: Mixer | None = None,
    ) -> None:
        super().__init__()
        position = options.norm_position
        if position == "hybrid":
            position = "pre" if mixer else "branch"
        self.norm_position = position
        self.reads_norm = position in ("pre", "both", "parallel")
        self.norm1 = make_norm(dims.dim, options)
        self.attn = None if mixer else SelfAttention(dims, options, **vars(attention))
        self.mixer = mixer
        self.attn_branch = ResidualBranch(dims, options)
        is_parallel = position == "parallel"
        self.norm2 = None if is_parallel else make_norm(dims.dim, options)
        self.mlp = MLP(dims.dim, options)
        self.mlp_branch = ResidualBranch(dims, options)
        self.out_norm1: nn.Module | None = None
        self.out_norm2: nn.Module | None = None
        if position == "both":
            self.out_norm1 = make_norm(dims.dim, options)
            self.out_norm2 = make_norm(dims.dim, options)

    def forward(self, tokens: Tokens, chain: Chain, context: Context) -> Tokens:
        """Apply the block to tokens with states [B, N, D]."""
        is_post = self.norm_position == "post"
        # Norms of the branches' outputs, where they have any.
        attn_norm, mlp_norm = self.out_norm1, self.out_norm2
        if self.norm_position == "branch":
            attn_norm, mlp_norm = self.norm1, self.norm2
        x, tables = tokens.x, tokens.shared_tables  # [B, N, D]

        # The attention branch.
        normed = self.norm1(x) if self.reads_norm else x
        tokens, extra = self._mix(tokens.replace(x=normed), chain, context)
        out = tokens.x if attn_norm is None else attn_norm(tokens.x)
        x = x + self.attn_branch(out)
        # Tables of this layer alone are dropped: FSDP would follow them as outputs of the block.
        tokens = tokens.replace(x=self.norm1(x) if is_post else x, shared_tables=tables)
        if extra is not None:
            tokens = chain.after_attention(tokens, extra)

        # The MLP branch. In a parallel block it reads the same normed input as attention.
        x = tokens.x
        if self.norm2 is None:
            return tokens.replace(x=x + self.mlp_branch(self.mlp(normed)))
        if is_post:
            return tokens.replace(x=self.norm2(x + self.mlp_branch(self.mlp(x))))
        out = self.mlp(self.norm2(x) if self.reads_norm else x)
        return tokens.replace(x=x + self.mlp_branch(out if mlp_norm is None else mlp_norm(out)))

    def _mix(self, tokens: Tokens, chain: Chain, context: Context) -> tuple[Tokens, Tensor | None]:
        """Apply attention or the mixer; return what `SelfAttention` returns."""
        if self.mixer is not None:
            return self.mixer(tokens, chain, context), None
        assert self.attn is not None
        return self.attn(tokens, chain, context)


class MLP(nn.Module):
    """Two linear layers with a GELU between them, or the three layers of SwiGLU and GEGLU."""

    def __init__(self, dim: int, options: BlockOptions) -> None:
        super().__init__()
        hidden, bias = int(dim * options.mlp_ratio), options.mlp_bias
        if not hidden:
            message = f"{options.mlp_ratio:g} times the width {dim} is less than one unit"
            raise OptionError("block.mlp_ratio", f"{message}; write {1 / dim:g} or more")
        is_gated = "glu" in options.mlp
        self.gelu = "tanh" if options.mlp.endswith("_tanh") else "none"
        self.is_silu = options.mlp == "swiglu"
        self.gate_proj = Projection(dim, hidden, bias=bias) if is_gated else None
        self.up_proj = Projection(dim, hidden, bias=bias)
        self.down_proj = Projection(hidden, dim, bias=bias)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, N, D] to [B, N, D]."""
        up = self.up_proj(x)
        inner = up if self.gate_proj is None else self.gate_proj(x)
        hidden = silu(inner) if self.is_silu else F.gelu(inner, approximate=self.gelu)
        if self.gate_proj is not None:
            hidden = hidden * up
        return self.down_proj(self.dropout(hidden))


class ResidualBranch(nn.Module):
    """Layer scale, dropout and stochastic depth of a branch before the residual sum."""

    def __init__(self, dims: Dims, options: BlockOptions) -> None:
        super().__init__()
        start = options.layer_scale
        self.scale = None if start is None else nn.Parameter(torch.full((dims.dim,), start))
        self.dropout = nn.Dropout(options.dropout)
        # Linear in the depth: 0 in the first block, the full probability in the last.
        self.drop_path = options.drop_path * dims.layer / max((dims.depth or 1) - 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scale x [B, N, D] and, in training, drop units of it or whole samples."""
        x = x if self.scale is None else x * self.scale
        if not self.training:
            return x
        x = self.dropout(x)
        if self.drop_path == 0:
            return x
        mask = x.new_empty(len(x), 1, 1).bernoulli_(1 - self.drop_path)
        # scaled, so that its expectation is its value in evaluation
        return x * mask / (1 - self.drop_path)


def make_norm(dim: int, options: BlockOptions) -> nn.Module:
    """Create the norm that the options choose."""
    if options.norm == "rms":
        return nn.RMSNorm(dim, eps=options.norm_eps)
    return nn.LayerNorm(dim, eps=options.norm_eps, bias=options.norm_bias)


class TransformerOptions(TypedDict, total=False):
    """Options of every transformer, which a model hands to `Transformer`."""

    dim: Required[Count]
    depth: Required[Depth]
    heads: Required[Heads]
    kv_heads: Heads | None
    encoding: Required[EncodingFactories]
    block: BlockOptions
    softcap: Softcap | None
    sinks: bool
    layer_types: LayerTypes
    layer_pattern: tuple[str, ...] | None
    backend: Literal["auto", "reference", "chunked", "sdpa", "flex"]


class Transformer(nn.Module, Encoded):
    """The base class of models: encodings, blocks and a final norm.

    A subclass creates its embeddings, then calls `add_blocks`, then creates its head. This order
    matters for seeds, because parameters are drawn in it. The forward pass of a subclass makes
    `Tokens` of its inputs and passes them to `run_blocks`.

    Args:
        dim: Model dimension D.
        depth: Number of blocks.
        heads: Number of query heads H.
        kv_heads: Number of key-value heads G (arXiv:2305.13245); H by default.
        encoding: Positional encodings by name, each a function of the sizes of its layer.
        block: Options of the blocks.
        softcap: Bound c of the scaled products s of queries and keys, which become c tanh(s / c)
            before biases and the softmax (Gemma 2, arXiv:2408.00118). None: no bound.
        sinks: Add a learned score per head to the denominator of the softmax (GPT-OSS,
            arXiv:2508.10925).
        layer_types: Types of layers, by name what differs from the options of the model: those of
            `LAYER_KEYS` that the model has, or a mixer, which takes the place of attention. None:
            all layers are alike.
        layer_pattern: The types in the order of the layers, repeated over the depth; `local*5`
            stands for five layers of a type.
        backend: The attention backend.

    Attributes:
        encoding: The encodings by name; see `build_chains`.
        chains: The encodings of each layer, which are the same modules.
        layer_types: The type of each layer; empty if all layers are alike.
        layer_keys: For each layer, the options that its type changes.
        has_groups: Whether layers have different encodings.
        blocks: The blocks.
        embed_norm: The norm of embeddings, if there is one.
        norm: The final norm.
        activation_checkpointing: Recompute blocks in the backward pass; "selective" stores the
            outputs of `STORED`.
    """

    encoding: nn.ModuleDict
    layer_types: tuple[str, ...] = ()
    layer_keys: tuple[frozenset[str], ...] = ()
    has_groups: bool
    blocks: nn.ModuleList
    embed_norm: nn.Module | None
    norm: nn.Module
    activation_checkpointing: bool | Literal["selective"] = False

    def __init__(
        self,
        *,
        dim: Count,
        depth: Depth,
        heads: Heads,
        kv_heads: Heads | None = None,
        encoding: EncodingFactories,
        block: BlockOptions = BlockOptions(),
        softcap: Softcap | None = None,
        sinks: bool = False,
        layer_types: LayerTypes = None,
        layer_pattern: tuple[str, ...] | None = None,
        backend: Literal["auto", "reference", "chunked", "sdpa", "flex"] = "auto",
    ) -> None:
        super().__init__()
        self.token_hooks = []
        # kept for `add_blocks`: a subclass draws its embeddings before the blocks
        self._make_dims = partial(Dims, dim, heads, depth=depth, kv_heads=kv_heads)
        self._attention = AttentionOptions(backend=backend, softcap=softcap, sinks=sinks)
        self._factories, self._block_options, self._types = encoding, block, layer_types or {}
        if layer_types or layer_pattern:
            self.layer_types = expand_pattern(layer_types, layer_pattern, depth)

    def add_blocks(
        self,
        *,
        axes: int,
        length: int | Sequence[int] | None = None,
        head_dim: int | None = None,
        points: bool = False,
        causal: bool = False,
        window: int | None = None,
        temperature: Temperature | None = None,
    ) -> None:
        """Create the encodings, the blocks and the final norm.

        Args:
            axes: Number of coordinates of a token.
            length: Number of tokens along each axis in training; see `Dims`.
            head_dim: Head dim K; dim divided by heads by default.
            points: Whether tokens are points at any real coordinates.
            causal: Whether attention has a causal mask.
            window: Number of tokens in the sliding window of attention. None: no window.
            temperature: Factors of queries that grow with the position. None: no factors.

        Raises:
            OptionError: An encoding does not fit the model, or a size another.
        """
        dims = self._make_dims(axes=axes, length=length, head_dim=head_dim or 0, points=points)
        attention = replace(self._attention, causal=causal, window=window, temperature=temperature)
        options = self._block_options
        changes = [self._types[name] for name in self.layer_types]
        self.layer_keys, depth = tuple(map(frozenset, changes)), dims.depth or 1
        mixers = [self._build_mixer(replace(dims, layer=layer), causal) for layer in range(depth)]
        if all(mixers):
            _check_has_attention(attention, options)
        if options.norm_position == "hybrid" and not any(mixers):
            problem = "hybrid needs layers with a mixer, of which there are none"
            raise OptionError("block.norm_position", f"{problem}; write branch")
        # Only what is added to the input reaches a layer whose mixer uses no encodings.
        plans: list[Mapping[str, EncodingFactory] | None] = [
            {} if mixer and not mixer.uses_encodings else change.get("encoding")
            for mixer, change in zip(mixers, changes or [{}] * depth, strict=True)
        ]
        self.encoding, self.chains = build_chains(
            dims,
            self._factories,
            causal=causal,
            by_layer=plans,
            keys=[self.locate(layer, "encoding") for layer in range(len(changes))],
        )
        self.has_groups = any(chain.group for chain in self.chains)
        blocks = []
        for chain in self.chains:
            layer = chain.dims.layer
            layer_changes = {**changes[layer]} if changes else {}
            layer_changes.pop("encoding", None)
            layer_changes.pop("mixer", None)
            try:
                layer_options = replace(attention, **layer_changes)
                blocks.append(Block(chain.dims, options, layer_options, mixers[layer]))
            except OptionError as error:
                raise OptionError(self.locate(layer, error.key), error.message) from None
        self.blocks = nn.ModuleList(blocks)
        self.embed_norm = make_norm(dims.dim, options) if options.embed_norm else None
        is_post = options.norm_position == "post"
        self.norm = nn.Identity() if is_post else make_norm(dims.dim, options)
        # a model is pickled without what it was built from
        del self._make_dims, self._attention, self._factories, self._block_options, self._types

    def _build_mixer(self, dims: Dims, causal: bool) -> Mixer | None:
        """Build the mixer of a layer, if its type has one.

        Raises:
            OptionError: It needs a causal mask, which the model does not have, or the type has a
                key that no mixer can use.
        """
        changes = self._types[self.layer_types[dims.layer]] if self.layer_types else {}
        if changes.get("mixer") is None:
            return None
        mixer: Mixer = changes["mixer"](dims, self._block_options)
        if mixer.causal_only and not causal:
            message = f"{mixer.name} needs a causal mask, which this model does not have"
            hint = "leave it out, or choose a causal model such as decoder"
            raise OptionError(self.locate(dims.layer, "mixer"), f"{message}; {hint}")
        mixer.causal = causal
        for key in changes.keys() - {"mixer"}:
            if key == "encoding" and mixer.uses_encodings:
                continue
            message = f"{mixer.name} has no scores of queries and keys, which this changes"
            if key == "encoding":
                message = f"{mixer.name} uses no encoding: its state carries the order of tokens"
            hint = "leave it out of this type"
            raise OptionError(self.locate(dims.layer, key), f"{message}; {hint}")
        return mixer

    def locate(self, layer: int, key: str) -> str:
        """Return the full key of an option of a layer: that of the model, or of the layer's type.

        Args:
            layer: Index of the layer.
            key: An option of the model, or a key below one.
        """
        if not self.layer_types or key.partition(".")[0] not in self.layer_keys[layer]:
            return key
        return f"layer_types.{self.layer_types[layer]}.{key}"

    def run_blocks(
        self,
        tokens: Tokens,
        context: Context | None = None,
        after_block: Callable[[int, Tokens], None] | None = None,
    ) -> Tokens:
        """Apply the encodings, all blocks and the final norm to tokens with states [B, N, D].

        Args:
            tokens: The tokens.
            context: The memory of earlier calls. None: there is none.
            after_block: Called with the index and the output of each block.
        """
        # Hooks come first, so that encodings see the tokens that hooks changed.
        context = context or Context()
        for hook in self.token_hooks:
            tokens = hook(tokens)

        # Layers with the same encodings share their tables, and others do not see them.
        groups = embed_groups(self.chains, tokens) if self.has_groups else {}
        tokens = groups[0] if groups else self.chains[0].embed(tokens)
        if self.embed_norm is not None:
            tokens = tokens.replace(x=self.embed_norm(tokens.x))
        # Transforms do not follow what is recomputed.
        recomputes = (
            self.activation_checkpointing and self.training and not is_transformed(tokens.x)
        )
        selective = self.activation_checkpointing == "selective"
        for number, (block, chain) in enumerate(zip(self.blocks, self.chains, strict=True)):
            if groups:
                tokens = tokens.take_tables(groups[chain.group])
            try:
                if recomputes:
                    tokens = _run_checkpointed(block, tokens, chain, context, selective=selective)
                else:
                    tokens = block(tokens, chain, context)
            except OptionError as error:
                if not self.layer_types:
                    raise
                raise OptionError(self.locate(chain.dims.layer, error.key), error.message) from None
            if after_block is not None:
                after_block(number, tokens)
        return tokens.replace(x=self.norm(tokens.x))


def _check_has_attention(attention: AttentionOptions, options: BlockOptions) -> None:
    """Raise OptionError for an option of attention in a model that has a mixer in each layer."""
    given = {
        "window": attention.window is not None,
        "softcap": attention.softcap is not None,
        "sinks": attention.sinks,
        "temperature": attention.temperature is not None,
        "backend": attention.backend != "auto",
        "block.attention_dropout": options.attention_dropout > 0,
    }
    for key, is_given in given.items():
        if is_given:
            message = "no layer has softmax attention, each has a mixer"
            raise OptionError(key, f"{message}; leave it out, or give a layer attention")


def find_transformers(model: nn.Module) -> list[Transformer]:
    """List the transformers in a model: the model itself, those that it wraps, or none."""
    return [module for module in model.modules() if isinstance(module, Transformer)]


def enable_activation_checkpointing(model: nn.Module, *, selective: bool = False) -> None:
    """Store only the inputs of blocks in training, and recompute the rest in the backward pass.

    The method is that of Chen et al. 2016, arXiv:1604.06174.

    Args:
        model: The model.
        selective: Store the outputs of matrix products and of fused attention too, so that only
            what is cheap to compute is recomputed.

    Raises:
        OptionError: The model contains no Transformer.
    """
    transformers = find_transformers(model)
    if not transformers:
        message = "the model has no transformer blocks to recompute; leave it out"
        raise OptionError("activation_checkpointing", message)
    for transformer in transformers:
        transformer.activation_checkpointing = "selective" if selective else True


def compile_model(model: nn.Module, part: bool | Literal["blocks"], mode: str) -> None:
    """Compile a model or each of its blocks, if asked.

    Args:
        model: The model.
        part: True: the whole model. "blocks": each block by itself. False: nothing.
        mode: The mode of torch.compile.

    Raises:
        OptionError: Blocks are to be compiled, and the model contains no Transformer.
    """
    options = {} if mode == "default" else {"mode": mode}
    if part == "blocks":
        compile_blocks(model, **options)
    elif part:
        model.compile(**options)


def compile_blocks(model: nn.Module, **options: Any) -> None:
    """Compile each block by itself, and leave what is between them uncompiled.

    Args:
        model: The model.
        **options: Arguments of torch.compile.

    Raises:
        OptionError: The model contains no Transformer.
    """
    transformers = find_transformers(model)
    if not transformers:
        message = "the model has no transformer blocks to compile"
        raise OptionError("compile", f"{message}; set it to true for the whole model")
    blocks = [block for transformer in transformers for block in transformer.blocks]
    # Blocks share their code, but not always a graph: a layer may have one of its own, and training
    # and evaluation have two.
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, GRAPHS_PER_BLOCK * len(blocks))
    for block in blocks:
        block.compile(**options)


def _run_checkpointed(
    block: nn.Module, tokens: Tokens, chain: Chain, context: Context, *, selective: bool
) -> Tokens:
    """Run a block under checkpointing."""
    # The recomputation must see the context of the first run, which the block changes.
    before = context.copy()

    def run(x: Tensor) -> tuple[Tokens, Context]:
        after = before.copy()
        return block(tokens.replace(x=x), chain, after), after

    options: dict[str, Any] = {"context_fn": _CONTEXTS} if selective else {}
    # The states are an argument because torch takes from it the device whose random state it
    # restores. The result has another name because `run` reads `tokens` again later.
    result, after = checkpoint(run, tokens.x, use_reentrant=False, **options)
    context.restore(after)
    return result
