"""Measures of attention made by hand, whose answers are known without them."""

import math

import pytest
import torch

from zoo.diagnostics import metrics
from zoo.diagnostics.metrics import (
    diagonal,
    distance,
    distance_by_axis,
    effective_rank,
    entropy,
    first_keys,
    gram,
    head_similarity,
    max_score,
    neighbourhood,
    offset_profile,
    offsets,
    position_r2,
    position_r2_by_sample,
    positioned_pairs,
    rollout,
    share_at,
    shift_sensitivity,
    special_tokens,
    squared_correlation,
    weight_shares,
    weight_sum,
    word_position_correlations,
)

NAN, INF = float("nan"), float("inf")
UNIFORM = torch.full((1, 1, 4, 4), 1 / 4)
DIAGONAL = torch.eye(4)[None, None]
SHIFTED = torch.eye(4).roll(1, 1)[
    None, None
]  # query i looks at key i + 1, the last one at the first
ONE_HOT = torch.eye(4)[[2, 2, 2, 2]][None, None]  # all look at key 2
# an empty row between
PARTIAL = torch.tensor([[[[0.1, 0.3, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.25, -0.75, 0.5, 0.5]]]])


def line(count):
    """Offsets of a text [1, N, N, 1]."""
    places = torch.arange(count)[None, :, None]
    return offsets(places, places)


def board(rows, columns):
    """Offsets of an image [1, N, N, 2]."""
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))[None]
    return offsets(places, places)


def random_weights(batch, heads, count):
    """Rows that are uniform on the simplex: exponential numbers over their sum."""
    drawn = torch.empty(batch, heads, count, count, dtype=torch.float64).exponential_()
    return drawn / drawn.sum(-1, keepdim=True)


def row(*values):
    return torch.tensor(values)[None, None]


def everywhere(count):
    return torch.ones(1, 1, count, count, dtype=torch.bool)


def close(found, expected, **tolerances):
    expected = torch.as_tensor(expected, dtype=found.dtype)
    torch.testing.assert_close(found, expected.expand_as(found), equal_nan=True, **tolerances)


def test_shares_are_sizes_relative_to_their_row():
    close(
        weight_shares(PARTIAL),
        [[[[1 / 4, 3 / 4, 0, 0], [NAN] * 4, [1 / 8, 3 / 8, 1 / 4, 1 / 4]]]],
        atol=1e-7,
        rtol=1e-6,
    )


def test_total_is_how_much_is_attended_at_all():
    close(weight_sum(PARTIAL), row(0.4, 0, 0.5))
    close(weight_sum(UNIFORM), 1)


@pytest.mark.parametrize(
    ("weights", "nats"), [(UNIFORM, math.log(4)), (DIAGONAL, 0), (ONE_HOT, 0), (SHIFTED, 0)]
)
def test_entropy_of_even_and_of_single_looks(weights, nats):
    close(entropy(weights), nats)


def test_entropy_is_of_shares_and_of_no_number_where_nothing_is_seen():
    quarter = math.log(4) - 3 / 4 * math.log(3)  # of shares 1/4 and 3/4
    eighths = (math.log(8) + 3 * (math.log(8) - math.log(3))) / 8 + math.log(4) / 2
    close(entropy(PARTIAL), row(quarter, NAN, eighths))


def test_entropy_of_random_rows():
    harmonic = sum(
        1 / n for n in range(1, 65)
    )  # a point of the simplex of M keys has 1/2 + ... + 1/M on average
    close(entropy(random_weights(8, 8, 64)).mean(), harmonic - 1, atol=5e-3, rtol=0)


def test_offsets_are_of_the_query_from_the_key():
    queries, keys = torch.tensor([[[2, 5]]]), torch.tensor([[[0, 0], [2, 7]]])
    assert offsets(queries, keys).tolist() == [[[[2, 5], [0, -2]]]]
    assert offsets(queries.expand(3, -1, -1), keys).shape == (3, 1, 2, 2)


def test_distance_in_tokens():
    close(distance(DIAGONAL, line(4)), 0)
    close(distance(SHIFTED, line(4)), row(1, 1, 1, 3))
    close(distance(ONE_HOT, line(4)), row(2, 1, 0, 1))
    close(distance(UNIFORM, line(4)), row(6 / 4, 4 / 4, 4 / 4, 6 / 4))
    close(distance(PARTIAL, line(4)[:, :3]), row(3 / 4, NAN, 2 / 8 + 3 / 8 + 1 / 4))


def test_distance_in_patches_is_straight_and_along_each_axis():
    far = torch.eye(12)[[11] * 12][None, None]  # all look at the last patch of 3 rows and 4 columns
    assert distance(far, board(3, 4))[0, 0, 0] == pytest.approx(math.hypot(2, 3))
    assert distance_by_axis(far, board(3, 4))[0, 0, 0].tolist() == [2, 3]
    assert distance_by_axis(far, board(3, 4))[0, 0, 6].tolist() == [1, 1]


def test_distance_of_random_looks_is_that_of_two_random_tokens():
    close(
        distance(random_weights(64, 16, 20), line(20)).mean(),
        (20**2 - 1) / (3 * 20),
        atol=0.03,
        rtol=0,
    )


def test_distance_is_over_keys_with_a_place():
    weights = torch.tensor([[[[0.5, 0.1, 0.3, 0.1], [1.0, 0.0, 0.0, 0.0]]]])
    apart = line(4)[:, :2].float()
    apart[:, :, 0] = NAN
    placed = torch.tensor([[False, True, True, True]])
    close(distance(weights, apart, placed), row((0.1 * 1 + 0.3 * 2 + 0.1 * 3) / 0.5, NAN))
    close(distance_by_axis(weights, apart, placed)[..., 0], row(2.0, NAN))


def test_mass_on_the_first_token_on_tokens_without_place_and_on_self():
    weights = torch.tensor([[[[0.5, 0.2, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 0.0]]]])
    close(share_at(weights, first_keys(weights)), row(0.5, 0.1, NAN))
    close(
        share_at(weights, special_tokens(torch.tensor([[False, False, True, True]]))),
        row(0.7, 0.3, NAN),
    )
    close(share_at(weights, diagonal(torch.tensor([3, 1, 2]), 4)), row(0.1, 0.2, NAN))
    close(share_at(PARTIAL, first_keys(PARTIAL)), row(1 / 4, NAN, 1 / 8))
    close(share_at(PARTIAL, first_keys(PARTIAL) & False), row(0, NAN, 0))


def test_mass_of_each_sample_is_of_its_own_pairs():
    where = special_tokens(torch.tensor([[True, False, False, False], [False, True, True, True]]))
    close(share_at(UNIFORM.expand(2, 3, 4, 4), where)[..., 0], [[3 / 4] * 3, [1 / 4] * 3])


def test_mass_within_a_window():
    close(share_at(UNIFORM, neighbourhood(line(4), 1)), row(2 / 4, 3 / 4, 3 / 4, 2 / 4))
    corner = share_at(torch.full((1, 1, 12, 12), 1 / 12), neighbourhood(board(3, 4), 1))[0, 0]
    assert corner[[0, 5]].tolist() == pytest.approx([4 / 12, 9 / 12])
    placed = positioned_pairs(
        torch.tensor([[False, True, True, True]]), torch.tensor([[False, True, True, True]])
    )
    close(share_at(UNIFORM, neighbourhood(line(4), 1, placed)), row(0, 2 / 4, 3 / 4, 2 / 4))


def test_pairs_that_both_have_a_place():
    found = positioned_pairs(torch.tensor([[True, False]]), torch.tensor([[False, True, True]]))
    assert found.tolist() == [[[[False, True, True], [False, False, False]]]]


@pytest.mark.parametrize(
    ("weights", "rank"),
    [(UNIFORM, 1), (DIAGONAL, 4), (SHIFTED, 4), (ONE_HOT, 1), (0 * UNIFORM, NAN)],
)
def test_effective_rank_counts_different_looks(weights, rank):
    close(effective_rank(weights), rank, atol=1e-4, rtol=0)


def test_effective_rank_of_unequal_singular_values():
    found = effective_rank(torch.diag(torch.tensor([3.0, 1.0]))[None, None])
    close(found, math.exp(math.log(4) - 3 / 4 * math.log(3)))


def test_effective_rank_of_a_random_matrix():
    # singular values fall on a quarter of a circle, whose entropy follows from the digamma function
    found = effective_rank(torch.randn(1, 4, 200, 200)) / 200
    close(found.mean(), 8 / (3 * math.pi) / 4 * math.exp(4 / 3), atol=5e-3, rtol=0)


def test_the_largest_score_is_one_that_is_seen():
    one, other = [[-5.0, -INF], [-3.0, -4.0]], [[7.0, INF], [-9.0, 1.0]]
    scores = torch.tensor([[one, other], [other, [[-INF, -INF], [-INF, -INF]]]])
    close(max_score(scores), [[-3, 7], [7, NAN]])


def test_heads_are_alike_by_the_cosine_of_their_rows():
    heads = torch.cat([DIAGONAL, UNIFORM, SHIFTED, 3 * DIAGONAL, -DIAGONAL], dim=1)
    half = 1 / 2  # of a single look with an even one over four keys
    close(
        head_similarity(heads),
        [
            [
                [1, half, 0, 1, -1],
                [half, 1, half, half, -half],
                [0, half, 1, 0, 0],
                [1, half, 0, 1, -1],
                [-1, -half, 0, -1, 1],
            ]
        ],
    )


def test_each_query_counts_alike_in_the_likeness_of_heads():
    one = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    other = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    close(head_similarity(torch.stack([one, other])[None])[0, 0, 1], 1 / 2)


def test_queries_that_see_nothing_do_not_make_heads_unlike():
    empty = DIAGONAL.clone()
    empty[..., 1, :] = 0
    close(
        head_similarity(torch.cat([DIAGONAL, empty, 0 * empty], dim=1)),
        [[[1, 1, NAN], [1, 1, NAN], [NAN] * 3]],
    )


def test_random_heads_are_half_alike():
    # of rows of M keys, products average 1 / M and squares 2 / (M + 1)
    close(head_similarity(random_weights(1, 2, 300))[0, 0, 1], 301 / 600, atol=0.01, rtol=0)


def test_profile_of_a_shifted_diagonal_stands_at_its_offset():
    (axis,), values = offset_profile(SHIFTED, line(4), everywhere(4))
    assert axis.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    close(values, [[0, 0, 1, 0, 0, 0, 1]])


def test_profile_averages_samples_and_keeps_heads_apart():
    weights = torch.stack(
        [
            torch.stack([torch.eye(3), torch.ones(3, 3) / 3]),
            torch.stack([0 * torch.eye(3), torch.ones(3, 3)]),
        ]
    )
    close(offset_profile(weights, line(3), everywhere(3))[1], [[0, 0, 1 / 2, 0, 0], [2 / 3] * 5])


def test_profile_knows_no_weight_where_no_pair_is_seen():
    causal = everywhere(3).tril()
    weights = causal / causal.sum(-1, keepdim=True)
    (axis,), values = offset_profile(weights, line(3), causal)
    assert axis.tolist() == [-2, -1, 0, 1, 2]
    close(values, [[NAN, NAN, (1 + 1 / 2 + 1 / 3) / 3, (1 / 2 + 1 / 3) / 2, 1 / 3]])


def test_profile_of_an_image_has_rows_and_columns():
    looks = torch.zeros(6, 6)
    looks[3, 1] = looks[4, 2] = 1.0  # in 2 rows of 3, one row down and one column left
    (rows, columns), values = offset_profile(looks[None, None], board(2, 3), everywhere(6))
    assert (rows.tolist(), columns.tolist()) == ([-1, 0, 1], [-2, -1, 0, 1, 2])
    expected = torch.zeros(1, 3, 5)
    expected[0, 2, 1] = 1  # both of the two pairs
    close(values, expected)


def test_profile_of_a_clip_is_a_volume():
    places = torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(2))[None]
    axes, values = offset_profile(
        torch.eye(12)[None, None], offsets(places, places), everywhere(12)
    )
    assert [len(axis) for axis in axes] == [3, 5, 3]
    assert values.shape == (1, 3, 5, 3)
    assert values[0, 1, 2, 1] == 1 == values.sum()


def test_profile_is_of_tokens_with_a_place():
    placed = torch.tensor([[False, True, True, True]])
    apart = line(4).float()
    apart[:, 0] = apart[:, :, 0] = 0.5
    (axis,), values = offset_profile(
        ONE_HOT, apart, everywhere(4), positioned_pairs(placed, placed)
    )
    assert axis.tolist() == [-2, -1, 0, 1, 2]
    close(values, [[0, 1 / 2, 1 / 3, 1 / 2, 0]])
    close(
        offset_profile(ONE_HOT, apart, everywhere(4).tril(), positioned_pairs(placed, placed))[1],
        [[NAN, NAN, 1 / 3, 1 / 2, 0]],
    )
    with pytest.raises(ValueError, match="whole"):
        offset_profile(ONE_HOT, apart, everywhere(4))


def test_profile_of_no_pair_is_empty():
    (axis,), values = offset_profile(UNIFORM, line(4), ~everywhere(4))
    assert axis.tolist() == [0]
    close(values, [[NAN]])


def test_rollout_of_two_layers_by_hand():
    back = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    heads = torch.tensor(
        [[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]]
    )  # mean: 3/4 1/4, 1/2 1/2
    lower, upper = heads[None], back[None, None]
    # lower: 7/8 1/8, 1/4 3/4; upper: 1 0, 1/2 1/2
    close(rollout([lower, upper]), [[[7 / 8, 1 / 8], [9 / 16, 7 / 16]]])
    close(rollout([lower, upper], residual=0.0), [[[3 / 4, 1 / 4], [3 / 4, 1 / 4]]])


def test_rollout_scales_rows_that_attend_to_less():
    weights = torch.tensor([[[[0.5, 0.0, 0.0], [0.25, 0.25, 0.0], [0.0, 0.0, 0.0]]]])
    close(rollout([weights]), [[[1, 0, 0], [1 / 6, 5 / 6, 0], [0, 0, 1]]])
    close(rollout([-weights]), rollout([weights]))
    with pytest.raises(ValueError, match="at least one"):
        rollout([])


def test_scores_of_places_alone_are_explained_by_them():
    scores = torch.randn(1, 3, 5, 5) + torch.randn(
        6, 3, 5, 1
    )  # what a row has in common does not count
    close(position_r2(scores), 1, atol=1e-5, rtol=0)


def test_noise_is_not_explained_by_position():
    close(position_r2(torch.randn(2, 4, 64, 64)), 0, atol=0.05, rtol=0)


@pytest.mark.parametrize("samples", [2, 3, 8])
def test_of_many_draws_of_noise_nothing_is_explained_on_average(samples):
    drawn = torch.randn(samples, 4000, 3, 4)
    close(position_r2(drawn, clamp=False).mean(), 0, atol=0.015, rtol=0)
    assert position_r2(drawn).min() == 0


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_the_number_of_samples_does_not_change_what_is_expected(share):
    # samples differ in scale, as contents do; the fraction is of all of them together
    draw = torch.Generator().manual_seed(0)
    expected = []
    for samples in (4, 8, 32):
        shape = (samples, 128_000 // samples, 3, 6)
        scales = torch.randn(*shape[:2], 1, 1, generator=draw).mul(0.5).exp()
        positions = torch.randn(1, *shape[1:], generator=draw) * share**0.5
        noise = scales * torch.randn(shape, generator=draw) * (1 - share) ** 0.5
        noise /= scales.square().mean().sqrt()
        found = position_r2(positions + noise, clamp=False)
        expected.append(float(found.mean()))
    assert max(expected) - min(expected) < 0.012, expected
    assert expected[-1] == pytest.approx(share, abs=0.02)


def test_values_of_samples_average_to_the_fraction_and_tell_its_error():
    draw = torch.Generator().manual_seed(0)
    positions = torch.randn(3, 6, generator=draw)
    scores = positions + torch.randn(16, 3000, 3, 6, generator=draw)
    values = position_r2_by_sample(scores)  # [B, H]
    close(values.mean(0), position_r2(scores, clamp=False))
    errors = values.std(0) / 4
    # over heads, the estimated error is that by which estimates differ
    assert float(errors.square().mean().sqrt() / values.mean(0).std()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("samples", [2, 8])
def test_half_of_what_is_half_place_and_half_noise_is_explained(samples):
    scores = torch.randn(1, 40, 24, 24) + torch.randn(samples, 40, 24, 24)
    close(position_r2(scores).mean(), 1 / 2, atol=0.02, rtol=0)


def test_what_position_explains_is_of_pairs_seen_in_all_samples():
    scores = torch.randn(1, 2, 5, 5).masked_fill(~everywhere(5).tril(), -INF).repeat(3, 1, 1, 1)
    scores[0, :, 4, 0] = -INF
    scores[1:, :, 4, 0] = torch.randn(2, 2) * 100
    close(position_r2(scores), 1, atol=1e-5, rtol=0)


def test_constant_rows_leave_nothing_to_explain():
    scores = (torch.arange(1.0, 4)[:, None, None, None] / 10).expand(3, 2, 7, 7)
    close(position_r2(scores), NAN)
    close(squared_correlation(scores, scores), NAN)
    close(shift_sensitivity(scores, scores), NAN)


def test_one_sample_cannot_tell_place_from_content():
    with pytest.raises(ValueError, match="at least two samples, got 1"):
        position_r2(torch.randn(1, 2, 3, 3))


def test_what_a_part_explains_of_its_sum():
    part = torch.tensor([[[[1.0, -1.0, 0.0, 0.0]]], [[[0.0, 0.0, 1.0, -1.0]]]])
    rest = torch.tensor([[[[0.0, 0.0, 2.0, -2.0]]], [[[1.0, -1.0, 0.0, 0.0]]]])
    close(squared_correlation(part + rest + 7, -3 * part - 2), 4 / (4 + 10))
    close(squared_correlation(part, part), 1)
    close(squared_correlation(part, rest), 0)


def test_what_a_part_explains_is_of_pairs_seen_in_both():
    scores = torch.tensor([[[[1.0, 2.0, 4.0, -INF], [1.0, 5.0, 2.0, 8.0]]]])
    part = torch.tensor(
        [[[[3.0, 5.0, 9.0, 50.0], [2.0, 10.0, -INF, 16.0]]]]
    )  # twice as much, and a constant
    close(squared_correlation(scores, part), 1)


def test_a_relative_encoding_does_not_depart():
    relative = -(line(5)[..., 0].abs())[:, None]
    close(shift_sensitivity(relative, relative + torch.randn(1, 1, 5, 1)), 0, atol=1e-6, rtol=0)


def test_departure_of_products_of_places():
    places = torch.arange(1.0, 5)
    scores, shifted = (torch.outer(p, p)[None, None] for p in (places, places + 3))
    # centred, i j loses i times the mean of j: a shift by 3 adds 3 where there was i
    close(shift_sensitivity(scores, shifted), 3 * math.sqrt(4 / (1 + 4 + 9 + 16)))


def test_departure_is_of_pairs_seen_in_both():
    blind = [-INF, -INF, 1.0]
    scores = torch.tensor([[[[1.0, -1.0, -INF], [2.0, 0.0, 100.0], blind]]])
    shifted = torch.tensor([[[[-3.0, 3.0, 50.0], [4.0, 0.0, -INF], blind[::-1]]]])
    # centred: 1 -1 and 1 -1 become -3 3 and 2 -2
    close(shift_sensitivity(scores, shifted), math.sqrt((16 + 16 + 1 + 1) / 4))


def test_products_of_a_table():
    angles = torch.arange(5.0)
    table = torch.stack([3 * angles.cos(), 3 * angles.sin()], dim=1)
    close(gram(table), 9 * (angles[:, None] - angles).cos(), atol=1e-5, rtol=1e-5)


def test_correlations_of_words_and_places_by_hand():
    word = torch.tensor(
        [[[1.0, 0.0], [2.0, 0.0]], [[3.0, 0.0], [0.0, 0.0]]]
    )  # two samples along the first channel
    position = torch.tensor([[0.0, 1.0], [0.0, -1.0]])  # along the second
    query = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    key = torch.tensor([[[5.0, 0.0], [7.0, 11.0]]])
    found = {
        name: (part[0] * math.sqrt(2)).round(decimals=4).tolist()
        for name, part in word_position_correlations(word, position, query, key).items()
    }
    assert found == {
        "word to word": [[25, 5], [5, 10]],  # 5 times the mean of (1 3, 2 0) squared
        "word to position": [[0, 0], [0, 0]],
        "position to word": [[14, 7], [-14, -7]],  # 7 times the mean word
        "position to position": [[11, -11], [-11, 11]],
    }


def test_the_four_correlations_add_up_to_the_scores():
    word, position = torch.randn(3, 5, 8), torch.randn(5, 8)
    query, key = torch.randn(2, 2, 4, 8).unbind()
    projected = [
        torch.stack([(word + position) @ head.mT for head in one], dim=1) for one in (query, key)
    ]
    scores = projected[0] @ projected[1].mT / math.sqrt(4)
    close(
        sum(word_position_correlations(word, position, query, key).values()),
        scores.mean(0),
        atol=1e-4,
        rtol=1e-4,
    )


CALLS = {
    "word_position_correlations": lambda w: word_position_correlations(w[0], w[0], w[0], w[0])[
        "word to word"
    ],
    "shift_sensitivity": lambda w: shift_sensitivity(w, 2 * w),
    "distance": lambda w: distance(w, line(4).to(w), torch.ones(1, 4, dtype=torch.bool)),
    "distance_by_axis": lambda w: distance_by_axis(w, line(4).to(w)),
    "effective_rank": effective_rank,
    "entropy": entropy,
    "squared_correlation": lambda w: squared_correlation(w, w.flip(-1)),
    "position_r2": position_r2,
    "position_r2_by_sample": position_r2_by_sample,
    "gram": lambda w: gram(w[0, 0]),
    "max_score": max_score,
    "share_at": lambda w: share_at(w, first_keys(w)),
    "offsets": lambda w: offsets(w[0], w[0]),
    "offset_profile": lambda w: offset_profile(w, line(4).to(w), everywhere(4))[1],
    "rollout": lambda w: rollout([w, w]),
    "weight_shares": weight_shares,
    "head_similarity": head_similarity,
    "weight_sum": weight_sum,
}
PAIRS = {"positioned_pairs", "first_keys", "neighbourhood", "diagonal", "special_tokens"}


def test_every_measure_is_held_to_precision():
    assert {*CALLS, *PAIRS} == set(metrics.__all__)


@pytest.mark.parametrize(
    ("given", "computed"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_measures_are_precise_and_change_nothing(call, given, computed):
    weights = random_weights(2, 4, 4).to(given)
    before = weights.clone()
    found = call(weights)
    assert found.dtype == computed
    assert weights.equal(before)
    torch.testing.assert_close(found.double(), call(weights.double()), atol=1e-4, rtol=1e-4)
