"""What a report holds of runs of each family, and what wrong inputs get."""

import json
import math

import pytest
import torch
from tiny import TINY, language
from training import diagnose, evaluate, fit
from untrained import write_checkpoint

from zoo import load
from zoo.diagnosis.inputs import _read_end, capture_attention
from zoo.diagnosis.page.viewer_data import collect
from zoo.diagnosis.trained_run import load_runs
from zoo.diagnostics.callback import summarize_layer
from zoo.diagnostics.capture import capture_model
from zoo.diagnostics.metrics import rollout
from zoo.diagnostics.token_layout import find_layout
from zoo.errors import DataError
from zoo.reporting.panel import Curves, HeatmapGrid
from zoo.run import checkpoint
from zoo.version import __version__

MOVING = [
    "data.train=8",
    "data.val=8",
    "data.test=8",
    "data.frames=4",
    "data.size=16",
    "data.side=8",
    "data.speed=1",
    "model.patch_size=4",
    "model.dim=16",
    "model.depth=1",
    "model.heads=2",
    "trainer.accelerator=cpu",
]
TOKENS = ["model.pool=class", "model.registers=2", "model.depth=2", "model.encoding=sinusoidal"]
FAMILIES = ("digits", "clips", "decoder", "encoder")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A tiny run on digits with a class token, and checkpoints of clips and of a decoder and an encoder of text."""
    folder = tmp_path_factory.mktemp("runs")
    logged = ["trainer.log_every_n_steps=5", "diagnostics.every_n_steps=null"]
    fit("vit_none", [*TINY, *TOKENS, *logged], folder / "digits", "never")
    letters = [*language(folder / "letters.txt"), "evaluate.lengths=null"]
    write_checkpoint(folder / "clips", "clip_comrope", MOVING)
    write_checkpoint(folder / "decoder", "lm_rope", [*letters, "model.encoding=learned"])
    write_checkpoint(folder / "deep", "lm_rope", [*letters, "model.depth=3"])
    write_checkpoint(
        folder / "encoder", "mlm_t5", [*letters, "model.cls_token=true", "model.encoding=rope"]
    )
    return folder


@pytest.fixture(scope="module")
def reports(runs):
    """{family: its run in a report}"""
    return {
        name: diagnose(str(runs / name), "samples=3", "queries=9", "limit=2")[0].runs[0]
        for name in FAMILIES
    }


SHAPES = {  # grid, tokens before it, unit, weights
    "digits": ((4, 4), ("class", "register 1", "register 2"), "patches", (3, 2, 2, 12, 19)),
    "clips": ((2, 4, 4), (), "patches", (3, 1, 2, 8, 32)),
    "decoder": ((16,), (), "tokens", (3, 1, 2, 9, 16)),
    "encoder": ((16,), ("class",), "tokens", (3, 1, 2, 10, 17)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_are_those_of_the_family(family, reports):
    run, (grid, extra, unit, shape) = reports[family], SHAPES[family]
    found = run.attended
    assert (found.grid, found.extra, run.unit) == (grid, extra, unit)
    assert found.weights.shape == shape
    assert torch.allclose(found.weights.sum(-1), torch.ones(()))
    assert found.rollout.shape == (shape[0], *shape[3:])
    assert len(found.queries) == shape[3]
    assert all(measure.values.shape == shape[1:3] for measure in run.measures)


@pytest.mark.parametrize("family", FAMILIES)
def test_distances_are_in_patches_of_images_and_tokens_of_texts(family, reports):
    run, (grid, *_) = reports[family], SHAPES[family]
    measures = {measure.name: measure for measure in run.measures}
    far = math.hypot(*(size - 1 for size in grid))
    assert measures["distance"].unit == run.unit
    assert (measures["distance"].values > 0).all()
    assert (measures["distance"].values < far).all()
    along = [measures[name].unit for name in measures if name.startswith("distance_")]
    assert (
        along == {1: [], 2: ["rows", "columns"], 3: ["steps in time", "rows", "columns"]}[len(grid)]
    )


def test_offsets_are_those_of_the_grid(reports):
    image, text = reports["digits"].profiles[0], reports["encoder"].profiles[0]
    time, frame = reports["clips"].profiles
    assert isinstance(image, HeatmapGrid)
    assert isinstance(time, Curves)
    assert (image.values.shape, image.mark, image.corner) == ((2, 7, 7), (0, 0), (-3, -3))
    assert (time.x_values.tolist(), frame.values.shape) == ([-1, 0, 1], (2, 7, 7))
    assert text.x_values.tolist() == [*range(-15, 16)]
    assert reports["decoder"].profiles[0].x_values.tolist() == [*range(16)]


def test_a_key_to_the_right_is_drawn_to_the_right(reports):
    found, panel = reports["digits"].attended, reports["digits"].profiles[0]
    corner = found.queries.index(3)  # the first patch
    weights = found.weights[:, 0, :, corner, 3:].unflatten(-1, (4, 4)).mean(0)  # [H, rows, columns]
    assert torch.allclose(
        panel.values[:, 6, 6], weights[:, 3, 3]
    )  # no other two patches are so far apart


def test_samples_are_what_the_model_was_shown(reports):
    assert [picture.shape for picture in reports["clips"].attended.samples[0].pictures] == [
        (16, 16, 3)
    ] * 2
    (picture,) = reports["digits"].attended.samples[0].pictures
    assert (picture.min(), picture.max(), picture.dtype) == (0, 255, torch.uint8)
    texts = [reports[family].attended.samples[0].tokens for family in ("decoder", "encoder")]
    assert [len(text) for text in texts] == [16, 16]
    assert "[mask]" in texts[1]
    assert all(len(piece) == 1 for piece in texts[0])


def test_controls_are_named_and_a_refusal_is_told(reports):
    names = ["unchanged", "shuffled", "shifted", "zeroed", "reversed"]
    for run in reports.values():
        assert [control.name for control in run.controls] == names
        assert run.controls[0].metrics == run.metrics
    shifted = reports["decoder"].controls[2]
    assert not shifted.metrics
    assert "position 23" in shifted.refused
    assert (
        reports["digits"].controls[1].metrics["test/loss"] != reports["digits"].metrics["test/loss"]
    )
    assert reports["clips"].controls[2].metrics == pytest.approx(reports["clips"].metrics, rel=1e-5)


def test_a_relative_encoding_departs_from_nothing(reports):
    found = {family: {m.name: m.values for m in run.measures} for family, run in reports.items()}
    assert found["clips"]["departure"].max() < 1e-5
    assert found["digits"]["departure"].min() > 1e-3
    assert "departure" not in found["decoder"]  # the table is too short to move
    assert found["encoder"]["by_content"].min() >= 0


def test_a_report_tells_what_it_is_of(runs, reports):
    for run in reports.values():
        assert {
            "use of positions",
            "model",
            "parameters",
            "a sample",
            "data",
            "tested on",
        } == run.facts.keys()
        assert run.encodings
    assert reports["digits"].training == ()  # one validation makes no curve
    assert reports["digits"].recipe == (runs / "digits" / "recipe.yaml").read_text()
    assert reports["digits"].facts["tested on"] == "2 batches of 64; the test part has 719"
    assert reports["clips"].facts["tested on"] == "8 samples"  # two batches are all of it
    assert (
        reports["digits"].facts["a sample"]
        == "4 x 4 patches, 16 in all; before them class, register 1, register 2"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_changes_of_samples_add_up_to_that_of_the_test(family, reports):
    unchanged, *others = reports[family].controls
    counted = {"digits": 128, "clips": 8, "decoder": 16, "encoder": 16}[family]
    for control in others:
        if control.refused:
            assert control.change is None
            continue
        change = control.metrics["test/loss"] - unchanged.metrics["test/loss"]
        assert control.change.mean == pytest.approx(change, abs=2e-5, rel=1e-4), control.name
        assert control.change.samples <= counted
        assert control.change.low <= control.change.mean <= control.change.high
    assert reports[family].facts["use of positions"] == reports[family].position_use.text


def test_tasks_of_numbers_and_pixels_keep_the_losses_of_samples(tmp_path):
    write_checkpoint(tmp_path / "pixels", "seg_digits_none", ["data.test=8", *MOVING[-5:]])
    points = ["data.train=40", "data.test=40", *MOVING[-4:-1]]
    write_checkpoint(tmp_path / "points", "points_period_comrope", points)
    for name, count in (("pixels", 8), ("points", 40)):
        found, page = diagnose(str(tmp_path / name), f"to={tmp_path / name}.html")
        (run,) = found.runs
        unchanged, *others = run.controls
        for control in others:
            change = control.metrics["test/loss"] - unchanged.metrics["test/loss"]
            assert control.change.mean == pytest.approx(change, abs=2e-5, rel=1e-4), name
            assert control.change.samples == count
    # points are drawn where they lie: their time against their value, and padding nowhere
    sample = run.attended.samples[0]
    (shown,) = collect(found)["runs"]
    assert sample.axes == ("coordinate 1", "feature 1")
    assert len(sample.places) == len(sample.tokens)
    placed = [place is not None for place in shown["samples"][0]["places"]]
    assert placed == [token != "" for token in sample.tokens]
    first = sample.places[0].tolist()
    assert sample.tokens[0] == f"{first[0]:.4g}: {first[1]:.4g}"
    assert '"places":[[0.0,' in page.read_text()


def test_measures_are_of_32_samples_or_of_all(runs):
    words = ["limit=1", "controls=false", "queries=4"]
    for name, count in (("digits", 32), ("clips", 8)):
        (run,) = diagnose(str(runs / name), "samples=2", *words)[0].runs
        measures = {measure.name: measure for measure in run.measures}
        assert measures["by_position"].samples == measures["entropy"].samples == count
        assert len(run.attended.samples) == 2
        # what is shown changes nothing that is measured
        (more,) = diagnose(str(runs / name), "samples=5", *words)[0].runs
        for measure in more.measures:
            if measure.samples == count:
                assert torch.equal(measure.values, measures[measure.name].values)
    assert {measure.samples for measure in run.measures} == {2, 8}


def test_the_page_and_the_log_of_training_measure_the_same(runs):
    (run,) = diagnose(str(runs / "digits"), "limit=1", "controls=false", "queries=8")[0].runs
    (subject,) = load_runs([runs / "digits"], (), None)
    _, inputs = subject.load_inputs(4, 32)
    measures = {measure.name: measure for measure in run.measures}
    layout = find_layout(subject.model, inputs, 8)
    for layer in capture_model(subject.model, inputs, layout.query_index):
        logged = summarize_layer(layer)
        mean, low, high = measures["by_position"].layers[layer.layer].tolist()
        assert logged["by_position"] == pytest.approx(mean, abs=1e-4)
        assert low < mean < high
        for name in ("largest_score", "entropy", "distance"):
            shown = float(measures[name].values[layer.layer].mean())
            assert logged[name] == pytest.approx(shown, rel=1e-4)


def test_metrics_are_those_of_an_evaluation(runs):
    (run,) = diagnose(str(runs / "digits"), "controls=false")[0].runs
    assert run.metrics == evaluate(str(runs / "digits"), []).metrics
    assert [control.name for control in run.controls] == ["unchanged"]


def test_what_an_evaluation_found_is_kept_and_drawn(runs, zoo):
    code, out, _ = zoo(
        "eval", runs / "decoder", "evaluate.lengths=[8,32]", "trainer.accelerator=cpu", "--json"
    )
    assert code == 0
    assert json.loads((runs / "decoder" / "evaluation.json").read_text()) == json.loads(out)
    (run,) = diagnose(str(runs / "decoder"), "limit=1", "controls=false")[0].runs
    loss = next(panel for panel in run.extrapolation if panel.y == "loss")
    assert loss.x_values.tolist() == [8, 16]
    assert "refused at 32" in loss.caption
    (runs / "decoder" / "evaluation.json").write_text("{")
    code, _, message = zoo("diagnose", runs / "decoder", "limit=1")
    (runs / "decoder" / "evaluation.json").unlink()
    assert code == 4
    assert "evaluation.json" in message


def test_layers_and_runs_are_chosen(runs, zoo, tmp_path):
    report, path = diagnose(
        str(runs / "digits"), str(runs / "clips"), "layers=0", "limit=1", "controls=false"
    )
    assert [run.attended.layers for run in report.runs] == [(0,), (0,)]
    assert [run.name for run in report.runs] == ["vit_none", "clip_comrope"]
    assert path.resolve() == tmp_path / "diagnosis.html"
    assert (
        diagnose(str(runs / "digits"), "layers=[1]", "limit=1")[1]
        == runs / "digits" / "diagnosis.html"
    )


def test_one_query_looks_from_the_middle_and_says_what_it_can(runs):
    (run,) = diagnose(str(runs / "decoder"), "limit=1", "controls=false", "queries=1")[0].runs
    assert run.attended.queries == (7,)
    assert run.facts["tested on"].startswith("1 batch of 8; ")
    assert not any(measure.values.isnan().all() for measure in run.measures)


def test_a_rollout_is_made_in_one_pass(runs):
    words = torch.randint(0, 9, (2, 16))
    model, calls = load(runs / "deep").model, []
    plan = find_layout(model, (words,), 4)
    model.register_forward_pre_hook(lambda *given: calls.append(1))
    found = capture_attention(model, (words,), plan, [0])
    assert (
        len(calls) == 4
    )  # as it is, with all in one place, moved alike, and of all layers for the rollout
    means = [one.weights.mean(1, keepdim=True) for one in capture_model(model, (words,))]
    assert torch.equal(found.rollout, rollout(means)[:, list(plan.query_index)])


def test_one_run_has_names_for_its_checkpoints(runs, tmp_path, monkeypatch):
    # the page of two checkpoints is written to the current folder
    monkeypatch.chdir(tmp_path)
    words = [str(runs / "digits" / name) for name in ("best", "last")]
    report, _ = diagnose(*words, "limit=1", "controls=false", "samples=1")
    assert [run.name for run in report.runs] == ["vit_none digits best", "vit_none digits last"]
    assert len(report.runs[0].attended.samples) == 1


def test_a_page_and_its_numbers_are_written(runs, zoo, tmp_path, caplog):
    caplog.set_level("INFO", "zoo")
    words = ("diagnose", runs / "encoder", "to=page.html", "limit=1", "trainer.accelerator=cpu")
    code, out, message = zoo(*words, "--json")
    assert code == 0, message
    assert json.loads(out) == json.loads((tmp_path / "page.json").read_text())
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "mlm_t5: testing with positions reversed" in caplog.messages


WRONG = {
    "nothing": ([], 2, ["command line", "name a run"]),
    "no run": (["nowhere"], 5, ["nowhere", "no such checkpoint"]),
    "an empty run": (["."], 5, [".", "no checkpoint"]),
    "a good run and none": (["{runs}/digits", "nowhere"], 5, ["nowhere", "no such checkpoint"]),
    "a corrupt checkpoint": (["{runs}/corrupt.ckpt"], 5, ["corrupt.ckpt", "corrupt"]),
    "another version": (
        ["{runs}/other.ckpt"],
        5,
        ["other.ckpt", "model.depht", "written by zoo 9.9", __version__],
    ),
    "a run twice": (["{runs}/digits", "{runs}/digits/best"], 2, ["named twice"]),
    "a misspelt option": (["{runs}/digits", "sampels=2"], 2, ["sampels", "did you mean samples?"]),
    "no samples": (["{runs}/digits", "samples=0"], 2, ["samples", "at least 1"]),
    "a word for a number": (["{runs}/digits", "queries=all"], 2, ["queries", "an integer"]),
    "no layer": (["{runs}/digits", "layers=[]"], 2, ["layers", "the list is empty"]),
    "a layer that is not there": (
        ["{runs}/digits", "layers=[0,7]"],
        2,
        ["layers", "no layer 7", "layers 0 to 1"],
    ),
    "a word for a layer": (["{runs}/digits", "layers=x"], 2, ["layers", "an integer", "got 'x'\n"]),
    "a fraction for a layer": (
        ["{runs}/digits", "layers=1.5"],
        2,
        ["layers", "an integer", "got 1.5\n"],
    ),
    "no page": (["{runs}/digits", "to=page.pdf"], 2, ["to", "page.pdf", ".html"]),
    "no folder": (["{runs}/digits", "to=nowhere/page.html"], 2, ["to", "no folder nowhere"]),
    "a misspelt key": (["{runs}/digits", "model.depht=3"], 2, ["model.depht", "model.depth?"]),
    "other weights": (["{runs}/digits", "model.depth=3"], 5, ["another recipe"]),
    "several processes": (
        ["{runs}/digits", "trainer.devices=2", "trainer.accelerator=cpu"],
        2,
        ["trainer.devices", "one"],
    ),
    "an empty test part": (["{runs}/digits", "data.test=0.0001"], 4, ["no samples"]),
    "absent data": (["{runs}/decoder", "data.files=[nowhere.txt]"], 4, ["nowhere.txt"]),
    "a size that patches do not divide": (
        ["{runs}/digits", "data.size=9"],
        2,
        ["patch_size 4", "9 x 9"],
    ),
}


@pytest.fixture(scope="module")
def checkpoints(runs):
    """A folder with a checkpoint of another version, and one that is cut short."""
    content = torch.load(runs / "digits" / "checkpoints" / "best.ckpt", weights_only=True)
    model = {**content["zoo"]["recipe"]["model"], "depht": 2}
    content["zoo"] |= {"version": "9.9", "recipe": {**content["zoo"]["recipe"], "model": model}}
    checkpoint.write_sealed(checkpoint.serialise(content), runs / "other.ckpt")
    (runs / "corrupt.ckpt").write_bytes((runs / "other.ckpt").read_bytes()[:-900])
    return runs


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_told(case, checkpoints, zoo):
    words, expected, parts = WRONG[case]
    code, out, message = zoo("diagnose", *(word.format(runs=checkpoints) for word in words))
    assert (code, out) == (expected, ""), message
    assert "Traceback" not in message
    for part in parts:
        assert part in message


def test_a_segmenter_shows_masks_beside_its_predictions(tmp_path):
    small = ["data.test=8", "data.size=32", *MOVING[-4:]]
    write_checkpoint(tmp_path / "scenes", "seg_digits_none", small)
    found, page = diagnose(str(tmp_path / "scenes"), "samples=2", "controls=false")
    (run,) = found.runs
    assert [one.mask.shape for one in run.segmented] == [(32, 32)] * 2
    assert run.segmented[0].predicted.max() < len(run.classes) == 11
    assert len(run.class_ious) == 11
    assert set(run.class_ious) == {*run.classes}
    text = page.read_text()
    assert "By class" in text
    assert text.count('class="pixels"') == 6
    assert "of pixels correct" in text


@pytest.mark.parametrize("baselines", ["3", '{"test/loss": 3}', '{"test/loss": {"bigram": "x"}}'])
def test_damaged_baselines_are_named_before_anything_is_measured(baselines, tmp_path):
    file = tmp_path / "end.json"
    file.write_text(f'{{"baselines": {baselines}}}')
    with pytest.raises(DataError, match=r"end\.json: not as zoo writes it"):
        _read_end(file)
