"""What a report is made of, by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from language import SAMPLES, decoder, encoder, text
from reports import compute_measures

from zoo.data.corpus.tokenizer import Bytes
from zoo.diagnosis.report import draw_profiles
from zoo.diagnosis.training_curves import draw_extrapolation, draw_training_curves
from zoo.diagnostics.capture import capture_model
from zoo.diagnostics.encoding_panels import draw_encodings, list_reported_panels
from zoo.diagnostics.position_ablation import CHANGES, change_positions
from zoo.diagnostics.token_layout import choose_cells, decode_pieces, find_layout, to_pictures
from zoo.evaluation.results import ConditionResult, Evaluation
from zoo.run.conditions import Condition

# what is shown


def test_queries_are_spread_along_each_axis():
    assert choose_cells((4, 4), 16) == [*range(16)]
    assert choose_cells((3, 5), 6) == [0, 2, 4, 10, 12, 14]
    assert choose_cells((7,), 3) == [0, 3, 6]
    assert len(choose_cells((4, 14, 14), 64)) <= 64
    assert choose_cells((5, 5), 1) == [12]


def test_a_layout_names_what_has_no_place():
    found = find_layout(encoder("rope", cls_token=True), (text(2, 9),), 4)
    assert (found.extra, found.grid, found.layers) == (("class",), (9,), (0, 1))
    assert found.columns == tuple(range(10))
    assert found.query_index == (0, 1, 4, 6, 9)


def test_pieces_tell_padding_and_what_is_hidden():
    assert decode_pieces(SAMPLES.vocabulary, torch.tensor([0, 10, 11, -1])) == (
        "a",
        "k",
        "[mask]",
        "",
    )


def test_a_character_of_several_bytes_stands_at_the_first():
    words = Bytes()
    broken = [*words.encode("aé→"), 0xFF, *words.encode("b🙂"), *words.encode("é")[1:], -1]
    shown = (
        "a",
        "é",
        "…",
        "→",
        "…",
        "…",
        "\u2039FF\u203a",
        "b",
        "🙂",
        "…",
        "…",
        "…",
        "\u2039A9\u203a",
        "",
    )
    assert decode_pieces(words, torch.tensor(broken)) == shown
    assert decode_pieces(words, torch.tensor([0xC3, 256])) == ("\u2039C3\u203a", "[mask]")


def test_a_clip_is_shown_by_the_middle_frame_of_each_step():
    clip = (torch.arange(6.0) / 5)[None, :, None, None].expand(1, 6, 2, 3)
    found = to_pictures(clip, 2)
    assert [picture.shape for picture in found] == [(2, 3, 3)] * 2
    assert [int(picture[0, 0, 0]) for picture in found] == [
        51,
        204,
    ]  # the second of three frames, and the fifth


def test_colours_stay_and_grey_becomes_colour():
    (picture,) = to_pictures(torch.tensor([0.0, 0.5, 2.0])[:, None, None], 1)
    assert picture[0, 0].tolist() == [0, 128, 255]
    (picture,) = to_pictures(torch.full((1, 1, 1), 0.2), 1)
    assert picture[0, 0].tolist() == [51, 51, 51]


# what is measured


def test_a_profile_of_looking_at_the_token_before_has_one_peak():
    (seen, _) = capture_model(decoder("none"), (text(),))
    before = torch.eye(12).roll(1, 0).expand(2, 2, 12, 12)
    before = before.clone().index_fill_(
        2, torch.tensor([0]), 0.0
    )  # the first token has none before it
    (panel,) = draw_profiles([replace(seen, weights=before)])
    assert panel.x_values.tolist() == [*range(12)]
    assert all(line.argmax() == 1 for line in panel.lines.values())
    assert panel.lines["head 1"][1] == 1


def test_attention_spread_evenly_is_told_beside_each_measure():
    seen = capture_model(encoder("none"), (text(),))
    found = {measure.name: measure for measure in compute_measures(seen, None, None)}
    even = {name: measure.even for name, measure in found.items()}
    assert even["entropy"] == pytest.approx(math.log(12))
    assert even["distance"] == pytest.approx((12**2 - 1) / (3 * 12))
    assert even["self"] == pytest.approx(1 / 12)
    assert even["largest_score"] is None
    assert not {"by_content", "departure"} & found.keys()


def test_a_token_without_a_place_is_no_departure_from_relativity():
    model, given = encoder("rope", cls_token=True), (text(),)
    with change_positions(model, CHANGES["shifted"]):
        shifted = capture_model(model, given)
    found = {
        measure.name: measure.values
        for measure in compute_measures(capture_model(model, given)[:1], None, shifted[:1])
    }
    assert found["departure"].max() < 1e-5


def test_turns_that_an_encoding_tells_are_drawn_once():
    model, given = decoder("rope"), (text(),)
    titles = [
        panel.title for panel in draw_encodings(model, given, capture_model(model, given), (12,))
    ]
    assert "rope: Rotation frequencies" in titles
    assert "Rotation of each pair of channels" not in titles
    assert "Scores of equal tokens" in titles


def test_what_is_the_same_in_all_layers_is_told_once():
    shared, own = (
        list_reported_panels(capture_model(decoder(name), (text(),))) for name in ("t5", "fox")
    )
    titles = [panel.title for panel in (*shared, *own)]
    assert len(titles) == len(set(titles))
    assert not any("layer" in panel.title for panel in shared)
    assert {panel.title[-1] for panel in own} == {"0", "1"}


# what was kept


def rows(**columns):
    length = max(map(len, columns.values()))
    return [
        {
            "step": str(at),
            **{
                key.replace("_", "/"): values[at]
                for key, values in columns.items()
                if at < len(values)
            },
        }
        for at in range(length)
    ]


def test_training_and_validation_are_drawn_over_the_same_steps():
    kept = rows(
        train_loss=["4", "2", "3", "1"],
        val_loss=["", "5", "", "6"],
        val_accuracy=["", "0.1", "", "0.2"],
    )
    first, both, accuracy = draw_training_curves(kept, "tokens")
    assert first.lines["train"].tolist() == [4, 2, 3, 1]
    assert both.x_values.tolist() == [1, 3]
    assert both.lines["train"].tolist() == [3, 2]
    assert both.lines["val"].tolist() == [5, 6]
    assert accuracy.lines["validation accuracy"].tolist() == pytest.approx([0.1, 0.2])


def test_long_trainings_are_thinned():
    (panel,) = draw_training_curves(rows(train_loss=[str(n) for n in range(1000)]), "tokens")
    assert len(panel.x_values) <= 400
    assert panel.lines["train"].mean().item() == pytest.approx(499.5, abs=1)


def test_what_was_measured_of_attention_has_a_line_for_each_layer():
    kept = [
        {"step": "0", "attention/0/entropy": "1", "attention/1/entropy": "2"},
        {"step": "9", "attention/0/entropy": "3"},
    ]
    (panel,) = draw_training_curves(kept, "tokens")
    assert panel.x_values.tolist() == [0, 9]
    assert (panel.title, panel.y) == ("Entropy", "nats")
    assert panel.lines["layer 0"].tolist() == [1, 3]
    assert panel.lines["layer 1"].isnan().tolist() == [False, True]


def test_an_evaluation_at_other_lengths_is_drawn_with_its_own():
    def measure(length, loss, windows="", **more):
        condition = Condition(str(length), "size", (length,))
        metrics = {} if loss is None else {"test/loss": loss}
        return ConditionResult(condition=condition, metrics=metrics, windows=windows, **more)

    def draw(own, windows):
        sizes = (
            measure(64, 3.0, windows, position_losses=(9.0, None, 2.0)),
            measure(16, 2.0, windows),
            measure(128, None, refused="no"),
        )
        first = measure(32, 1.0, own)
        evaluation = Evaluation(
            recipe="",
            checkpoint=Path("best.ckpt"),
            data="",
            count=1,
            trained_size=(32,),
            conditions=(first, *sizes),
        )
        return draw_extrapolation(evaluation)

    loss, position = draw("", "")
    assert loss.x_values.tolist() == [16, 32, 64]
    assert loss.lines["loss"].tolist() == [2, 1, 3]
    assert "refused at 128" in loss.caption
    assert position.x_values.tolist() == [0, 2]
    loss, _ = draw("side by side", "sliding")
    assert loss.x_values.tolist() == [16, 64]
