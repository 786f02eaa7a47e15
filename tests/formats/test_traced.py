"""Graphs for ONNX Runtime and PyTorch compute what the model does, at sizes that were not captured."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from parts import mark_others
from tiny import TINY, language
from untrained import write_checkpoint

import zoo as package
from zoo.api.tools import export
from zoo.config.command_line import parse_overrides
from zoo.errors import RecipeError, ZooError
from zoo.formats import outputs, traced
from zoo.formats.export import ExportSource
from zoo.run.checkpoint import build_metadata
from zoo.run.load import load_recipe

LOAD = """
import sys, torch
graph = torch.export.load("out/model.pt2").module()
for inputs, logits in torch.load("expected.pt"):
    torch.testing.assert_close(graph(inputs), logits, atol=1e-5, rtol=1e-5)
assert "zoo" not in sys.modules
"""


@pytest.fixture
def write(tmp_path):
    """Export a model of random weights; return the task and what the command prints."""

    def write_folder(target, recipe, overrides):
        write_checkpoint(tmp_path / "run", recipe, overrides)
        result = export(tmp_path / "run", tmp_path / "out", to=target)
        return package.load(tmp_path / "run"), result

    return write_folder


def language_words(tmp_path, entry, depth=1):
    return language(tmp_path / "text.txt", f"model.encoding={entry}", f"model.depth={depth}")


def run_onnx(folder):
    """Return a function that ONNX Runtime computes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (given,) = session.get_inputs()
    return given, lambda inputs: session.run(None, {given.name: inputs.numpy()})[0]


def require_equal(compute, task, each):
    for inputs in each:
        with torch.no_grad():
            expected = task.model(inputs)
        np.testing.assert_allclose(compute(inputs), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("string", marks=pytest.mark.nightly),
        "{name: comrope_ap, block: 2, coordinates: index}",
    ],
)
def test_onnx_runtime_reads_texts_of_any_length(write, tmp_path, entry):
    pytest.importorskip("onnxscript")
    task, result = write("onnx", "lm_rope", language_words(tmp_path, entry, depth=2))
    assert result.difference <= 1e-5
    given, compute = run_onnx(tmp_path / "out")
    assert given.shape == ["batch", "length"]
    onnxruntime = pytest.importorskip("onnxruntime")
    (logits,) = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx").get_outputs()
    assert logits.shape[:2] == given.shape
    sizes = ((1, 1), (1, 4), (2, 19), (3, 50))
    require_equal(compute, task, [torch.randint(10, size) for size in sizes])
    text = json.loads((tmp_path / "out" / "model.json").read_text())
    assert (text["inputs"]["dtype"], text["inputs"]["max_length"]) == ("int64", None)
    assert {"recipe.yaml", "tokenizer.json", "model.onnx"} <= {*result.files}


# "all" has what lm_irope, lm_gemma and lm_sssl have, and more: windows, two bases, none, a temperature
MIXED = {
    "all": "{one: {window: 4, encoding: {name: rope, base: 100}}, "
    "two: {encoding: none, softcap: 5, temperature: {floor: 8, scale: 0.1}}, "
    "three: {encoding: [alibi, xpos]}}",
    "windows": "{one: {window: 4}, two: {window: null}, three: {window: 16}}",
    "encodings": "{one: {encoding: rope}, two: {encoding: none}, three: {encoding: rope}}",
    "biases": "{one: {encoding: alibi}, two: {encoding: rope}, three: {encoding: fox}}",
}


@pytest.mark.parametrize("name", mark_others(MIXED, kept=["encodings"]))
def test_onnx_runtime_computes_layers_that_differ(write, tmp_path, name):
    pytest.importorskip("onnxscript")
    words = [
        *language_words(tmp_path, "rope"),
        "model.depth=3",
        f"model.layer_types={MIXED[name]}",
        "model.layer_pattern=[one,two,three]",
        "model.block.qk_norm=true",
        "model.scale_embeddings=true",
    ]
    task, result = write("onnx", "lm_rope", words)
    assert result.difference <= 1e-5
    _, compute = run_onnx(tmp_path / "out")
    require_equal(compute, task, [torch.randint(10, size) for size in ((1, 1), (2, 19), (3, 50))])


@pytest.mark.nightly
def test_onnx_runtime_reads_images_of_any_resolution(write, tmp_path):
    pytest.importorskip("onnxscript")
    words = [*TINY, "model.encoding=[learned, rope_axial]", "model.registers=2", "model.pool=class"]
    # layers that differ, which have the table of the input in common
    types = "model.layer_types={one: {}, two: {encoding: kerple}}"
    words += ["model.depth=2", types, "model.layer_pattern=[one,two]"]
    task, _ = write("onnx", "vit_comrope", words)
    given, compute = run_onnx(tmp_path / "out")
    assert given.shape == ["batch", 1, "height", "width"]
    sizes = ((16, 16), (24, 16), (8, 40))
    require_equal(compute, task, [torch.randn(2, 1, *size) for size in sizes])

    told = json.loads((tmp_path / "out" / "model.json").read_text())
    assert told["classes"] == [str(number) for number in range(10)]
    how = told["preprocessing"]
    metadata = build_metadata(load_recipe("vit_comrope", parse_overrides(words)), task.spec)
    (image,) = traced.PixelReader(metadata).read([np.full((8, 8), 100, np.uint8)])
    expected = (100 / 255 - how["mean"][0]) / how["std"][0]
    assert abs(image - expected).max() < 1e-6


SEGMENTER = ["model.dim=16", "model.depth=2", "model.heads=2", "model.registers=2"]
SEGMENTER += ["model.pool=class", "model.dense_head=multiscale", "model.encoding=rope_mixed"]


def test_onnx_runtime_segments_images_of_any_resolution(write, tmp_path):
    pytest.importorskip("onnxscript")
    task, _ = write("onnx", "seg_digits_comrope", SEGMENTER)
    given, compute = run_onnx(tmp_path / "out")
    assert given.shape == ["batch", 1, "height", "width"]
    sizes = ((32, 32), (24, 48))
    require_equal(compute, task, [torch.randn(2, 1, *size) for size in sizes])
    text = json.loads((tmp_path / "out" / "model.json").read_text())
    assert text["classes"][:2] == ["background", "0"]


@pytest.mark.parametrize("target", mark_others(["onnx", "torch_export"], kept=["torch_export"]))
def test_a_graph_computes_features(tmp_path, target):
    if target == "onnx":
        pytest.importorskip("onnxscript")
    write_checkpoint(tmp_path / "run", "seg_digits_comrope", SEGMENTER)
    export(tmp_path / "run", tmp_path / "out", target, features=[1, 0])
    task, images = package.load(tmp_path / "run"), torch.randn(2, 1, 16, 40)
    if target == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
        assert [one.name for one in session.get_outputs()] == ["features_1", "features_0"]
        found = map(torch.from_numpy, session.run(None, {"inputs": images.numpy()}))
    else:
        found = torch.export.load(tmp_path / "out" / "model.pt2").module()(images)
    with torch.no_grad():
        expected = task.features(images, [1, 0])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    outputs = json.loads((tmp_path / "out" / "model.json").read_text())["outputs"]
    assert [one["layer"] for one in outputs] == [1, 0]


@pytest.mark.parametrize(
    ("recipe", "target", "layers", "words"),
    [
        ("seg_digits_comrope", "onnx", [2], "no layer 2; the model has layers 0 to 1"),
        ("seg_digits_comrope", "onnx", [-1], "must be at least 0"),
        ("seg_digits_comrope", "hf", [0], "features are outputs of a graph; use to="),
        ("points_first_rope", "onnx", [0], "PointEncoder has no maps of patches"),
    ],
)
def test_features_that_no_graph_computes_are_refused(tmp_path, recipe, target, layers, words):
    own = SEGMENTER if recipe.startswith("seg") else []
    write_checkpoint(tmp_path / "run", recipe, own)
    with pytest.raises(RecipeError, match=words):
        export(tmp_path / "run", tmp_path / "out", target, features=layers)
    assert not (tmp_path / "out").exists()


def test_a_graph_needs_no_zoo(write, tmp_path):
    pytest.importorskip("tokenizers")
    task, result = write("torch_export", "lm_rope", language_words(tmp_path, "path"))
    assert "model.pt2" in result.files
    with torch.no_grad():
        each = [torch.randint(10, size) for size in ((1, 4), (2, 70))]
        torch.save([(inputs, task.model(inputs)) for inputs in each], tmp_path / "expected.pt")
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_text_longer_than_the_table_is_an_error(write, tmp_path):
    pytest.importorskip("tokenizers")
    write("torch_export", "lm_rope", language_words(tmp_path, "learned"))
    assert json.loads((tmp_path / "out" / "model.json").read_text())["inputs"]["max_length"] == 16
    graph = torch.export.load(tmp_path / "out" / "model.pt2").module()
    graph(torch.zeros(1, 16, dtype=torch.long))
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        graph(torch.zeros(1, 17, dtype=torch.long))


@pytest.mark.nightly
def test_a_missing_operator_is_named(write, tmp_path):
    pytest.importorskip("onnxscript")
    with pytest.raises(RecipeError, match=r"no operator for aten\.linalg_solve_triangular"):
        write("onnx", "lm_rope", language_words(tmp_path, "path"))
    assert not (tmp_path / "out").exists()


def test_a_declared_reason_refuses(write, tmp_path, monkeypatch):
    reason = "it counts the tokens"
    monkeypatch.setattr(package.encoding_class("rope"), "no_export_reason", reason)
    with pytest.raises(RecipeError, match=reason):
        write("torch_export", "lm_rope", language_words(tmp_path, "rope"))


def test_a_graph_that_computes_something_else_is_not_kept(write, tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "TOLERANCE", -1.0)
    monkeypatch.setattr(outputs, "ROUNDING", 0)
    with pytest.raises(ZooError, match="differs by"):
        write("torch_export", "lm_rope", language_words(tmp_path, "rope"))
    assert not (tmp_path / "out").exists()


class Angles(torch.nn.Module):
    """Cosines of angles so large that float32 rounds them to less than four digits."""

    def forward(self, x):
        return (x * 2e4).cos()


def test_a_graph_may_round_as_much_as_the_model():
    sizes = SimpleNamespace(draw_examples=lambda: [(torch.linspace(1, 2, 50),)])
    compare = traced._compare
    assert 1e-5 < compare(None, lambda x: (x * 3 * (2e4 / 3)).cos(), Angles(), sizes) < 1e-2
    with pytest.raises(ZooError, match="differs by"):
        compare(None, lambda x: (x * 2e4).cos() + 0.1, Angles(), sizes)


def test_a_graph_that_accepts_one_size_is_refused(tmp_path):
    def graph(inputs):
        raise AssertionError("Guard failed: inputs.size()[0] == 12")

    write_checkpoint(tmp_path / "run", "vit_comrope", TINY)
    task = package.load(tmp_path / "run")
    source = ExportSource(tmp_path, load_recipe("vit_comrope", parse_overrides(TINY)), task)
    sizes = SimpleNamespace(draw_examples=lambda: [(torch.zeros(1, 5),)])
    with pytest.raises(RecipeError, match="refuses inputs of 1 x 5; use to="):
        traced._compare(source, graph, Angles(), sizes)


def test_results_of_parameters_alone_are_baked():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            return x @ torch.linalg.solve(self.weight, torch.eye(3)) + self.weight[0]

    model, x = Model().requires_grad_(False), torch.randn(2, 3)
    graph = torch.export.export(model, (x,)).module()
    assert traced.bake_parameters(graph) == 1
    assert not any("linalg" in str(node.target) for node in graph.graph.nodes)
    torch.testing.assert_close(graph(x), model(x))


@pytest.mark.parametrize("entry", ["{name: rope, t_min: 1, t_max: 40}", "fire"])
@pytest.mark.nightly
def test_onnx_runtime_reads_any_number_of_points(write, tmp_path, entry):
    onnxruntime = pytest.importorskip("onnxruntime")
    small = [f"model.encoding={entry}", "model.dim=16", "model.heads=2", "model.depth=1"]
    task, result = write("onnx", "points_first_rope", small)
    assert result.difference <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    shapes = {one.name: one.shape for one in session.get_inputs()}
    axes = ["batch", "points"]
    assert shapes == {"x": [*axes, 3], "pos": [*axes, 1], "mask": axes}
    for batch, count in ((1, 1), (3, 40)):
        x, pos = torch.randn(batch, count, 3), 10 * torch.rand(batch, count, 1)
        mask = torch.rand(batch, count) < 0.8
        mask[:, 0] = True
        given = {"x": x.numpy(), "pos": pos.numpy(), "mask": mask.numpy()}
        with torch.no_grad():
            expected = task.model(x, pos, mask)
        np.testing.assert_allclose(session.run(None, given)[0], expected, atol=1e-5, rtol=1e-5)
    text = json.loads((tmp_path / "out" / "model.json").read_text())
    assert [one["dtype"] for one in text["inputs"]] == ["float32", "float32", "bool"]
    assert text["classes"] == ["a", "b"]
