"""xPos: rope, with pairs of q times zeta_t^(p/span) and of k times zeta_t^(-p/span)."""

from __future__ import annotations

import pytest
import torch
from calls import (
    QUERIES,
    assert_close,
    check_attention,
    check_reference_catches,
    draw_positions,
    make_call,
    make_encoding,
)
from faults import check_fault_is_caught
from heads import check_shared_key_heads
from literal.xpos import xpos
from parameters import list_facts, make_initial

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.xpos import XPos
from zoo.errors import OptionError
from zoo.laws import causality


def score_literally(call, **options):
    return xpos(call.q, call.k, call.pos, **options).masked_fill(~call.visible, float("-inf"))


@QUERIES
@pytest.mark.parametrize(
    "options", [{}, {"gamma": 1.0, "span": 3.0, "base": 50.0}], ids=["default", "other"]
)
def test_formula(options, queries):
    call = make_call(queries=queries, pos=10 * draw_positions(real=True))
    check_attention(make_encoding("xpos", **options), call, score_literally(call, **options))


@pytest.mark.parametrize("length", [None, 8192, 35_000])
def test_formula_in_float32_over_the_length_of_training(length):
    encoding, reach = zoo.encoding("xpos", Dims(32, 2, length=length)), length or 8192
    q, pos = torch.randn(1, 2, 4, 16), torch.tensor([0.0, 1, reach - 2, reach - 1])[:, None]
    expected = xpos(q.double(), q.double(), pos[:, 0].double())
    mask = torch.ones(4, 4).triu(1).bool()
    scores = zoo.functional.scores(encoding, q, q, pos, causal=True).masked_fill(mask, 0)
    assert_close(scores, expected.masked_fill(mask, 0).float(), 5e-3)


def test_facts():
    assert list_facts("xpos") == {"shift_invariant": True, "causal_only": True}


def test_parameters():
    assert make_initial("xpos").state_dict() == {}


def test_query_heads_rotate_as_the_key_head_that_they_share():
    check_shared_key_heads("xpos")


# overflow


def test_positions_where_powers_overflow_are_refused():
    encoding, q = zoo.encoding("xpos", Dims(32, 2)), torch.randn(1, 2, 2, 16)
    assert (
        zoo.functional.scores(encoding, q, q, torch.tensor([[35_000.0], [35_001]])).isfinite().all()
    )
    message = r"positions 100000 apart.* exceed 35443, .* larger span than 512"
    with pytest.raises(OptionError, match=message):
        zoo.functional.scores(encoding, q, q, torch.tensor([[99_999.0], [100_000]]))
    far = torch.tensor([[100_000.0]] * 2)
    assert zoo.functional.scores(encoding.double(), q.double(), q.double(), far).isfinite().all()
    half = q.half()
    assert (
        zoo.functional.scores(encoding, half, half, torch.tensor([[3_000.0], [3_001]]))
        .isfinite()
        .all()
    )
    with pytest.raises(OptionError, match="where powers overflow"):
        zoo.functional.scores(encoding, half, half, torch.tensor([[6_000.0], [6_001]]))
    with pytest.raises(OptionError, match="larger span"):
        zoo.encoding("xpos", Dims(32, 2, length=100_000))
    assert zoo.encoding("xpos", Dims(32, 2, length=100_000), span=2048.0)


def test_half_precision_reaches_less_far():
    encoding, q = zoo.encoding("xpos", Dims(32, 2)), torch.randn(1, 2, 2, 16).half()
    with pytest.raises(OptionError, match="larger span"):
        zoo.functional.scores(encoding, q, q, torch.tensor([[0.0], [8000.0]]))


def test_keys_that_a_mask_hides_do_not_overflow_either():
    layer = zoo.Attention(Dims(32, 2, length=30_000), "xpos", causal=True)
    pos = torch.tensor([[0.0], [29_999.0]])
    assert layer(torch.randn(1, 2, 32), pos, document=torch.tensor([0, 0])).isfinite().all()
    with pytest.raises(OptionError, match="positions 39999 apart"):
        layer(torch.randn(1, 2, 32), torch.tensor([[0.0], [39_999.0]]))


# planted faults


class Growing(XPos):
    """Queries and keys have changed places: far keys count more."""

    def compute_rotation(self, pos):
        return tuple(reversed(super().compute_rotation(pos)))


def test_planted_fault():
    check_reference_catches(Growing, lambda encoding, call: score_literally(call), head=16)


class OwnMiddle(XPos):
    """Positions count from the middle of the tokens at hand: cached keys have another one."""

    def compute_rotation(self, pos):
        self.centre = float(pos.mean())
        return super().compute_rotation(pos)


def test_planted_fault_of_a_middle_that_passes_do_not_share():
    check_fault_is_caught(causality.decoding_equals_one_pass, OwnMiddle)
