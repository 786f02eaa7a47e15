"""Names, shapes, facts and initial values of head_scale, sandwich, xpos, fope and of biases on grids; refused axes."""

from __future__ import annotations

import math

import pytest
import torch
from calls import near

import zoo
from zoo.attention.encoding import Dims
from zoo.errors import OptionError

HEADS, HEAD, LENGTH = 4, 16, 40
SIZES = {1: LENGTH, 2: (5, 6), 3: (2, 5, 6)}


def made(name, axes=1, kv_heads=None, **options):
    return zoo.encoding(
        name, Dims(HEADS * HEAD, HEADS, axes, SIZES[axes], depth=2, kv_heads=kv_heads), **options
    )


@pytest.mark.parametrize(
    ("name", "axes", "options", "shapes"),
    [
        ("head_scale", 1, {}, {"scale": (HEADS,)}),
        ("sandwich", 1, {}, {}),
        ("xpos", 1, {}, {}),
        ("fope", 1, {}, {}),
        ("alibi", 2, {}, {}),
        ("alibi", 3, {"distance": "euclidean"}, {}),
        ("t5", 2, {}, {"table": (2, 32, HEADS)}),
        ("t5", 3, {"num_buckets": 8}, {"table": (3, 8, HEADS)}),
    ],
)
def test_parameters_are_those_of_the_contract(name, axes, options, shapes):
    assert {
        key: tuple(p.shape) for key, p in made(name, axes, **options).named_parameters()
    } == shapes


@pytest.mark.parametrize(
    ("name", "shared", "relative", "causal", "axes"),
    [
        ("head_scale", False, True, True, (1,)),
        ("sandwich", True, True, False, (1,)),
        ("xpos", True, True, True, (1,)),
        ("fope", False, False, False, (1,)),
        ("alibi", True, True, False, (1, 2, 3)),
        ("t5", True, True, False, (1, 2, 3)),
    ],
)
def test_facts_are_the_contracts(name, shared, relative, causal, axes):
    cls = zoo.encoding_class(name)
    assert (cls.shared, cls.shift_invariant, cls.causal_only, cls.axes) == (
        shared,
        relative,
        causal,
        axes,
    )


def test_head_scale_starts_at_one_and_learns():
    encoding, (q, k, v) = made("head_scale"), torch.randn(3, 1, HEADS, 6, HEAD)
    assert (encoding.scale == 1).all()
    zoo.attend(encoding, q, k, v, torch.arange(6.0)[:, None], causal=True).square().sum().backward()
    assert encoding.scale.grad.isfinite().all()
    assert encoding.scale.grad.all()


def test_tables_of_t5_on_a_grid_start_as_that_of_a_text():
    table = made("t5", 3).table.detach()
    assert abs(table.std() * math.sqrt(HEADS * HEAD) - 1) < 5 / math.sqrt(2 * table.numel())


# fope's matrices


# w_t = 10000^(-t/8) >= 2 pi / length
@pytest.mark.parametrize(
    ("length", "waves", "columns"), [(40, 2, 2), (2000, 6, 4), (10**6, 8, 4), (3, 1, 1)]
)
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_fope_has_a_frozen_matrix_for_each_key_head(length, waves, columns, kv_heads):
    encoding = zoo.encoding("fope", Dims(HEADS * HEAD, HEADS, length=length, kv_heads=kv_heads))
    shapes = {name: tuple(value.shape) for name, value in encoding.state_dict().items()}
    assert shapes == dict.fromkeys(("sine", "cosine"), (kv_heads or HEADS, waves, columns))
    assert list(encoding.parameters()) == []


def test_a_column_of_fope_starts_as_one_wave_and_noise():
    many = Dims(512 * HEAD, 512, length=2000)
    chosen = torch.zeros(6, 4)
    chosen[[0, 1, 3, 4], [0, 1, 2, 3]] = 1  # spread evenly over six waves
    quiet, loud = zoo.encoding("fope", many, gain=0.0), zoo.encoding("fope", many)
    for name in ("sine", "cosine"):
        assert torch.equal(getattr(quiet, name), chosen.expand(512, 6, 4))
        noise = getattr(loud, name) - chosen
        assert abs(noise.std() / (0.3 * math.sqrt(2 / 10)) - 1) < 5 / math.sqrt(2 * noise.numel())
        assert noise.mean().abs() < 5 * noise.std() / math.sqrt(noise.numel())
    assert not torch.equal(loud.sine, loud.cosine)


def test_fope_needs_the_length_of_training():
    with pytest.raises(OptionError, match="length"):
        zoo.encoding("fope", Dims(32, 2))


# what is learned under other sizes


def test_fope_carried_to_a_longer_text_computes_the_same():
    short, long = (
        zoo.encoding("fope", Dims(64, 2, length=length)).double() for length in (1000, 10**6)
    )
    for name, value in short.state_dict().items():
        assert short.adapt_parameter(name, value, short) is value
        getattr(long, name).copy_(long.adapt_parameter(name, value, short))
    (q, k), pos = torch.randn(2, 1, 2, 5, 32).double(), torch.arange(5.0)[:, None]
    near(zoo.scores(long, q, k, pos), zoo.scores(short, q, k, pos))


def test_t5_goes_by_rows_and_columns_as_before():
    image, clip = made("t5", 2), made("t5", 3)
    clip.table.data.copy_(clip.adapt_parameter("table", image.table, image))
    pos, zero = torch.randint(5, (6, 2)).float(), torch.zeros(1, HEADS, 6, HEAD)
    frames = torch.cat([torch.arange(6.0)[:, None], pos], dim=1)
    near(zoo.scores(clip, zero, zero, frames), zoo.scores(image, zero, zero, pos))
    assert torch.equal(image.adapt_parameter("table", clip.table, clip), image.table)
    assert made("t5").adapt_parameter("table", image.table, image) is None
    assert image.adapt_parameter("table", made("t5").table, made("t5")) is None


# refused axes


def refusal(name, axes):
    with pytest.raises(OptionError) as message:
        zoo.encoding_class(name)(Dims(48, 2, axes, 4))
    return str(message.value)


@pytest.mark.parametrize(
    "name", [n for n in zoo.encoding_names() if zoo.encoding_class(n).axes == (1,)]
)
def test_whoever_refuses_a_grid_says_why(name):
    said, _, reason = refusal(name, 2).partition(": ")
    assert said == f"{name} takes 1 axis, not 2"
    assert len(reason.split()) > 4


def test_a_reason_names_what_takes_the_place():
    assert (
        refusal("rope", 3)
        == "rope takes 1 axis, not 3: rope_axial and rope_mixed are its forms for grids"
    )
    assert refusal("kerple", 2).endswith("distances in sequences; alibi and t5 accept grids")
    assert refusal("fox", 2).endswith("it depends on the order of tokens, and a grid has none")
    assert refusal("rope_axial", 1).endswith("rope is its form for text")
    assert refusal("alibi", 4) == "alibi takes 1 or 2 or 3 axes, not 4"


# what sinusoidal and learned can be


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
def test_layouts_of_sinusoids_hold_the_same_channels(layout):
    table = zoo.embed(
        zoo.encoding("sinusoidal", Dims(4, 1), layout=layout),
        torch.zeros(1, 1, 4),
        torch.tensor([[2.0]]),
    )
    fast, slow = 2.0, 2.0 / 100
    interleaved = [math.sin(fast), math.cos(fast), math.sin(slow), math.cos(slow)]
    concat = [math.sin(fast), math.sin(slow), math.cos(fast), math.cos(slow)]
    near(table[0, 0], torch.tensor(interleaved if layout == "interleaved" else concat), 1e-6)


def test_a_table_of_each_layer_is_added_to_what_its_attention_reads():
    own = zoo.encoding("learned", Dims(8, 2, length=5), shared=False)
    x, pos = torch.randn(2, 5, 8), torch.arange(5.0)[:, None]
    assert torch.equal(zoo.embed(own, x, pos), x)
    layer, plain = (zoo.Attention(Dims(8, 2, length=5), one) for one in (own, "none"))
    plain.load_state_dict(
        {key: value for key, value in layer.state_dict().items() if "table" not in key}
    )
    near(layer(x, pos), plain(x + own.table, pos), 1e-6)
