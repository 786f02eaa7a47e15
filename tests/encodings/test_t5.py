"""T5: scores + table[bucket(p_i - p_j), h], exact buckets of near keys and logarithmic ones beyond."""

from __future__ import annotations

import math

import pytest
import torch
from calls import (
    MASKS,
    QUERIES,
    assert_close,
    check_attention,
    check_cached_decoding,
    check_documents,
    check_reference_catches,
    make_call,
    make_encoding,
    move_parameters,
)
from grids import GRIDS, check_class_token, compute_biases
from literal.call import score_with_bias
from literal.t5 import bucket, t5, t5_on_grid
from panels import list_panels
from parameters import (
    HEAD,
    HEADS,
    WIDTH,
    adapt_parameters,
    check_normal,
    list_facts,
    list_shapes,
    make_initial,
)

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.t5 import T5
from zoo.errors import OptionError


@MASKS
@QUERIES
@pytest.mark.parametrize("options", [{}, {"num_buckets": 8, "max_distance": 10}], ids=str)
def test_formula(options, queries, causal):
    encoding, call = make_encoding("t5", **options), make_call(queries=queries, causal=causal)
    expected = score_with_bias(call, t5(encoding, causal, **options))
    check_attention(encoding, call, expected, causal)


@pytest.mark.parametrize(
    ("buckets", "reach", "causal"),
    [(6, 20, True), (10, 40, False), (32, 16, False), (32, 17, True)],
)
def test_formula_with_any_even_number_of_buckets(buckets, reach, causal):
    encoding = make_encoding("t5", num_buckets=buckets, max_distance=reach)
    call = make_call(causal=causal)
    expected = score_with_bias(call, t5(encoding, causal, buckets, reach))
    check_attention(encoding, call, expected, causal)


def test_formula_in_packed_documents():
    check_documents("t5", lambda encoding, call: score_with_bias(call, t5(encoding, True)))


def test_facts():
    assert list_facts("t5") == {"shift_invariant": True, "axes": (1, 2, 3)}
    assert make_initial("t5", shared=False).shared is False


@pytest.mark.parametrize(
    ("axes", "options", "shape"),
    [
        (1, {}, (32, HEADS)),
        (1, {"num_buckets": 8, "max_distance": 20}, (8, HEADS)),
        (2, {}, (2, 32, HEADS)),
        (3, {"num_buckets": 8}, (3, 8, HEADS)),
    ],
    ids=str,
)
def test_parameters(axes, options, shape):
    assert list_shapes(make_initial("t5", axes, **options)) == {"table": shape}


def test_initial_values():
    check_normal(make_initial("t5").table, 1 / math.sqrt(WIDTH))
    check_normal(make_initial("t5", 3).table, 1 / math.sqrt(WIDTH))


# buckets


ONE_SIDED = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
TWO_SIDED = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]


def read_buckets(causal, tokens=201):
    """Return the buckets of distances 0 to 200, to earlier keys and to later ones."""
    encoding = zoo.encoding("t5", Dims(8, 2)).double().requires_grad_(False)
    encoding.table.copy_(torch.arange(32.0)[:, None].expand(32, 2))  # each holds its number
    biases = compute_biases(encoding, torch.arange(float(tokens))[:, None].double(), causal)[1]
    return biases[-1].flip(0), biases[0]


def count_starts(starts):
    """Return the bucket of each distance up to 200, where each begins at one of `starts`."""
    return torch.tensor(
        [sum(start <= d for start in starts) - 1 for d in range(201)], dtype=torch.float64
    )


def test_thirty_two_buckets_are_for_earlier_keys_under_a_causal_mask():
    earlier, later = read_buckets(causal=True)
    assert_close(earlier, count_starts(ONE_SIDED))
    assert later[1:].isneginf().all()


def test_sixteen_buckets_are_on_either_side_without_a_mask():
    earlier, later = read_buckets(causal=False)
    assert_close(earlier, count_starts(TWO_SIDED))
    assert_close(later[1:], 16 + count_starts(TWO_SIDED)[1:])


@MASKS
@pytest.mark.parametrize("distance", [0, 1, 7, 8, 15, 16, 32, 64, 113, 127, 128, 129, 5000])
def test_buckets_of_the_reference_are_those_of_the_table(distance, causal):
    table = count_starts(ONE_SIDED if causal else TWO_SIDED)
    assert bucket(distance, causal) == table[min(distance, 200)]
    assert bucket(-distance, causal) == (
        0 if causal or not distance else 16 + table[min(distance, 200)]
    )


def test_far_keys_are_told_apart_ever_more_coarsely():
    encoding, pos = make_encoding("t5", 2), torch.arange(200.0)[:, None].double()
    row = compute_biases(encoding, pos, causal=True)[0, -1].flip(0)
    assert len(row[:16].unique()) == 16
    assert (row[31] - row[40]).abs() > 1e-6  # beyond the sixteen exact ones, before the last
    assert len(row[113:].unique()) == 1
    assert len(row.unique()) == 32


@pytest.mark.parametrize(("reach", "causal", "exact"), [(16, True, 16), (8, False, 8)])
def test_a_reach_within_the_exact_buckets_is_refused(reach, causal, exact):
    call = make_call(causal=causal)
    with pytest.raises(OptionError, match=f"max_distance {reach} must be more than {exact}"):
        check_attention(make_encoding("t5", max_distance=reach), call, 0, causal)


def test_panel_shows_that_far_offsets_share_a_bucket():
    def number_buckets(encoding):
        encoding.table.copy_(torch.arange(8.0)[:, None].expand(-1, 2))

    options = {"num_buckets": 8, "max_distance": 9, "change": number_buckets}
    curve = list_panels("t5", **options)["Bias by offset, text"]
    assert curve.x_values.tolist() == list(range(10))
    assert curve.lines["all heads"].tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 7, 7]
    both = list_panels("t5", causal=False, **options)["Bias by offset, text"]
    assert both.x_values[0] == -9
    # half of the buckets are for keys ahead
    assert both.lines["all heads"][8:11].tolist() == [5, 0, 1]


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("t5")


# on grids


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("buckets", [32, 8])
def test_formula_on_grids(axes, buckets):
    encoding = move_parameters(zoo.encoding("t5", Dims(16, 4, axes), num_buckets=buckets))
    pos = GRIDS[axes] * torch.tensor([1.0, 9, 40])[:axes]  # near and far
    expected = t5_on_grid(encoding.table, pos)
    assert_close(compute_biases(encoding, pos), expected)
    hidden = torch.ones(12, 12).triu(1).bool()
    causal = compute_biases(encoding, pos, causal=True)
    assert_close(causal, expected.masked_fill(hidden, float("-inf")))


def test_a_class_token_has_no_bias_on_a_grid():
    check_class_token("t5")


def test_a_clip_starts_with_the_rows_and_columns_of_an_image():
    image, clip = make_initial("t5", 2), make_initial("t5", 3)
    assert adapt_parameters(image, clip) == []
    pos, zero = torch.randint(5, (6, 2)).float(), torch.zeros(1, HEADS, 6, HEAD)
    frames = torch.cat([torch.arange(6.0)[:, None], pos], dim=1)
    assert_close(
        zoo.functional.scores(clip, zero, zero, frames),
        zoo.functional.scores(image, zero, zero, pos),
    )
    assert torch.equal(image.adapt_parameter("table", clip.table, clip), image.table)
    text = make_initial("t5")
    assert text.adapt_parameter("table", image.table, image) is None
    assert image.adapt_parameter("table", text.table, text) is None


# planted faults


class Mirrored(T5):
    """Buckets of p_j - p_i: earlier keys take those of later ones."""

    def _bucket(self, call, axis):
        find = super()._bucket(call.replace(queries=call.keys, keys=call.queries), axis)
        return lambda b, h, i, j: find(b, h, j, i)


class LinearBuckets(T5):
    """One bucket for each distance, and the last one for all beyond."""

    def _bucket_table(self, call):
        return 0, torch.arange(self.max_distance + 1).clamp(max=self.num_buckets - 1)


@pytest.mark.parametrize(("fault", "causal"), [(Mirrored, False), (LinearBuckets, True)])
def test_planted_fault(fault, causal):
    options = {"num_buckets": 8, "max_distance": 10}
    check_reference_catches(
        fault,
        lambda encoding, call: score_with_bias(call, t5(encoding, causal, **options)),
        causal,
        options=options,
    )
