"""What encodings say of themselves: one law for all of them, and values that are known by hand."""

import math

import pytest
import torch

import zoo
from zoo.attention import Dims, Tokens
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import Context, SelfAttention
from zoo.encodings.common.panels import commutator_norms
from zoo.laws import Case
from zoo.laws.case import packed_documents, position_mask
from zoo.reporting.panel import Bars, Curves, Heatmap, HeatmapGrid, Points

FIRST = 7  # tokens that are cached before the queries of a call come


def members():
    for name in zoo.encoding_names():
        listed = ["alibi", name] if zoo.encoding_class(name).consumes_biases else [name]
        for axes in zoo.encoding_class(name).axes:
            yield Case(name, axes, lambda dims, listed=listed: zoo.encoding(listed, dims))


def described(chain, x, pos, causal, context, slots=None, **facts):
    """The call of one layer for tokens [B, N, D] at [N, P], of all queries or of those at `slots`."""
    layer = SelfAttention(chain.dims, causal=causal).to(x.dtype)
    tokens = chain.embed(Tokens.at(x, pos, ordered=causal and pos.shape[-1] == 1, **facts))
    return layer.describe(tokens, chain, context, slots)[1]


def calls(member, dtype):
    """A chain, and its call of all tokens at once, of some of them, among padding, and of the last, after cached ones."""
    chain, causal = Chain.of(member.build()).to(dtype).eval(), member.facts.causal_only
    x, pos, cache = member.states().to(dtype), member.positions().float(), KeyValueCache()
    yield chain, described(chain, x, pos, causal, Context())
    chosen, facts = (
        torch.tensor([8, 1, 5]),
        {"has_position": position_mask(), "document": packed_documents()},
    )
    yield chain, described(chain, x, pos, causal, Context(), chosen, **facts)
    described(chain, x[:, :FIRST], pos[:FIRST], causal, cache)
    yield chain, described(chain, x[:, FIRST:], pos[FIRST:], causal, cache)


def tensors(panel):
    """Values, and places beside them."""
    if isinstance(panel, Bars):
        return [torch.tensor(list(panel.values.values()))]
    if isinstance(panel, Curves):
        return [panel.x_values, *panel.lines.values(), *(panel.band or ())]
    return (
        [one for two in panel.groups.values() for one in two]
        if isinstance(panel, Points)
        else [panel.values]
    )


def state(chain, call):
    """Copies of all that findings must leave alone."""
    notes = {
        **call.queries.per_token,
        **{f"key {name}": note for name, note in call.keys.per_token.items()},
    }
    return [
        one.clone()
        for one in (call.q, call.k, call.v, call.raw_query, *notes.values(), *chain.parameters())
    ]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("member", tuple(members()), ids=str)
def test_findings_are_finite_panels_that_say_something_and_change_nothing(member, dtype):
    for chain, call in calls(member, dtype):
        before, drawn = state(chain, call), torch.get_rng_state()
        with torch.enable_grad():
            panels = list(chain.panels(call))
        assert torch.equal(torch.get_rng_state(), drawn)
        assert all(map(torch.equal, state(chain, call), before))
        titles = [panel.title for panel in panels]
        assert len(set(titles)) == len(titles)
        for panel in panels:
            assert type(panel) in (Curves, Heatmap, HeatmapGrid, Bars, Points)
            assert ": " in panel.title
            assert panel.x
            assert panel.y
            assert panel.full_caption.endswith(".")
            for tensor in tensors(panel):
                assert tensor.numel()
                assert (tensor.device.type, tensor.requires_grad) == ("cpu", False)
                gaps = isinstance(panel, Points) and panel.steep
                assert not (tensor.isinf() if gaps else ~tensor.isfinite()).any()


def found(name, dims=None, causal=True, tokens=8, change=None, context=None, **options):
    """{title without the name: panel} of an encoding whose parameters `change` may set."""
    dims = dims or Dims(32, 2, length=16)
    chain = Chain.of(zoo.encoding(name, dims, **options))
    with torch.no_grad():
        if change:
            change(next(iter(chain)))
        pos = grid((tokens,) if dims.axes == 1 else dims.sizes, torch.zeros(0))
        x = torch.randn(2, len(pos), dims.dim)
        call = described(chain, x, pos, causal, context or Context())
        return {panel.title.split(": ")[1]: panel for panel in chain.panels(call)}


def test_rope_tells_its_frequencies():
    (pairs,) = found("rope", base=100.0)["Rotation frequencies"].groups.values()
    torch.testing.assert_close(pairs[1], 100.0 ** (-torch.arange(8.0) / 8))


def test_frequencies_are_those_of_a_token_whatever_the_coordinates():
    (pairs,) = found("rope", base=100.0, coordinates="fraction")[
        "Rotation frequencies"
    ].groups.values()
    torch.testing.assert_close(pairs[1], 100.0 ** (-torch.arange(8.0) / 8) / 16)


def test_a_wave_vector_lies_where_its_pair_turns():
    def one_wave(encoding):
        encoding.frequencies.zero_()[0, 1, 3] = 2.0  # the row, of the second head

    waves = found("rope_mixed", Dims(32, 2, axes=2, length=(2, 3)), False, change=one_wave)[
        "Wave vectors"
    ]
    columns, rows = waves.groups["head 2"]
    assert (rows[3], columns.abs().max(), rows.sum()) == (2, 0, 2)
    assert waves.groups["head 1"][1].abs().max() == 0


@pytest.mark.parametrize("name", ["comrope_ap", "comrope_ld"])
def test_the_waves_of_generators_are_those_that_tables_turn_by(name):
    torch.manual_seed(1)
    encoding = zoo.encoding(name, Dims(64, 2, axes=2, length=(2, 3)), block=8).double()
    with torch.no_grad():
        still, moved = encoding.compute_rotation(
            torch.tensor([[[0.0, 0.0], [0.3, 0.2]]], dtype=torch.float64)
        )[0][0].unbind(1)
        angles = (
            torch.tensor([0.3, 0.2], dtype=torch.float64)[:, None, None]
            * encoding.wave_vectors(still)
        ).sum(0)
    torch.testing.assert_close(moved, torch.stack([angles.cos(), angles.sin()], dim=-1))


def test_generators_that_commute_have_no_commutator():
    turn = torch.block_diag(torch.tensor([[0.0, -1], [1, 0]]), torch.tensor([[0.0, -3], [3, 0]]))
    assert commutator_norms(torch.stack([turn, turn @ turn @ turn])[:, None, None]) == 0
    assert commutator_norms(torch.stack([turn, 0 * turn])[:, None, None]) == 0


def test_turns_about_two_axes_of_space_have_one():
    first, second = torch.zeros(2, 3, 3).unbind()
    first[2, 1], first[1, 2], second[0, 2], second[2, 0] = 1, -1, 1, -1
    torch.testing.assert_close(
        commutator_norms(torch.stack([first, second])[:, None, None]), torch.tensor([0.5**0.5])
    )


def test_liere_departs_from_relativity_unless_its_generators_commute():
    dims = Dims(32, 2, axes=2, length=(5, 5))

    def alike(encoding):
        encoding.generators[1, 0] = 2 * encoding.generators[0, 0]  # of the first head

    seen = found("liere", dims, False, change=alike)
    lines, sizes = seen["Change under shifts"].lines, seen["Commutators of axes"].values
    assert lines["head 1"].abs().max() < 1e-4
    assert lines["head 2"][0] == 0
    assert lines["head 2"][1:].min() > 0.1
    assert sizes["head 1"] < 1e-5 < 0.1 < sizes["head 2"]


def test_half_life_of_a_gate_that_is_set():
    def half(encoding):
        encoding.gate.weight.zero_()
        encoding.gate.bias.copy_(torch.tensor([0.5, 2**-0.1]).logit())

    seen = found("fox", change=half)
    assert seen["Half-life"].values == pytest.approx({"head 1": 1, "head 2": 10}, rel=1e-4)
    assert all(gates[1][0] == 0.5 for gates in seen["Forget gates"].groups.values())


def test_padding_is_no_token_of_a_spread():
    from zoo.encodings.common.panels import drop_padding

    tokens = Tokens.at(
        torch.zeros(2, 3, 4),
        torch.arange(3.0)[:, None],
        document=torch.tensor([[-1, 0, 0], [0, 1, -1]]),
    )
    values = torch.arange(6.0).view(2, 3, 1)
    assert drop_padding(values, tokens).flatten().tolist() == [1, 2, 3, 4]
    assert drop_padding(values[:, 1:], tokens).flatten().tolist() == [1, 2, 4]
    assert drop_padding(values[:1], tokens).flatten().tolist() == [1, 2, 0, 1]


def test_cope_counts_halves_where_scores_are_nothing():
    chain = Chain.of(zoo.encoding("cope", Dims(32, 2, length=16), max_positions=3))
    with torch.no_grad():
        call = described(chain, torch.zeros(1, 8, 32), torch.arange(8.0)[:, None], True, Context())
        seen = {
            panel.title.split(": ")[1]: panel for panel in chain.panels(call.replace(q=0 * call.q))
        }
    assert seen["Gates"].values == {"head 1": 0.5, "head 2": 0.5}
    assert seen["Positions counted"].values["head 1"] == pytest.approx(4.5 / 2)  # of 1 to 8 tokens
    cut = sum(max(row - 4, 0) for row in range(1, 9)) / 36  # counts of more than 2
    assert seen["Clamped positions"].values["head 1"] == pytest.approx(cut)


def test_buckets_of_t5_share_far_offsets():
    def numbered(encoding):
        encoding.table.copy_(torch.arange(8.0)[:, None].expand(-1, 2))

    curve = found("t5", num_buckets=8, max_distance=9, change=numbered)["Bias by offset, text"]
    assert curve.x_values.tolist() == list(range(10))
    assert curve.lines["all heads"].tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 7, 7]
    both = found("t5", causal=False, num_buckets=8, max_distance=9, change=numbered)[
        "Bias by offset, text"
    ]
    assert both.x_values[0] == -9
    assert both.lines["all heads"][8:11].tolist() == [
        5,
        0,
        1,
    ]  # half of the buckets are for keys ahead


def test_shaw_tells_the_norm_of_each_offset_from_query_to_key():
    def one_back(encoding):
        encoding.key.zero_()[3] = 2.0  # key - query = -1 at a reach of 4

    curve = found("shaw", max_distance=4, change=one_back)["Key vectors by offset"]
    assert curve.lines["all heads"][curve.x_values == 1] == 8  # 16 channels of 2
    assert curve.lines["all heads"].sum() == 8


def test_slopes_and_rates_are_those_that_biases_have():
    assert found("alibi")["Slopes"].values == {"head 1": 2**-4, "head 2": 2**-8}
    kerple = found(
        "kerple", change=lambda encoding: encoding.log_rate.copy_(torch.tensor([0.0, math.log(3)]))
    )
    assert kerple["Rates"].values == pytest.approx({"head 1": 1, "head 2": 3})


def test_rows_of_a_table_are_told_where_they_stand():
    rows = found(
        "learned",
        Dims(32, 2, axes=2, length=(2, 3)),
        False,
        change=lambda one: one.table.zero_()[4].fill_(0.5),
    )
    expected = torch.zeros(2, 3).index_put((torch.tensor(1), torch.tensor(1)), torch.tensor(8**0.5))
    torch.testing.assert_close(rows["Norms of table rows"].values, expected)


def test_frames_that_nothing_moved_are_those_of_rope():
    marks = found("tape")["Frame change"].groups
    assert all(values.abs().max() == 0 for _, values in marks.values())


def test_a_stick_that_nobody_breaks_is_left_whole():
    chain = Chain.of(zoo.encoding("stickbreaking", Dims(32, 2, length=16)))
    with torch.no_grad():
        call = described(chain, torch.randn(1, 8, 32), torch.arange(8.0)[:, None], True, Context())
        (panel,) = chain.panels(call.replace(q=0 * call.q))
    torch.testing.assert_close(panel.groups["mean"][1], torch.full((2,), (1 - 0.5**8) / 0.5 / 8))


@torch.no_grad()
def test_padding_counts_nothing():
    layer = zoo.Attention(Dims(16, 2), "cope", causal=True).eval()
    x, document = torch.randn(1, 12, 16), torch.tensor([[0] * 6 + [-1] * 6])
    message = []
    for tokens in (
        Tokens.at(x[:, :6], torch.arange(6.0)[:, None]),
        Tokens.at(x, torch.arange(12.0)[:, None], None, document),
    ):
        chain = Chain.of(layer.encoding)
        call = layer.layer.describe(tokens, chain, Context())[1]
        message.append({panel.title: panel.values for panel in chain.panels(call)})
    for title, values in message[0].items():
        assert message[1][title] == pytest.approx(values), title


@torch.no_grad()
@pytest.mark.parametrize(
    ("convention", "radians"), [("symmetric", 2 / 16), ("growing", 1 / 15), ("fraction", 1 / 16)]
)
def test_turns_are_those_of_the_document_whatever_stands_beside_it(convention, radians):
    chain = Chain.of(
        zoo.encoding({"name": "rope", "coordinates": convention}, Dims(16, 1, length=16))
    )
    extent = torch.tensor([1.0] + [16.0] * 16)[None, :, None]  # a class token first
    index = torch.cat([torch.zeros(1), torch.arange(16.0)])[:, None]
    tokens = Tokens.at(torch.zeros(1, 17, 16), index, torch.arange(17) > 0).replace(
        grid_size=extent
    )
    call = SelfAttention(chain.dims).describe(tokens, chain, Context())[1]
    (panel,) = chain.panels(call)
    (points,) = panel.groups.values()
    assert float(points[1][0]) == pytest.approx(radians)
