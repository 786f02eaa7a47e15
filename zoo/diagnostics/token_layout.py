"""The layout of a sample's tokens in a report: grid, chosen queries, images, pieces of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.attention import Tokens
from zoo.attention.layer import AttentionInput
from zoo.data.spec import Vocabulary
from zoo.diagnostics import capture

HIDDEN = "[mask]"
PADDING = ""
UNKNOWN = "\ufffd"  # the replacement character, to which invalid bytes decode
FOLLOWING = "\u2026"  # shown for later tokens of a character
MOST = 4  # largest number of bytes in a character


@dataclass(frozen=True)
class Layout:
    """The tokens of samples: special tokens first, then the grid, row by row.

    What is padding in all samples belongs to no grid, so that its amount changes nothing.

    Attributes:
        layers: Indices of all layers of the model.
        extra: Names of the special tokens.
        grid: Number of tokens along each axis.
        columns: Sequence indices of the special tokens and of the grid.
        query_index: Sequence indices of the chosen queries.
        points: Whether tokens are points at real coordinates, in one row.
    """

    layers: tuple[int, ...]
    extra: tuple[str, ...]
    grid: tuple[int, ...]
    columns: tuple[int, ...]
    query_index: tuple[int, ...]
    points: bool = False

    @property
    def unit(self) -> Literal["tokens", "patches", "points"]:
        """The unit of the grid."""
        if self.points:
            return "points"
        return "tokens" if len(self.grid) == 1 else "patches"

    @property
    def queries(self) -> tuple[int, ...]:
        """Indices of the chosen queries among the columns."""
        number = {column: number for number, column in enumerate(self.columns)}
        return tuple(number[index] for index in self.query_index)

    @property
    def grid_columns(self) -> tuple[int, ...]:
        """Indices of the grid in the input of the model, which has no special tokens."""
        special = len(self.extra)
        return tuple(column - special for column in self.columns[special:])


def find_layout(model: nn.Module, inputs: Sequence[Tensor | None], most: int) -> Layout:
    """Find the layout of a model's tokens for its inputs.

    The chosen queries are all special tokens and at most `most` tokens of the grid.
    """
    seen: list[AttentionInput] = []
    with capture.hook_attention(model, seen.append), capture.evaluation_mode(model):
        model(*inputs)
    tokens, points = seen[0].tokens, seen[0].chain.dims.points
    grid, columns = _find_grid(tokens, points)
    count = len(columns) - prod(grid)
    chosen = [columns[count + slot] for slot in choose_cells(grid, most)]
    return Layout(
        tuple(sorted(capture.number_layers(model, None))),
        _name_special_tokens(model, count),
        grid,
        tuple(columns),
        (*columns[:count], *chosen),
        points,
    )


def choose_cells(grid: Sequence[int], most: int) -> list[int]:
    """Choose at most `most` cells of a grid evenly along each axis, as row-major numbers."""
    # Reduce the longest axis until the product fits.
    counts = list(grid)
    while prod(counts) > most:
        counts[counts.index(max(counts))] -= 1
    along = [capture.choose_evenly(size, count) for size, count in zip(grid, counts, strict=True)]
    return [_flatten_index_of(place, grid) for place in product(*along)]


def _flatten_index_of(place: Sequence[int], grid: Sequence[int]) -> int:
    number = 0
    for at, size in zip(place, grid, strict=True):
        number = number * size + at
    return number


def _find_grid(tokens: Tokens, points: bool) -> tuple[tuple[int, ...], list[int]]:
    """Return the number of tokens along each axis, and the columns of special tokens and grid.

    For text and points, the grid has all tokens with a position that are not padding everywhere.
    Tokens that fill no grid, such as text whose positions have three coordinates, are text.
    """
    if tokens.index.shape[-1] > 1 and not points:
        sizes = tuple(int(largest) + 1 for largest in tokens.index[0].amax(0))
        if prod(sizes) <= len(tokens):
            return sizes, list(range(len(tokens)))
    columns = capture.list_columns(tokens)
    if tokens.has_position is None:
        return (len(columns),), columns
    return (int(tokens.has_position[0, columns].sum()),), columns


def _name_special_tokens(model: nn.Module, count: int) -> tuple[str, ...]:
    """Name the tokens before the grid."""
    has_class = any(getattr(part, "cls_token", None) is not None for part in model.modules())
    class_token = ["class"] if count and has_class else []
    registers = count - len(class_token)
    return (
        *class_token,
        *(f"register {number + 1}" if registers > 1 else "register" for number in range(registers)),
    )


def decode_pieces(vocabulary: Vocabulary, row: Tensor) -> tuple[str, ...]:
    """Decode each of the tokens [N] separately.

    -1 is padding, and the id after the last one is the mask token. A character of several tokens is
    shown at the first of them, with dots at the others. Invalid bytes are shown in hexadecimal.
    """
    tokens: list[int] = row.tolist()
    pieces = [_decode_token(vocabulary, token) for token in tokens]
    for place, piece in enumerate(pieces):
        if UNKNOWN in piece and (
            joined := _join_bytes(vocabulary, tokens[place : place + MOST], piece)
        ):
            pieces[place : place + len(joined)] = joined
    return tuple(
        _show_byte(vocabulary, *pair) if UNKNOWN in pair[1] else pair[1]
        for pair in zip(tokens, pieces, strict=True)
    )


def _join_bytes(vocabulary: Vocabulary, tokens: Sequence[int], piece: str) -> list[str]:
    """Return the pieces of the fewest first tokens that form characters; empty if none do."""
    for count in range(2, len(tokens) + 1):
        if not all(0 <= token < len(vocabulary) for token in tokens[:count]):
            return []
        decoded = vocabulary.decode(tokens[:count])
        if UNKNOWN not in decoded:
            return [decoded, *[FOLLOWING] * (count - 1)]
    return []


def _show_byte(vocabulary: Vocabulary, token: int, piece: str) -> str:
    return f"\u2039{token:02X}\u203a" if vocabulary.unit == "byte" else piece


def _decode_token(vocabulary: Vocabulary, token: int) -> str:
    if token < 0:
        return PADDING
    return HIDDEN if token >= len(vocabulary) else vocabulary.decode([token])


def to_pictures(sample: Tensor, steps: int) -> tuple[Tensor, ...]:
    """Convert an image [C, H, W], or a clip [C, T, H, W], to frames uint8 [H, W, 3].

    The middle frame of each tubelet is shown.
    """
    if sample.dim() == 3:
        return (_to_rgb(sample),)
    joined = sample.shape[1] // steps
    return tuple(_to_rgb(frame) for frame in sample[:, joined // 2 :: joined].unbind(1))


def _to_rgb(image: Tensor) -> Tensor:
    channels = image if len(image) == 3 else image.mean(0, keepdim=True).expand(3, -1, -1)
    return (channels.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu()
