"""Frequencies of rotary encodings, and angles; `scaling.py` has rules for longer texts.

Angles are exact in float32 at large positions too. A product of a position and a frequency in
float32 is rounded in proportion to its size: at position 10^6 an angle of one radian per token is
off by up to 0.03. Angles are therefore computed in float64 and reduced to one turn before they
become float32. Devices without float64 compute each product as the sum of two float32 numbers
(Dekker 1971, doi:10.1007/BF01397083).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.attention import Dims, Encoding
from zoo.errors import OptionError

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
        message = f"rotating pairs of channels on {dims.axes} axes needs {needed}"
        raise OptionError("name", f"{message}, not {dims.head_dim}")


def adapt_axes(value: Tensor, source: Dims, target: Dims) -> Tensor | None:
    """Adapt a parameter [P, ...] between images and clips.

    Rows and columns keep their values. The time axis starts at 0, so that until training changes it
    every frame of a clip is encoded as an image.

    Returns:
        The adapted parameter, or None if one of the two models reads text or points.
    """
    if source.axes == target.axes:
        return value
    # The axes of points have no order in common with those of a clip.
    if 1 in (source.axes, target.axes) or source.points or target.points:
        return None
    if source.axes > target.axes:
        return value[1:]
    return torch.cat([torch.zeros_like(value[:1]), value])


@dataclass(frozen=True)
class Wavelengths:
    """The shortest and the longest wavelength of an encoding, in units of its coordinates."""

    shortest: float
    longest: float

    def make_frequencies(self, pairs: int, like: Tensor) -> Tensor:
        """Return frequencies [pairs], the fastest first, whose wavelengths are a geometric series.

        A single pair has the shortest wavelength.
        """
        steps = torch.arange(pairs, device=like.device, dtype=like.dtype) / max(pairs - 1, 1)
        return TURN / self.shortest * (self.shortest / self.longest) ** steps


def choose_wavelengths(
    t_min: float | Sequence[float] | None, t_max: float | Sequence[float] | None, axes: int
) -> tuple[Wavelengths, ...]:
    """Return the wavelengths of each axis; empty if none are given.

    Args:
        t_min: The shortest wavelength, one number or one for each axis.
        t_max: The longest one.
        axes: Number of axes.

    Raises:
        OptionError: Only one of the two is given, or the shortest is longer than the longest.
    """
    if t_min is None and t_max is None:
        return ()
    sides: list[Sequence[float]] = []
    for key, value in (("t_min", t_min), ("t_max", t_max)):
        if value is None:
            counterpart = "t_max" if key == "t_min" else "t_min"
            raise OptionError(
                key, f"missing; {counterpart} is given, and wavelengths have both ends"
            )
        numbers = value if isinstance(value, Sequence) else (value,) * axes
        if len(numbers) != axes:
            message = f"{key} has {len(numbers)} numbers for {axes} axes"
            raise OptionError(key, f"{message}; give one, or {axes}")
        sides.append(numbers)
    by_axis = tuple(Wavelengths(*pair) for pair in zip(*sides, strict=True))
    for wavelengths in by_axis:
        if wavelengths.shortest > wavelengths.longest:
            message = f"t_min {wavelengths.shortest:g} is more than t_max {wavelengths.longest:g}"
            raise OptionError("t_min", message)
    return by_axis


def refuse_with_wavelengths(encoding: Encoding, **others: bool) -> None:
    """Refuse options that wavelengths leave without effect, {option: whether it is set}.

    Raises:
        OptionError: One of them is set.
    """
    for key, is_set in others.items():
        if is_set:
            message = f"{key} has no effect on the wavelengths from t_min to t_max"
            raise OptionError(key, f"{message}; leave one of them out")


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


def rope_frequencies(base: float, width: float, like: Tensor, pairs: int | None = None) -> Tensor:
    """Return the frequencies of RoPE, w_t = base^(-2t/K') (section 3.2.2 of its paper).

    Args:
        base: Base of the frequencies.
        width: Number of rotated channels K'.
        like: Tensor whose dtype and device are used.
        pairs: Number of frequencies, the fastest first; K'/2 by default.

    Returns:
        Frequencies [pairs] in radians per token.
    """
    return base ** (-2 * number_pairs(width, like, pairs) / width)


def number_pairs(width: float, like: Tensor, pairs: int | None) -> Tensor:
    """Return the numbers t of pairs, [pairs]; see `rope_frequencies`."""
    count = int(width) // 2 if pairs is None else pairs
    return torch.arange(count, device=like.device, dtype=like.dtype)


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
    parts = [_split_product(column, wave, remainder) for (column, wave), (_, remainder) in pairs]
    return sum(parts[1:], parts[0])


def _split_product(pos: Tensor, wave: Tensor, remainder: Tensor) -> Tensor:
    """Return pos (wave + rest) between -pi and pi, in float32 only."""
    product = pos * wave
    with torch.no_grad():
        exact, error = _multiply_exactly(pos, wave)
        turns = (exact * (1 / TURN)).round()
        whole, whole_error = _multiply_exactly(turns, torch.full_like(wave, TURN_HIGH))
        # The difference of two nearly equal numbers is exact; the other terms are small.
        small = (error - whole_error) + (pos * remainder - turns * TURN_LOW)
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
