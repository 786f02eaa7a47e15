"""The rotation that a model of transformers applies to queries and keys, measured.

What rotates is read from what reaches the attention, with the model's own angles and with angles of
0: configurations have entries that a family ignores, and code that its configuration does not name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention.chain import make_factory
from zoo.attention.encoding import Dims, EncodingFactory
from zoo.encodings.common.frequencies import compute_angles
from zoo.encodings.common.rotation import Rotary, cos_sin
from zoo.errors import OptionError
from zoo.integrations.equipment import TurnedChannels
from zoo.integrations.rope_parameters import FIXED_LENGTH, OF_ATTENTION, read_rope_parameters
from zoo.options import Choice
from zoo.options.plain import format_call

OF_AXES = ("mrope_section", "mrope_interleaved")
"""Entries about axes of positions, which are measured."""
SAME_ANGLE = 2e-4  # radians per token, by which two measured frequencies may differ
CLOSE = 1e-5  # relative; transformers computes frequencies in float32
RESIDUAL = {torch.float64: 1e-4, torch.float32: 2e-4}  # of a rotation, relative; else HALF_RESIDUAL
HALF_RESIDUAL = 3e-2
PLACES = (0, 1, 2, 3, 5, 8, 13, 21, 31)
"""Positions at which tables are read: differences grow by less than two from one to the next, so
that each angle tells the next one, and all lie in the length that any model was trained for."""


@dataclass(frozen=True)
class OwnRotation:
    """The rotation of one attention.

    Attributes:
        channels: The rotated channels.
        frequencies: Radians per token of each pair, float64 [R/2].
        factor: Factor of cos and sin.
        axes: The axis of positions (t, h, w) that turns each pair; empty if there is one axis.
    """

    channels: TurnedChannels
    frequencies: Tensor
    factor: float
    axes: tuple[int, ...] = ()

    def equals(self, other: OwnRotation | None) -> bool:
        """Return whether another rotation is the same but for rounding."""
        return (
            other is not None
            and self.channels == other.channels
            and self.axes == other.axes
            and abs(self.factor - other.factor) <= CLOSE
            and are_same_frequencies(self.frequencies, other.frequencies)
        )

    def translate(self, parameters: Mapping[str, Any], length: int) -> dict[str, Any] | None:
        """Return the options of `rope` that equal this rotation; None if `rope` has none.

        Args:
            parameters: The rotary entries of the configuration.
            length: Training length in tokens, which some rules of scaling read.
        """
        try:
            ignored = (*OF_ATTENTION, *(OF_AXES if self.axes else ()))
            entries = {key: one for key, one in parameters.items() if key not in ignored}
            options = read_rope_parameters(entries, length)
            frequencies, factor = compute_rope(options, self.channels.width, length)
        except OptionError:
            return None
        # An entry that the model does not follow shows in the frequencies, or in the factor.
        is_equal = are_same_frequencies(frequencies, self.frequencies)
        return options if is_equal and abs(factor - self.factor) <= CLOSE else None


def compute_rope(options: Mapping[str, Any], width: int, length: int) -> tuple[Tensor, float]:
    """Return the frequencies of `rope`, radians per token [width/2], and its factor.

    Args:
        options: Options of `rope`.
        width: Number of channels that turn.
        length: Training length in tokens, which some rules of scaling read.

    Raises:
        OptionError: `rope` refuses the options.
    """
    rope: Any = make_factory(Choice("rope", {**options}))(Dims(width, 1, length=length))
    like = torch.zeros(1, 1, 1, dtype=torch.float64, device="cpu")
    # The factor is cos at position 0.
    return rope.wave_vectors(like).flatten(), float(rope.compute_rotation(like)[0].max())


def are_same_frequencies(first: Tensor, second: Tensor, tolerance: float = CLOSE) -> bool:
    """Return whether frequencies [pairs], radians per token, are equal but for rounding."""
    return first.shape == second.shape and torch.allclose(
        first, second, rtol=tolerance, atol=tolerance / 1e4
    )


@dataclass(frozen=True)
class OwnPositions:
    """The rotations of a model as an encoding.

    Attributes:
        make: Makes the encoding of a layer.
        description: Its name and options.
    """

    make: EncodingFactory
    description: str


def describe_choice(choice: Choice) -> str:
    """Return an encoding and its options as a call."""
    return format_call(choice.name, (f"{key}={value}" for key, value in choice.options.items()))


def fix_length(options: Mapping[str, Any], length: int | tuple[int, ...] | None) -> dict[str, Any]:
    """Return options of `rope` for texts of one length, if its frequencies follow the length."""
    scaling = options.get("scaling") or {}
    if scaling.get("rule") not in FIXED_LENGTH or not isinstance(length, int):
        return {**options}
    return {**options, "scaling": {**scaling, "length": length}}


class MeasuredRope(Rotary):
    """pairs (2t, 2t+1) of q and k rotate by p w_t with the frequencies w_t of a model

    Args:
        dims: The sizes of a layer, with the rotated channels as head dim.
        rotation: The model's own rotation.
    """

    name = "rope"
    part = "rotation"
    axes = (1, 3)
    point_axes = (1,)

    def __init__(self, dims: Dims, rotation: OwnRotation) -> None:
        super().__init__(dims)
        if rotation.axes and dims.axes == 1:
            raise OptionError("name", "it rotates by three axes of positions, and there is one")
        self.width = rotation.channels.width
        # numbers, and no buffer, which a change of dtype would round
        self.frequencies = rotation.frequencies.tolist()
        self.factor = rotation.factor
        self.axis_of_pair = rotation.axes
        self.identity_at_zero = rotation.factor == 1

    @classmethod
    def in_layer(cls, dims: Dims, rotation: OwnRotation) -> MeasuredRope:
        """Make the encoding of a layer, of whose heads the model turns some channels.

        Args:
            dims: The sizes of the layer, with all channels of a head.
            rotation: The model's own rotation.
        """
        return cls(replace(dims, head_dim=rotation.channels.width), rotation)

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        frequencies = self.wave_vectors(pos.new_empty(0, dtype=torch.float64))
        return (self.factor * cos_sin(compute_angles(pos, frequencies)),)

    def wave_vectors(self, like: Tensor) -> Tensor:
        waves = like.new_tensor(self.frequencies)[None, None]
        if self.dims.axes == 1:
            return waves
        axes = torch.tensor(self.axis_of_pair, device=like.device)
        is_own = axes == torch.arange(self.dims.axes, device=like.device)[:, None, None]
        return waves * is_own


def fit_rotation(off: Tensor, on: Tensor, widths: Sequence[int]) -> OwnRotation | None:
    """Describe how heads were rotated at positions 0, 1, 2, ...

    Args:
        off: Heads [B, H, N, K] with angles of 0.
        on: The same heads with the model's own angles.
        widths: Numbers of channels of the tables of cos and sin, which have those of all rotated
            channels, or of one of each pair.

    Returns:
        The rotation; None if nothing was rotated.

    Raises:
        OptionError: What changed is no rotation of pairs of channels by the position.
    """
    tolerance = RESIDUAL.get(on.dtype, HALF_RESIDUAL)
    changed = (on - off).abs().amax((0, 1, 2)) > tolerance / 100 * off.abs().max()
    if not changed.any():
        return None
    dim = off.shape[-1]
    spans = {
        (start, start + count)
        for width in widths
        for count in (width, 2 * width)
        for start in (0, dim - count, int(changed.nonzero()[0]))
        if start >= 0 and start + count <= dim and not count % 2
    }
    fits: list[tuple[float, TurnedChannels, Tensor]] = []
    for start, stop in sorted(spans, key=lambda span: span[1] - span[0]):
        if changed[:start].any() or changed[stop:].any():
            continue
        for halves in (True, False):
            channels = TurnedChannels(start, stop, halves)
            before, after = (to_pairs(heads, channels) for heads in (off, on))
            power = before.abs().square().sum((0, 1)).clamp(min=1e-30)
            turns = (after * before.conj()).sum((0, 1)) / power  # [N, R/2]
            error = float((before * turns - after).abs().max() / after.abs().max())
            fits.append((error, channels, turns))
        # Pairs that do not turn may be counted or not: the narrowest span that fits is right.
        if min(error for error, _, _ in fits) <= tolerance:
            break
    best = min(fits, key=lambda fit: fit[0], default=None)
    if best is None or best[0] > tolerance:
        problem = "what its angles change is no rotation of pairs of channels that all heads share"
        raise OptionError("model", problem)
    _, channels, turns = best
    factor = float(turns.abs().mean())
    if (turns.abs() - factor).abs().max() > 10 * tolerance * factor:
        raise OptionError("model", "its rotation stretches pairs of channels differently")
    frequencies = unwrap_angles(turns.angle(), range(len(turns)))
    expected = torch.arange(len(turns)).double()[:, None] * frequencies
    if (torch.polar(turns.abs(), expected) - turns).abs().max() > 10 * tolerance * factor:
        raise OptionError("model", "its angles are not the position times a frequency")
    return OwnRotation(channels, frequencies, factor)


def find_turned_pairs(off: Tensor, on: Tensor, channels: TurnedChannels) -> Tensor:
    """Return which pairs of channels turned, bool [R/2].

    Args:
        off: Heads [B, H, N, K] with angles of 0.
        on: The same heads with other angles.
        channels: The channels that may turn.
    """
    before, after = (to_pairs(heads, channels) for heads in (off, on))
    power = before.abs().square().sum((0, 1)).clamp(min=1e-30)
    turns = (after * before.conj()).sum((0, 1)) / power  # [N, R/2]
    return turns.angle().abs().amax(0) > 10 * RESIDUAL.get(on.dtype, HALF_RESIDUAL)


def is_rotation_in_other_axes(off: Tensor, on: Tensor, width: int) -> bool:
    """Return whether pairs of channels rotate after a change of axes, as if scaled in between.

    A model that multiplies rotated heads by a weight for each channel computes G R G^-1 of what it
    computes without angles, which is no rotation of the same pairs. The 2 x 2 matrix of each pair
    has determinant 1 and trace 2 cos(p w).

    Args:
        off: Heads [B, H, N, K] with angles of 0.
        on: The same heads with the model's own angles.
        width: Number of rotated channels, the first of each head, as halves.
    """
    channels = TurnedChannels(0, width, halves=True)
    # Texts are the equations of each head, token and pair: [H, N, pairs, B, 2].
    rows, targets = (
        torch.view_as_real(to_pairs(heads, channels)).permute(1, 2, 3, 0, 4) for heads in (off, on)
    )
    maps = torch.linalg.lstsq(rows, targets).solution  # [H, N, pairs, 2, 2]
    cosines = maps.diagonal(dim1=-2, dim2=-1).sum(-1) / 2
    angles = cosines[:, 1].median(0).values.clamp(-1, 1).arccos()
    expected = torch.cos(torch.arange(off.shape[2]).double()[:, None] * angles)
    errors = torch.stack([(torch.linalg.det(maps) - 1).abs(), (cosines - expected).abs()])
    tolerance = 10 * RESIDUAL.get(on.dtype, HALF_RESIDUAL)
    # Two texts whose pairs are nearly parallel tell little.
    is_rotation = float(errors.flatten().quantile(0.9)) <= tolerance
    return is_rotation and float(angles.max()) > tolerance


def to_pairs(heads: Tensor, channels: TurnedChannels) -> Tensor:
    """Return the rotated channels of heads [B, H, N, K] as complex numbers [B, H, N, R/2]."""
    turned = heads[..., channels.start : channels.stop].double().cpu()
    if channels.halves:
        return torch.complex(*turned.chunk(2, -1))
    return torch.complex(turned[..., 0::2].contiguous(), turned[..., 1::2].contiguous())


def unwrap_angles(angles: Tensor, places: Sequence[int]) -> Tensor:
    """Return radians per token [pairs] of angles modulo 2 pi [N, pairs] at positions.

    Args:
        angles: The angles, 0 at position 0.
        places: The positions, with 0 and 1 first; each at most about twice the one before it.
    """
    angles = angles.double() - angles[:1].double()
    frequencies = angles[1] / places[1]
    for row, place in zip(angles[2:], places[2:], strict=True):
        turns = ((frequencies * place - row) / (2 * torch.pi)).round()
        frequencies = (row + 2 * torch.pi * turns) / place
    return frequencies


def sharpen_frequencies(rotation: OwnRotation, known: Sequence[Tensor]) -> OwnRotation:
    """Replace measured frequencies by those of the model that they equal up to rounding.

    Args:
        rotation: The measured rotation.
        known: What the model's rotary modules rotate by, from buffers or tables, each [pairs].

    Raises:
        OptionError: None of them is what the queries were rotated by.
    """
    for candidates in known:
        candidates = candidates.double().cpu()
        distance, index = (rotation.frequencies[:, None] - candidates).abs().min(-1)
        if distance.max() <= SAME_ANGLE:
            return replace(rotation, frequencies=candidates[index])
    raise OptionError("model", "it rotates by other angles than its rotary module returns")


def read_frequencies(table: Any) -> Tensor:
    """Return the radians per token [pairs] of a table of the positions 0, 1, 2, ...

    Args:
        table: cos and sin [.., N, pairs], or complex numbers.
    """
    if not isinstance(table, Tensor):
        table = torch.complex(*(part.float() for part in table))
    angles = table.reshape(-1, *table.shape[-2:])[0].to(torch.complex128).angle().cpu()
    return unwrap_angles(angles, range(len(angles)))


def list_buffers(module: nn.Module) -> list[Tensor]:
    """List the vectors of a rotary module that may be its frequencies."""
    vectors = [*module.buffers(), *(one for one in vars(module).values() if _is_vector(one))]
    return [one.detach() for one in vectors if _is_vector(one) and not one.is_meta]


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1 and value.is_floating_point()


@contextmanager
def keep_rotary(rotary: nn.Module) -> Iterator[None]:
    """Make a rotary embedding whose frequencies follow the lengths of texts forget earlier ones.

    Args:
        rotary: The module; afterwards it is as it was, whatever texts have changed in it.
    """
    kinds = getattr(rotary, "rope_type", "")
    if not {*(kinds.values() if isinstance(kinds, Mapping) else [kinds])} & {*FIXED_LENGTH}:
        yield
        return
    values = dict(vars(rotary))
    buffers = {name: (one, one.clone()) for name, one in rotary._buffers.items() if one is not None}
    for name, (buffer, _) in buffers.items():
        original = buffers.get(name.replace("inv_freq", "original_inv_freq"))
        if original is not None:
            buffer.copy_(original[1])
    for name in values:
        if name.endswith("max_seq_len_cached"):
            setattr(rotary, name, values["original_max_seq_len"])
    try:
        yield
    finally:
        vars(rotary).clear()
        vars(rotary).update(values)
        for name, (buffer, value) in buffers.items():
            buffer.copy_(value)
            rotary._buffers[name] = buffer
