"""PoPE: scores sum_c softplus(q_ic) softplus(k_jc) cos((p_j - p_i) w_c + phase_c) / sqrt(K)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from calls import (
    MASKS,
    assert_close,
    check_attention,
    check_reference_catches,
    draw_positions,
    make_call,
    make_encoding,
    move_parameters,
)
from faults import check_fault_is_caught
from heads import compare_content_bias
from literal.pope import pope
from parameters import HEAD, list_facts, list_shapes, make_initial
from torch import nn

import zoo
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.encodings.pope import PoPE
from zoo.laws import gradients


@MASKS
def test_formula(causal):
    encoding = make_encoding("pope")
    call = make_call(queries=3, causal=causal, pos=draw_positions(real=True))
    check_attention(encoding, call, pope(encoding, call), causal)


def test_formula_of_query_heads_that_share_a_key_head():
    encoding, call = move_parameters(zoo.encoding("pope", Dims(32, 4, kv_heads=2))), make_call()
    tokens, shared = Tokens.at(call.x, call.pos[:, None]), call.k[:, ::2]
    q = encoding.transform_query(call.q, tokens)
    k = encoding.transform_key(shared, tokens).repeat_interleave(2, dim=1)
    scores = (q @ k.mT / math.sqrt(8)).masked_fill(~call.visible, float("-inf"))
    encoding.phase = nn.Parameter(encoding.phase.repeat_interleave(2, dim=0), requires_grad=False)
    repeated = replace(call, k=shared.repeat_interleave(2, dim=1))
    assert_close(scores, pope(encoding, repeated))


def test_facts():
    assert list_facts("pope") == {
        "shared": False,
        "shift_invariant": True,
        "handles_special_tokens": True,
        "identity_at_zero": True,
    }


def test_parameters():
    assert list_shapes(make_initial("pope", kv_heads=2)) == {"phase": (2, HEAD)}


@torch.no_grad()
def test_initial_values_are_anywhere_in_a_turn_or_zero():
    phase = zoo.encoding("pope", Dims(4096, 64)).phase
    assert (phase <= 0).all()
    assert -2 * math.pi <= phase.min() < -6.2
    assert abs(phase.mean() + math.pi) < 5 * 2 * math.pi / math.sqrt(12 * phase.numel())
    assert not make_initial("pope", init_std=0.0).phase.any()


def test_a_bias_of_content_is_transformed_as_queries_are():
    compare_content_bias("pope")


class WideScale(PoPE):
    """Scores divided by the root of what heads became."""

    def modify(self, call):
        return call.replace(scale=call.q.shape[-1] ** -0.5)


def test_planted_fault():
    check_reference_catches(WideScale, pope)


class PhaseOfBoth(PoPE):
    """A phase for queries as well, which cancels that of keys."""

    def transform_query(self, q, tokens):
        return self.transform_key(q, tokens)


def test_planted_fault_of_a_phase_that_cancels():
    check_fault_is_caught(gradients.every_parameter_learns, PhaseOfBoth)
