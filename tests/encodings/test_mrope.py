"""M-RoPE: pair i of q and k rotates by p_a(i) w_i, w_i = base^(-2i/K'), where a(i) is t, h or w."""

from __future__ import annotations

import pytest
import torch
from calls import assert_close
from literal.mrope import mrope
from parameters import list_facts, make_initial
from rotations import CASES, check_reference_catches, check_rotation, draw_heads, make_rotary

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.common.frequencies import float64_like
from zoo.encodings.mrope import MRoPE
from zoo.errors import OptionError

LAYOUTS = pytest.mark.parametrize(
    ("layout", "sections"),
    [("interleaved", [4, 4, 4]), ("interleaved", [6, 3, 3]), ("blocks", [3, 5, 4])],
)


@CASES
@LAYOUTS
def test_formula(layout, sections, case):
    encoding = make_rotary("mrope", 3, layout=layout, sections=sections)
    check_rotation(encoding, mrope(sections, layout), case)


def test_formula_for_a_part_of_the_channels():
    options = {"layout": "blocks", "sections": [1, 2, 3], "base": 500.0, "rotary_fraction": 0.5}
    encoding = make_rotary("mrope", 3, **options)
    check_rotation(encoding, mrope([1, 2, 3], "blocks", 500.0, 0.5))


def test_facts():
    facts = {"shift_invariant": True, "axes": (3,), "identity_at_zero": True}
    assert list_facts("mrope") == facts


def test_parameters():
    assert make_initial("mrope", 3).state_dict() == {}


@pytest.mark.parametrize("scaling", [None, {"rule": "yarn", "factor": 4.0, "original": 64}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@LAYOUTS
def test_equal_positions_are_those_of_rope_to_the_last_bit(layout, sections, dtype, scaling):
    encoding = zoo.encoding(
        "mrope", Dims(48, 2, 3), layout=layout, sections=sections, scaling=scaling
    )
    rope = zoo.encoding("rope", Dims(48, 2), scaling=scaling)
    heads = [one.to(dtype) for one in (*draw_heads(rope, 6), torch.randn(2, 2, 6, 24))]
    pos = torch.tensor([0, 1, 77, 4096, 262143, 1000000], dtype=dtype)[:, None]
    found = zoo.functional.attend(encoding, *heads, pos.expand(-1, 3), causal=True)
    assert torch.equal(found, zoo.functional.attend(rope, *heads, pos, causal=True))


@pytest.mark.parametrize(
    ("pairs", "layout", "sections"),
    [
        (64, "interleaved", [24, 20, 20]),  # Qwen3-VL
        (64, "blocks", [16, 24, 24]),  # Qwen2-VL
        (24, "interleaved", [8, 8, 8]),
        (1, "interleaved", [1, 0, 0]),
        (1, "blocks", [1, 0, 0]),
    ],
)
def test_the_default_sections_are_the_published_shares(pairs, layout, sections):
    dims = Dims(4 * pairs, 2, 3)
    default = zoo.encoding("mrope", dims, layout=layout)
    given = zoo.encoding("mrope", dims, layout=layout, sections=sections)
    assert default.sections == given.sections == tuple(sections)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sections": [4, 4, 3]}, r"sections \[4, 4, 3\] have the sum 11, not 12"),
        ({"sections": [6, 6]}, r"sections \[6, 6\] are not three numbers"),
        ({"sections": [2, 5, 5]}, r"would rotate \[4, 4, 4\] of 12 pairs; .*layout: blocks"),
        ({"sections": [0, 0, 12]}, r"would rotate \[8, 0, 4\] of 12 pairs"),
    ],
)
def test_sections_that_no_layout_has_are_refused(options, problem):
    with pytest.raises(OptionError, match=problem) as refusal:
        zoo.encoding("mrope", Dims(48, 2, 3), **options)
    assert refusal.value.key == "sections"


def test_a_decoder_refuses_it_and_says_what_takes_its_place():
    with pytest.raises(OptionError, match="no data source of texts has; rope is its form for text"):
        zoo.encoding("mrope", Dims(48, 2))


def test_the_full_length_of_a_text_holds_on_every_axis():
    scaling = {"rule": "dynamic", "factor": 2.0, "original": 8, "length": 16}
    encoding = zoo.encoding("mrope", Dims(48, 2, 3), scaling=scaling)
    q, k = (one.float() for one in draw_heads(encoding, 3))
    pos = torch.tensor([[0, 0, 0], [1, 15, 2], [1, 16, 3]])
    zoo.functional.scores(encoding, q[:, :, :2], k[:, :, :2], pos[:2])
    with pytest.raises(OptionError, match="mrope: position 16 is past length 16"):
        zoo.functional.scores(encoding, q, k, pos)


@pytest.mark.parametrize(
    ("layout", "sections"), [("interleaved", [24, 20, 20]), ("blocks", [16, 24, 24])]
)
def test_each_pair_turns_with_its_axis_alone(layout, sections):
    encoding = zoo.encoding("mrope", Dims(256, 2, 3), layout=layout, sections=sections)
    waves = encoding.wave_vectors(float64_like(torch.zeros(1)))[:, 0]  # [3, 64]
    assert ((waves > 0).sum(1) == torch.tensor(sections)).all()
    assert_close(waves.sum(0), 10000.0 ** (-torch.arange(64).double() / 64))


class LastSectionFirst(MRoPE):
    def wave_vectors(self, like):
        return super().wave_vectors(like).flip(0)


def test_planted_fault_in_the_order_of_axes():
    sections = [3, 5, 4]
    check_reference_catches(
        LastSectionFirst, mrope(sections, "blocks"), axes=3, layout="blocks", sections=sections
    )
