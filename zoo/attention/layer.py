"""The attention layer: everything there is to integrating an encoding."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import linear
from zoo.attention.backends.dispatch import attend, choose_backend
from zoo.attention.call import AttentionCall, repeat_kv_heads
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.kv_cache import Context
from zoo.attention.linear import LinearCall
from zoo.attention.tokens import Tokens, disable_autocast
from zoo.errors import OptionError

FEW, LARGE = (
    4,
    2**16,
)  # rows up to which, and weights from which, parts of a product are faster than the whole


class Projection(nn.Linear):
    """`nn.Linear` by `project`."""

    def forward(self, x: Tensor) -> Tensor:
        return project(x, self.weight, self.bias)


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [.., I] times weight [O, I] transposed, plus bias [O]: `F.linear`, in parts where a few rows meet a large weight.

    MKL multiplies a matrix with one vector in one thread, and in less than half the speed at which memory can be read;
    as a batch of parts of the matrix, it reads with all threads. Only where no gradient is recorded.
    """
    parts = _parts(x, weight)
    if parts < 2:
        return F.linear(x, weight, bias)
    columns = x.reshape(1, -1, weight.shape[1]).expand(parts, -1, -1).mT  # [parts, I, rows]
    weight = weight.view(parts, -1, weight.shape[1])
    out = (
        weight @ columns
        if bias is None
        else torch.baddbmm(bias.reshape(parts, -1, 1), weight, columns)
    )
    return out.flatten(0, 1).mT.reshape(*x.shape[:-1], -1)


def _parts(x: Tensor, weight: Tensor) -> int:
    """In how many parts the product is fastest."""
    if (
        torch.is_grad_enabled()
        or weight.numel() < LARGE
        or not 0 < x.numel() <= FEW * weight.shape[1]
    ):
        return 1
    plain = (
        type(weight) in (Tensor, nn.Parameter)
        and weight.is_contiguous()
        and x.dtype == weight.dtype == torch.float32
    )
    if (
        not plain
        or weight.device.type != "cpu"
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
    ):
        return 1
    return gcd(len(weight), 2 * torch.get_num_threads()) if torch.backends.mkl.is_available() else 1


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What an attention layer has beside its projections; the first four make the layer of FoX (Pro) (arXiv:2503.02130)."""

    qk_norm: bool = (
        False  # each head's queries and keys at unit root mean square, before anything turns them
    )
    output_norm: bool = False  # each head's output at unit root mean square
    output_gate: bool = False  # outputs times sigmoid of a projection of the input
    token_shift: bool = False  # keys and values mixed with those of the token before
    key_bias: bool = False  # of published models; tells in scores only where keys are turned


class SelfAttention(nn.Module):
    """Projects tokens to heads, lets the chain describe attention, computes it, projects back.

    Query heads may share key heads (`Dims.kv_heads`, arXiv:2305.13245), and what is remembered has these alone.

    Keys have no bias unless asked: where nothing turns them, it adds to all scores of a row alike, which a softmax does not
    see. Turned, it differs from key to key.
    """

    def __init__(
        self,
        dims: Dims,
        options: LayerOptions = LayerOptions(),
        *,
        causal: bool = False,
        backend: str = "auto",
        window: int | None = None,
        attention: str = "softmax",
    ) -> None:
        super().__init__()
        self.dims, self.causal, self.backend, self.window = dims, causal, backend, window
        self.linear = attention == "linear"
        if attention not in linear.KINDS:
            raise OptionError(
                "attention", f"no attention {attention!r}; known are {', '.join(linear.KINDS)}"
            )
        if self.linear and window is not None:
            raise OptionError(
                "window", "sums over all keys have none; leave it out, or choose attention softmax"
            )
        if self.linear and backend != "auto":
            raise OptionError(
                "backend",
                "linear attention has one way to compute it; leave it out, or choose attention softmax",
            )
        self.q_proj = Projection(dims.dim, dims.dim)
        self.k_proj = Projection(dims.dim, dims.num_kv_heads * dims.head_dim, bias=options.key_bias)
        self.v_proj = Projection(dims.dim, dims.num_kv_heads * dims.head_dim)
        self.o_proj = Projection(dims.dim, dims.dim)
        self.token_shift = (
            nn.Linear(dims.dim, 2 * dims.num_kv_heads, bias=False) if options.token_shift else None
        )
        self.output_gate = (
            Projection(dims.dim, dims.dim, bias=False) if options.output_gate else None
        )
        self.q_norm = _norm(dims, options.qk_norm)
        self.k_norm = _norm(dims, options.qk_norm)
        self.output_norm = _norm(dims, options.output_norm)

    def describe(
        self, tokens: Tokens, chain: Chain, context: Context, query_index: Tensor | None = None
    ) -> tuple[Tokens, AttentionCall]:
        """The attention call for tokens with states [B, N, D], not yet computed, and the tokens with what was noted.

        With `slots`, int [n], the call of those tokens' queries alone, for whoever looks at attention and has no context.
        """
        tokens = chain.prepare(tokens)
        states, content, k, v = self._projected(tokens, context)
        queries = tokens
        if query_index is not None:
            content, queries = content[:, :, query_index], tokens.select(query_index)
        q, k = chain.transform_query(content, queries), chain.transform_key(k, states)
        window = None if self.window is None else self.window + chain.lookback
        k, v, keys = context.extend(self.dims.layer, k, v, states, chain.update_cached_keys, window)
        k, v = (
            repeat_kv_heads(k, self.dims.heads),
            repeat_kv_heads(v, self.dims.heads),
        )  # [B, H, M, K]
        scale = self.dims.head_dim**-0.5
        call = AttentionCall(
            q,
            k,
            v,
            content,
            queries,
            keys,
            self.causal,
            scale,
            transform_query=lambda x: chain.transform_query(x, queries),
        )
        return tokens, chain.modify(call.replace(window=self.window, query_index=query_index))

    def describe_linear(
        self, tokens: Tokens, chain: Chain, context: Context, query_index: Tensor | None = None
    ) -> tuple[Tokens, LinearCall]:
        """The same of kernel elu. Raises OptionError for an encoding that linear attention has no place for."""
        tokens = chain.prepare(tokens)
        states, content, k, v = self._projected(tokens, context)
        queries = tokens
        if query_index is not None:
            content, queries = content[:, :, query_index], tokens.select(query_index)
        with disable_autocast(v.device):
            content, features = linear.feature_map(content), linear.feature_map(k)
            q, k = chain.transform_query(content, queries), chain.transform_key(features, states)
        call = AttentionCall(
            q, k, v, content, queries, states, self.causal, scale=1.0, query_index=query_index
        )
        linear.check_supported(chain, call)
        return tokens, LinearCall(call, features)

    def plan(self, tokens: Tokens, chain: Chain, device: str) -> tuple[str, str]:
        """What will compute this layer on a type of device, and why."""
        if self.linear:
            self.describe_linear(tokens, chain, Context())
            return "sums", f"over keys, in chunks of {linear.CHUNK}" if self.causal else "over keys"
        able = choose_backend(self.describe(tokens, chain, Context())[1], device)
        return able if self.backend == "auto" else (self.backend, "as the recipe says")

    def forward(
        self, tokens: Tokens, chain: Chain, context: Context
    ) -> tuple[Tokens, Tensor | None]:
        """Tokens with the layer's output [B, N, D] as their state, and mixed riders [B, H, N, E] for `chain.update`."""
        if self.linear:
            tokens, out = self._summed(tokens, chain, context)
            riders = None
        else:
            tokens, call = self.describe(tokens, chain, context)
            out, riders = attend(call, self.backend)
        return tokens.replace(x=self.merge_heads(out, tokens.x)), riders

    def merge_heads(self, out: Tensor, x: Tensor) -> Tensor:
        """Heads' outputs [B, H, N, V] for tokens with states x [B, N, D] as one, [B, N, D]."""
        out = self.output_norm(out).transpose(1, 2).flatten(2)
        if self.output_gate is not None:
            out = out * self.output_gate(x).sigmoid()
        return self.o_proj(out)

    def _summed(self, tokens: Tokens, chain: Chain, context: Context) -> tuple[Tokens, Tensor]:
        """Tokens with what was noted, and the output [B, H, N, V] of linear attention."""
        tokens, call = self.describe_linear(tokens, chain, context)
        if not self.causal:
            return tokens, linear.attend_bidirectional(call)
        out, state = linear.attend_causal(call, context.linear_state(self.dims.layer))
        context.store_linear_state(self.dims.layer, state, tokens)
        return tokens, out

    def _projected(self, tokens: Tokens, context: Context) -> tuple[Tokens, Tensor, Tensor, Tensor]:
        """The tokens that keys come from, queries [B, H, N, K], keys and values [B, G, M, K], before anything turns them."""
        states = context.extend_states(self.dims.layer, tokens)
        content = self.q_norm(self._heads(self.q_proj(tokens.x)))
        k, v = self._heads(self.k_proj(states.x)), self._heads(self.v_proj(states.x))
        if self.token_shift is not None:
            k, v = self._shifted(self.token_shift, k, v, states, context)
        return states, content, self.k_norm(k), v

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.dims.head_dim)).transpose(1, 2)

    def _shifted(
        self, rates: nn.Linear, k: Tensor, v: Tensor, states: Tokens, context: Context
    ) -> tuple[Tensor, Tensor]:
        """a_t of the token before and 1 - a_t of the token itself, for keys and values, a rate per key head."""
        own = k, v
        before = context.previous_heads(self.dims.layer, torch.cat(own, dim=-1), states).split(
            [k.shape[-1], v.shape[-1]], -1
        )
        shares = rates(states.x).sigmoid().mT[..., None].chunk(2, dim=1)  # [B, G, M, 1]
        mixed = [
            a * earlier + (1 - a) * one for a, earlier, one in zip(shares, before, own, strict=True)
        ]
        return mixed[0], mixed[1]


def _norm(dims: Dims, wanted: bool) -> nn.Module:
    return nn.RMSNorm(dims.head_dim, eps=1e-6) if wanted else nn.Identity()
