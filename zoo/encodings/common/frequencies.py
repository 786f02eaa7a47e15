"""Frequencies of rotary encodings, rules that scale them for longer texts, and angles.

Angles are exact in float32 at large positions too. A product of a position and a frequency in
float32 is rounded in proportion to its size: at position 10^6 an angle of one radian per token is
off by up to 0.03. Angles are therefore computed in float64 and reduced to one turn before they
become float32. Devices without float64 compute each product as the sum of two float32 numbers
(Dekker 1971, doi:10.1007/BF01397083).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor

from zoo.attention import Dims, Encoding
from zoo.errors import OptionError
from zoo.options import Between
from zoo.suggestions import nearest

# Device types that are known to have float64. On any other, products are split.
FLOAT64_DEVICES = ("cpu", "cuda", "meta")

TURN = 2 * math.pi
# A turn as the sum of two float32 numbers, which leaves out 6e-15.
TURN_HIGH = float(torch.tensor(TURN, dtype=torch.float64, device="cpu").float())
TURN_LOW = TURN - TURN_HIGH
# The 12 lower bits of the 24 of a float32 number.
LOWER_HALF = 2**12 - 1


def check_head_dim(encoding: Encoding) -> None:
    """Check that the channels of a head can be paired and divided among the axes.

    Raises:
        OptionError: The head dim is too small or not divisible.
    """
    dims = encoding.dims
    divisor = 4 if dims.axes == 2 else 2
    if dims.head_dim % divisor or dims.head_dim < 2 * dims.axes:
        needed = f"a head dim divisible by {divisor} and at least {2 * dims.axes}"
        problem = f"rotating pairs of channels on {dims.axes} axes needs {needed}"
        raise OptionError("name", f"{encoding.name}: {problem}, not {dims.head_dim}")


def adapt_axes(value: Tensor, source: Dims, target: Dims) -> Tensor | None:
    """Adapt a parameter [P, ...] between images and clips.

    Rows and columns keep their values. The time axis starts at 0, so that until training changes it
    every frame of a clip is encoded as an image.

    Returns:
        The adapted parameter, or None if one of the two models reads text.
    """
    if source.axes == target.axes:
        return value
    if 1 in (source.axes, target.axes):
        return None
    if source.axes > target.axes:
        return value[1:]
    return torch.cat([torch.zeros_like(value[:1]), value])


def axis_frequencies(
    dims: Dims, base: float, like: Tensor, pairs: int | None = None
) -> list[Tensor]:
    """Divide the pairs of channels into P nearly equal groups, one for each axis.

    Args:
        dims: Sizes of the encoding.
        base: Base of the frequencies.
        like: Tensor whose dtype and device are used.
        pairs: Number of pairs; K/2 by default.

    Returns:
        Frequencies base^(-2Pk/K) of each group, with k counted within the group, in radians per
        unit of the coordinates.
    """
    groups = torch.arange(pairs or dims.head_dim // 2, device=like.device).tensor_split(dims.axes)
    exponents = [-2 * dims.axes / dims.head_dim * (k - k[0]).to(like.dtype) for k in groups]
    return [base**exponent for exponent in exponents]


def rope_frequencies(base: float, width: int, like: Tensor, pairs: int | None = None) -> Tensor:
    """Return the frequencies of RoPE, w_t = base^(-2t/K') (section 3.2.2 of its paper).

    Args:
        base: Base of the frequencies.
        width: Number of rotated channels K'.
        like: Tensor whose dtype and device are used.
        pairs: Number of frequencies, the fastest first; K'/2 by default.

    Returns:
        Frequencies [pairs] in radians per token.
    """
    steps = torch.arange(pairs or width // 2, device=like.device, dtype=like.dtype)
    return base ** (-2 * steps / width)


ScalingRule = Literal["linear", "ntk", "yarn", "llama3"]
RULES: tuple[str, ...] = get_args(ScalingRule)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A rule that scales the frequencies of RoPE for longer texts than in training.

    linear divides all frequencies (arXiv:2306.15595); ntk raises the base; yarn divides only low
    frequencies and sharpens scores (arXiv:2309.00071); llama3 divides only low frequencies
    (arXiv:2407.21783).

    Attributes:
        rule: Name of the rule.
        factor: Length of texts relative to the training length.
        original: Training length in tokens; that of the model by default.
        attention_factor: Factor of cos and sin of yarn; 0.1 ln(factor) + 1 by default.
    """

    rule: ScalingRule
    factor: Annotated[float, Between(1)]
    original: Annotated[int, Between(1)] | None = None
    attention_factor: Annotated[float, Between(0)] | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise OptionError("rule", f"no rule {self.rule!r}; {nearest(str(self.rule), RULES)}")
        if not self.factor >= 1:
            raise OptionError("factor", f"factor {self.factor} is less than 1")
        if self.attention_factor is not None and self.rule != "yarn":
            raise OptionError("attention_factor", f"{self.rule} has none; only yarn has one")

    def training_length(self, dims: Dims) -> int:
        """Return the training length in tokens; 0 if it is unknown and the rule ignores it."""
        return self.original or (dims.tokens if self.rule in ("yarn", "llama3") else 0)


def scale_frequencies(
    scaling: Scaling, base: float, width: int, like: Tensor, length: int
) -> tuple[Tensor, float]:
    """Scale the frequencies of RoPE.

    Args:
        scaling: The rule and its factor.
        base: Base of the frequencies.
        width: Number of rotated channels K'.
        like: Tensor whose dtype and device are used.
        length: Training length in tokens.

    Returns:
        Frequencies [K'/2] in radians per token, and a factor for cos and sin.
    """
    frequencies, factor = rope_frequencies(base, width, like), scaling.factor
    if scaling.rule == "linear":
        return frequencies / factor, 1.0
    # ntk: the new base divides the slowest frequency by `factor` and keeps the fastest.
    if scaling.rule == "ntk":
        new_base = base * factor ** (width / max(width - 2, 1))
        return rope_frequencies(new_base, width, like), 1.0
    # llama3: pairs with over four rotations in training are kept, those with fewer than one are
    # divided, and the others are interpolated.
    if scaling.rule == "llama3":
        kept = ((length * frequencies / (2 * math.pi) - 1) / 3).clamp(0, 1)
        return (1 - kept) * frequencies / factor + kept * frequencies, 1.0

    def find_pair(rotations: float) -> float:
        """Return the index of the pair with this number of rotations in the training length."""
        log_base = max(2 * math.log(base), 1e-9)  # with base 1 all frequencies are equal
        return width * math.log(length / (2 * math.pi * rotations)) / log_base

    # yarn: a linear ramp from the pair with 32 rotations, which is kept, to the pair with one,
    # which is divided (sections 3.2 and 3.4 of the paper, with its temperature of attention).
    low, high = (
        min(max(edge, 0), width - 1)
        for edge in (math.floor(find_pair(32)), math.ceil(find_pair(1)))
    )
    steps = torch.arange(width // 2, device=like.device, dtype=like.dtype)
    ramp = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
    sharpening = scaling.attention_factor
    if sharpening is None:
        sharpening = 0.1 * math.log(factor) + 1
    return frequencies * (1 - ramp) + ramp * frequencies / factor, sharpening


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64."""
    return device.type in FLOAT64_DEVICES


def float64_like(tensor: Tensor) -> Tensor:
    """Return an empty float64 tensor on the tensor's device, or on a CPU if it has no float64.

    Frequencies that are made like it are exact enough for `compute_angles`.
    """
    device = tensor.device if has_float64(tensor.device) else torch.device("cpu")
    return torch.empty(0, dtype=torch.float64, device=device)


def compute_angles(pos: Tensor, wave_vectors: Tensor) -> Tensor:
    """Return angles sum_a p_a w_a in radians, [1|B, G, N, pairs], in the dtype of coordinates.

    Args:
        pos: Coordinates [1|B, N, P], float32 or float64.
        wave_vectors: Wave vectors w [P, G, pairs], in float64 (see `float64_like`) unless they are
            parameters, whose float32 values count as exact.

    Returns:
        The angles. In float32 they are reduced to one turn, so that their rounding is too.
    """
    if pos.dtype == torch.float64:
        return sum_products(pos, wave_vectors.to(pos))
    if not has_float64(pos.device):
        return _sum_split_products(pos, wave_vectors)
    return _reduce_to_turn(sum_products(pos.double(), wave_vectors.double())).to(pos.dtype)


def sum_angles(angles: Tensor) -> Tensor:
    """Return the sums of the angles of all tokens up to each, [B, M, G, pairs].

    All sums may lack the same amount, which no score depends on. In float32 they are reduced to one
    turn; without float64, only sums up to recent tokens are exact.
    """
    if angles.dtype == torch.float64:
        return angles.cumsum(1)
    if has_float64(angles.device):
        return _reduce_to_turn(angles.cumsum(1, dtype=torch.float64)).to(angles.dtype)

    # Minus the sums of later tokens, which are small, and so exact, for recent tokens.
    return angles - angles.flip(1).cumsum(1).flip(1)


def sum_products(pos: Tensor, wave_vectors: Tensor) -> Tensor:
    """Return sum_a p_a w_a, [1|B, G, N, pairs]."""
    # Elementwise, because a matrix product under autocast would round float32 to bfloat16.
    parts = [column * wave for column, wave in _pair_axes(pos, wave_vectors)]
    return sum(parts[1:], parts[0])


def _pair_axes(pos: Tensor, wave_vectors: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return coordinates [1|B, 1, N, 1] and wave vectors [G, 1, pairs] of each axis."""
    pos = pos.unsqueeze(1)  # [1|B, 1, N, P]
    axes = range(len(wave_vectors))
    return [(pos.narrow(-1, axis, 1), wave_vectors[axis].unsqueeze(1)) for axis in axes]


def _reduce_to_turn(angles: Tensor) -> Tensor:
    """Subtract whole turns, so that angles are between -pi and pi."""
    turns = (angles.detach() * (1 / TURN)).round()
    return torch.sub(angles, turns, alpha=TURN)


def _sum_split_products(pos: Tensor, wave_vectors: Tensor) -> Tensor:
    """Return sum_a p_a w_a [1|B, G, N, pairs] within a few turns, computed in float32 only."""
    # w = high + low. Both parts have a gradient only if wave vectors have one.
    high = wave_vectors.to(pos)
    low = (wave_vectors.detach() - high.detach().to(wave_vectors)).to(pos)
    pairs = zip(_pair_axes(pos, high), _pair_axes(pos, low), strict=True)
    parts = [_split_product(column, wave, rest) for (column, wave), (_, rest) in pairs]
    return sum(parts[1:], parts[0])


def _split_product(pos: Tensor, wave: Tensor, rest: Tensor) -> Tensor:
    """Return pos (wave + rest) between -pi and pi, in float32 only."""
    product = pos * wave
    with torch.no_grad():
        exact, error = _multiply_exactly(pos, wave)
        turns = (exact * (1 / TURN)).round()
        whole, whole_error = _multiply_exactly(turns, torch.full_like(wave, TURN_HIGH))
        # The difference of two nearly equal numbers is exact; the other terms are small.
        small = (error - whole_error) + (pos * rest - turns * TURN_LOW)
        reduced = (exact - whole) + small
    # The difference is zero, and has the gradient of the product.
    return reduced + (product - product.detach())


def _multiply_exactly(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded product of float32 numbers, and its error, which is a float32 number."""
    # Products of halves of 12 bits have 24 bits, so they are exact.
    (a1, a2), (b1, b2), product = _halve(a), _halve(b), a * b
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _halve(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split float32 numbers into sums of two with 12 bits each."""
    # By bits and not by arithmetic, which a compiler might simplify.
    upper = (x.contiguous().view(torch.int32) & ~LOWER_HALF).view(torch.float32)
    return upper, x - upper
