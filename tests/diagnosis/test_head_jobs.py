"""Heads that were planted are found, with scores of an independent calculation in float64."""

import math

import pytest
import torch

import zoo
from tests.planted_heads import SHARPNESS, build_decoder, build_induction, frequencies, plant_offset
from zoo.data.spec import IGNORE_INDEX
from zoo.diagnosis.head_jobs import (
    LEAST,
    JobMeasures,
    average_weight,
    choose_heads,
    draw_repeated_text,
    list_copy_jobs,
    list_grid_jobs,
    list_text_jobs,
    pad_heads,
)
from zoo.diagnostics.capture import capture_layers, capture_model
from zoo.diagnostics.head_ablation import ablate_heads
from zoo.errors import OptionError

CLOSE = 1e-12
IMAGE = (1, 28, 28)


def score(model, tokens, jobs):
    measures = JobMeasures(jobs)
    capture_layers(model, (tokens,), measures.add)
    return {one.name: one for one in measures.list_scores()}


def softmax(scores):
    largest = max(scores)
    sizes = [math.exp(one - largest) for one in scores]
    return [size / sum(sizes) for size in sizes]


def rotated_weights(count, offset, waves, head_dim):
    """Weights of a head with constant queries and keys, row by row, from its formula."""
    return [
        softmax(
            [
                SHARPNESS / head_dim**0.5 * sum(math.cos((i - j - offset) * w) for w in waves)
                for j in range(i + 1)
            ]
        )
        for i in range(count)
    ]


def test_a_head_that_rotates_by_one_attends_to_the_previous_token():
    model = build_decoder(1, 2, 16)
    plant_offset(model.blocks[0].attn, 1, 1, 16)
    tokens = torch.randint(16, (3, 12), generator=torch.Generator().manual_seed(0))
    found = score(model, tokens, lambda _: list_text_jobs())

    rows = rotated_weights(12, 1, frequencies(16), 16)[2:]
    expected = {
        "previous": sum(row[-2] for row in rows) / 10,
        "first": sum(row[0] for row in rows) / 10,
        "same": sum(row[-1] for row in rows) / 10,
    }
    even = sum(1 / i for i in range(3, 13)) / 10
    for name, number in expected.items():
        assert found[name].values[0, 1].item() == pytest.approx(number, abs=CLOSE)
        # the other head has no weights: it attends evenly
        assert found[name].values[0, 0].item() == pytest.approx(even, abs=CLOSE)
        assert found[name].even == pytest.approx(even, abs=1e-6)
    assert expected["previous"] > 0.9


def test_a_pair_of_layers_that_completes_copies_is_found_in_the_right_layers():
    model = build_induction()
    text = draw_repeated_text(range(16), 12, 4)
    with torch.no_grad():
        found = score(model, text.tokens, lambda _: list_copy_jobs(text.tokens))
    previous = score(model, text.tokens, lambda _: list_text_jobs())["previous"].values

    # The same two layers, by their formulas.
    totals, copies, counts = 0.0, 0.0, 0
    for row in text.tokens.tolist():
        first = rotated_weights(len(row), 1, frequencies(32), 48)
        # before[j][t]: how much of token t the first layer has moved to token j
        before = [
            [
                sum(w for w, token in zip(weights, row, strict=False) if token == t)
                for t in range(16)
            ]
            for weights in first
        ]
        scale = 4 * SHARPNESS / 48**0.5
        means, others, queries = 0.0, 0.0, 0
        for i, token in enumerate(row):
            if token not in row[:i]:
                continue
            weights = softmax([scale * before[j][token] for j in range(i + 1)])
            means += sum(weights[j] for j in range(1, i + 1) if row[j - 1] == token and j - 1 < i)
            others += sum(weights[j] for j in range(i) if row[j] == token)
            queries += 1
        totals, copies, counts = totals + means / queries, copies + others / queries, counts + 1
    assert found["induction"].values[1, 0].item() == pytest.approx(totals / counts, abs=CLOSE)
    assert found["duplicate"].values[1, 0].item() == pytest.approx(copies / counts, abs=CLOSE)
    assert found["induction"].values[1, 0] > 0.9 > 0.2 > found["induction"].values[0, 0]
    assert previous[0, 0] > 0.9 > 0.2 > previous[1, 0]


@torch.no_grad()
def test_each_of_the_two_layers_is_needed_for_the_copy():
    model, text = build_induction(), draw_repeated_text(range(16), 12, 4)

    def measure_loss():
        logits = model(text.tokens)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), text.targets.flatten(), ignore_index=IGNORE_INDEX
        ).item()

    assert measure_loss() < 0.1
    for layer in (0, 1):
        with ablate_heads(model, {layer: [0]}):
            assert measure_loss() > 2
    assert measure_loss() < 0.1


def test_a_repeated_text_repeats_and_has_targets_where_it_does():
    text = draw_repeated_text(range(100), 10, 5)
    assert text.tokens.shape == text.targets.shape == (5, 20)
    for sample, (row, targets) in enumerate(
        zip(text.tokens.tolist(), text.targets.tolist(), strict=True)
    ):
        period = 10 - sample % 4
        assert len({*row[:period]}) == period
        assert row[period:] == (row[:period] * 2)[: 20 - period]
        assert targets[:period] == [IGNORE_INDEX] * period
        assert targets[period:-1] == row[period + 1 :]
        assert targets[-1] == (row[:period] * 3)[20]
    assert torch.equal(text.tokens, draw_repeated_text(range(100), 10, 5).tokens)
    assert draw_repeated_text(range(100), LEAST, 4).tokens.shape == (4, 2 * LEAST)
    # fewer letters than places
    assert {*draw_repeated_text([3, 5], 10, 1).tokens.flatten().tolist()} == {3, 5}


@pytest.mark.parametrize(("vocabulary", "length"), [(range(9), LEAST - 1), ([4], 20)])
def test_a_text_that_tells_nothing_is_refused(vocabulary, length):
    with pytest.raises(OptionError) as caught:
        draw_repeated_text(vocabulary, length, 1)
    assert caught.value.key == "length"


def test_a_fixed_offset_is_not_taken_for_induction():
    """A head that looks 11 tokens back finds the followers in samples of one period only."""
    model = build_decoder(1, 1, 48)
    plant_offset(model.blocks[0].attn, 0, 11, 48)
    text = draw_repeated_text(range(16), 12, 4)
    found = score(model, text.tokens, lambda _: list_copy_jobs(text.tokens))
    assert found["induction"].values.item() < 0.3


def test_padding_and_documents_change_no_score():
    model = build_decoder(1, 1, 16)
    plant_offset(model.blocks[0].attn, 0, 1, 16)
    tokens = torch.randint(16, (1, 9), generator=torch.Generator().manual_seed(0))
    plain = score(model, tokens, lambda _: list_text_jobs())
    measures = JobMeasures(lambda _: list_text_jobs())
    # the same text twice, as two documents, and padding
    documents = torch.tensor([[0] * 9 + [1] * 9 + [-1] * 4])
    padded = torch.cat([tokens, tokens, tokens[:, :4]], dim=1)
    capture_layers(model, (padded, documents), measures.add)
    for one in measures.list_scores():
        torch.testing.assert_close(one.values, plain[one.name].values, atol=CLOSE, rtol=0)


def test_rows_with_more_or_less_than_one_count_as_they_are():
    weights = torch.tensor([[[[0.25, 0.25]], [[3.0, -1.0]]]], dtype=torch.float64)
    where, counted = torch.tensor([[[False, True]]]), torch.ones(1, 1, dtype=torch.bool)
    assert average_weight(weights, where, counted).tolist() == [0.25, 0.25]


def test_the_best_heads_of_each_job_are_chosen_first():
    nan = math.nan
    scores = [torch.tensor([[0.1, 0.9], [0.5, nan]]), torch.tensor([[0.8, 0.2], [0.3, nan]])]
    assert choose_heads(scores, 3) == [(0, 1), (0, 0), (1, 0)]
    assert len(choose_heads(scores, 99)) == 3
    assert choose_heads(scores, 0) == choose_heads([], 5) == []


def test_layers_of_other_sizes_end_with_nan():
    found = pad_heads([torch.ones(2, 3), torch.ones(1, 2)])
    assert found.shape == (2, 2, 3)
    assert found[1].isnan().sum() == 4


def test_neighbours_in_images_are_found():
    sizes = {"model.depth": 1, "model.dim": 24}
    model = zoo.build_model(zoo.load_recipe("vit_none", sizes)).eval()
    (seen,) = capture_model(model, (torch.randn(2, *IMAGE),))
    jobs = {job.name: job for job in list_grid_jobs(seen)}
    rows, columns = (int(one) + 1 for one in seen.call.keys.index[0].amax(0))
    extra = seen.weights.shape[-1] - rows * columns
    expected = {"above": -columns, "below": columns, "left": -1, "right": 1, "same": 0}
    for name, step in expected.items():
        where, counted = jobs[name].mark(seen)
        for cell in range(rows * columns):
            row, column = divmod(cell, columns)
            is_there = {
                "above": row > 0,
                "below": row < rows - 1,
                "left": column > 0,
                "right": column < columns - 1,
                "same": True,
            }[name]
            marked = where[0, extra + cell].nonzero().flatten().tolist()
            assert marked == ([extra + cell + step] if is_there else [])
            assert bool(counted[0, extra + cell]) == is_there
