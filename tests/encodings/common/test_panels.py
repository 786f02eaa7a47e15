"""Panels of encodings: what all of them must be, and what several have in common."""

from __future__ import annotations

import pytest
import torch
from panels import describe_call

import zoo
from zoo.attention import Tokens
from zoo.attention.chain import Chain
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import Context
from zoo.encodings.common.panels import commutator_norms, drop_padding
from zoo.laws import Case
from zoo.laws.case import packed_documents, position_mask
from zoo.reporting.panel import Bars, Curves, Heatmap, HeatmapGrid, Points

FIRST = 7  # tokens that are cached before the queries of a call come


def list_cases():
    for name in zoo.encoding_names():
        links = ["alibi", name] if zoo.encoding_class(name).consumes_biases else [name]
        for axes in zoo.encoding_class(name).axes:
            yield Case(name, axes, lambda dims, links=links: zoo.encoding(links, dims))


def list_calls(case, dtype):
    """Yield a chain with a call of all tokens, of some among padding, and of the last after cached ones."""
    chain, causal = Chain.of(case.build()).to(dtype).eval(), case.facts.causal_only
    x, pos, cache = case.states().to(dtype), case.positions().float(), KeyValueCache()
    yield chain, describe_call(chain, x, pos, causal, Context())
    chosen = torch.tensor([8, 1, 5])
    facts = {"has_position": position_mask(), "document": packed_documents()}
    yield chain, describe_call(chain, x, pos, causal, Context(), chosen, **facts)
    describe_call(chain, x[:, :FIRST], pos[:FIRST], causal, cache)
    yield chain, describe_call(chain, x[:, FIRST:], pos[FIRST:], causal, cache)


def list_tensors(panel):
    """Return the values of a panel, and the coordinates that they are drawn at."""
    if isinstance(panel, Bars):
        return [torch.tensor(list(panel.values.values()))]
    if isinstance(panel, Curves):
        return [panel.x_values, *panel.lines.values(), *(panel.band or ())]
    if isinstance(panel, Points):
        return [one for two in panel.groups.values() for one in two]
    return [panel.values]


def copy_state(chain, call):
    """Copy all that panels must leave alone."""
    entries = {
        **call.queries.per_token,
        **{f"key {name}": entry for name, entry in call.keys.per_token.items()},
    }
    tensors = (call.q, call.k, call.v, call.raw_query, *entries.values(), *chain.parameters())
    return [tensor.clone() for tensor in tensors]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", tuple(list_cases()), ids=str)
def test_panels_are_finite_say_something_and_change_nothing(case, dtype):
    for chain, call in list_calls(case, dtype):
        before, random_state = copy_state(chain, call), torch.get_rng_state()
        with torch.enable_grad():
            panels = list(chain.panels(call))
        assert torch.equal(torch.get_rng_state(), random_state)
        assert all(map(torch.equal, copy_state(chain, call), before))
        titles = [panel.title for panel in panels]
        assert len(set(titles)) == len(titles)
        for panel in panels:
            assert type(panel) in (Curves, Heatmap, HeatmapGrid, Bars, Points)
            assert ": " in panel.title
            assert panel.x
            assert panel.y
            assert panel.full_caption.endswith(".")
            for tensor in list_tensors(panel):
                assert tensor.numel()
                assert (tensor.device.type, tensor.requires_grad) == ("cpu", False)
                gaps = isinstance(panel, Points) and panel.steep
                assert not (tensor.isinf() if gaps else ~tensor.isfinite()).any()


def test_padding_is_no_token_of_a_spread():
    tokens = Tokens.at(
        torch.zeros(2, 3, 4),
        torch.arange(3.0)[:, None],
        document=torch.tensor([[-1, 0, 0], [0, 1, -1]]),
    )
    values = torch.arange(6.0).view(2, 3, 1)
    assert drop_padding(values, tokens).flatten().tolist() == [1, 2, 3, 4]
    assert drop_padding(values[:, 1:], tokens).flatten().tolist() == [1, 2, 4]
    assert drop_padding(values[:1], tokens).flatten().tolist() == [1, 2, 0, 1]


def test_generators_that_commute_have_no_commutator():
    turn = torch.block_diag(torch.tensor([[0.0, -1], [1, 0]]), torch.tensor([[0.0, -3], [3, 0]]))
    assert commutator_norms(torch.stack([turn, turn @ turn @ turn])[:, None, None]) == 0
    assert commutator_norms(torch.stack([turn, 0 * turn])[:, None, None]) == 0


def test_rotations_about_two_axes_of_space_have_a_commutator():
    first, second = torch.zeros(2, 3, 3).unbind()
    first[2, 1], first[1, 2], second[0, 2], second[2, 0] = 1, -1, 1, -1
    torch.testing.assert_close(
        commutator_norms(torch.stack([first, second])[:, None, None]), torch.tensor([0.5**0.5])
    )
