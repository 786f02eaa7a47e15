"""Frequencies that a head was made to use are found, with numbers of an independent calculation."""

import math

import pytest
import torch

from tests.planted_heads import SHARPNESS, build_decoder, frequencies, plant_offset
from zoo.attention import Dims
from zoo.attention.chain import encoding
from zoo.diagnosis.frequency_use import count_effective, count_turns, measure_frequencies
from zoo.diagnostics.capture import capture_model

WIDTH = 16
CLOSE = 1e-10


def draw_tokens(count=4, length=20):
    return torch.randint(16, (count, length), generator=torch.Generator().manual_seed(3))


def test_a_head_that_uses_two_frequencies_lives_on_two_pairs():
    model = build_decoder(1, 2, WIDTH)
    layer = model.blocks[0].attn
    plant_offset(layer, 0, 1, WIDTH, pairs=[1, 3])
    plant_offset(layer, 1, 1, WIDTH)
    (seen,) = capture_model(model, (draw_tokens(),))
    found = measure_frequencies(seen)

    used = [pair in (1, 3) for pair in range(WIDTH // 2)]
    assert (found.share[0] != 0).tolist() == used
    norm = SHARPNESS**0.5
    assert found.q_norm[0].tolist() == pytest.approx([norm * one for one in used], abs=CLOSE)
    assert found.k_norm[0].tolist() == pytest.approx([norm * one for one in used], abs=CLOSE)
    # no content: the two positions decide everything
    assert found.position[0, 1].item() == pytest.approx(1, abs=CLOSE)
    assert found.effective[0] <= 2 < found.effective[1]
    assert found.rest.tolist() == pytest.approx([0, 0], abs=CLOSE)

    # shares of the first head by their definition, in plain loops over one sample: all are equal
    waves, count = frequencies(WIDTH), 20
    sums = dict.fromkeys((1, 3), 0.0)
    total = 0.0
    for i in range(count):
        rows = {t: [math.cos((i - j - 1) * waves[t]) for j in range(i + 1)] for t in sums}
        centred = {t: [x - sum(row) / len(row) for x in row] for t, row in rows.items()}
        both = [sum(pair) for pair in zip(*centred.values(), strict=True)]
        total += sum(x * x for x in both)
        for t in sums:
            sums[t] += sum(x * y for x, y in zip(centred[t], both, strict=True))
    for t, part in sums.items():
        assert found.share[0, t].item() == pytest.approx(part / total, abs=CLOSE)
    shares = [part / total for part in sums.values()]
    effective = math.exp(-sum(x * math.log(x) for x in shares))
    assert found.effective[0].item() == pytest.approx(effective, abs=CLOSE)


@torch.no_grad()
def test_content_and_position_are_told_apart_by_pair():
    """Pair 0 has constant queries and keys, pair 7 turns least and has those of the tokens."""
    model = build_decoder(1, 1, WIDTH)
    layer = model.blocks[0].attn
    plant_offset(layer, 0, 1, WIDTH, pairs=[0])
    draw = torch.Generator().manual_seed(1)
    for projection in (layer.q_proj, layer.k_proj):
        drawn = torch.randn(2, 16, generator=draw, dtype=torch.float64)
        projection.weight[14:16, :16] = drawn - drawn.mean(1, keepdim=True)
    (seen,) = capture_model(model, (draw_tokens(32),))
    found = measure_frequencies(seen)
    assert found.position[0, 0].item() == pytest.approx(1, abs=CLOSE)
    assert abs(found.position[0, 7].item()) < 0.15
    assert found.share.sum().item() == pytest.approx(1, abs=CLOSE)


@torch.no_grad()
def test_channels_that_do_not_turn_have_the_rest():
    model = build_decoder(1, 1, WIDTH, rotary_fraction=0.5)
    layer = model.blocks[0].attn
    draw = torch.Generator().manual_seed(1)
    for projection in (layer.q_proj, layer.k_proj):
        projection.weight[:, :16] = torch.randn(16, 16, generator=draw, dtype=torch.float64)
    (seen,) = capture_model(model, (draw_tokens(),))
    found = measure_frequencies(seen)
    assert found.share.shape == (1, 4)

    # the term of the last eight channels, by the same definition
    q, k = seen.call.q, seen.call.k
    shown = torch.ones(20, 20, dtype=torch.bool).tril()

    def center(values):
        kept = values.where(shown, 0)
        return (kept - kept.sum(-1, keepdim=True) / shown.sum(-1, keepdim=True)).where(shown, 0)

    whole, part = center(q @ k.mT), center(q[..., 8:] @ k[..., 8:].mT)
    expected = (part * whole).sum() / whole.square().sum()
    assert found.rest.item() == pytest.approx(expected.item(), abs=CLOSE)


def test_turns_are_those_over_the_trained_context():
    waves = torch.tensor([[[2 * math.pi, math.pi, 0.1]], [[0.0, math.pi, 0.0]]])
    found = count_turns(waves, (4, 2))
    assert found[0].tolist() == pytest.approx([4, 3, 0.4 / (2 * math.pi)])
    assert count_turns(waves, None).isnan().all()
    model = build_decoder(1, 1, WIDTH, length=64)
    (seen,) = capture_model(model, (draw_tokens(),))
    expected = [64 * wave / (2 * math.pi) for wave in frequencies(WIDTH)]
    assert measure_frequencies(seen).turns[0].tolist() == pytest.approx(expected)


def test_a_head_that_works_against_itself_has_a_negative_share():
    assert count_effective(torch.tensor([0.5, 0.5, -3.0])).item() == pytest.approx(2)


@pytest.mark.parametrize(
    ("entry", "axes", "pairs"),
    [
        ("rope", 1, 8),
        ({"name": "rope", "rotary_fraction": 0.5}, 1, 4),
        ("xpos", 1, 8),
        ("pope", 1, 16),
        ("string", 2, 8),
        ("rope_axial", 2, 8),
        ("rope_mixed", 2, 8),
        ("comrope_ld", 2, 8),
        ("comrope_ap", 2, 8),
        ("fope", 1, None),
        ("liere", 2, None),
        ("alibi", 1, None),
        ("none", 2, None),
    ],
)
def test_pairs_of_transformed_heads_turn_by_the_waves(entry, axes, pairs):
    """The products of a pair depend on its two positions by the angle that its wave declares."""
    from zoo.attention.chain import Chain
    from zoo.attention.coordinates import grid, grid_shape
    from zoo.attention.layer import Context, LayerOptions, SelfAttention
    from zoo.attention.tokens import Tokens

    sizes = (5,) if axes == 1 else (3, 4)
    torch.manual_seed(0)
    dims = Dims(64, 4, axes, length=sizes, kv_heads=2)
    made = encoding(entry, dims).double()
    chain = Chain.of(made)
    layer = SelfAttention(dims, LayerOptions(key_bias=True), causal=axes == 1).double()
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj):
            projection.weight.zero_()  # the same content everywhere
            projection.bias.normal_()
    index = grid(sizes, torch.zeros(1, dtype=torch.float64))
    tokens = Tokens.at(torch.zeros(1, len(index), 64, dtype=torch.float64), index)
    tokens = chain.embed(tokens.replace(grid_size=grid_shape(sizes, tokens.pos)))
    with torch.no_grad():
        _, call = layer.describe(tokens, chain, Context())
        waves = chain.pair_waves(call)
    if pairs is None:
        assert waves is None
        return
    assert waves.shape == (axes, waves.shape[1], pairs)
    q = torch.view_as_complex(call.q[..., : 2 * pairs].unflatten(-1, (-1, 2)).contiguous())
    k = torch.view_as_complex(call.k[..., : 2 * pairs].unflatten(-1, (-1, 2)).contiguous())
    terms = q[:, :, :, None] * k[:, :, None].conj()  # [1, H, N, N, R]
    angles = torch.einsum("ijp,pgr->gijr", index[:, None] - index, waves.double())
    if len(angles) == 2:
        angles = angles.repeat_interleave(2, 0)
    turned = torch.polar(torch.ones_like(angles), -angles) * terms[0]
    # turned back, all pairs of tokens have one direction
    directions = turned / turned.abs()
    torch.testing.assert_close(
        directions, directions[:, :1, :1].expand_as(directions), atol=1e-6, rtol=0
    )
