"""What is measured of a layer, and what is drawn of it, where its attention is known."""

import math

import pytest
import torch

import zoo
from zoo.attention.encoding import Dims
from zoo.config.command_line import parse_overrides
from zoo.diagnostics import metrics
from zoo.diagnostics.callback import GAP, MARK, STOPS, draw_attention, summarize_layer
from zoo.diagnostics.capture import capture_model
from zoo.diagnostics.head_metrics import list_metrics, position_unit


def even(axes=1, length=(8,), causal=False, queries=None):
    """A look at a layer of two heads that looks at everything alike, for two samples of noise."""
    layer = zoo.Attention(Dims(16, 2, axes=axes, length=length), "none", causal=causal)
    for parameter in layer.layer.q_proj.parameters():
        torch.nn.init.zeros_(parameter)
    (found,) = capture_model(layer, (torch.randn(2, math.prod(length), 16),), queries=queries)
    return found


def measure(look):
    return {kind.name: kind.compute(look) for kind in list_metrics(look)}


def test_even_attention_over_a_text_is_measured_as_such():
    found = measure(even())
    mean = sum(abs(i - j) for i in range(8) for j in range(8)) / 64
    expected = {
        "entropy": math.log(8),
        "distance": mean,
        "self": 1 / 8,
        "first": 1 / 8,
        "near": 1.0,
        "total": 1.0,
        "similarity": 1.0,
        "effective_rank": 1.0,
        "largest_score": 0.0,
    }
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], torch.full((2,), value), atol=1e-5, rtol=1e-5, msg=name
        )
    assert "distance_row" not in found


def test_no_measure_grows_with_the_number_of_samples():
    """Means over samples can be compared between runs that measure other numbers of them."""
    torch.manual_seed(0)
    layer, x = zoo.Attention(Dims(16, 2, length=(8,)), "none"), torch.randn(6, 8, 16)
    found = {
        len(part): measure(capture_model(layer, (part,))[0]) for part in (x, x.repeat(3, 1, 1))
    }
    for name in ("largest_score", "entropy", "distance", "self", "first"):
        torch.testing.assert_close(found[18][name], found[6][name])
    single = [measure(capture_model(layer, (x[n : n + 1],))[0])["largest_score"] for n in range(6)]
    torch.testing.assert_close(torch.stack(single).mean(0), found[6]["largest_score"])


def test_a_causal_mask_leaves_what_came_before():
    found = measure(even(causal=True))
    torch.testing.assert_close(found["self"], torch.full((2,), sum(1 / n for n in range(1, 9)) / 8))
    torch.testing.assert_close(
        found["distance"], torch.full((2,), sum(n / 2 for n in range(8)) / 8)
    )


def test_distances_on_a_grid_are_in_patches():
    seen = even(2, (2, 4))
    found = measure(seen)
    assert position_unit(seen) == "patches"
    torch.testing.assert_close(found["distance_row"], torch.full((2,), 0.5))
    torch.testing.assert_close(found["distance_column"], torch.full((2,), 1.25))
    assert {kind.name: kind.unit for kind in list_metrics(seen)}["distance_column"] == "columns"


def test_distances_in_a_clip_are_told_along_time_too():
    found = measure(even(3, (4, 1, 2)))
    torch.testing.assert_close(found["distance_step"], torch.full((2,), 1.25))
    torch.testing.assert_close(found["distance_column"], torch.full((2,), 0.5))


def test_numbers_are_means_over_heads_and_leave_out_what_cannot_be_said():
    found = summarize_layer(even())
    assert found["entropy"] == pytest.approx(math.log(8), abs=1e-5)
    assert "by_position" not in found  # scores are constant


def test_what_encodings_say_in_numbers_is_among_them():
    layer = zoo.Attention(Dims(16, 2), "fox", causal=True)
    (seen,) = capture_model(layer, (torch.randn(1, 6, 16),))
    assert [name for name in summarize_layer(seen) if name.startswith("fox/")]


def test_a_picture_of_a_text_has_a_cell_for_each_head():
    seen = even(queries=4)
    picture = draw_attention(seen)
    cell = 96 // 8  # pixels of a weight
    assert picture.shape == (3, 4 * 2 * cell + GAP, 2 * (8 * cell + GAP))
    assert tuple(picture[:, 0, 0].tolist()) == STOPS[-1]  # all weights are the largest
    assert tuple(picture[:, -1, -1].tolist()) == (255, 255, 255)


def test_a_picture_of_a_grid_has_a_row_for_each_query_and_a_dot_on_it():
    picture = draw_attention(even(2, (2, 4), queries=2))
    cell = 96 // 4
    assert picture.shape == (3, 2 * (2 * cell + GAP), 2 * (4 * cell + GAP))
    assert (
        tuple(picture[:, cell // 2, cell // 2].tolist()) == MARK
    )  # the first patch, in the first row
    last = (2 * cell + GAP) + cell + cell // 2, 3 * cell + cell // 2
    assert tuple(picture[:, last[0], last[1]].tolist()) == MARK


def test_a_picture_of_a_clip_has_its_frames_side_by_side():
    picture = draw_attention(even(3, (2, 2, 2), queries=1))
    cell = 96 // 4
    assert picture.shape == (3, 2 * cell + GAP, 2 * (4 * cell + GAP))


def vit(*overrides, size=8, patch_size=2):
    """What a vision transformer of noise shows of two images."""
    words = [
        "model.dim=16",
        "model.heads=2",
        "model.depth=1",
        f"model.patch_size={patch_size}",
        "model.encoding=rope_axial",
    ]
    made = zoo.build_model(zoo.load_recipe("vit_comrope", parse_overrides([*words, *overrides])))
    (seen,) = capture_model(made, (torch.randn(2, 1, size, size),))
    return seen


@pytest.mark.parametrize("place", ["none", "centre"])
def test_class_and_register_tokens_are_no_patches_wherever_they_stand(place):
    seen = vit("model.pool=class", f"model.cls_position={place}", "model.registers=1", size=6)
    found = measure(seen)
    torch.testing.assert_close(found["unplaced"], seen.weights[..., :2].sum(-1).mean((0, 2)))
    assert seen.grid[1].tolist() == [[False, False, *[True] * 9]]
    assert draw_attention(seen).shape[0] == 3
    assert found["distance"].max() < 2**0.5 * 2


def test_a_model_without_extra_tokens_has_no_share_on_them():
    assert "unplaced" not in measure(vit())


@pytest.mark.parametrize(
    ("document", "first"),
    [
        ([0] * 6, [0] * 6),
        ([0, 0, 0, 1, 1, 1], [0, 0, 0, 3, 3, 3]),
        ([-1, -1, 0, 0, 0, 0], [None, None, 2, 2, 2, 2]),
    ],
    ids=["one", "packed", "padded"],
)
def test_the_first_token_is_that_of_a_query_s_own_document(document, first):
    document = torch.tensor([document])
    same = document[:, :, None] == document[:, None]
    found = metrics.first_keys(torch.rand(1, 2, 6, 6), same)[0, 0]
    expected = [[key == slot for key in range(6)] for slot in first]
    real = document[0] >= 0
    assert found[real].tolist() == torch.tensor(expected)[real].tolist()


def test_what_is_not_finite_is_left_out_of_numbers_and_pictures():
    layer = zoo.Attention(Dims(16, 2), "none", causal=True)
    with torch.no_grad():
        layer.layer.k_proj.weight.fill_(math.nan)
    (seen,) = capture_model(layer, (torch.randn(2, 8, 16),))
    assert all(math.isfinite(value) for value in summarize_layer(seen).values())
    assert draw_attention(seen).shape[0] == 3


def test_pictures_of_long_texts_stay_small():
    layer = zoo.Attention(Dims(48, 6), "none", causal=True)
    (seen,) = capture_model(layer, (torch.randn(1, 1500, 48),), queries=16)
    picture = draw_attention(seen)
    assert picture.shape == (3, 2 * (96 + GAP), 4 * (192 + GAP))


def test_layers_of_one_number_are_counted():
    model = torch.nn.Sequential(*(zoo.Attention(Dims(16, 2), "none") for _ in range(3)))
    assert [one.layer for one in capture_model(model, (torch.randn(1, 4, 16),))] == [0, 1, 2]
    assert [one.layer for one in capture_model(model, (torch.randn(1, 4, 16),), layers=[2])] == [2]
