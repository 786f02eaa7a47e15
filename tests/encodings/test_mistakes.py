"""What is often said wrongly about positions, shown to be otherwise in a few lines each."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.attention.encoding import Dims
from zoo.attention.kv_cache import KeyValueCache

EXACT = 1e-9
TOKENS = 9
DIMS = Dims(16, 2, length=64, depth=2)
POS = torch.arange(TOKENS).double()[:, None]


def made(name, dims=DIMS, **options):
    """In float64, without gradients, and away from what it starts as."""
    encoding = zoo.encoding(name, dims, **options).double().requires_grad_(False)
    for parameter in encoding.parameters():
        parameter += 0.5 * torch.randn_like(parameter)
    return encoding


def heads(count=3, size=8):
    return torch.randn(count, 1, 2, TOKENS, size, dtype=torch.float64).unbind()


def zeros(tokens=TOKENS, count=2, size=8):
    return torch.zeros(1, count, tokens, size, dtype=torch.float64)


def near(actual, expected, tolerance=EXACT):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def differ(one, other):
    return bool((one - other).abs().max() > 1e-6)


# nothing, and sinusoids


def test_attention_without_positions_is_equivariant_not_invariant():
    layer, order = zoo.Attention(DIMS, "none").double(), torch.randperm(TOKENS)
    x = torch.randn(1, TOKENS, 16, dtype=torch.float64)
    near(layer(x[:, order]), layer(x)[:, order])
    assert differ(layer(x[:, order]), layer(x))


def test_two_neighbouring_channels_of_a_sinusoid_share_a_frequency():
    table = zoo.embed(made("sinusoidal"), torch.zeros(1, TOKENS, 16).double(), POS)[0]
    for channel in range(16):
        angle = POS[:, 0] * 10000 ** (-2 * (channel // 2) / 16)
        near(table[:, channel], angle.cos() if channel % 2 else angle.sin())


def test_the_shortest_wave_of_a_sinusoid_is_two_pi():
    pos = torch.tensor([[0.0], [2.0], [2 * math.pi]], dtype=torch.float64)
    table = zoo.embed(made("sinusoidal"), torch.zeros(1, 3, 16).double(), pos)[0, :, :2]
    near(table[2], table[0])
    assert differ(table[1], table[0])


def test_a_sinusoid_learns_nothing_and_has_a_value_anywhere():
    encoding, far = made("sinusoidal"), torch.tensor([[1e5]], dtype=torch.float64)
    assert not list(encoding.parameters())
    assert zoo.embed(encoding, torch.zeros(1, 1, 16).double(), far).isfinite().all()


# vectors of relation


def test_shaw_has_one_vector_for_each_signed_distance_and_two_ends():
    encoding, (_, k, _) = made("shaw", max_distance=3), heads()
    assert encoding.key.shape == encoding.value.shape == (7, 8)
    q = torch.ones_like(k)
    row = (zoo.scores(encoding, q, k, POS) - zoo.scores(made("none"), q, k, POS))[
        0, 0, 4
    ] * math.sqrt(8)
    near(
        row, encoding.key[[0, 0, 1, 2, 3, 4, 5, 6, 6]].sum(-1)
    )  # clipped beyond three, not undefined


def test_shaws_values_are_read_as_well():
    encoding, (q, k, v) = made("shaw", max_distance=3), heads()
    shares = zoo.weights(encoding, q, k, POS)[0, 1, 4]
    read = (zoo.attend(encoding, q, k, v, POS) - zoo.attend(encoding, q, k, 0 * v, POS))[0, 1, 4]
    near(read, shares @ v[0, 1])
    near(
        zoo.attend(encoding, q, k, 0 * v, POS)[0, 1, 4],
        shares @ encoding.value[[0, 0, 1, 2, 3, 4, 5, 6, 6]],
    )


def test_no_projection_stands_before_the_vectors_of_transformer_xl():
    encoding, (_, k, _) = made("transformer_xl"), heads()
    seen = zoo.scores(encoding, zeros(), k, POS, causal=True)[0, 1]
    angles = 3 * torch.tensor([10000 ** (-2 * t / 16) for t in range(8)], dtype=torch.float64)
    far = (encoding.project.weight @ torch.cat([angles.sin(), angles.cos()])).view(2, 8)[1]
    near(seen[5, 2], (encoding.content[1] @ k[0, 1, 2] + encoding.place[1] @ far) / math.sqrt(8))


def test_tupe_divides_by_the_root_of_twice_the_head_and_normalises():
    encoding, (q, k, _) = made("tupe"), heads()
    bare = zoo.scores(encoding, zeros(), k, POS)
    near(zoo.scores(encoding, q, k, POS) - bare, q @ k.mT / math.sqrt(2 * 8))
    encoding.table *= 100
    near(zoo.scores(encoding, zeros(), k, POS), bare, 1e-3)


def test_tupe_resets_a_class_token():
    encoding, placed = made("tupe"), torch.arange(TOKENS) > 0
    bias = zoo.scores(encoding, zeros(), zeros(), POS, has_position=placed)[0]
    near(bias[:, 0], encoding.reset[0, :, None].expand(2, TOKENS))
    near(bias[:, 1:, 0], encoding.reset[1, :, None].expand(2, TOKENS - 1))


@pytest.mark.parametrize("name", ["shaw", "t5", "alibi", "kerple", "fire", "transformer_xl"])
def test_relative_encodings_decode_exactly_from_cached_keys(name):
    layer = zoo.Attention(DIMS, made(name), causal=True).double()
    x, cache = torch.randn(1, TOKENS, 16, dtype=torch.float64), KeyValueCache()
    steps = [layer(x[:, i : i + 1], POS[i : i + 1], context=cache) for i in range(TOKENS)]
    near(torch.cat(steps, dim=1), layer(x, POS))


# rotations


def test_rope_leaves_values_alone():
    q, k, v = heads()
    far = POS + 1000
    near(zoo.attend(made("rope"), q, k, v, far), zoo.weights(made("rope"), q, k, far) @ v)
    near(zoo.attend(made("rope"), q[:, :, :1], k[:, :, :1], v[:, :, :1], far[:1]), v[:, :, :1])


def test_a_rotary_score_is_not_the_product_times_a_cosine():
    q, k, _ = heads(size=2)
    seen = zoo.scores(made("rope", Dims(4, 2)), q, k, POS)[0, 0, 5, 2] * math.sqrt(2)
    one, other = (torch.view_as_complex(side[0, 0, slot]) for side, slot in ((q, 5), (k, 2)))
    both = one * other.conj()
    near(seen, both.real * math.cos(3) - both.imag * math.sin(3))
    assert differ(seen, q[0, 0, 5] @ k[0, 0, 2] * math.cos(3))


def test_a_rotary_score_does_not_fade_with_distance():
    one, pos = (
        torch.ones(1, 2, 3, 2, dtype=torch.float64),
        torch.tensor([[0.0], [355.0], [710.0]]),
    )  # 355 / 113 = pi
    seen = zoo.scores(made("rope", Dims(4, 2)), one, one, pos)[0, 0, 0]
    near(seen, math.sqrt(2) * torch.tensor([1.0, -1, 1], dtype=torch.float64), 1e-4)


# biases of distance


def test_the_slopes_of_alibi_depend_on_the_number_of_heads():
    for count in (2, 4, 8):
        encoding = made("alibi", Dims(8 * count, count))
        bias = zoo.scores(encoding, zeros(count=count), zeros(count=count), POS)[0, :, 1, 0]
        near(bias, torch.tensor([-(2.0 ** (-8 * h / count)) for h in range(1, count + 1)]).double())


def test_t5_tells_far_keys_apart_ever_more_coarsely():
    encoding, many = made("t5"), torch.arange(200.0)[:, None]
    row = zoo.scores(encoding, zeros(200), zeros(200), many, causal=True)[0, 0, -1].flip(0)
    assert len(row[:16].unique()) == 16
    assert differ(row[31], row[40])  # beyond the sixteen exact ones, and before the last
    assert len(row[113:].unique()) == 1
    assert len(row.unique()) == 32


def test_fire_has_an_output_per_head_and_a_learned_threshold():
    encoding = made("fire", threshold=4.0)
    bias = zoo.scores(encoding, zeros(), zeros(), POS, causal=True)
    assert differ(bias[:, 0].tril(), bias[:, 1].tril())
    encoding.threshold_scale *= 2
    assert differ(zoo.scores(encoding, zeros(), zeros(), POS, causal=True).tril(), bias.tril())


def test_fire_is_no_function_of_distance_alone():
    bias = zoo.scores(made("fire", threshold=1.0), zeros(), zeros(), POS, causal=True)[0, 0]
    assert differ(bias[4, 3], bias[8, 7])


# counts, gates and sticks


def test_cope_interpolates_between_floor_and_ceiling():
    encoding = made("cope", Dims(1, 1), max_positions=8)
    encoding.table.copy_(torch.arange(8.0)[:, None] ** 2)  # 0, 1, 4, 9, ...
    one = torch.ones(1, 1, 5, 1, dtype=torch.float64)
    added = zoo.scores(encoding, one, 0 * one, POS[:5], causal=True)[
        0, 0, 4
    ]  # gates of a half: 2.5, 2, 1.5, 1, .5
    near(added, torch.tensor([6.5, 4, 2.5, 1, 0.5]).double())


def test_cope_clamps_counts_at_its_last_position():
    one, encoding = (
        torch.ones(1, 1, 9, 1, dtype=torch.float64),
        made("cope", Dims(1, 1), max_positions=3),
    )
    added = zoo.scores(encoding, one, 0 * one, POS, causal=True)[0, 0, 8]
    near(added[:5], encoding.table[2].expand(5))


@pytest.mark.parametrize("name", ["cope", "fox", "stickbreaking"])
def test_the_future_does_not_leak_into_counts_gates_and_sticks(name):
    encoding, (q, k, v) = made(name), heads()
    x = torch.randn(1, TOKENS, 16, dtype=torch.float64)
    whole = zoo.attend(encoding, q, k, v, POS, x=x, causal=True)
    k[:, :, 5:], v[:, :, 5:], x[:, 5:] = 3.0, -2.0, 7.0
    near(zoo.attend(encoding, q, k, v, POS, x=x, causal=True)[:, :, :5], whole[:, :, :5])


def test_breaking_a_stick_is_strict_and_leaves_a_remainder():
    encoding, (q, k, v) = made("stickbreaking"), heads()
    shares = zoo.weights(encoding, q, k, POS, causal=True)
    assert (shares.triu() == 0).all()
    left = 1 - shares.sum(-1, keepdim=True)
    assert (left > 0).all()
    near(
        zoo.attend(encoding, q, k, v, POS, causal=True),
        shares @ v + left * encoding.remainder[:, None],
    )


def test_a_broken_stick_may_include_the_token_itself():
    q, k, _ = heads()
    shares = zoo.weights(made("stickbreaking", inclusive=True), q, k, POS, causal=True)
    near(shares.diagonal(dim1=-2, dim2=-1), ((q * k).sum(-1) / math.sqrt(8)).sigmoid())


def test_what_a_stick_gives_far_keys_is_not_lost_by_rounding():
    """A product of 1 - beta would be zero in float32 where a sum of logarithms is not."""
    side = torch.full((1, 2, 4, 8), math.sqrt(40 / math.sqrt(8)))  # every score is 40
    shares = zoo.weights(
        zoo.encoding("stickbreaking", DIMS), side, side, POS[:4].float(), causal=True
    )
    near(shares[0, 0, 3, :3].log(), torch.tensor([-80.0, -40, 0]), 1e-3)
