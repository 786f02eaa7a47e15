"""STRING: pairs (2i, 2i+1) of Q q and Q k rotate by sum_a p_a frequencies[a, i], per head."""

from __future__ import annotations

import math

import pytest
import torch
from calls import assert_close, move_parameters
from faults import make_case
from literal.rope import rope
from literal.rotation import score_rotations
from literal.string import cayley, circulant, transform_circulant
from parameters import adapt_parameters, list_facts, list_shapes
from rotations import AXES, SIZES

import zoo
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.encodings.common.rotation import rotate_pairs
from zoo.encodings.string import String
from zoo.errors import OptionError
from zoo.laws import LawBroken
from zoo.laws.equivariance import shifts_change_nothing, special_tokens_are_left_alone

ROTATIONS = {"cayley": cayley, "circulant": circulant}
KIND = pytest.mark.parametrize("kind", ROTATIONS)


def make_moved(kind, axes, heads=2, head=8, **more):
    """Make an encoding of two heads of eight channels, with moved parameters."""
    dims = Dims(heads * head, heads, axes, SIZES[axes], **more)
    return move_parameters(zoo.encoding("string", dims, kind=kind))


def draw_inputs(axes, tokens=5, heads=2, head=8):
    """Draw queries and keys [2, H, N, K], and coordinates [N, P]."""
    q, k = torch.randn(2, 2, heads, tokens, head, dtype=torch.float64).unbind()
    return q, k, 2 * torch.randn(tokens, axes, dtype=torch.float64)


@AXES
@KIND
@pytest.mark.parametrize("queries", [5, 2])
def test_formula(kind, axes, queries):
    encoding, (q, k, pos) = make_moved(kind, axes), draw_inputs(axes)
    expected = score_rotations(ROTATIONS[kind], encoding, q[:, :, -queries:], k, pos)
    assert_close(zoo.functional.scores(encoding, q[:, :, -queries:], k, pos), expected)


@AXES
@KIND
def test_formula_has_the_same_gradients(kind, axes):
    encoding, (q, k, pos) = make_moved(kind, axes).requires_grad_(), draw_inputs(axes, tokens=3)
    leaves = [one.requires_grad_() for one in (q, k, pos)] + list(encoding.parameters())
    actual = zoo.functional.scores(encoding, q, k, pos)
    expected = score_rotations(ROTATIONS[kind], encoding, q, k, pos)
    weight = torch.randn_like(actual)
    both = [torch.autograd.grad((one * weight).sum(), leaves) for one in (actual, expected)]
    for one, other in zip(*both, strict=True):
        assert_close(one, other, 1e-8)


def test_formula_of_circulants_is_that_of_the_fast_fourier_transform():
    encoding, (q, k, pos) = make_moved("circulant", 2), draw_inputs(2)
    expected = torch.zeros(2, 2, 5, 5, dtype=torch.float64)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in expected.shape)).tolist():
        one, other = (
            transform_circulant(encoding, h, pos[n], x[b, h, n]) for n, x in ((i, q), (j, k))
        )
        expected[b, h, i, j] = one @ other / 8**0.5
    assert_close(zoo.functional.scores(encoding, q, k, pos), expected)


@KIND
def test_formula_of_query_heads_that_share_a_key_head(kind):
    encoding, (q, k, pos) = make_moved(kind, 2, heads=4, kv_heads=2), draw_inputs(2, heads=4)
    each = make_moved(kind, 2, heads=4)
    for name, value in encoding.named_parameters():
        dim = 0 if name == "skew" else 1
        each.get_parameter(name).copy_(value.repeat_interleave(2, dim))
    tokens = Tokens.at(torch.zeros(2, 5, 32, dtype=torch.float64), pos)
    queries = encoding.transform_query(q, tokens)
    keys = encoding.transform_key(k[:, ::2], tokens).repeat_interleave(2, 1)
    shared = k[:, ::2].repeat_interleave(2, 1)
    assert_close(queries @ keys.mT / 8**0.5, zoo.functional.scores(each, q, shared, pos))


def test_facts():
    assert list_facts("string") == {
        "shared": False,
        "shift_invariant": True,
        "axes": (1, 2, 3),
        "identity_at_zero": True,
    }


# parameters


def make_initial(axes=1, heads=2, head=16, **options):
    return zoo.encoding("string", Dims(heads * head, heads, axes, 4), **options)


@AXES
def test_parameters(axes):
    assert make_initial(axes).kind == "cayley"
    assert list_shapes(make_initial(axes)) == {"frequencies": (axes, 2, 8), "skew": (2, 120)}
    assert list_shapes(make_initial(axes, kind="circulant")) == {"circulants": (axes, 2, 16)}


def test_parameters_belong_to_the_key_head():
    grouped = zoo.encoding("string", Dims(64, 4, 2, kv_heads=2))
    assert grouped.frequencies.shape == (2, 2, 8)
    assert grouped.skew.shape == (2, 120)


def test_initial_values_are_a_ladder_on_each_axis_in_the_basis_that_heads_have():
    encoding = make_initial(2)
    ladder = 100.0 ** (-4 * torch.arange(4) / 16)
    expected = torch.block_diag(ladder, ladder)[:, None].expand(-1, 2, -1)
    torch.testing.assert_close(encoding.frequencies.detach(), expected)
    assert not encoding.skew.any()


def test_initial_values_of_circulants_have_the_same_frequencies():
    ladder, circulants = (
        make_initial(1, kind=kind).requires_grad_(False) for kind in ("cayley", "circulant")
    )
    waves = 2 * torch.fft.fft(circulants.circulants.double()).imag[..., 1:8]
    torch.testing.assert_close(waves.float(), ladder.frequencies[..., :-1])


def test_initial_values_of_circulants_rotate_planes_for_every_axis():
    encoding = zoo.encoding("string", Dims(16, 2, axes=3), kind="circulant")
    assert (torch.fft.fft(encoding.circulants).imag.abs().amax((1, 2)) > 0.1).all()


def test_initial_values_are_those_of_rope():
    q, k = torch.randn(2, 1, 2, 5, 16, dtype=torch.float64).unbind()
    pos = torch.randn(5, 1, dtype=torch.float64)
    one = make_initial(base=10000.0).double()
    other = zoo.encoding("rope", Dims(32, 2, 1, 4)).double()
    torch.testing.assert_close(
        zoo.functional.scores(one, q, k, pos),
        zoo.functional.scores(other, q, k, pos),
        atol=1e-6,
        rtol=1e-6,
    )


def test_initial_values_on_a_text_are_those_of_rope():
    encoding = zoo.encoding("string", Dims(16, 2, length=9)).double().requires_grad_(False)
    q, k, pos = draw_inputs(1)
    expected = score_rotations(rope, encoding, q, k, 100 * pos)
    # parameters start in float32
    assert_close(zoo.functional.scores(encoding, q, k, 100 * pos), expected, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("base", "axes"), [(10000.0, 1), (100.0, 2), (100.0, 3)])
def test_initial_base_is_that_of_rope_on_texts_and_a_given_base_wins(base, axes):
    dims = Dims(64, 4, axes=axes, length=(4,) * axes)
    last = (8 + axes - 1) // axes - 1  # of the first group of pairs
    for given, chosen in ((None, base), (50.0, 50.0)):
        waves = zoo.encoding("string", dims, base=given).frequencies.norm(dim=0)  # [G, K/2]
        expected = chosen ** (-2 * axes * last / 16)
        assert math.isclose(waves[0, last].item(), expected, rel_tol=1e-4)


def test_initial_values_learn_everything():
    for kind in ("cayley", "circulant"):
        encoding, pos = make_initial(2, kind=kind), torch.randn(5, 2)
        q, k = torch.randn(2, 1, 2, 5, 16).unbind()
        zoo.functional.scores(encoding, q, k, pos).square().sum().backward()
        for parameter in encoding.parameters():
            assert parameter.grad.isfinite().all()
            assert parameter.grad.any()


@pytest.mark.parametrize(
    ("kind", "axes", "head"), [("cayley", 1, 3), ("cayley", 2, 6), ("circulant", 2, 4)]
)
def test_a_head_that_cannot_be_rotated_is_refused(kind, axes, head):
    with pytest.raises(OptionError, match="head dim"):
        make_initial(axes, head=head, kind=kind)


# circulants


def test_two_planes_of_a_circulant_do_not_rotate():
    encoding, pos = make_moved("circulant", 1), torch.tensor([[0.0], [3.7]], dtype=torch.float64)
    even, odd = torch.ones(8).double(), torch.tensor([1.0, -1] * 4).double()
    for still in (even, odd):
        q = still.expand(1, 2, 2, 8)
        expected = torch.full((1, 2, 2, 2), 8 / 8**0.5, dtype=torch.float64)
        assert_close(zoo.functional.scores(encoding, q, q, pos), expected)


def test_only_the_odd_part_of_a_circulant_learns():
    encoding, (q, k, pos) = make_moved("circulant", 2).requires_grad_(), draw_inputs(2)
    zoo.functional.scores(encoding, q, k, pos).square().sum().backward()
    gradient = encoding.circulants.grad
    mirrored = gradient.flip(-1).roll(1, -1)  # entry -m mod K
    assert_close(mirrored, -gradient)
    assert gradient[..., 1:4].abs().min() > 1e-6
    assert_close(gradient[..., [0, 4]], torch.zeros(2, 2, 2).double())


# other sizes


@pytest.mark.parametrize(("there", "here"), [(2, 3), (3, 2)], ids=["to clips", "to images"])
@KIND
def test_rows_and_columns_keep_their_frequencies(kind, there, here):
    trained, other = make_initial(there, kind=kind), make_initial(here, kind=kind)
    assert adapt_parameters(trained, other) == []
    q, k = torch.randn(2, 1, 2, 5, 16).unbind()
    pos = {2: torch.randn(5, 2)}
    pos[3] = torch.cat([torch.zeros(5, 1), pos[2]], dim=1)
    torch.testing.assert_close(
        zoo.functional.scores(other, q, k, pos[here]),
        zoo.functional.scores(trained, q, k, pos[there]),
    )


# planted faults


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
def test_planted_fault_of_a_basis_that_does_not_cancel(fault):
    shifts_change_nothing(make_case(fault, 2))
    with pytest.raises(LawBroken):
        special_tokens_are_left_alone(make_case(fault, 2))


class Transposed(String):
    """The inverse basis, which no law can tell from the basis."""

    def compute_rotation(self, pos):
        basis, *turns = super().compute_rotation(pos)
        return basis.mT, *turns


def test_planted_fault_that_only_the_reference_catches():
    q, k, pos = draw_inputs(2)
    planted = move_parameters(Transposed(Dims(16, 2, 2)))
    special_tokens_are_left_alone(make_case(Transposed, 2))
    with pytest.raises(AssertionError, match="not close"):
        assert_close(
            zoo.functional.scores(planted, q, k, pos), score_rotations(cayley, planted, q, k, pos)
        )
