"""The self-attention layer, the one place where a model calls its encodings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from math import gcd
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.backends.dispatch import attend, choose_backend
from zoo.attention.call import AttentionCall, repeat_kv_heads
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.layer_state import LayerState
from zoo.attention.linear_sums import LinearCall
from zoo.attention.soft_cap import check_softcap
from zoo.attention.temperature import Temperature
from zoo.attention.tokens import Tokens, order_padding_first, take_tokens
from zoo.errors import OptionError, refuse_type
from zoo.options import Between

# Measured bounds of the faster product of `project`: at most so many rows of x, and at least so
# many numbers in the weight.
MAX_ROWS = 4
MIN_WEIGHTS = 2**16


"""Bounds of scores that are finite, and different from each other, in float32."""


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Options of an attention layer.

    FoX (Pro) (arXiv:2503.02130) sets qk_norm with qk_norm_eps 1e-5, output_norm, output_gate,
    token_shift and per_head_norms, and unsets proj_bias.
    """

    qk_norm: bool = False
    """RMS norm of each head's queries and keys, before encodings transform them."""

    output_norm: bool = False
    """RMS norm of each head's output."""

    per_head_norms: bool = False
    """Give these norms a weight per head and channel [H K]. Otherwise all heads share one [K]."""

    qk_norm_joint: bool = False
    """Let qk_norm normalize all heads together, over H K channels (OLMo 2, arXiv:2501.00656)."""

    qk_norm_eps: Annotated[float, Between(1e-12, 1)] | None = None
    """Epsilon of qk_norm. The default is 1e-6, the epsilon of the other norms."""

    output_gate: bool = False
    """Multiply the output by the sigmoid of a projection of the input."""

    token_shift: bool = False
    """Mix keys and values with those of the previous token."""

    key_bias: bool = False
    """Bias of the key projection. It changes weights only if an encoding transforms keys, or with
    sinks or a soft cap; otherwise it adds the same number to all scores of a row, which a softmax
    ignores."""

    proj_bias: bool = True
    """Biases of the query, value and output projections."""

    attention_dropout: Annotated[float, Between(0, 0.99)] = 0.0
    """Probability of dropping an attention weight in training, as BERT and GPT-2 do."""

    def __post_init__(self) -> None:
        if self.per_head_norms and not (self.qk_norm or self.output_norm):
            message = "there is no norm of heads to have weights; set qk_norm or output_norm"
            raise OptionError("per_head_norms", message)
        if self.qk_norm_eps is not None and not self.qk_norm:
            raise OptionError("qk_norm_eps", "there is no qk_norm to have an epsilon; set qk_norm")
        if self.qk_norm_joint and not self.qk_norm:
            raise OptionError("qk_norm_joint", "there is no qk_norm of all heads; set qk_norm")
        if self.qk_norm_joint and self.per_head_norms and not self.output_norm:
            message = "qk_norm_joint has a weight for each head and channel anyway"
            raise OptionError("per_head_norms", f"{message}; leave one of them out")


UpdateKeys = Callable[[Tensor, Tokens], tuple[Tensor, Tokens]]
"""(keys [B, G, M, K], their tokens) -> the keys and tokens to remember."""


def keep_keys(k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
    """Return keys and tokens unchanged: the default `UpdateKeys`."""
    return k, tokens


class Context:
    """Memory of attention layers between calls of a model. This base class remembers nothing.

    `seen` is the number of tokens of earlier calls.
    """

    seen = 0

    def extend_states(self, layer: int, tokens: Tokens) -> Tokens:
        """Return the tokens from whose states keys and values are projected."""
        return tokens

    def previous_heads(self, layer: int, heads: Tensor, tokens: Tokens) -> Tensor:
        """Return the heads [B, G, M, ..] of each previous token, 0 at the start of a document."""
        return shift_heads(heads, tokens)

    def extend(
        self,
        layer: int,
        k: Tensor,
        v: Tensor,
        tokens: Tokens,
        update_keys: UpdateKeys = keep_keys,
        window: int | None = None,
        lookback: int = 0,
    ) -> tuple[Tensor, Tensor, Tokens]:
        """Return all keys and values [B, G, M, ..] to attend to, and their tokens.

        Args:
            layer: Index of the layer.
            k: Keys of this call.
            v: Values of this call.
            tokens: Tokens of this call.
            update_keys: Changes keys before they are remembered.
            window: Number of tokens that later queries attend to; earlier ones may be forgotten.
            lookback: Number of tokens before these on whose data they depend.
        """
        return k, v, tokens

    def state(self, layer: int) -> LayerState | None:
        """Return the state of a layer without keys after earlier calls."""
        return None

    def store_state(self, layer: int, state: LayerState, tokens: Tokens) -> None:
        """Remember the state of a layer after the tokens of this call."""

    def copy(self) -> Context:
        """Return an independent context with the same content."""
        new = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                setattr(new, name, dict(value))
        return new

    def restore(self, other: Context) -> None:
        """Take over the content of a copy."""
        vars(self).update(vars(other))


class HeadLayer(nn.Module):
    """The projections of a layer with heads of queries, keys and values, and back to states.

    A subclass describes what it computes from the heads, and computes it.

    Args:
        dims: The sizes.
        options: Options that all layers of a model share.
    """

    def __init__(self, dims: Dims, options: LayerOptions) -> None:
        # not super(): a mixer with heads has two bases, of which each needs other arguments
        nn.Module.__init__(self)
        self.dims, self.head_dim = dims, dims.head_dim
        q_dim, kv_dim = dims.heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
        bias = options.proj_bias
        self.q_proj = Projection(dims.dim, q_dim, bias=bias)
        self.k_proj = Projection(dims.dim, kv_dim, bias=options.key_bias)
        self.v_proj = Projection(dims.dim, kv_dim, bias=bias)
        self.o_proj = Projection(q_dim, dims.dim, bias=bias)

        self.token_shift: nn.Linear | None = None
        self.output_gate: nn.Linear | None = None
        if options.token_shift:
            self.token_shift = nn.Linear(dims.dim, 2 * dims.num_kv_heads, bias=False)
        if options.output_gate:
            self.output_gate = Projection(dims.dim, q_dim, bias=False)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        self.output_norm: nn.Module = nn.Identity()
        if options.qk_norm:
            joint, eps = options.qk_norm_joint, options.qk_norm_eps
            self.q_norm = _make_norm(dims, dims.heads, options, eps, joint)
            self.k_norm = _make_norm(dims, dims.num_kv_heads, options, eps, joint)
        if options.output_norm:
            self.output_norm = _make_norm(dims, dims.heads, options)

    @abstractmethod
    def describe(
        self, tokens: Tokens, chain: Chain, context: Context, query_index: Tensor | None = None
    ) -> tuple[Tokens, AttentionCall | LinearCall]:
        """Describe the layer for tokens with states [B, N, D], without computing it.

        Args:
            tokens: The tokens.
            chain: The encodings of the layer.
            context: The memory of earlier calls.
            query_index: Sequence indices int [n] of the only queries to describe, for diagnostics;
                the context must then be empty.

        Returns:
            The tokens that the encodings prepared, and what they describe.
        """

    def merge_heads(self, out: Tensor, x: Tensor) -> Tensor:
        """Merge the outputs of heads [B, H, N, V] into [B, N, D]; x are the input states."""
        out = self.output_norm(out).transpose(1, 2).flatten(2)
        if self.output_gate is not None:
            out = out * self.output_gate(x).sigmoid()
        return self.o_proj(out)

    def project_heads(
        self, tokens: Tokens, context: Context
    ) -> tuple[Tokens, Tensor, Tensor, Tensor]:
        """Project states to heads, before encodings transform them.

        Returns:
            The tokens of the keys, queries [B, H, N, K], and keys and values [B, G, M, K].
        """
        # With a segment memory, keys and values also come from remembered states.
        states = context.extend_states(self.dims.layer, tokens)
        q = self.q_norm(self._split_heads(self.q_proj(tokens.x)))
        k, v = self._split_heads(self.k_proj(states.x)), self._split_heads(self.v_proj(states.x))
        if self.token_shift is not None:
            rates = self.token_shift(states.x).sigmoid()  # [B, M, 2 G]
            k, v = self._shift_tokens(rates, k, v, states, context)
        return states, q, self.k_norm(k), v

    def _split_heads(self, x: Tensor) -> Tensor:
        """Split [B, N, H K] into [B, H, N, K]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _shift_tokens(
        self, rates: Tensor, k: Tensor, v: Tensor, states: Tokens, context: Context
    ) -> tuple[Tensor, Tensor]:
        """Mix keys and values with those of the previous token, by a rate per key-value head."""
        # One request for both, because a cache remembers the last heads once per call.
        widths = [k.shape[-1], v.shape[-1]]
        before = context.previous_heads(self.dims.layer, torch.cat([k, v], dim=-1), states)
        before_k, before_v = before.split(widths, -1)
        rate_k, rate_v = rates.mT[..., None].chunk(2, dim=1)  # [B, G, M, 1]
        return rate_k * before_k + (1 - rate_k) * k, rate_v * before_v + (1 - rate_v) * v


class SelfAttention(HeadLayer):
    """Self-attention with any encodings: project, describe the call, compute it, project back.

    There may be fewer key-value heads than query heads (`Dims.kv_heads`, arXiv:2305.13245). Caches
    hold only key-value heads.

    Args:
        dims: The sizes.
        options: Options that all layers of a model share.
        causal: Hide keys after their query.
        backend: The attention backend, or "auto".
        window: Number of tokens in the sliding window. None: no window.
        softcap: Bound c of the scaled products s of queries and keys, which become c tanh(s / c)
            before biases (Gemma 2, arXiv:2408.00118). None: no bound.
        sinks: Add a learned score per head to the denominator of the softmax (GPT-OSS,
            arXiv:2508.10925). The parameter `sinks` [H] starts at 0.
        temperature: Factors of queries that grow with the position (Llama 4). None: no factors.

    Raises:
        OptionError: An option does not fit the others.
    """

    sinks: nn.Parameter | None

    def __init__(
        self,
        dims: Dims,
        options: LayerOptions = LayerOptions(),
        *,
        causal: bool = False,
        backend: str = "auto",
        window: int | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        temperature: Temperature | None = None,
    ) -> None:
        super().__init__(dims, options)
        if options.attention_dropout and backend == "flex":
            message = "flex has no dropout of attention weights"
            raise OptionError("block.attention_dropout", f"{message}; choose another backend")
        if softcap is not None:
            check_softcap(softcap)
        if temperature is not None:
            temperature.check_axes(dims.axes)
        self.causal, self.backend, self.window = causal, backend, window
        self.softcap, self.temperature = softcap, temperature
        self.dropout = options.attention_dropout
        self.sinks = nn.Parameter(torch.zeros(dims.heads)) if sinks else None

    def forward(
        self, tokens: Tokens, chain: Chain, context: Context
    ) -> tuple[Tokens, Tensor | None]:
        """Apply the layer to tokens with states [B, N, D].

        Returns:
            Tokens with the output [B, N, D] as their states, and the averages of extra values
            [B, H, N, E] for `chain.after_attention`, or None.
        """
        tokens, call = self.describe(tokens, chain, context)
        out, extra = attend(call, self.backend)
        return tokens.replace(x=self.merge_heads(out, tokens.x)), extra

    def describe(
        self, tokens: Tokens, chain: Chain, context: Context, query_index: Tensor | None = None
    ) -> tuple[Tokens, AttentionCall]:
        """Describe the attention of tokens with states [B, N, D], without computing it.

        Args:
            tokens: The tokens.
            chain: The encodings of the layer.
            context: The memory of earlier calls.
            query_index: Sequence indices int [n] of the only queries to describe, for diagnostics;
                the context must then be empty.

        Returns:
            The tokens that the encodings prepared, and the call.
        """
        # Per-token work comes before the cache.
        tokens = chain.prepare(tokens)
        states, raw_query, k, v = self.project_heads(tokens, context)  # [B, H, N, K], [B, G, M, K]
        queries = tokens
        if query_index is not None:
            raw_query, queries = raw_query[:, :, query_index], tokens.select(query_index)

        q, k = chain.transform_query(raw_query, queries), chain.transform_key(k, states)
        if self.temperature is not None:
            q, raw_query = (
                self.temperature.scale_queries(vectors, queries) for vectors in (q, raw_query)
            )
        if chain.turn_values:
            v = chain.transform_value(v, states)
        k, v, keys = context.extend(
            self.dims.layer, k, v, states, chain.update_cached_keys, self.window, chain.lookback
        )

        # Work per pair comes after it.
        heads = self.dims.heads
        call = AttentionCall(
            q,
            repeat_kv_heads(k, heads),  # [B, H, M, K]
            repeat_kv_heads(v, heads),  # [B, H, M, V]
            raw_query,
            queries,
            keys,
            self.causal,
            self.head_dim**-0.5,
            softcap=self.softcap,
            sinks=self.sinks,
            transform_output=chain.describe_output(queries),
            transform_query=lambda x: chain.transform_query(x, queries),
            window=self.window,
            query_index=query_index,
            dropout=self.dropout if self.training else 0.0,
        )
        return tokens, chain.modify(call)

    def plan(self, tokens: Tokens, chain: Chain, device: str) -> tuple[str, str]:
        """Return the backend that would compute this layer on a device type, and the reason."""
        choice = choose_backend(self.describe(tokens, chain, Context())[1], device)
        return choice if self.backend == "auto" else (self.backend, "as the recipe says")


def shift_heads(heads: Tensor, tokens: Tokens) -> Tensor:
    """Shift heads [B, G, M, ..] by one token within documents; the first token gets 0.

    Padding inside a document is passed over.
    """
    if tokens.document is None:
        return _shift(heads)
    order = order_padding_first(tokens.document)
    document = tokens.document.gather(1, order)
    is_same = document[:, 1:] == document[:, :-1]  # [1|B, M - 1]
    shifted = _shift(take_heads(heads, order))
    within = shifted[:, :, 1:].masked_fill(~is_same[:, None, :, None], 0)
    return take_heads(torch.cat([shifted[:, :, :1], within], dim=2), order.argsort(1))


def take_heads(heads: Tensor, order: Tensor) -> Tensor:
    """Return heads [B, G, M, ..] in another order of the tokens, int [1|B, n], for each sample."""
    return take_tokens(heads.transpose(1, 2), order).transpose(1, 2)


def _shift(heads: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(heads[:, :, :1]), heads[:, :, :-1]], dim=2)


@dataclass(frozen=True)
class AttentionInput:
    """The input of one attention layer that is about to be computed.

    Attributes:
        layer: Index of the layer.
        tokens: The tokens that enter it, with their documents and padding where there are any.
        chain: Its encodings.
        describe: Describes the attention for some queries, by their sequence indices int [n].
    """

    layer: int
    tokens: Tokens
    chain: Chain
    describe: Callable[[Tensor], AttentionCall | LinearCall]


class Encoded:
    """A model, or a part of one, with encodings; hooks observe and change what passes through.

    Attributes:
        chains: The encodings of each layer.
        token_hooks: Change the tokens before the first layer.
        attention_hooks: Receive the input of each attention if `calls_hooks` is true. Otherwise
            each layer is a `HeadLayer`, a module with torch's own hooks.
        output_hooks: Change the output of each attention in the same models: functions of the
            index of the layer and of the outputs of its heads [B, H, N, V].
    """

    calls_hooks = False

    chains: tuple[Chain, ...]
    token_hooks: list[Callable[[Tokens], Tokens]]
    attention_hooks: list[Callable[[AttentionInput], None]]
    output_hooks: list[Callable[[int, Tensor], Tensor]]


def find_encoded(model: nn.Module) -> list[Encoded]:
    """List the parts of a model that have encodings."""
    return [module for module in model.modules() if isinstance(module, Encoded)]


@contextmanager
def hook_tokens(model: Encoded, hook: Callable[[Tokens], Tokens]) -> Iterator[None]:
    """Within the context, pass the tokens before the first layer of `model` through `hook`."""
    model.token_hooks.append(hook)
    try:
        yield
    finally:
        model.token_hooks.remove(hook)


class HeadRMSNorm(nn.Module):
    """RMS norm of heads [B, H, N, K] with a weight for each head and channel.

    Attributes:
        weight: [H K].
    """

    def __init__(self, heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.heads, self.head_dim, self.eps = heads, head_dim, eps
        self.weight = nn.Parameter(torch.ones(heads * head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [B, H, N, K] over its channels."""
        normed = F.rms_norm(x, (self.head_dim,), eps=self.eps)
        return normed * self.weight.view(self.heads, 1, self.head_dim)


class JointRMSNorm(nn.RMSNorm):
    """RMS norm of heads [B, H, N, K] over the channels of all heads, with a weight [H K]."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [B, H, N, K] over its heads and channels."""
        normed = super().forward(x.transpose(1, 2).flatten(2))  # [B, N, H K]
        return normed.unflatten(-1, (x.shape[1], x.shape[3])).transpose(1, 2)


def _make_norm(
    dims: Dims, heads: int, options: LayerOptions, eps: float | None = None, joint: bool = False
) -> nn.Module:
    eps = 1e-6 if eps is None else eps
    if joint:
        return JointRMSNorm(heads * dims.head_dim, eps=eps)
    if options.per_head_norms:
        return HeadRMSNorm(heads, dims.head_dim, eps)
    return nn.RMSNorm(dims.head_dim, eps=eps)


class Projection(nn.Linear):
    """An `nn.Linear` that is faster for a few rows on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [.., I] to [.., O]."""
        return project(x, self.weight, self.bias)


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `F.linear`, faster for a few rows and a large weight if no gradient is needed.

    MKL multiplies a matrix by a vector in one thread, at less than half the speed at which memory
    can be read. A batched product over parts of the matrix reads it with all threads.

    Args:
        x: [.., I].
        weight: [O, I].
        bias: [O].

    Returns:
        [.., O].
    """
    parts = _count_parts(x, weight)
    if parts < 2:
        return F.linear(x, weight, bias)

    # Every part multiplies all rows: weight [parts, O / parts, I] @ columns [parts, I, rows].
    columns = x.reshape(1, -1, weight.shape[1]).expand(parts, -1, -1).mT  # [parts, I, rows]
    weight = weight.view(parts, -1, weight.shape[1])
    out = (
        weight @ columns
        if bias is None
        else torch.baddbmm(bias.reshape(parts, -1, 1), weight, columns)
    )
    return out.flatten(0, 1).mT.reshape(*x.shape[:-1], -1)


def _count_parts(x: Tensor, weight: Tensor) -> int:
    """Choose the number of parts for which the product is fastest; 1: compute it whole."""
    has_few_rows = 0 < x.numel() <= MAX_ROWS * weight.shape[1]
    if torch.is_grad_enabled() or weight.numel() < MIN_WEIGHTS or not has_few_rows:
        return 1
    # A subclass of Tensor (quantized, sharded) has a product of its own.
    is_plain = type(weight) in (Tensor, nn.Parameter) and weight.is_contiguous()
    is_float32 = x.dtype == weight.dtype == torch.float32
    if not is_plain or not is_float32 or weight.device.type != "cpu":
        return 1
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return 1
    return gcd(len(weight), 2 * torch.get_num_threads()) if torch.backends.mkl.is_available() else 1


def check_layers(layers: Sequence[int], depth: int) -> tuple[int, ...]:
    """Return numbers of blocks from 0, of numbers that may count from the end.

    Raises:
        OptionError: There is no such block, or no number.
    """
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise refuse_type("layers", layers, "a list of numbers")
    if not layers:
        raise OptionError("layers", "the list is empty; name a layer")
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -depth <= layer < depth:
            message = f"there is no layer {layer!r}"
            raise OptionError("layers", f"{message}; the model has layers 0 to {depth - 1}")
    return tuple(layer % depth for layer in layers)
