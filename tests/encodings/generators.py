"""Encodings that rotate by exponentials of generators: values, gradients, and what they cost."""

from __future__ import annotations

import pytest
import torch
from calls import assert_close
from largest import Largest
from literal.rotation import score_rotations
from rotations import draw_heads, make_rotary, rotate_units

import zoo
from zoo.attention.encoding import Dims

EXPONENTIAL, DERIVATIVE = 1e-10, 1e-8  # against torch.linalg.matrix_exp in float64
ORTHOGONAL = 1e-4  # in float32, whatever the norm
KINDS = pytest.mark.parametrize(
    "kind", ["random", "zero", "low rank", "equal", "nearly equal", "nearly zero", "tiny"]
)


def draw_generators(kind, block, count):
    """Draw matrices [count, block, block] whose skew part is of a kind that decompositions find hard."""
    random = torch.randn(count, block, block, dtype=torch.float64)
    basis = torch.linalg.qr(random).Q
    sizes = {
        "random": None,
        "zero": [0.0] * (block // 2),
        "low rank": [1.7] + [0.0] * (block // 2 - 1),
        "equal": [1.3] * (block // 2),
        "nearly equal": [1.3 + 1e-9 * i for i in range(block // 2)],
        "nearly zero": [1.3] + [1e-8 * (i + 1) for i in range(block // 2 - 1)],
        "tiny": [1e-7 * (i + 1) for i in range(block // 2)],
    }[kind]
    if sizes is None:
        return random
    plane = torch.tensor([[0.0, -0.5], [0.5, 0.0]], dtype=torch.float64)
    return basis @ torch.block_diag(*[size * plane for size in sizes]) @ basis.mT


@torch.no_grad()
def make_with_generators(name, axes, kind, block=8):
    """Make an encoding whose generators are all of one kind."""
    encoding = make_rotary(name, axes, head=24 if axes == 3 else 16, block=block)
    generators = encoding.generators
    if name == "liere":
        rows, columns = torch.triu_indices(block, block, 1)
        for a in range(axes):
            values = draw_generators(kind, block, generators[a, ..., 0].numel())
            generators[a] = (values - values.mT)[:, rows, columns].view_as(generators[a])
    else:
        values = draw_generators(kind, block, generators[..., 0, 0].numel())
        generators.copy_(values.view_as(generators))
    return encoding


def compute_gradients(scores, weight, *leaves):
    return torch.autograd.grad((scores * weight).sum(), leaves)


def check_gradients(name, rotation, axes, kind):
    """Compare scores and their gradients with those of `torch.linalg.matrix_exp`."""
    encoding = make_with_generators(name, axes, kind)
    pos = 2 * torch.randn(4, axes, dtype=torch.float64)
    q, k = (one.requires_grad_() for one in draw_heads(encoding, 4, 1))
    actual = zoo.functional.scores(encoding, q, k, pos.requires_grad_())
    expected = score_rotations(rotation, encoding, q, k, pos)
    assert_close(actual, expected, EXPONENTIAL)
    weight, leaves = torch.randn_like(actual), (q, k, pos, *encoding.parameters())
    both = (compute_gradients(one, weight, *leaves) for one in (actual, expected))
    for one, other in zip(*both, strict=True):
        assert_close(one, other, DERIVATIVE)


def check_gradients_by_sample(name, rotation, axes):
    """Compare gradients where samples have positions of their own, and a token has none."""
    encoding = make_with_generators(name, axes, "random")
    pos = torch.randn(2, 4, axes, dtype=torch.float64)
    q, k = draw_heads(encoding, 4, 2)
    placed = torch.tensor([False, True, True, True])
    actual = zoo.functional.scores(encoding, q, k, pos, has_position=placed)
    each = [
        score_rotations(rotation, encoding, q[b, None], k[b, None], pos[b], placed)
        for b in range(2)
    ]
    weight, leaves = torch.randn_like(actual), tuple(encoding.parameters())
    both = (compute_gradients(one, weight, *leaves) for one in (actual, torch.cat(each)))
    for one, other in zip(*both, strict=True):
        assert_close(one, other, DERIVATIVE)


@torch.no_grad()
def check_orthogonal_in_float32(name, block):
    encoding = zoo.encoding(name, Dims(128, 2, 2, (14, 14)), block=block)
    rotated = rotate_units(encoding, torch.rand(6, 2) * 2)  # an image of twice the size
    assert_close(rotated @ rotated.mT, torch.eye(64).expand_as(rotated), ORTHOGONAL)


DENSE = 16 * 48 * 48  # elements of a rotation of 48 channels for each of 16 tokens


def measure_largest_tensor(name, block, per_sample):
    """Return the elements of the largest tensor that scores of 16 tokens and their gradients make."""
    encoding = make_rotary(name, 2, head=48, block=block)
    q, k = draw_heads(encoding, 16)
    pos = torch.rand(*((2,) if per_sample else ()), 16, 2, dtype=torch.float64)
    with Largest() as found:
        zoo.functional.scores(encoding, q, k, pos).sum().backward()
    return found.most


def check_waves(name):
    """Assert that the angles of wave vectors are those of the tables."""
    torch.manual_seed(1)
    encoding = zoo.encoding(name, Dims(64, 2, axes=2, length=(2, 3)), block=8).double()
    pos = torch.tensor([0.3, 0.2], dtype=torch.float64)
    with torch.no_grad():
        tables = encoding.compute_rotation(torch.stack([0 * pos, pos])[None])
        still, moved = tables[0][0].unbind(1)
        angles = (pos[:, None, None] * encoding.wave_vectors(still)).sum(0)
    torch.testing.assert_close(moved, torch.stack([angles.cos(), angles.sin()], dim=-1))
