"""Learned positions: x + table[p], row-major over several axes, resized for other grids."""

from __future__ import annotations

import math

import pytest
import torch
from calls import assert_close
from extrapolate import check_last_token, make_extended
from literal.learned import read_rows
from panels import list_panels
from parameters import (
    LENGTH,
    WIDTH,
    adapt_parameters,
    check_normal,
    compute_limit,
    list_facts,
    list_shapes,
    make_initial,
    make_normal,
    measure_distance,
)
from rotations import AXES, IMAGE, SIZES, make_rotary
from torch.nn import functional as F

import zoo
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.encodings.learned import Learned
from zoo.errors import OptionError


@AXES
def test_formula(axes):
    encoding, x = make_rotary("learned", axes), torch.randn(2, math.prod(SIZES[axes]), 48).double()
    pos = grid(SIZES[axes], x)
    assert_close(zoo.functional.embed(encoding, x, pos), x + read_rows(encoding, pos, SIZES[axes]))


def test_formula_with_a_table_of_each_layer_that_its_attention_reads():
    own = zoo.encoding("learned", Dims(8, 2, length=5), shared=False)
    x, pos = torch.randn(2, 5, 8), torch.arange(5.0)[:, None]
    assert torch.equal(zoo.functional.embed(own, x, pos), x)
    layer, plain = (zoo.Attention(Dims(8, 2, length=5), one) for one in (own, "none"))
    plain.load_state_dict(
        {key: value for key, value in layer.state_dict().items() if "table" not in key}
    )
    assert_close(layer(x, pos), plain(x + own.table, pos), 1e-6)


def test_facts():
    assert list_facts("learned") == {"axes": (1, 2, 3)}


@pytest.mark.parametrize(("axes", "rows"), [(1, 9), (2, 12), (3, 12)])
def test_parameters(axes, rows):
    assert list_shapes(make_rotary("learned", axes)) == {"table": (rows, 48)}
    assert list_shapes(make_initial("learned")) == {"table": (LENGTH, WIDTH)}


def test_initial_values():
    table = zoo.encoding("learned", Dims(64, 4, length=100)).table
    assert measure_distance(table, make_normal(0.02)) < compute_limit(table)
    check_normal(make_initial("learned").table, 0.02)


def test_a_table_needs_the_size_of_training():
    with pytest.raises(OptionError, match="length"):
        zoo.encoding("learned", Dims(16, 2))


def test_a_text_past_the_table_is_refused_with_both_numbers():
    encoding = zoo.encoding("learned", Dims(16, 2, length=10))
    x = torch.zeros(1, 13, 16)
    assert zoo.functional.embed(encoding, x[:, :10], torch.arange(10.0)[:, None]).shape == (
        1,
        10,
        16,
    )
    with pytest.raises(OptionError, match=r"position 12 .* 10 positions"):
        zoo.functional.embed(encoding, x, torch.arange(13.0)[:, None])
    with pytest.raises(OptionError, match=r"position 12 .* 10 positions"):
        zoo.Attention(Dims(16, 2, length=10), "learned")(x)


# grids of other sizes


def resize(encoding, sizes, new):
    """Resize a table [tokens, D] as an image of D channels."""
    image = encoding.table.unflatten(0, sizes).permute(2, 0, 1)[None]
    resized = F.interpolate(image, new, mode="bicubic", align_corners=False, antialias=False)
    return resized[0].flatten(1).T


@pytest.mark.parametrize("new", [(5, 7), (10, 14), (8, 6), (3, 11), (2, 2), (13, 1)])
def test_a_grid_is_resized_as_images_are(new):
    encoding = zoo.encoding("learned", Dims(16, 2, 2, (5, 7))).double()
    x = torch.zeros(1, math.prod(new), 16, dtype=torch.float64)
    tokens = Tokens.at(x, grid(new, x)).replace(grid_size=torch.tensor([[new]]).double())
    assert_close(Chain.of(encoding).embed(tokens).x[0], resize(encoding, (5, 7), new))


def test_a_larger_grid_needs_no_option():
    encoding = zoo.encoding("learned", Dims(6, 1, 2, (3, 4))).double()
    assert encoding.extrapolations((2.0, 1.5)) == {"resample": {}, "linear": {}}
    tokens = Tokens.at(torch.zeros(1, 36, 6).double(), grid((6, 6), encoding.table))
    tokens = tokens.replace(grid_size=torch.tensor([[[6.0, 6.0]]]).double())
    torch.testing.assert_close(encoding.embed(tokens).x[0], resize(encoding, (3, 4), (6, 6)))
    with pytest.raises(OptionError, match="leave it out"):
        zoo.encoding({"name": "learned", "stretch": 2.0}, Dims(6, 1, 2, (3, 4)))


def test_a_class_token_has_no_row():
    encoding = zoo.encoding("learned", Dims(16, 2, 2, (5, 7))).double()
    x = torch.randn(1, 13, 16, dtype=torch.float64)
    index = torch.cat([torch.zeros(1, 2), grid((4, 3), x)])
    placed = torch.arange(13) > 0
    tokens = Tokens.at(x, index, placed).replace(grid_size=torch.tensor([[[4.0, 3]]]).double())
    out = Chain.of(encoding).embed(tokens).x
    assert torch.equal(out[:, 0], x[:, 0])
    assert (out[:, 1:] != x[:, 1:]).any(-1).all()


# texts of other lengths


@pytest.mark.parametrize("factor", [2, 3])
def test_a_longer_text_resamples_the_table_as_images_are(factor):
    there = make_extended("learned", Dims(6, 1, length=5), "resample", (float(factor),)).double()
    zero, pos = torch.zeros(1, 5 * factor, 6).double(), torch.arange(5.0 * factor)[:, None]
    table = zoo.functional.embed(there, zero, pos)[0]
    image = there.table.detach().T[None, :, :, None]  # [1, D, length, 1]
    resized = F.interpolate(image, size=(5 * factor, 1), mode="bicubic", align_corners=False)
    torch.testing.assert_close(table, resized[0, :, :, 0].T)
    with pytest.raises(OptionError, match=f"past the table of {5 * factor} positions"):
        zoo.functional.embed(there, torch.zeros(1, 1, 6).double(), torch.tensor([[5.0 * factor]]))


def test_the_last_token_of_a_stretched_table_is_in_it():
    check_last_token("learned")


def test_a_text_of_another_length_has_the_rows_that_both_have():
    trained, longer, shorter = (
        zoo.encoding("learned", Dims(24, 2, length=length, depth=2)) for length in (6, 8, 4)
    )
    initial = longer.table.detach().clone()
    assert adapt_parameters(trained, longer) == adapt_parameters(trained, shorter) == []
    assert torch.equal(longer.table, torch.cat([trained.table, initial[6:]]))
    assert torch.equal(shorter.table, trained.table[:4])


def test_a_text_has_nothing_for_a_grid():
    text = zoo.encoding("learned", Dims(24, 2, length=6, depth=2))
    assert adapt_parameters(text, zoo.encoding("learned", IMAGE))


def test_panel_shows_the_norms_of_rows_where_they_stand():
    dims = Dims(32, 2, axes=2, length=(2, 3))
    panels = list_panels("learned", dims, False, change=lambda one: one.table.zero_()[4].fill_(0.5))
    expected = torch.zeros(2, 3)
    expected[1, 1] = 8**0.5
    torch.testing.assert_close(panels["Norms of table rows"].values, expected)


class ColumnMajor(Learned):
    """The rows of a grid in the order of its columns."""

    def embed(self, tokens):
        table = self.table.unflatten(0, self.dims.sizes).transpose(0, 1).flatten(0, 1)
        rows, columns = tokens.pos[0].long().unbind(-1)
        return tokens.replace(x=tokens.x + table[rows * self.dims.sizes[1] + columns])


def test_planted_fault():
    for cls in (Learned, ColumnMajor):
        encoding, x = cls(IMAGE).double(), torch.zeros(1, 12, 24, dtype=torch.float64)
        pos = grid((3, 4), x)
        expected = read_rows(encoding, pos, (3, 4))
        if cls is ColumnMajor:
            with pytest.raises(AssertionError, match="not close"):
                assert_close(zoo.functional.embed(encoding, x, pos)[0], expected)
        else:
            assert_close(zoo.functional.embed(encoding, x, pos)[0], expected)
