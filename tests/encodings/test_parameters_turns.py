"""Names, shapes, facts and initial values of `cape` and `string`, and what they refuse."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.attention.encoding import Dims
from zoo.errors import OptionError
from zoo.models.transformer import BlockOptions, Transformer

HEADS, HEAD = 2, 16
WIDTH = HEADS * HEAD


def made(name, axes=1, **options):
    return zoo.encoding(name, Dims(WIDTH, HEADS, axes, 4), **options)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_parameters_are_those_of_the_contract(axes):
    shapes = {name: tuple(p.shape) for name, p in made("string", axes).named_parameters()}
    assert shapes == {
        "frequencies": (axes, HEADS, HEAD // 2),
        "skew": (HEADS, HEAD * (HEAD - 1) // 2),
    }
    circulant = dict(made("string", axes, kind="circulant").named_parameters())
    assert {name: tuple(p.shape) for name, p in circulant.items()} == {
        "circulants": (axes, HEADS, HEAD)
    }


def test_a_rotation_belongs_to_its_key_head():
    grouped = zoo.encoding("string", Dims(64, 4, 2, kv_heads=2))
    assert grouped.frequencies.shape == (2, 2, 8)
    assert grouped.skew.shape == (2, 120)


def test_cape_has_no_parameters():
    assert list(made("cape").parameters()) == []
    assert made("cape").state_dict() == {}


def test_facts():
    cls = zoo.encoding_class("string")
    assert (cls.shared, cls.shift_invariant, cls.causal_only, cls.axes, cls.coordinates) == (
        False,
        True,
        False,
        (1, 2, 3),
        "index",
    )
    cls = zoo.encoding_class("cape")
    assert (
        cls.shared,
        cls.shift_invariant,
        cls.causal_only,
        cls.axes,
        cls.needs_full_sequence,
    ) == (True, False, False, (1, 2), False)
    assert made("cape", 1).coordinates == "index"
    assert made("cape", 2).coordinates == "symmetric"


def test_defaults_are_those_of_the_contract():
    cape = made("cape")
    assert (cape.global_shift, cape.local_shift, cape.scale, cape.centre) == (5, 0.5, 1.03, False)
    assert made("string").kind == "cayley"


def test_string_starts_as_a_ladder_on_each_axis_in_the_basis_that_it_has():
    encoding = made("string", 2)
    ladder = 100.0 ** (-4 * torch.arange(4) / HEAD)
    expected = torch.block_diag(ladder, ladder)[:, None].expand(-1, HEADS, -1)
    torch.testing.assert_close(encoding.frequencies.detach(), expected)
    assert not encoding.skew.any()


def test_circulants_start_with_the_same_frequencies():
    cayley, circulant = (
        made("string", 1, kind=kind).requires_grad_(False) for kind in ("cayley", "circulant")
    )
    turning = 2 * torch.fft.fft(circulant.circulants.double()).imag[..., 1 : HEAD // 2]
    torch.testing.assert_close(turning.float(), cayley.frequencies[..., :-1])


def test_every_axis_has_planes_of_circulants():
    encoding = zoo.encoding("string", Dims(16, 2, axes=3), kind="circulant")
    assert (torch.fft.fft(encoding.circulants).imag.abs().amax((1, 2)) > 0.1).all()


def test_string_starts_as_rope():
    q, k = torch.randn(2, 1, HEADS, 5, HEAD, dtype=torch.float64).unbind()
    pos = torch.randn(5, 1, dtype=torch.float64)
    one, other = made("string", base=10000.0).double(), made("rope").double()
    torch.testing.assert_close(
        zoo.scores(one, q, k, pos), zoo.scores(other, q, k, pos), atol=1e-6, rtol=1e-6
    )


def test_string_at_its_initial_values_learns_everything():
    for kind in ("cayley", "circulant"):
        encoding, pos = made("string", 2, kind=kind), torch.randn(5, 2)
        q, k = torch.randn(2, 1, HEADS, 5, HEAD).unbind()
        zoo.scores(encoding, q, k, pos).square().sum().backward()
        for parameter in encoding.parameters():
            assert parameter.grad.isfinite().all()
            assert parameter.grad.any()


@pytest.mark.parametrize(("there", "here"), [(2, 3), (3, 2)], ids=["to clips", "to images"])
@pytest.mark.parametrize("kind", ["cayley", "circulant"])
def test_what_is_carried_to_other_axes_goes_by_rows_and_columns(kind, there, here):
    trained, other = made("string", there, kind=kind), made("string", here, kind=kind)
    for name, parameter in other.named_parameters():
        parameter.data.copy_(
            other.adapt_parameter(name, trained.get_parameter(name).detach(), trained)
        )
    q, k = torch.randn(2, 1, HEADS, 5, HEAD).unbind()
    pos = {2: torch.randn(5, 2)}
    pos[3] = torch.cat([torch.zeros(5, 1), pos[2]], dim=1)
    torch.testing.assert_close(
        zoo.scores(other, q, k, pos[here]), zoo.scores(trained, q, k, pos[there])
    )


# what is refused


@pytest.mark.parametrize(
    ("kind", "axes", "head"), [("cayley", 1, 3), ("cayley", 2, 6), ("circulant", 2, 4)]
)
def test_a_head_that_cannot_be_turned_is_refused(kind, axes, head):
    with pytest.raises(OptionError, match="head dim"):
        zoo.encoding("string", Dims(2 * head, 2, axes), kind=kind)


def test_an_odd_width_has_no_waves():
    with pytest.raises(OptionError, match="even dim, not 7"):
        zoo.encoding("cape", Dims(7, 1))


def test_a_centre_is_refused_where_the_end_is_not_seen():
    centred = {"cape": lambda dims: zoo.encoding("cape", dims, centre=True)}
    with pytest.raises(OptionError, match="reads the whole sequence"):
        Transformer().add_blocks(Dims(WIDTH, HEADS), centred, BlockOptions(), causal=True)
    with pytest.raises(OptionError, match="reads the whole sequence"):
        zoo.Attention(Dims(WIDTH, HEADS), {"name": "cape", "centre": True}, causal=True)
    with pytest.raises(OptionError, match="reads the whole sequence"):
        zoo.Attention(Dims(WIDTH, HEADS), [{"name": "cape", "centre": True}, "rope"], causal=True)
    zoo.Attention(Dims(WIDTH, HEADS), {"name": "cape", "centre": True})
    zoo.Attention(Dims(WIDTH, HEADS), "cape", causal=True)
