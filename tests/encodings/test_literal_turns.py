"""Rotations in a learned basis, and waves of augmented positions in evaluation, against literal transcriptions."""

from __future__ import annotations

import pytest
import torch
from calls import moved, near
from literal import rope_axial_liere_comrope as references
from literal import string_cape as literal

import zoo
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.encodings.common.rotation import rotate_pairs
from zoo.encodings.common.spectral_rotation import cayley_basis, fourier_basis, from_upper_triangle
from zoo.encodings.string import String
from zoo.laws import Case, LawBroken
from zoo.laws.equivariance import shifts_change_nothing, special_tokens_are_left_alone

KINDS = {"cayley": literal.cayley, "circulant": literal.circulant}
AXES = pytest.mark.parametrize("axes", [1, 2, 3])
KIND = pytest.mark.parametrize("kind", KINDS)
SIZES = {1: (9,), 2: (3, 4), 3: (2, 3, 2)}
GRADIENT = 1e-8


def made(kind, axes, heads=2, head=8, **more):
    return moved(
        zoo.encoding("string", Dims(heads * head, heads, axes, SIZES[axes], **more), kind=kind)
    )


def called(axes, tokens=5, heads=2, head=8):
    q, k = torch.randn(2, 2, heads, tokens, head, dtype=torch.float64).unbind()
    return q, k, 2 * torch.randn(tokens, axes, dtype=torch.float64)


# texts


@pytest.mark.parametrize("name", ["rope_mixed", "string"])
def test_on_a_text_they_start_with_the_ladder_of_rope(name):
    encoding = zoo.encoding(name, Dims(16, 2, length=9)).double().requires_grad_(False)
    q, k, pos = called(1)
    expected = references.scores(references.rope, encoding, q, k, 100 * pos)
    # parameters start in float32
    near(zoo.scores(encoding, q, k, 100 * pos), expected, 1e-4)


# string


@AXES
@KIND
@pytest.mark.parametrize("queries", [5, 2])
def test_string_is_an_exponential_of_commuting_generators(kind, axes, queries):
    encoding, (q, k, pos) = made(kind, axes), called(axes)
    expected = references.scores(KINDS[kind], encoding, q[:, :, -queries:], k, pos)
    near(zoo.scores(encoding, q[:, :, -queries:], k, pos), expected)


@AXES
@KIND
def test_its_gradients_are_those_of_the_exponential(kind, axes):
    encoding, (q, k, pos) = made(kind, axes).requires_grad_(), called(axes, tokens=3)
    leaves = [one.requires_grad_() for one in (q, k, pos)] + list(encoding.parameters())
    actual = zoo.scores(encoding, q, k, pos)
    expected, weight = references.scores(KINDS[kind], encoding, q, k, pos), torch.randn_like(actual)
    both = [torch.autograd.grad((one * weight).sum(), leaves) for one in (actual, expected)]
    for one, other in zip(*both, strict=True):
        near(one, other, GRADIENT)


@KIND
def test_query_heads_that_share_a_key_head_share_its_rotation(kind):
    encoding, (q, k, pos) = made(kind, 2, heads=4, kv_heads=2), called(2, heads=4)
    each = made(kind, 2, heads=4)
    for name, value in encoding.named_parameters():
        dim = 0 if name == "skew" else 1
        each.get_parameter(name).copy_(value.repeat_interleave(2, dim))
    tokens = Tokens.at(torch.zeros(2, 5, 32, dtype=torch.float64), pos)
    turned = (
        encoding.transform_query(q, tokens)
        @ encoding.transform_key(k[:, ::2], tokens).repeat_interleave(2, 1).mT
    )
    shared = k[:, ::2].repeat_interleave(2, 1)
    near(turned / 8**0.5, zoo.scores(each, q, shared, pos))


def test_circulants_turn_as_the_fast_fourier_transform_does():
    encoding, (q, k, pos) = made("circulant", 2), called(2)
    expected = torch.zeros(2, 2, 5, 5, dtype=torch.float64)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in expected.shape)).tolist():
        one, other = (
            literal.by_transform(encoding, h, pos[n], x[b, h, n]) for n, x in ((i, q), (j, k))
        )
        expected[b, h, i, j] = one @ other / 8**0.5
    near(zoo.scores(encoding, q, k, pos), expected)


def test_two_planes_of_a_circulant_do_not_turn():
    encoding, pos = made("circulant", 1), torch.tensor([[0.0], [3.7]], dtype=torch.float64)
    even, odd = torch.ones(8).double(), torch.tensor([1.0, -1] * 4).double()
    for still in (even, odd):
        q = still.expand(1, 2, 2, 8)
        near(
            zoo.scores(encoding, q, q, pos),
            torch.full((1, 2, 2, 2), 8 / 8**0.5, dtype=torch.float64),
        )


@pytest.mark.parametrize("size", [4, 6, 16, 64])
def test_bases_are_orthogonal(size):
    one = torch.eye(size, dtype=torch.float64)
    triangle = 3 * torch.randn(2, size * (size - 1) // 2, dtype=torch.float64)
    near(fourier_basis(size, one).mT @ fourier_basis(size, one), one)
    q = cayley_basis(from_upper_triangle(triangle, size))
    near(q.mT @ q, one.expand(2, -1, -1))


def test_only_the_odd_part_of_a_circulant_learns():
    encoding, (q, k, pos) = made("circulant", 2).requires_grad_(), called(2)
    zoo.scores(encoding, q, k, pos).square().sum().backward()
    gradient = encoding.circulants.grad
    mirrored = gradient.flip(-1).roll(1, -1)  # entry -m mod K
    near(mirrored, -gradient)
    assert gradient[..., 1:4].abs().min() > 1e-6
    near(gradient[..., [0, 4]], torch.zeros(2, 2, 2).double())


# cape in evaluation


def embedded(encoding, index, extent, has_position=None, document=None):
    x = torch.zeros(1, len(index), encoding.dims.dim, dtype=torch.float64)
    tokens = Tokens.at(x, index, has_position, document)
    tokens = (
        tokens if extent is None else tokens.replace(grid_size=torch.tensor([[extent]]).double())
    )
    return Chain.of(encoding.eval()).embed(tokens).x[0]


def test_the_places_of_a_text_are_sinusoids():
    pos = 50 * torch.rand(7, 1, dtype=torch.float64)
    near(
        embedded(zoo.encoding("cape", Dims(12, 2)).double(), pos, None),
        references.sinusoidal(pos, 12),
    )


@pytest.mark.parametrize("sizes", [(3, 4), (5, 2), (1, 1)])
def test_the_places_of_an_image_are_waves_in_the_plane(sizes):
    index = grid(sizes, torch.zeros(0).double())
    pos = 2 * (index + 0.5) / torch.tensor(sizes) - 1
    near(
        embedded(zoo.encoding("cape", Dims(12, 2, 2)).double(), index, sizes),
        literal.plane_waves(pos, 12),
    )


def test_another_convention_may_be_chosen_for_images():
    index = grid((3, 4), torch.zeros(0).double())
    encoding = zoo.encoding("cape", Dims(12, 2, 2), coordinates="fraction").double()
    near(
        embedded(encoding, index, (3, 4)),
        literal.plane_waves((index + 0.5) / torch.tensor([3, 4]), 12),
    )


@pytest.mark.parametrize("axes", [1, 2])
def test_a_centre_is_the_mean_of_a_document(axes):
    document, placed = (
        [-1, 0, 0, 0, 0, 1, 1, 2, -1],
        [True, False, True, True, True, True, True, True, True],
    )
    pos = torch.randn(9, axes, dtype=torch.float64).cumsum(0)
    encoding = zoo.encoding("cape", Dims(12, 2, axes), centre=True).double()
    waves = references.sinusoidal if axes == 1 else literal.plane_waves
    expected = waves(literal.centred(pos, document, placed), 12)
    expected[1] = 0  # it has no place
    near(
        embedded(encoding, pos, None, torch.tensor(placed), torch.tensor(document))[1:8],
        expected[1:8],
    )


# faults


class OnlyQueries(String):
    """The basis forgotten for keys: still relative, and still a rotation."""

    def transform_key(self, k, tokens):
        _, *turns = self.compute_rotation(tokens.pos)
        return rotate_pairs(k, *turns)


class NotOrthogonal(String):
    """Q applied as (I - S)(I - S)^T."""

    def compute_rotation(self, pos):
        basis, *turns = super().compute_rotation(pos)
        return basis + 0.1 * basis.mT, *turns


@pytest.mark.parametrize("fault", [OnlyQueries, NotOrthogonal])
def test_a_basis_that_does_not_cancel_is_caught(fault):
    member = Case(fault.__name__, 2, fault)
    shifts_change_nothing(member)
    with pytest.raises(LawBroken):
        special_tokens_are_left_alone(member)


class Transposed(String):
    """The inverse basis, which no law can tell from the basis."""

    def compute_rotation(self, pos):
        basis, *turns = super().compute_rotation(pos)
        return basis.mT, *turns


def test_the_inverse_of_the_basis_is_caught_by_the_reference():
    q, k, pos = called(2)
    planted = moved(Transposed(Dims(16, 2, 2)))
    special_tokens_are_left_alone(Case("transposed", 2, Transposed))
    with pytest.raises(AssertionError):
        near(zoo.scores(planted, q, k, pos), references.scores(literal.cayley, planted, q, k, pos))
