"""Encodings that rotate queries and keys, against the rotation matrix of each token."""

from __future__ import annotations

import pytest
import torch
from calls import assert_close
from literal.rotation import score_rotations

import zoo
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens

SIZES = {1: (9,), 2: (3, 4), 3: (2, 3, 2)}
AXES = pytest.mark.parametrize("axes", [1, 2, 3])
CASES = pytest.mark.parametrize("case", ["all", "last queries", "tokens without a position"])


def make_rotary(name, axes, heads=2, head=24, **options):
    """Make an encoding in float64 at its initial values, for the sizes of SIZES."""
    return zoo.encoding(name, Dims(heads * head, heads, axes, SIZES[axes]), **options).double()


def draw_heads(encoding, tokens=5, batch=2):
    """Draw queries and keys [batch, H, tokens, K]."""
    dims = encoding.dims
    return torch.randn(2, batch, dims.heads, tokens, dims.head_dim, dtype=torch.float64).unbind()


def check_rotation(encoding, rotation, case="all", pos=None):
    """Compare scores with those of a rotation, also of fewer queries, and of tokens without a position."""
    if pos is None:
        pos = 3 * torch.randn(5, encoding.dims.axes, dtype=torch.float64)
    q, k = draw_heads(encoding, len(pos))
    queries, placed = (q[:, :, 3:] if case == "last queries" else q), None
    if case == "tokens without a position":
        placed = torch.tensor([False, True, True, True, False])
    expected = score_rotations(rotation, encoding, queries, k, pos, placed)
    assert_close(zoo.functional.scores(encoding, queries, k, pos, has_position=placed), expected)


def check_reference_catches(fault, rotation, axes=2, head=24, **options):
    """Assert that a class departs from a rotation, and the class that it spoils does not."""
    dims = Dims(2 * head, 2, axes, SIZES[axes])
    for cls in (fault.__base__, fault):
        encoding = cls(dims, **options).double()
        if cls is fault:
            with pytest.raises(AssertionError, match="not close"):
                check_rotation(encoding, rotation)
        else:
            check_rotation(encoding, rotation)


def rotate_units(encoding, pos):
    """Return what an encoding makes of the unit vectors at coordinates [M, P], [M, H, K, K]."""
    count, size, heads = len(pos), encoding.dims.head_dim, encoding.dims.heads
    unit = torch.eye(size, dtype=pos.dtype).repeat(count, 1).expand(1, heads, -1, -1)
    tokens = Tokens.at(
        torch.zeros(1, count * size, encoding.dims.dim, dtype=pos.dtype),
        pos.repeat_interleave(size, 0),
    )
    chain = Chain.of(encoding)
    rotated = chain.transform_key(unit, chain.prepare(tokens))[0]
    return rotated.unflatten(1, (count, size)).transpose(0, 1)


# from images to clips and back


IMAGE, CLIP = Dims(24, 2, 2, (3, 4), depth=2), Dims(24, 2, 3, (2, 3, 4), depth=2)


def check_grids_agree(trained, other, causal=False):
    """Assert that encodings of an image and a clip score the same by rows and columns."""
    pos = torch.rand(5, 2) * 3
    placed = {2: pos, 3: torch.cat([torch.zeros(5, 1), pos], dim=1)}
    if other.dims.axes == 3:  # whatever the frames are
        placed[3][:, 0] = torch.arange(5.0)
    q, k = torch.randn(2, 1, 2, 5, 12).unbind()
    torch.testing.assert_close(
        zoo.functional.scores(other, q, k, placed[other.dims.axes]),
        zoo.functional.scores(trained, q, k, placed[trained.dims.axes]),
    )
