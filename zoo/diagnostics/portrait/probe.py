"""A probe of an encoding: an attention layer with known projections.

All that differs from the known input is the effect of the encoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Tokens
from zoo.attention.backends.reference import attention_mask, scores, weights
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Encoding
from zoo.attention.layer import Context, LayerOptions, SelfAttention
from zoo.reporting.panel import distinct, name_head, same

# Changes of weights relative to the largest of a row. Below VISIBLE,
# parameters are moved by growing STEPS until the change is PLAIN.
VISIBLE, PLAIN = 0.3, 0.5
STEPS = (0.05, 0.1, 0.2, 0.4, 0.8)
SAMPLES = 16  # number of random contents over which scores are averaged
SEED = 0
TOLERANCE = 1e-6


@dataclass(frozen=True)
class EncodingProbe:
    """A chain of encodings in float64, with methods that measure it.

    Contents are vectors [B, K] with a squared norm of sqrt(K), so that without an encoding the
    score of two equal tokens is 1.

    Args:
        chain: The encodings.
        sizes: Size of the grid of tokens.
        causal: Whether there is a causal mask.
        moved: Whether parameters were moved from initial values that have almost no effect.
    """

    chain: Chain
    sizes: tuple[int, ...]
    causal: bool
    moved: bool = False

    @property
    def dims(self) -> Dims:
        return self.chain.dims

    def draw_contents(self, count: int = SAMPLES) -> Tensor:
        """Draw random contents [count, K]. States that are narrower hold their first channels."""
        drawn = torch.randn(count, self.dims.head_dim, generator=_seed(), dtype=torch.float64)
        drawn[:, self.dims.dim :] = 0
        return drawn * (self.dims.head_dim**0.25 / drawn.norm(dim=-1, keepdim=True))

    def draw_tokens(self, seed: int = SEED) -> Tensor:
        """Draw random tokens [1, N, D]."""
        count = torch.Size(self.sizes).numel()
        return torch.randn(1, count, self.dims.dim, generator=_seed(seed), dtype=torch.float64)

    def repeat_content(self, contents: Tensor) -> Tensor:
        """Return tokens [B, N, D] that are equal within a sample, with heads equal to [B, K]."""
        count = torch.Size(self.sizes).numel()
        return self.to_states(contents)[:, None].expand(-1, count, -1)

    def to_states(self, contents: Tensor) -> Tensor:
        """Return states [B, D] that the projections of the probe make heads [B, K] of.

        Channels that no head reads are 0. If heads are wider than the states, their last channels
        are lost.
        """
        read = self._project_to_heads(contents).any(0)
        channel = torch.arange(self.dims.dim) % self.dims.head_dim
        return contents[:, channel] * read

    def _project_to_heads(self, like: Tensor) -> Tensor:
        """Return the projection [H K, D] of the probe: the identity where H K is D.

        Each row reads one channel. Heads that find no channels of their own in narrow states read
        those of other heads; states that are wider than all heads have channels that nobody reads.
        """
        dim, width, heads = self.dims.dim, self.dims.head_dim, self.dims.heads
        places = max(dim // width, 1)  # of heads side by side in a state
        row = torch.arange(heads * width)
        channel = row // width % places * width + row % width
        weight = torch.zeros(heads * width, dim, dtype=like.dtype)
        is_there = channel < dim
        weight[row[is_there], channel[is_there]] = 1
        return weight

    def to_tokens(self, x: Tensor, index: Tensor | None = None) -> Tokens:
        """Make tokens of states x [B, N, D] at indices [N, P]; those of the grid by default."""
        index = grid(self.sizes, x) if index is None else index
        tokens = Tokens.at(x, index, ordered=self.dims.axes == 1)
        sizes = self.sizes if self.dims.length is None else self.dims.sizes
        return tokens.replace(grid_size=x.new_tensor([[sizes]]))

    def measure_input(self) -> Tensor:
        """Return the vectors that the encoding adds to the input of the first layer [N, D]."""
        tokens = self.to_tokens(torch.zeros_like(self.draw_tokens()))
        return self.chain.prepare(self.chain.embed(tokens)).x[0]

    def call(self, x: Tensor, index: Tensor | None = None) -> AttentionCall:
        """Describe the attention of a layer whose heads are parts of its states."""
        return self._describe(x, self._project_to_heads(x), 0.0, index)

    def call_constant(self, x: Tensor, value: float) -> AttentionCall:
        """Describe the attention of a layer whose queries and keys are all `value`."""
        return self._describe(x, torch.zeros_like(self._project_to_heads(x)), value, None)

    def _describe(
        self, x: Tensor, weight: Tensor, bias: float, index: Tensor | None
    ) -> AttentionCall:
        # On the meta device no random numbers are drawn for weights that are replaced anyway.
        with torch.device("meta"):
            layer = SelfAttention(self.dims, LayerOptions(key_bias=True), causal=self.causal)
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
            rows = projection.out_features
            projection.weight = nn.Parameter(weight[:rows], requires_grad=False)
            projection.bias = nn.Parameter(weight.new_full((rows,), bias), requires_grad=False)
        tokens = self.chain.embed(self.to_tokens(x, index))
        return layer.describe(tokens, self.chain, Context())[1]


def build_probe(encoding: Encoding, sizes: tuple[int, ...], causal: bool) -> EncodingProbe:
    """Return a probe of an encoding in float64, and move parameters without a visible effect."""
    chain = Chain.of(encoding.double().eval().requires_grad_(False))
    probe = EncodingProbe(chain, sizes, causal)
    parameters = list(chain.parameters())
    if not parameters or measure_effect(probe) >= VISIBLE:
        return probe

    start = [parameter.clone() for parameter in parameters]
    for step in STEPS:
        # the same noise at each step, only larger
        generator = _seed()
        for parameter, value in zip(parameters, start, strict=True):
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            parameter.copy_(value + step * noise)
        if measure_effect(probe) >= PLAIN:
            break
    return EncodingProbe(chain, sizes, causal, moved=True)


def measure_effect(probe: EncodingProbe) -> float:
    """Return the largest change of a weight by the encoding, relative to the largest of its row."""
    # Compared with a layer without encodings, for equal tokens and for constant queries and keys.
    plain = EncodingProbe(Chain(probe.dims, {}), probe.sizes, probe.causal)
    changes = []
    for call, plain_call in zip(_test_calls(probe), _test_calls(plain), strict=True):
        change = relative_weights(call) - relative_weights(plain_call)
        changes.append(float(change.nan_to_num().abs().max()))
    return max(changes)


def subtract_base(call: AttentionCall, base: float) -> Tensor:
    """Return scores [B, H, N, M] minus a base; NaN for hidden pairs."""
    # rounding errors of float64 would be drawn as a pattern
    added = (scores(call) - base).round(decimals=12)
    # a bias of -inf hides a pair as a mask does
    is_seen = attention_mask(call) & (added > -math.inf)
    return added.masked_fill(~is_seen, math.nan)


def relative_weights(call: AttentionCall) -> Tensor:
    """Return weights [B, H, N, M] relative to the largest of their row; NaN for hidden pairs."""
    shares = weights(call)
    largest = shares.amax(-1, keepdim=True)
    relative = shares / largest.where(largest > 0, 1)
    return relative.masked_fill(~attention_mask(call), float("nan"))


def is_zero(values: Tensor) -> bool:
    """Return whether all values are 0 or NaN."""
    return same(values.nan_to_num(), values.new_zeros(()))


def choose_head(values: Tensor) -> tuple[Tensor, str]:
    """Return the middle one of heads [H, ...], and its name for a title if heads differ."""
    head = len(values) // 2
    return values[head], f", {name_head(head)}" if len(distinct(values)) > 1 else ""


def _test_calls(probe: EncodingProbe) -> list[AttentionCall]:
    equal = probe.repeat_content(probe.draw_contents())
    return [probe.call(equal), probe.call_constant(probe.draw_tokens(), 1.0)]


def _seed(seed: int = SEED) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def measure_rotations(probe: EncodingProbe, axes: int) -> Tensor | None:
    """Return the rotations [P, H, K, K] of one step along each of the last `axes` axes.

    The result is None if nothing is rotated, or if two steps differ from one step twice.
    """
    unit = torch.eye(probe.dims.axes, dtype=torch.float64)[-axes:]
    transfer = measure_transfer(probe, torch.cat([unit, 2 * unit]))
    if transfer is None:
        return None
    once, twice = transfer.chunk(2)
    identity = torch.eye(once.shape[-1], dtype=once.dtype).expand_as(once)
    is_rotated = not torch.allclose(once, identity, atol=TOLERANCE)
    is_group = torch.allclose(once @ once, twice, atol=TOLERANCE)
    return once if is_rotated and is_group else None


def measure_transfer(probe: EncodingProbe, steps: Tensor) -> Tensor | None:
    """Return the matrices T [S, H, K, K] of steps [S, P] of the index.

    The score of a query q at the step with a key k at the origin is k.(T q). The result is None if
    heads change their size, or if no matrix T exists, for example if angles depend on the token.
    """
    # Transform the zero vector, all unit vectors and one random vector, which tests linearity.
    size = probe.dims.head_dim
    if size > probe.dims.dim:
        return None  # states cannot hold the contents of a head
    unit, content = torch.eye(size, dtype=torch.float64), probe.draw_contents(1)
    vectors = torch.cat([torch.zeros_like(content), unit, content])
    x = probe.to_states(vectors)[:, None]  # [1 + K + 1, 1, D]
    index = torch.cat([torch.zeros_like(steps[:1]), steps])
    call = probe.call(x.expand(-1, len(index), -1), index)
    if call.q.shape[-1] != size or call.k.shape[-1] != size:
        return None

    q, k = (heads[1:] - heads[:1] for heads in (call.q, call.k))  # [K + 1, H, 1 + S, K]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    for heads in (q, k):
        expected = torch.einsum("ihsd,i->hsd", heads[:-1], content[0])
        if not torch.allclose(expected, heads[-1]):
            return None
    return torch.einsum("jhd,ihsd->shji", k[:-1, :, 0], q[:-1, :, 1:])


def rotation_angles(rotation: Tensor) -> Tensor:
    """Return the angles [..., K/2] of rotations [..., K, K] in radians, in descending order."""
    # Eigenvalues come in conjugate pairs exp(+-i angle).
    paired = torch.linalg.eigvals(rotation).angle().abs().sort(dim=-1, descending=True).values
    return paired[..., ::2]


def is_commuting(first: Tensor, second: Tensor) -> bool:
    """Return whether two rotations commute."""
    return torch.allclose(first @ second, second @ first, atol=TOLERANCE)


def wave_vectors(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the angles [..., K] of two commuting rotations in the planes that they share.

    Each plane occurs twice, once for each orientation.
    """
    # The eigenvectors of a generic combination are eigenvectors of both rotations.
    vectors = torch.linalg.eig(first + 0.618 * second).eigenvectors
    inverse = torch.linalg.inv(vectors)

    def angles(rotation: Tensor) -> Tensor:
        return (inverse @ rotation.to(vectors.dtype) @ vectors).diagonal(dim1=-2, dim2=-1).angle()

    return angles(first), angles(second)
