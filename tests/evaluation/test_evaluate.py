"""`zoo eval` past the size of training: multiples, shapes, rules, variants, windows, and what is drawn of them."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGTERM

import pytest
import torch
from tiny import LANGUAGE, TINY, language
from torch.nn import functional as F
from training import fit

from zoo import load
from zoo.config import load as recipe
from zoo.data.digits import Digits
from zoo.data.vision import Augmentation
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import capture_model
from zoo.errors import DataError, OptionError, Stopped
from zoo.evaluation.attention_entropy import measure_entropies
from zoo.evaluation.evaluate import RESULT
from zoo.evaluation.results import ConditionResult, Evaluation, _average, build_panels, plot_by_size
from zoo.models.decoder import Decoder
from zoo.options import Choice
from zoo.options.validation import explain_misfit
from zoo.run.build import build_data
from zoo.run.conditions import Condition

FLIPFLOP = [*LANGUAGE, "data.train=64", "data.val=16", "data.test=32"]
SPARSE = "evaluate.data_variants={sparse: {ignore: 0.98}, long: {length: 32}}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("past")
    letters = [*language(folder / "letters.txt"), "evaluate.lengths=null"]
    fit("lm_rope", [*letters, "optim.lr=0.03"], folder / "rope", "never")
    fit("lm_learned", letters, folder / "learned", "never")
    fit("flipflop_rope", FLIPFLOP, folder / "flipflop", "never")
    fit("vit_rope_axial", TINY, folder / "axial", "never")
    return folder


@pytest.fixture
def evaluate_run(zoo):
    def run(*arguments):
        code, out, message = zoo("eval", *arguments, "--json")
        assert code == 0, message
        return Evaluation.from_dict(json.loads(out))

    return run


def list_names(result):
    return [one.condition.name for one in result.conditions]


def read_result(run):
    return Evaluation.from_dict(json.loads((run / RESULT).read_text()))


def test_rules_are_tried_at_each_length_past_training(runs, evaluate_run, zoo):
    overrides = ["evaluate.lengths=[0.5x,1x,2x,48]", "evaluate.extrapolation=[none,linear,yarn]"]
    found = evaluate_run(runs / "rope", *overrides)
    by_method = ["32 by linear", "48 by linear", "32 by yarn", "48 by yarn"]
    assert list_names(found) == ["trained", "8", "16", "32", "48", *by_method]
    at_32 = ("32", "32 by linear", "32 by yarn")
    assert len({found.find(name).metrics["test/loss"] for name in at_32}) == 3
    scaling = "model.encoding.0.scaling={rule: yarn, factor: 2}"
    alone = evaluate_run(runs / "rope", "evaluate.lengths=[32]", scaling).find("32")
    # the baselines of a size are with the unchanged model
    plain = found.find("32").baselines
    assert plain.keys() == alone.baselines.keys()
    for unit, losses in plain.items():
        assert losses == pytest.approx(alone.baselines[unit], rel=1e-6)
    shared = {"condition": alone.condition, "baselines": alone.baselines}
    assert replace(found.find("32 by yarn"), **shared) == alone
    assert found.conditions[0].condition.size == found.trained_size == (16,)
    _, out, _ = zoo("eval", runs / "rope", *overrides)
    assert "\n  32 tokens by yarn  " in out
    assert "none" not in out
    assert "\nwindows: side by side\n" in out


def test_factors_of_a_rule_are_swept(runs, evaluate_run):
    """Each factor at each length, whatever the length requires; dynamic keeps the length of texts."""
    overrides = ["evaluate.lengths=[8,2x]", "evaluate.extrapolation=[none,yarn,dynamic]"]
    found = evaluate_run(runs / "rope", *overrides, "evaluate.factors=[2,3.5]")
    swept = ["32 by yarn x2", "32 by yarn x3.5", "32 by dynamic x2", "32 by dynamic x3.5"]
    assert list_names(found) == ["trained", "8", "32", *swept]
    once = evaluate_run(runs / "rope", *overrides)
    for method in ("yarn", "dynamic"):
        two, more = (found.find(f"32 by {method} x{factor}").metrics for factor in (2, 3.5))
        assert two == once.find(f"32 by {method}").metrics
        assert two != more
    scaling = "model.encoding.0.scaling={rule: dynamic, factor: 3.5, original: 16, length: 32}"
    alone = evaluate_run(runs / "rope", "evaluate.lengths=[32]", scaling).find("32")
    assert alone.metrics == found.find("32 by dynamic x3.5").metrics


def test_the_entropy_of_attention_is_measured_at_each_length(runs, evaluate_run):
    found = evaluate_run(runs / "rope", "evaluate.lengths=[8,2x]", "evaluate.entropy=true")
    task, data = load(runs / "rope"), build_data(recipe(str(runs / "rope" / "recipe.yaml")))
    for one, length in zip(found.conditions, (16, 8, 32), strict=True):
        # every query sees itself and what precedes it
        even = torch.arange(1, length + 1).double().log().mean().item()
        assert one.metrics["attention/even_entropy"] == pytest.approx(even)
        assert 0 < one.metrics["attention/entropy"] < even
        assert len(one.entropies) == 1
    data.adopt_spec(task.spec)
    data.setup("test")
    batch = next(iter(data.build_loader("test")))
    layers = capture_model(task.model, (batch.inputs[:4], None))
    expected = [metrics.entropy(layer.weights).mean().item() for layer in layers]
    assert found.conditions[0].entropies == pytest.approx(expected, rel=1e-5)
    (panel,) = [one for one in build_panels(found, "tokens") if "entropy" in one.title]
    assert [line.label for line in panel.lines] == ["unchanged", "even attention"]
    assert panel.lines[0].x.tolist() == [8, 16, 32]


def test_rows_of_patches_that_images_share_have_no_entropy(runs, monkeypatch):
    task, data = load(runs / "axial"), build_data(recipe(str(runs / "axial" / "recipe.yaml")))
    data.setup("test")
    monkeypatch.setattr(task, "inputs", lambda batch: (batch[0], torch.zeros(1, 4).long()))
    with pytest.raises(OptionError, match="images that keep their shape"):
        measure_entropies(task, data)


def test_a_model_of_a_fixed_length_refuses_longer_windows(runs, evaluate_run):
    """Plain evaluation says why; its own rule is set to the evaluated length."""
    scaling = "model.encoding.0.scaling={rule: dynamic, factor: 2, length: 20}"
    overrides = ["evaluate.lengths=[32]", "evaluate.extrapolation=[dynamic]"]
    found = evaluate_run(runs / "rope", scaling, *overrides)
    assert "past length 20" in found.find("32").refused
    once = evaluate_run(runs / "rope", *overrides)
    assert found.find("32 by dynamic").metrics == once.find("32 by dynamic").metrics


def test_rules_of_images_are_tried_on_each_axis(runs, evaluate_run):
    found = evaluate_run(
        runs / "axial", "evaluate.resolutions=[8x32]", "evaluate.extrapolation=[linear,ntk,yarn]"
    )
    scaling = "model.encoding.0.scaling={rule: yarn, factor: [1, 2], original: [4, 4]}"
    alone = evaluate_run(runs / "axial", "evaluate.resolutions=[8x32]", scaling).find("8x32")
    assert found.find("8x32 by yarn").metrics == alone.metrics
    measured = [found.find(f"8x32{by}").metrics["test/loss"] for by in ("", " by ntk", " by yarn")]
    assert len({*measured, found.find("8x32 by linear").metrics["test/loss"]}) == 4


def test_a_learned_table_is_read_past_its_end_by_resampling(runs, evaluate_run):
    found = evaluate_run(
        runs / "learned", "evaluate.lengths=[2x]", "evaluate.extrapolation=[resample]"
    )
    assert found.find("32").refused
    assert not found.find("32").metrics
    task = load(runs / "learned")
    table = task.model.encoding["learned"].table.detach()
    long = F.interpolate(
        table.T[None, :, :, None], size=(32, 1), mode="bicubic", align_corners=False
    )[0, :, :, 0].T
    data = build_data(recipe(runs / "learned" / "recipe.yaml"), length=32)
    data.adopt_spec(task.spec)
    losses = []
    with torch.no_grad():
        for batch in data.test_dataloader():
            x = task.model.embed_tokens(batch.inputs) + long
            tokens = task.model.tokens(batch.inputs).replace(x=x)
            # past `embed`, which would add the table
            for block, chain in zip(task.model.blocks, task.model.chains, strict=True):
                tokens = block(tokens, chain, zoo_context())
            logits = task.model.logits(task.model.norm(tokens.x))
            losses.append(
                F.cross_entropy(logits.mT, batch.targets, reduction="none", ignore_index=-100)
            )
    expected = torch.cat(losses).sum() / sum(
        (batch.targets >= 0).sum() for batch in data.test_dataloader()
    )
    assert found.find("32 by resample").metrics["test/loss"] == pytest.approx(
        expected.item(), rel=1e-5
    )


def zoo_context():
    from zoo.attention.layer import Context

    return Context()


def test_sliding_windows_are_each_window_by_itself(runs, evaluate_run):
    """One window after another, each token asked by the last window that a literal loop has it at the end of."""
    found = evaluate_run(runs / "rope", "evaluate.lengths=[2x]", "evaluate.stride=5").find("32")
    assert found.windows == "sliding by 5, the last 5 tokens of each are targets"
    task = load(runs / "rope")
    data = build_data(recipe(runs / "rope" / "recipe.yaml"))
    data.adopt_spec(task.spec)
    text = torch.tensor(data.corpus.tokens.splits["test"].tokens.astype(int))
    nats, right, count = torch.zeros(32), torch.zeros(32), torch.zeros(32)
    start, covered = 0, 0
    while covered < len(text) - 1:
        start = min(start, len(text) - 33)
        window = text[start : start + 33]
        with torch.no_grad():
            logs = task.model(window[None, :-1])[0].log_softmax(-1)
        for place in range(32):
            if start + place >= covered:
                nats[place] -= logs[place, window[place + 1]]
                right[place] += logs[place].argmax() == window[place + 1]
                count[place] += 1
        covered, start = start + 32, start + 5
    assert count.sum() == len(text) - 1
    assert found.metrics["test/loss"] == pytest.approx((nats.sum() / count.sum()).item(), rel=1e-5)
    assert found.metrics["test/accuracy"] == pytest.approx((right.sum() / count.sum()).item())
    assert found.position_losses == pytest.approx((nats / count).tolist(), rel=1e-4)
    assert found.position_accuracies == pytest.approx((right / count).tolist())
    assert found.position_counts == tuple(count.tolist())


def test_variants_change_options_of_the_data(runs, evaluate_run):
    found = evaluate_run(runs / "flipflop", SPARSE, "evaluate.lengths=[2x]")
    # dense is the recipe's own
    assert list_names(found) == ["trained", "32", "sparse", "dense", "long"]
    alone = evaluate_run(runs / "flipflop", "data.ignore=0.98").metrics
    assert found.find("sparse").metrics == alone
    assert alone["test/loss"] != found.metrics["test/loss"]
    # the same samples in other batches
    long, doubled = found.find("long").metrics, found.find("32").metrics
    assert long["test/loss"] == pytest.approx(doubled["test/loss"], rel=1e-5)
    assert not any(one.windows for one in found.conditions)
    only = evaluate_run(runs / "flipflop", SPARSE, "evaluate.lengths=null")
    assert only.conditions[1:] == found.conditions[2:]
    assert only.figure.name == "data_variants.png"


def test_a_variant_may_change_an_option_of_several_words():
    data = Choice("images")
    assert explain_misfit(data, "augment", Augmentation(flip=0.5)) == ""
    assert explain_misfit(data, "augment", {"flip": 2}) == "must be from 0 to 1, got 2.0"


def test_images_of_other_shapes_are_measured(runs, evaluate_run, zoo):
    overrides = ["evaluate.resolutions=[16,8x32,1.5x]", "evaluate.extrapolation=[linear]"]
    found = evaluate_run(runs / "axial", *overrides)
    names = ["trained", "16", "8x32", "24", "8x32 by linear", "24 by linear"]
    assert list_names(found) == names
    assert found.find("16").metrics == found.metrics
    assert found.resizing == "each side resized to its own length, bilinearly"
    alone = evaluate_run(
        runs / "axial", "evaluate.resolutions=[8x32]", "model.encoding.0.coordinates=interpolated"
    )
    interpolated = alone.find("8x32").metrics
    assert interpolated == found.find("8x32 by linear").metrics
    assert interpolated != found.find("8x32").metrics
    _, out, _ = zoo("eval", runs / "axial", *overrides)
    assert re.search(r"^ *8x32 pixels  +0", out, re.MULTILINE)
    assert re.search(r"^ *8x32 pixels by linear  +0", out, re.MULTILINE)


def test_images_are_resized_to_the_training_size(runs, evaluate_run):
    """The model sees what torch resizes, at every other size, whatever its encoding."""
    run = runs / "axial"
    resized = ["evaluate.resolutions=[8,16,32x24]", "evaluate.extrapolation=[resize]"]
    found = evaluate_run(run, *resized)
    names = ["trained", "8", "16", "32x24", "8 by resize", "32x24 by resize"]
    assert list_names(found) == names
    task = load(run)
    for name, size in (("8", 8), ("32x24", (32, 24))):
        data = build_data(recipe(run / "recipe.yaml"), size=size)
        data.setup("test")
        hits, count = 0, 0
        with torch.no_grad():
            for images, labels in data.test_dataloader():
                small = F.interpolate(
                    images, (16, 16), mode="bilinear", align_corners=False, antialias=True
                )
                hits += (task.model(small).argmax(1) == labels).sum().item()
                count += len(labels)
        accuracy = found.find(f"{name} by resize").metrics["test/accuracy"]
        assert accuracy == pytest.approx(hits / count)
        assert accuracy != found.find(name).metrics["test/accuracy"]


def test_baselines_are_those_of_the_samples_of_each_condition(runs, evaluate_run, zoo):
    """At other sizes, of other samples, and of the training size where the data are overridden."""
    run = runs / "axial"
    at_24 = ["evaluate.resolutions=[16,24]", "evaluate.extrapolation=[linear,resize]"]
    found = evaluate_run(run, *at_24)
    trained, same, larger = (found.find(name).baselines for name in ("trained", "16", "24"))
    assert trained == same
    assert [*trained["test/accuracy"]] == ["majority class", "softmax regression"]
    assert [*larger["test/accuracy"]] == ["majority class", "softmax regression (resized)"]
    assert not found.find("24 by linear").baselines
    assert not found.find("24 by resize").baselines
    overridden = evaluate_run(run, "data.size=24", "evaluate.resolutions=[16]")
    assert overridden.find("trained").baselines == larger
    assert overridden.find("16").baselines == trained
    _, out, _ = zoo("eval", run, *at_24)
    shown = f"{larger['test/accuracy']['softmax regression (resized)']:.4f}"
    assert re.search(rf"^baselines, 24 pixels: .*softmax regression \(resized\) {shown}", out, re.M)

    drawn = evaluate_run(runs / "flipflop", SPARSE)
    sparse, own = drawn.find("sparse").baselines, drawn.find("trained").baselines
    data = build_data(recipe(runs / "flipflop" / "recipe.yaml"), ignore=0.98)
    computed = data.compute_baselines()
    # other units of a loss are added to it
    assert {metric: sparse[metric] for metric in computed} == computed
    assert sparse != own


@pytest.mark.parametrize("error", [DataError, partial(OptionError, "path")])
def test_an_evaluation_without_training_data_has_no_baselines(
    error, runs, evaluate_run, monkeypatch, caplog
):
    def setup(self, stage):
        if stage == "fit":
            raise error("photos/train: no such folder")
        return original(self, stage)

    original = Digits.setup
    monkeypatch.setattr(Digits, "setup", setup)
    found = evaluate_run(runs / "axial", "evaluate.resolutions=[24]")
    assert found.find("24").metrics
    assert not found.find("24").baselines
    assert "no baselines without the training data: photos/train: no such folder" in caplog.text


def test_what_is_trained_stays_so_where_the_data_are_resized(runs, evaluate_run):
    found = evaluate_run(
        runs / "axial",
        "data.size=24",
        "evaluate.resolutions=[2x]",
        "evaluate.extrapolation=[linear]",
    )
    assert found.trained_size == (16, 16)
    assert found.conditions[0].condition.size == (24, 24)
    alone = evaluate_run(
        runs / "axial", "evaluate.resolutions=[24,32]", "evaluate.extrapolation=[linear]"
    )
    assert list_names(found) == ["trained", "32", "32 by linear"]
    assert found.metrics == alone.find("24").metrics
    for name in ("32", "32 by linear"):
        assert found.find(name) == alone.find(name)


@pytest.fixture
def beyond(monkeypatch):
    """What becomes of windows of 48 tokens."""
    forward = Decoder.forward

    def use(error):
        def failing(self, inputs, *rest, **more):
            if inputs.shape[1] == 48:
                raise error
            return forward(self, inputs, *rest, **more)

        monkeypatch.setattr(Decoder, "forward", failing)

    return use


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"
        ),
    ],
    ids=["cuda", "cpu"],
)
def test_too_little_memory_at_one_length_is_told_and_stops_no_other(
    error, runs, evaluate_run, beyond
):
    beyond(error)
    found = evaluate_run(
        runs / "rope", "evaluate.lengths=[2x,48,64]", "evaluate.extrapolation=[yarn]"
    )
    for name in ("48", "48 by yarn"):
        assert found.find(name).refused == "out of memory"
        assert not found.find(name).metrics
    for name in ("32", "64", "32 by yarn", "64 by yarn"):
        assert "test/loss" in found.find(name).metrics
    assert read_result(runs / "rope") == found
    assert not found.partial


def test_what_was_measured_before_a_signal_is_kept(runs, zoo, beyond):
    (runs / "rope" / RESULT).unlink(missing_ok=True)
    beyond(Stopped(SIGTERM, "stopped by SIGTERM while testing; nothing was written"))
    code, out, message = zoo("eval", runs / "rope", "evaluate.lengths=[2x,48,64]")
    assert (code, out) == (143, "")
    assert (
        f"stopped by SIGTERM while testing; {runs / 'rope' / RESULT} has the results so far"
        in message
    )
    kept = read_result(runs / "rope")
    assert kept.partial
    assert list_names(kept) == ["trained", "32"]


def test_a_figure_that_fails_loses_no_number(runs, zoo, monkeypatch):
    monkeypatch.setattr("zoo.evaluation.evaluate.save_figure", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        zoo("eval", runs / "rope", "evaluate.lengths=[3x]")
    kept = read_result(runs / "rope")
    assert list_names(kept) == ["trained", "48"]
    assert not kept.partial


def collect_points(result, unit):
    """Return {label: [(size, value)]} of a figure of sizes."""
    chart = plot_by_size(result, unit, "test/accuracy")
    return {
        line.label: [*zip(line.x.tolist(), line.y.tolist(), strict=True)] for line in chart.lines
    }


def make_evaluation(trained_size, *measured):
    return Evaluation(
        recipe="",
        checkpoint=Path("best.ckpt"),
        data="",
        count=1,
        trained_size=trained_size,
        conditions=measured,
    )


def make_measurement(size, accuracy, windows="", kind="size"):
    condition = Condition(str(size[0]), kind, size)
    return ConditionResult(
        condition=condition, metrics={"test/accuracy": accuracy}, windows=windows
    )


def test_sliding_windows_and_others_are_no_curve():
    trained = make_measurement((16,), 0.9, "side by side", "trained")
    refused = ConditionResult(condition=Condition("64", "size", (64,)), refused="no")
    aligned = make_evaluation((16,), trained, make_measurement((32,), 0.5, "side by side"))
    slid = make_evaluation((16,), trained, make_measurement((32,), 0.5, "sliding by 4"), refused)
    assert collect_points(aligned, "tokens")["unchanged"] == [(16.0, 0.9), (32.0, 0.5)]
    assert collect_points(slid, "tokens")["unchanged"] == [(32.0, 0.5)]


def test_training_on_images_that_are_no_squares_is_no_place_among_squares():
    trained = make_measurement((16, 16), 0.9, kind="trained")
    result = make_evaluation((16, 32), trained, make_measurement((32, 32), 0.5))
    assert [*collect_points(result, "pixels").values()] == [[(16.0, 0.9), (32.0, 0.5)]]


WRONG = {
    "half a token": (
        "rope",
        ["evaluate.lengths=[1.3x]"],
        ["evaluate.lengths.0", "1.3x of 16 is 20.8"],
    ),
    "no length": (
        "rope",
        ["evaluate.lengths=[8,2y]"],
        ["evaluate.lengths.1", "'2y' is no length", "2x for twice"],
    ),
    "a shape of text": ("rope", ["evaluate.lengths=[8x8]"], ["evaluate.lengths.0", "no length"]),
    "no resolution": ("axial", ["evaluate.resolutions=[2z]"], ["evaluate.resolutions.0", "16x32"]),
    "a patch that does not divide": (
        "axial",
        ["evaluate.resolutions=[16x18]"],
        ["evaluate.resolutions", "16 x 18"],
    ),
    "factors of no rule": (
        "rope",
        ["evaluate.lengths=[2x]", "evaluate.factors=[2]"],
        ["evaluate.factors", "add evaluate.extrapolation=[yarn]"],
    ),
    "factors of a rule that has none": (
        "axial",
        ["evaluate.resolutions=[2x]", "evaluate.extrapolation=[linear]", "evaluate.factors=[2]"],
        ["evaluate.factors", "extrapolation linear has no factor"],
    ),
    "an unknown rule": (
        "rope",
        ["evaluate.lengths=[2x]", "evaluate.extrapolation=[yarm]"],
        ["evaluate.extrapolation.0", "yarn?"],
    ),
    "a rule of others": (
        "learned",
        ["evaluate.lengths=[2x]", "evaluate.extrapolation=[none,ntk]"],
        ["evaluate.extrapolation.1", "learned", "resample"],
    ),
    "a rule for other coordinates": (
        "axial",
        [
            "evaluate.resolutions=[2x]",
            "evaluate.extrapolation=[linear]",
            "model.encoding.0.coordinates=symmetric",
        ],
        [
            "evaluate.extrapolation.0",
            "rope_axial with coordinates symmetric, knows no extrapolation linear",
        ],
    ),
    "a rule and nothing past training": (
        "rope",
        ["evaluate.extrapolation=[yarn]"],
        ["evaluate.extrapolation", "evaluate.lengths=[2x]"],
    ),
    "a rule and no larger image": (
        "axial",
        ["evaluate.resolutions=[8]", "evaluate.extrapolation=[linear]"],
        ["evaluate.extrapolation", "evaluate.resolutions=[2x]"],
    ),
    "resizing texts": (
        "rope",
        ["evaluate.lengths=[2x]", "evaluate.extrapolation=[resize]"],
        ["evaluate.extrapolation.0", "resize applies to images, and this model reads text"],
    ),
    "resizing to the same size": (
        "axial",
        ["evaluate.resolutions=[16]", "evaluate.extrapolation=[resize]"],
        ["evaluate.extrapolation.0", "no size differs", "evaluate.resolutions=[2x]"],
    ),
    "a rule that no size reaches beside one that does": (
        "axial",
        ["evaluate.resolutions=[8]", "evaluate.extrapolation=[resize,linear]"],
        ["evaluate.extrapolation.1", "linear: no size exceeds the training size"],
    ),
    "an unknown option": (
        "flipflop",
        ["evaluate.data_variants={sparse: {ignor: 1}}"],
        [
            "evaluate.data_variants.sparse.ignor",
            "did you mean evaluate.data_variants.sparse.ignore?",
        ],
    ),
    "a value out of bounds": (
        "flipflop",
        ["evaluate.data_variants={sparse: {ignore: 2}}"],
        ["evaluate.data_variants.sparse.ignore", "from 0 to 1"],
    ),
    "a variant that cannot be": (
        "flipflop",
        ["evaluate.data_variants={odd: {length: 7}}"],
        ["evaluate.data_variants.odd", "write 8"],
    ),
    "a variant of nothing": (
        "flipflop",
        ["evaluate.data_variants={same: {}}"],
        ["evaluate.data_variants.same", "changes nothing"],
    ),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_what_cannot_be_asked_is_told(case, runs, zoo):
    run, overrides, words = WRONG[case]
    code, out, message = zoo("eval", runs / run, *overrides)
    assert (code, out) == (2, "")
    assert "Traceback" not in message
    for word in ["command line", *words]:
        assert word in message


def test_points_of_a_curve_weigh_each_token_the_same():
    points = [*_average([0.0, 1.0] * 25, [1, 3] * 25, trained=40)]
    assert [round(value, 6) for _, value in points] == [0.75] * 25
    assert [place for place, _ in points[:2]] == [0.5, 2.5]


def test_positions_are_dropped_and_contexts_truncated(runs, evaluate_run):
    """`drop` is the model without its encoding, and `truncate` sees what segments of training see."""
    overrides = ["evaluate.lengths=[2x]", "evaluate.extrapolation=[drop,truncate]"]
    found = evaluate_run(runs / "rope", *overrides)
    dropped = evaluate_run(runs / "rope", "model.encoding=none", "evaluate.lengths=[2x]").find("32")
    shared = {"condition": dropped.condition, "baselines": dropped.baselines}
    assert replace(found.find("32 by drop"), **shared) == dropped

    plain, truncated = (found.find(name).position_losses for name in ("32", "32 by truncate"))
    assert truncated[:16] == pytest.approx(plain[:16])
    task, losses, counts = load(runs / "rope"), torch.zeros(16), torch.zeros(16)
    data = build_data(recipe(runs / "rope" / "recipe.yaml"), length=32)
    data.adopt_spec(task.spec)
    with torch.no_grad():
        for batch in data.test_dataloader():
            segments = (batch.inputs[:, start : start + 16] for start in (8, 16))
            logits = torch.cat([task.model(one)[:, 8:] for one in segments], dim=1)
            targets = batch.targets[:, 16:]
            losses += F.cross_entropy(logits.mT, targets, reduction="none").sum(0)
            counts += (targets >= 0).sum(0)
    assert truncated[16:] == pytest.approx((losses / counts).tolist(), rel=1e-4)


def test_images_have_no_context_to_truncate(runs, zoo):
    overrides = ["evaluate.resolutions=[2x]", "evaluate.extrapolation=[truncate]"]
    code, _, message = zoo("eval", runs / "axial", *overrides)
    assert code == 2
    assert "truncate predicts next tokens, which this model does not" in message
