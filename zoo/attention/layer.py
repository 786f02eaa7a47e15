"""The attention layer: everything there is to integrating an encoding."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import linear
from zoo.attention.backends.dispatch import attend, choose
from zoo.attention.call import Terms, repeated
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.kv_cache import Context
from zoo.attention.linear import Linear
from zoo.attention.tokens import Tokens, unrounded
from zoo.errors import Invalid

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
    shift: bool = False  # keys and values mixed with those of the token before
    key_bias: bool = False  # of published models; tells in scores only where keys are turned


class SelfAttention(nn.Module):
    """Projects tokens to heads, lets the chain describe attention, computes it, projects back.

    Query heads may share key heads (`Dims.key_heads`, arXiv:2305.13245), and what is remembered has these alone.

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
        kernel: str = "softmax",
    ) -> None:
        super().__init__()
        self.dims, self.causal, self.backend, self.window = dims, causal, backend, window
        self.linear = kernel == "elu"
        if kernel not in linear.KERNELS:
            raise Invalid("kernel", f"no kernel {kernel!r}; known are {', '.join(linear.KERNELS)}")
        if self.linear and window is not None:
            raise Invalid(
                "window", "sums over all keys have none; leave it out, or choose kernel softmax"
            )
        if self.linear and backend != "auto":
            raise Invalid(
                "backend",
                "kernel elu has one way to compute it; leave it out, or choose kernel softmax",
            )
        self.query = Projection(dims.dim, dims.dim)
        self.key = Projection(dims.dim, dims.groups * dims.head, bias=options.key_bias)
        self.value = Projection(dims.dim, dims.groups * dims.head)
        self.out = Projection(dims.dim, dims.dim)
        self.shift = nn.Linear(dims.dim, 2 * dims.groups, bias=False) if options.shift else None
        self.gate = Projection(dims.dim, dims.dim, bias=False) if options.output_gate else None
        self.query_norm = _norm(dims, options.qk_norm)
        self.key_norm = _norm(dims, options.qk_norm)
        self.output_norm = _norm(dims, options.output_norm)

    def describe(
        self, tokens: Tokens, chain: Chain, context: Context, slots: Tensor | None = None
    ) -> tuple[Tokens, Terms]:
        """The attention call for tokens with states [B, N, D], not yet computed, and the tokens with what was noted.

        With `slots`, int [n], the call of those tokens' queries alone, for whoever looks at attention and has no context.
        """
        tokens = chain.annotate(tokens)
        states, content, k, v = self._projected(tokens, context)
        queries = tokens
        if slots is not None:
            content, queries = content[:, :, slots], tokens.take(slots)
        q, k = chain.turn_query(content, queries), chain.turn_key(k, states)
        window = None if self.window is None else self.window + chain.behind
        k, v, keys = context.keys(self.dims.layer, k, v, states, chain.settle, window)
        k, v = repeated(k, self.dims.heads), repeated(v, self.dims.heads)  # [B, H, M, K]
        scale = self.dims.head**-0.5
        terms = Terms(
            q,
            k,
            v,
            content,
            queries,
            keys,
            self.causal,
            scale,
            turn=lambda x: chain.turn_query(x, queries),
        )
        return tokens, chain.terms(terms.replace(window=self.window, slots=slots))

    def describe_linear(
        self, tokens: Tokens, chain: Chain, context: Context, slots: Tensor | None = None
    ) -> tuple[Tokens, Linear]:
        """The same of kernel elu. Raises Invalid for an encoding that linear attention has no place for."""
        tokens = chain.annotate(tokens)
        states, content, k, v = self._projected(tokens, context)
        queries = tokens
        if slots is not None:
            content, queries = content[:, :, slots], tokens.take(slots)
        with unrounded(v.device):
            content, features = linear.elu(content), linear.elu(k)
            q, k = chain.turn_query(content, queries), chain.turn_key(features, states)
        terms = Terms(q, k, v, content, queries, states, self.causal, scale=1.0, slots=slots)
        linear.refuse(chain, terms)
        return tokens, Linear(terms, features)

    def plan(self, tokens: Tokens, chain: Chain, device: str) -> tuple[str, str]:
        """What will compute this layer on a type of device, and why."""
        if self.linear:
            self.describe_linear(tokens, chain, Context())
            return "sums", f"over keys, in chunks of {linear.CHUNK}" if self.causal else "over keys"
        able = choose(self.describe(tokens, chain, Context())[1], device)
        return able if self.backend == "auto" else (self.backend, "as the recipe says")

    def forward(
        self, tokens: Tokens, chain: Chain, context: Context
    ) -> tuple[Tokens, Tensor | None]:
        """Tokens with the layer's output [B, N, D] as their state, and mixed riders [B, H, N, E] for `chain.update`."""
        if self.linear:
            tokens, out = self._summed(tokens, chain, context)
            riders = None
        else:
            tokens, terms = self.describe(tokens, chain, context)
            out, riders = attend(terms, self.backend)
        return tokens.replace(x=self.joined(out, tokens.x)), riders

    def joined(self, out: Tensor, x: Tensor) -> Tensor:
        """Heads' outputs [B, H, N, V] for tokens with states x [B, N, D] as one, [B, N, D]."""
        out = self.output_norm(out).transpose(1, 2).flatten(2)
        if self.gate is not None:
            out = out * self.gate(x).sigmoid()
        return self.out(out)

    def _summed(self, tokens: Tokens, chain: Chain, context: Context) -> tuple[Tokens, Tensor]:
        """Tokens with what was noted, and the output [B, H, N, V] of linear attention."""
        tokens, call = self.describe_linear(tokens, chain, context)
        if not self.causal:
            return tokens, linear.whole(call)
        out, state = linear.causal(call, context.state(self.dims.layer))
        context.remember(self.dims.layer, state, tokens)
        return tokens, out

    def _projected(self, tokens: Tokens, context: Context) -> tuple[Tokens, Tensor, Tensor, Tensor]:
        """The tokens that keys come from, queries [B, H, N, K], keys and values [B, G, M, K], before anything turns them."""
        states = context.states(self.dims.layer, tokens)
        content = self.query_norm(self._heads(self.query(tokens.x)))
        k, v = self._heads(self.key(states.x)), self._heads(self.value(states.x))
        if self.shift is not None:
            k, v = self._shifted(self.shift, k, v, states, context)
        return states, content, self.key_norm(k), v

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.dims.head)).transpose(1, 2)

    def _shifted(
        self, rates: nn.Linear, k: Tensor, v: Tensor, states: Tokens, context: Context
    ) -> tuple[Tensor, Tensor]:
        """a_t of the token before and 1 - a_t of the token itself, for keys and values, a rate per key head."""
        own = k, v
        before = context.before(self.dims.layer, torch.cat(own, dim=-1), states).split(
            [k.shape[-1], v.shape[-1]], -1
        )
        shares = rates(states.x).sigmoid().mT[..., None].chunk(2, dim=1)  # [B, G, M, 1]
        mixed = [
            a * earlier + (1 - a) * one for a, earlier, one in zip(shares, before, own, strict=True)
        ]
        return mixed[0], mixed[1]


def _norm(dims: Dims, wanted: bool) -> nn.Module:
    return nn.RMSNorm(dims.head, eps=1e-6) if wanted else nn.Identity()
