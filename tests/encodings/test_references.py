"""Each encoding against the formula of its paper, and its parameters against the contract."""

from __future__ import annotations

import math

import pytest
import torch
from literal import rope_axial_liere_comrope as references
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import zoo
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

REFERENCE = 1e-9
EXPONENTIAL, DERIVATIVE = 1e-10, 1e-8  # against torch.linalg.matrix_exp in float64
ORTHOGONAL = 1e-4  # in float32, whatever the norm
SIZES = {1: (9,), 2: (3, 4), 3: (2, 3, 2)}
TURNING = [(name, axes) for name in references.ROTATIONS for axes in zoo.encoding_class(name).axes]
EXPONENTIALS = [
    (name, axes) for name in ("comrope_ap", "comrope_ld", "liere") for axes in (1, 2, 3)
]


def made(name, axes, heads=2, head=24, block=4, **options):
    if name in ("comrope_ap", "comrope_ld", "liere"):
        options["block"] = block
    return zoo.encoding(name, Dims(heads * head, heads, axes, SIZES[axes]), **options).double()


def heads(encoding, tokens=5, batch=2):
    dims = encoding.dims
    return torch.randn(2, batch, dims.heads, tokens, dims.head_dim, dtype=torch.float64).unbind()


def near(actual, expected, tolerance=REFERENCE):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


# scores


@pytest.mark.parametrize(("name", "axes"), TURNING)
def test_scores_follow_the_formula(name, axes):
    encoding, pos = made(name, axes), 3 * torch.randn(5, axes, dtype=torch.float64)
    q, k = heads(encoding)
    near(
        zoo.scores(encoding, q, k, pos),
        references.scores(references.ROTATIONS[name], encoding, q, k, pos),
    )


@pytest.mark.parametrize(("name", "axes"), TURNING)
def test_the_last_queries_follow_the_formula(name, axes):
    encoding, pos = made(name, axes), torch.rand(5, axes, dtype=torch.float64)
    q, k = heads(encoding)
    expected = references.scores(references.ROTATIONS[name], encoding, q[:, :, 3:], k, pos)
    near(zoo.scores(encoding, q[:, :, 3:], k, pos), expected)


@pytest.mark.parametrize(("name", "axes"), TURNING)
def test_an_unplaced_token_is_not_turned(name, axes):
    encoding, pos = made(name, axes), torch.rand(5, axes, dtype=torch.float64)
    q, k = heads(encoding)
    placed = torch.tensor([False, True, True, True, False])
    expected = references.scores(references.ROTATIONS[name], encoding, q, k, pos, placed)
    near(zoo.scores(encoding, q, k, pos, has_position=placed), expected)


def test_a_head_that_three_axes_do_not_divide_is_dealt_out_nearly_equally():
    encoding, pos = made("rope_axial", 3, head=20), torch.rand(5, 3, dtype=torch.float64)
    q, k = heads(encoding)
    near(
        zoo.scores(encoding, q, k, pos),
        references.scores(references.rope_axial, encoding, q, k, pos),
    )


@pytest.mark.parametrize("axes", [2, 3])
def test_an_axis_counts_whole_turns_where_it_is_told(axes):
    encoding, pos = (
        made("rope_axial", axes, unit="turn", coordinates="symmetric"),
        torch.rand(5, axes, dtype=torch.float64),
    )
    q, k = heads(encoding)
    expected = references.scores(references.rope_axial, encoding, q, k, 2 * math.pi * pos)
    near(zoo.scores(encoding, q, k, pos), expected)


@pytest.mark.parametrize("coordinates", ["index", "interpolated"])
def test_whole_turns_of_whole_coordinates_are_refused(coordinates):
    with pytest.raises(
        OptionError, match=r"rope_axial: unit turn .* choose coordinates: symmetric"
    ):
        made("rope_axial", 2, unit="turn", coordinates=coordinates)
    with pytest.raises(OptionError, match="unit: radian"):
        made("rope_axial", 2, unit="turn")  # index is the default


@pytest.mark.parametrize(
    ("name", "options"),
    [("comrope_ap", {"block": 3}), ("comrope_ld", {"block": 5}), ("liere", {"block": 48})],
)
def test_a_block_that_does_not_fit_names_its_encoding(name, options):
    with pytest.raises(OptionError, match=rf"^{name}: block") as caught:
        zoo.encoding(name, Dims(48, 2, 2), **options)
    assert caught.value.key == "block"


def test_channels_beyond_the_last_block_stay():
    encoding, pos = made("liere", 2, head=22, block=5), torch.rand(5, 2, dtype=torch.float64)
    q, k = heads(encoding)
    near(zoo.scores(encoding, q, k, pos), references.scores(references.liere, encoding, q, k, pos))


def test_published_axial_order_is_column_first():
    encoding, q = made("rope_axial", 2), torch.zeros(1, 2, 2, 24, dtype=torch.float64)
    q[..., 0] = 1  # the first pair, which turns by one a step
    by_column, by_row = (
        zoo.scores(encoding, q, q, torch.tensor([[0.0, 0], p])) for p in ([0.0, 1], [1.0, 0])
    )
    near(by_column[0, 0, 0, 1], torch.tensor(math.cos(1) / math.sqrt(24)).double(), 1e-7)
    near(by_row[0, 0, 0, 1], torch.tensor(1 / math.sqrt(24)).double(), 1e-7)


# added to the input


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_sinusoids_follow_the_formula(axes, layout):
    encoding, pos = (
        made("sinusoidal", axes, layout=layout),
        50 * torch.rand(7, axes, dtype=torch.float64),
    )
    x = torch.randn(2, 7, 48, dtype=torch.float64)
    near(zoo.embed(encoding, x, pos), x + references.sinusoidal(pos, 48, layout))


def test_the_base_of_sinusoids_is_an_option():
    encoding, pos = made("sinusoidal", 1, base=100.0), torch.arange(7.0).double()[:, None]
    near(
        zoo.embed(encoding, torch.zeros(1, 7, 48).double(), pos)[0],
        references.sinusoidal(pos, 48, base=100.0),
    )


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_learned_table_is_row_major(axes):
    encoding, x = made("learned", axes), torch.randn(2, math.prod(SIZES[axes]), 48).double()
    pos = grid(SIZES[axes], x)
    for n, place in enumerate(pos.long().tolist()):
        row = 0
        for index, size in zip(place, SIZES[axes], strict=True):
            row = row * size + index
        near(zoo.embed(encoding, x, pos)[:, n], x[:, n] + encoding.table[row])


@pytest.mark.parametrize("new", [(5, 7), (10, 14), (8, 6), (3, 11), (2, 2), (13, 1)])
def test_a_learned_grid_is_resized_as_images_are(new):
    encoding = zoo.encoding("learned", Dims(16, 2, 2, (5, 7))).double()
    x = torch.zeros(1, math.prod(new), 16, dtype=torch.float64)
    tokens = Tokens.at(x, grid(new, x)).replace(grid_size=torch.tensor([[new]]).double())
    image = encoding.table.unflatten(0, (5, 7)).permute(2, 0, 1)[None]
    expected = F.interpolate(image, new, mode="bicubic", align_corners=False, antialias=False)
    near(Chain.of(encoding).embed(tokens).x[0], expected[0].flatten(1).T)


def test_a_class_token_is_never_resized():
    encoding = zoo.encoding("learned", Dims(16, 2, 2, (5, 7))).double()
    x = torch.randn(1, 13, 16, dtype=torch.float64)
    index = torch.cat([torch.zeros(1, 2), grid((4, 3), x)])
    placed = torch.arange(13) > 0
    tokens = Tokens.at(x, index, placed).replace(grid_size=torch.tensor([[[4.0, 3]]]).double())
    out = Chain.of(encoding).embed(tokens).x
    assert torch.equal(out[:, 0], x[:, 0])
    assert (out[:, 1:] != x[:, 1:]).any(-1).all()


def test_a_text_past_the_table_is_refused_with_both_numbers():
    encoding = zoo.encoding("learned", Dims(16, 2, length=10))
    x = torch.zeros(1, 13, 16)
    assert zoo.embed(encoding, x[:, :10], torch.arange(10.0)[:, None]).shape == (1, 10, 16)
    with pytest.raises(OptionError, match=r"position 12 .* 10 positions"):
        zoo.embed(encoding, x, torch.arange(13.0)[:, None])
    with pytest.raises(OptionError, match=r"position 12 .* 10 positions"):
        zoo.Attention(Dims(16, 2, length=10), "learned")(x)


def test_a_table_needs_the_size_of_training():
    with pytest.raises(OptionError, match="length"):
        zoo.encoding("learned", Dims(16, 2))


# parameters


@pytest.mark.parametrize(
    ("name", "axes", "options", "shapes"),
    [
        ("none", 1, {}, {}),
        ("sinusoidal", 2, {}, {}),
        ("learned", 1, {}, {"table": (9, 48)}),
        ("learned", 2, {}, {"table": (12, 48)}),
        ("learned", 3, {}, {"table": (12, 48)}),
        ("rope", 1, {}, {}),
        ("rope_axial", 2, {}, {}),
        ("rope_mixed", 2, {}, {"frequencies": (2, 2, 12)}),
        ("rope_mixed", 3, {}, {"frequencies": (3, 2, 12)}),
        ("liere", 2, {"block": 8}, {"generators": (2, 2, 3, 28)}),
        ("liere", 3, {"block": 5}, {"generators": (3, 2, 4, 10)}),
        ("comrope_ap", 2, {"block": 4}, {"generators": (2, 6, 4, 4)}),
        ("comrope_ld", 3, {"block": 8}, {"generators": (2, 3, 8, 8), "scales": (3, 2, 3)}),
    ],
)
def test_parameters_have_the_contracts_names_and_shapes(name, axes, options, shapes):
    encoding = made(name, axes, **options)
    assert {key: tuple(value.shape) for key, value in encoding.named_parameters()} == shapes


@pytest.mark.parametrize(
    ("name", "axes", "default"), [("liere", 2, 28), ("comrope_ap", 1, 64), ("comrope_ld", 2, 64)]
)
def test_blocks_have_eight_channels_by_default(name, axes, default):
    encoding = zoo.encoding(name, Dims(48, 2, axes, SIZES[axes]))
    assert encoding.generators.shape[2 if name == "liere" else 1] == 3
    assert encoding.generators.flatten(3 if name == "liere" else 2).shape[-1] == default


@pytest.mark.parametrize(
    ("name", "shared", "relative", "coordinates"),
    [
        ("none", True, True, "index"),
        ("sinusoidal", True, False, "index"),
        ("learned", True, False, "index"),
        ("rope", True, True, "index"),
        ("rope_axial", True, True, "index"),
        ("rope_mixed", False, True, "index"),
        ("liere", False, False, "growing"),
        ("comrope_ap", False, True, "fraction"),
        ("comrope_ld", False, True, "fraction"),
    ],
)
def test_facts_are_the_contracts(name, shared, relative, coordinates):
    cls = zoo.encoding_class(name)
    assert (cls.shared, cls.shift_invariant, cls.coordinates, cls.causal_only) == (
        shared,
        relative,
        coordinates,
        False,
    )


# initial values


def distance(samples, cumulative):
    """Kolmogorov and Smirnov's: the largest difference between two cumulative distributions."""
    ordered = samples.detach().double().flatten().sort().values
    steps = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    expected = cumulative(ordered)
    return max(
        (steps[1:] - expected).abs().max().item(), (expected - steps[:-1]).abs().max().item()
    )


def chance(samples):
    """What `distance` exceeds once in ten thousand times."""
    return 2.2 / math.sqrt(samples.numel())


def normal(std):
    return lambda x: torch.special.ndtr(x / std)


def test_distance_tells_distributions_apart():
    assert distance(torch.rand(4000), normal(1)) > chance(torch.rand(4000))
    assert distance(torch.randn(4000) * 1.2, normal(1)) > chance(torch.rand(4000))


@pytest.mark.parametrize("options", [{}, {"std": 0.2}])
@pytest.mark.parametrize("name", ["comrope_ap", "comrope_ld"])
def test_comrope_generators_are_normal(name, options):
    values = zoo.encoding(name, Dims(128, 4, 2, (3, 4)), **options).generators
    assert distance(values, normal(options.get("std", 1.0))) < chance(values)


def test_comrope_scales_are_standard_normal():
    scales = zoo.encoding("comrope_ld", Dims(4096, 64, 2, (3, 4)), std=0.2).scales
    assert distance(scales, normal(1)) < chance(scales)


@pytest.mark.parametrize("options", [{}, {"init_std": 0.5}])
def test_liere_generators_are_uniform(options):
    values = zoo.encoding("liere", Dims(128, 4, 2, (3, 4)), **options).generators
    top = options.get("init_std", 2 * math.pi)
    assert distance(values, lambda x: (x / top).clamp(0, 1)) < chance(values)


def test_the_learned_table_is_normal():
    table = zoo.encoding("learned", Dims(64, 4, length=100)).table
    assert distance(table, normal(0.02)) < chance(table)


@pytest.mark.parametrize("options", [{}, {"base": 100.0}])
def test_mixed_frequencies_begin_as_an_axial_frame_turned_at_random(options):
    waves = zoo.encoding(
        "rope_mixed", Dims(12 * 800, 800, 2, (3, 4)), **options
    ).frequencies.double()  # [2, H, 6]
    phi = torch.atan2(waves[1, :, 0], waves[0, :, 0])[:, None]
    magnitudes = options.get("base", 10.0) ** (-4 * torch.arange(3).double() / 12)
    near(waves[:, :, :3], torch.stack([magnitudes * phi.cos(), magnitudes * phi.sin()]), 1e-6)
    near(waves[:, :, 3:], torch.stack([-magnitudes * phi.sin(), magnitudes * phi.cos()]), 1e-6)
    share = phi.remainder(2 * math.pi) / (2 * math.pi)
    assert distance(share, lambda x: x) < chance(share)


def test_mixed_frequencies_on_three_axes_are_rotations():
    waves = zoo.encoding(
        "rope_mixed", Dims(12 * 800, 800, 3, (2, 3, 2))
    ).frequencies.double()  # [3, H, 6]
    groups = waves.unflatten(-1, (3, 2)) / 10 ** (
        -6 * torch.arange(2).double() / 12
    )  # [3, H, group, 2]
    frames = groups.permute(3, 1, 0, 2)  # columns are groups
    near(frames.mT @ frames, torch.eye(3).double().expand(2, 800, 3, 3), 1e-5)
    near(torch.linalg.det(frames), torch.ones(2, 800).double(), 1e-5)
    for entry in frames[0].flatten(1).T:  # uniform on a sphere: each coordinate is uniform
        assert distance(entry, lambda x: (x + 1) / 2) < chance(entry)


def test_each_head_has_a_frame_of_its_own():
    first, second = (
        zoo.encoding("rope_mixed", Dims(48, 2, 2, (3, 4))).frequencies for _ in range(2)
    )
    assert not torch.allclose(first[:, 0], first[:, 1])
    assert not torch.allclose(first, second)


# exponentials


def skewed(kind, block, count):
    """Matrices [count, block, block] whose skew part is of a kind that decompositions find hard."""
    random = torch.randn(count, block, block, dtype=torch.float64)
    basis = torch.linalg.qr(random).Q
    sizes = {
        "random": None,
        "zero": [0.0] * (block // 2),
        "low rank": [1.7] + [0.0] * (block // 2 - 1),
        "equal": [1.3] * (block // 2),
        "nearly equal": [1.3 + 1e-9 * i for i in range(block // 2)],
        "nearly zero": [1.3] + [1e-8 * (i + 1) for i in range(block // 2 - 1)],
        "tiny": [1e-7 * (i + 1) for i in range(block // 2)],
    }[kind]
    if sizes is None:
        return random
    plane = torch.tensor([[0.0, -0.5], [0.5, 0.0]], dtype=torch.float64)
    return basis @ torch.block_diag(*[size * plane for size in sizes]) @ basis.mT


KINDS = ("random", "zero", "low rank", "equal", "nearly equal", "nearly zero", "tiny")


@torch.no_grad()
def filled(name, axes, kind, block=8):
    """An encoding whose generators are all of one kind."""
    encoding = made(name, axes, head=24 if axes == 3 else 16, block=block)
    generators = encoding.generators
    if name == "liere":
        rows, columns = torch.triu_indices(block, block, 1)
        for a in range(axes):
            values = skewed(kind, block, generators[a, ..., 0].numel())
            generators[a] = (values - values.mT)[:, rows, columns].view_as(generators[a])
    else:
        generators.copy_(skewed(kind, block, generators[..., 0, 0].numel()).view_as(generators))
    return encoding


def gradients(scores, weight, *leaves):
    return torch.autograd.grad((scores * weight).sum(), leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "axes"), EXPONENTIALS)
def test_rotations_and_their_gradients_are_matrix_exponentials(name, axes, kind):
    encoding, pos = filled(name, axes, kind), 2 * torch.randn(4, axes, dtype=torch.float64)
    q, k = (one.requires_grad_() for one in heads(encoding, 4, 1))
    actual = zoo.scores(encoding, q, k, pos.requires_grad_())
    expected = references.scores(references.ROTATIONS[name], encoding, q, k, pos)
    near(actual, expected, EXPONENTIAL)
    weight, leaves = torch.randn_like(actual), (q, k, pos, *encoding.parameters())
    for one, other in zip(
        gradients(actual, weight, *leaves), gradients(expected, weight, *leaves), strict=True
    ):
        near(one, other, DERIVATIVE)


@pytest.mark.parametrize(("name", "axes"), EXPONENTIALS)
def test_gradients_are_right_with_unplaced_tokens_and_positions_per_sample(name, axes):
    encoding, pos = filled(name, axes, "random"), torch.randn(2, 4, axes, dtype=torch.float64)
    q, k = heads(encoding, 4, 2)
    placed = torch.tensor([False, True, True, True])
    actual = zoo.scores(encoding, q, k, pos, has_position=placed)
    rotation = references.ROTATIONS[name]
    each = [
        references.scores(rotation, encoding, q[b, None], k[b, None], pos[b], placed)
        for b in range(2)
    ]
    expected, weight, leaves = (
        torch.cat(each),
        torch.randn_like(actual),
        tuple(encoding.parameters()),
    )
    for one, other in zip(
        gradients(actual, weight, *leaves), gradients(expected, weight, *leaves), strict=True
    ):
        near(one, other, DERIVATIVE)


def test_scales_learn_while_generators_are_frozen():
    encoding, pos = filled("comrope_ld", 2, "random"), torch.randn(4, 2, dtype=torch.float64)
    encoding.generators.requires_grad_(False)
    q, k = heads(encoding, 4, 1)
    actual = zoo.scores(encoding, q, k, pos)
    expected = references.scores(references.comrope_ld, encoding, q, k, pos)
    weight = torch.randn_like(actual)
    near(*(gradients(one, weight, encoding.scales)[0] for one in (actual, expected)), DERIVATIVE)


def rotations(encoding, pos):
    """What a link makes of the unit vectors at each coordinate [M, P]: [M, H, K, K], orthogonal."""
    count, size, heads = len(pos), encoding.dims.head_dim, encoding.dims.heads
    unit = torch.eye(size, dtype=pos.dtype).repeat(count, 1).expand(1, heads, -1, -1)
    tokens = Tokens.at(
        torch.zeros(1, count * size, encoding.dims.dim, dtype=pos.dtype),
        pos.repeat_interleave(size, 0),
    )
    chain = Chain.of(encoding)
    return (
        chain.transform_key(unit, chain.prepare(tokens))[0]
        .unflatten(1, (count, size))
        .transpose(0, 1)
    )


@pytest.mark.parametrize(
    ("name", "block"), [("liere", 8), ("liere", 64), ("comrope_ap", 8), ("comrope_ld", 64)]
)
def test_large_generators_stay_orthogonal_in_float32(name, block):
    encoding = zoo.encoding(name, Dims(128, 2, 2, (14, 14)), block=block)
    pos = torch.rand(6, 2) * 2  # an image of twice the size
    with torch.no_grad():
        turned = rotations(encoding, pos)
    near(turned @ turned.mT, torch.eye(64).expand_as(turned), ORTHOGONAL)


class Largest(TorchDispatchMode):
    """Notes the most elements that any tensor had."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, torch.Tensor):
                self.elements = max(self.elements, one.numel())
        return out


def largest(name, block, per_sample):
    encoding = made(name, 2, head=48, block=block)
    q, k = heads(encoding, 16)
    pos = torch.rand(*((2,) if per_sample else ()), 16, 2, dtype=torch.float64)
    with Largest() as noted:
        zoo.scores(encoding, q, k, pos).sum().backward()
    return noted.elements


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("name", ["liere", "comrope_ap", "comrope_ld"])
def test_no_dense_rotation_is_made_per_token(name, per_sample):
    assert largest(name, 8, per_sample) < 16 * 48 * 48


def test_a_dense_rotation_per_token_would_be_seen():
    assert largest("liere", 48, False) >= 16 * 48 * 48
