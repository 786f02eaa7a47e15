"""Rounding errors of scores, and what counts as a fault among them."""

from __future__ import annotations

from faults import make_case
from samples import Slope

from zoo.attention.call import AttentionCall
from zoo.attention.encoding import Encoding
from zoo.laws.certificate import measure_roundings


class NotANumberFarOff(Encoding):
    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: (30.0 - call.offset(b, i, j)[..., 0].abs()).log())


def test_scores_in_float32_that_are_no_numbers_are_a_fault():
    found = [*measure_roundings([make_case(Slope), make_case(NotANumberFarOff)])]
    assert {one.head_dtype for one in found if one.broken} == {"float32"}
    assert not any(one.broken for one in measure_roundings([make_case(Slope)]))
