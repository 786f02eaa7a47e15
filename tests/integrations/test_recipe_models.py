"""Models of timm and transformers in recipes: trained, tested at other sizes, diagnosed."""

import json
import os
import shutil
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from tiny import language
from untrained import write_checkpoint
from without_torchvision import import_timm

import zoo
from zoo.cli import main
from zoo.config.command_line import parse_overrides
from zoo.errors import CheckpointError

VIT = ["~model", "model.name=timm", "model.arch=vit_tiny_patch16_224", "model.patch_size=8"]
LM = ["~model", "model.name=transformers", "model.encoding=fox", "data.length=16"]


STARTUP = "from without_torchvision import import_timm\nimport_timm()\n"
BASE = """
extends: {recipe}
model: {{name: {model}}}
evaluate: {{{sizes}}}
trainer: {{max_steps: 2, max_epochs: null, accelerator: cpu}}
diagnostics: {{every_n_steps: null}}
"""


def write_recipe(path, recipe, model, sizes):
    """Write a recipe whose model is of another library."""
    path.write_text(BASE.format(recipe=recipe, model=model, sizes=sizes))
    return str(path)


def compare(capsys, recipe, encodings, *words):
    """Compare two encodings, and return what is printed."""
    names = f"encodings=[{','.join(encodings)}]"
    assert main(["compare", recipe, names, "seeds=1", *words]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert all(name in printed for name in encodings)
    return printed


def build(recipe, *words):
    return zoo.build_model(zoo.load_recipe(recipe, parse_overrides([*words, "~evaluate"])))


@pytest.fixture
def new_server():
    """Let cells be forked off a new process: one that an earlier test started has another path."""
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


TIMM_MODEL = "timm, arch: test_vit, patch_size: 8, encoding: comrope_ld"
FEW_IMAGES = ["data.batch_size=64", "data.test=0.05", "data.val=0.05"]


def test_a_vision_transformer_of_timm_is_trained_tested_and_diagnosed(tmp_path):
    import_timm()
    path = tmp_path / "mine.yaml"
    recipe = write_recipe(path, "vit_comrope", TIMM_MODEL, "resolutions: [16, 24]")
    run = zoo.fit(recipe, parse_overrides(FEW_IMAGES), run_dir=tmp_path / "run", verbose=False)
    assert set(run.metrics) >= {"test/accuracy", "test/loss"}
    found = zoo.evaluate(run, resolutions=[24], verbose=False)
    assert found.find("24").metrics
    report = zoo.diagnose(
        run, samples=1, limit=1, verbose=False, to=str(tmp_path / "p.html")
    ).report
    assert report.runs[0].encoding == ("comrope_ld",)
    assert report.runs[0].attended.extra == ("class",)


@pytest.mark.nightly
@pytest.mark.usefixtures("new_server")
def test_vision_transformers_of_timm_are_compared(tmp_path, capsys, monkeypatch):
    import_timm()
    # processes of a comparison import timm as this one does
    (tmp_path / "sitecustomize.py").write_text(STARTUP)
    paths = [str(tmp_path), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    path = tmp_path / "mine.yaml"
    recipe = write_recipe(path, "vit_comrope", TIMM_MODEL, "resolutions: [16, 24]")
    folder = f"to={tmp_path / 'comparison'}"
    assert "24" in compare(capsys, recipe, ["comrope_ld", "none"], folder, *FEW_IMAGES)


def test_what_timm_cannot_build_is_named():
    import_timm()
    with pytest.raises(zoo.RecipeError, match="timm has no model 'vit_huge_patch3'"):
        build("vit_comrope", *VIT, "model.encoding=none", "model.arch=vit_huge_patch3")
    with pytest.raises(zoo.RecipeError, match="do not divide images of 16 x 16"):
        build("vit_comrope", *VIT, "model.encoding=none", "model.patch_size=5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(**sizes, **heads, max_position_embeddings=64)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_a_model_of_transformers_starts_from_its_weights_and_reads_packed_texts(folder):
    model = build("lm_rope", *LM, f"model.path={folder}").eval()
    again = build("lm_rope", *LM, f"model.path={folder}").eval()
    words = torch.randint(90, (1, 12))
    with torch.no_grad():
        assert torch.equal(model(words), again(words))
        random = build("lm_rope", *LM, f"model.path={folder}", "model.pretrained=false").eval()
        assert not torch.equal(model(words), random(words))
        packed = model(words, torch.tensor([[0] * 5 + [1] * 4 + [-1] * 3]))
        torch.testing.assert_close(packed[:, :5], model(words[:, :5]), atol=1e-5, rtol=0)
        torch.testing.assert_close(packed[:, 5:9], model(words[:, 5:9]), atol=1e-5, rtol=0)


def test_chosen_weights_and_adapters_are_trained(folder):
    model = build("lm_rope", *LM, f"model.path={folder}", "model.trainable=[norm]")
    trained = [name for name, one in model.named_parameters() if one.requires_grad]
    assert trained
    assert all("norm" in name or "zoo_encoding" in name for name in trained)
    with pytest.raises(zoo.RecipeError, match="no weight has 'nrom' in its name"):
        build("lm_rope", *LM, f"model.path={folder}", "model.trainable=[nrom]")

    pytest.importorskip("peft")
    model = build("lm_rope", *LM, f"model.path={folder}", "model.lora_rank=2")
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert all("lora_" in name or "zoo_encoding" in name for name in trained)
    model(torch.randint(90, (2, 12))).square().sum().backward()
    assert all(
        one.grad is not None for name, one in model.named_parameters() if "zoo_encoding" in name
    )
    assert any("lora_" in name for name in trained)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, but the file has"),
        ({"vocab_size": 10**9}, "vocab_size is 1,000,000,000, but the file has"),
        ({"hidden_size": "many"}, "cannot be loaded"),
        ({"num_attention_heads": 0}, "cannot be loaded"),
        ({"attn_implementation": "someone/kernel"}, "code of the Hub"),
        ({"num_hidden_layers": 3}, "has no weight model.layers.2.*, which would start at random"),
        ("nan", "model.norm.weight has numbers that are NaN or infinite"),
        ("cut", "model.safetensors: unreadable"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(folder, tmp_path, changes, problem):
    safetensors = pytest.importorskip("safetensors.torch")
    shutil.copytree(folder, tmp_path / "it")
    file, weights = tmp_path / "it" / "config.json", tmp_path / "it" / "model.safetensors"
    if changes == "nan":
        tensors = safetensors.load_file(weights)
        tensors["model.norm.weight"][3] = float("nan")
        safetensors.save_file(tensors, weights, metadata={"format": "pt"})
    elif changes == "cut":
        weights.write_bytes(weights.read_bytes()[:999])
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises((zoo.RecipeError, CheckpointError), match=problem) as error:
        build("lm_rope", *LM, f"model.path={tmp_path / 'it'}")
    assert str(tmp_path / "it") in str(error.value)


def test_a_folder_without_a_model_is_refused(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(zoo.RecipeError, match=r"config\.json: no such file"):
        build("lm_rope", *LM, f"model.path={tmp_path}")


def test_a_model_of_transformers_is_trained_tested_compared_and_diagnosed(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("abcdefgh the cat sat on the mat.\n" * 300)
    model = f"transformers, path: {folder}, encoding: fox"
    recipe = write_recipe(tmp_path / "mine.yaml", "lm_rope", model, "lengths: [16, 32]")
    words = ["data.name=text", f"data.files=[{tmp_path / 'text.txt'}]", "data.tokens=byte"]
    words += ["data.length=16", "data.batch_size=8", "data.test=0.05", "data.val=0.05"]
    run = zoo.fit(recipe, parse_overrides(words), run_dir=tmp_path / "run", verbose=False)
    assert run.metrics["test/loss"] > 0
    found = zoo.evaluate(run, lengths=[32], verbose=False)
    assert found.find("32").metrics
    page = str(tmp_path / "page.html")
    assert zoo.diagnose(run, samples=2, to=page, verbose=False).report.runs[0].encoding == ("fox",)
    printed = compare(capsys, recipe, ["fox", "rope"], f"to={tmp_path / 'cmp'}", *words)
    assert "32" in printed

    with pytest.raises(zoo.RecipeError, match=r"generate\.cache: .* has its own cache"):
        zoo.generate(run, "the", tokens=2)
    (sample,) = zoo.generate(run, "the", tokens=2, cache=False).samples
    assert sample.tokens == 2


def refuse_export(run, to, match):
    """Export a run to a format that cannot hold it; nothing is written."""
    folder = Path(run).parent / f"export-{to}"
    with pytest.raises(zoo.RecipeError, match=match) as caught:
        zoo.export(run, folder, to=to)
    assert not folder.exists()
    return str(caught.value)


OTHERS = 'is one of another library; use to="safetensors"'


def test_a_model_of_transformers_is_exported_where_the_format_holds_it(folder, tmp_path):
    run = tmp_path / "run"
    words = [*LM, f"model.path={folder}", "~evaluate", *language(tmp_path / "t.txt")[:2]]
    write_checkpoint(run, "lm_rope", words)
    for to in ("hf", "llama", "vit"):
        refuse_export(run, to, OTHERS)
    pytest.importorskip("safetensors")
    zoo.export(run, tmp_path / "weights", to="safetensors")
    words = torch.randint(8, (1, 12))
    with torch.no_grad():
        right = zoo.load(run).eval()(words)
        assert torch.equal(zoo.load(tmp_path / "weights").eval()(words), right)


@pytest.mark.nightly
def test_the_exported_graph_of_a_model_of_transformers_holds_at_any_length(folder, tmp_path):
    run = tmp_path / "run"
    words = [*LM, f"model.path={folder}", "~evaluate", *language(tmp_path / "t.txt")[:2]]
    write_checkpoint(run, "lm_rope", words)
    with torch.no_grad():
        # the graph is made at one length and holds at any other
        zoo.export(run, tmp_path / "graph", to="torch_export")
        program = torch.export.load(next((tmp_path / "graph").glob("*.pt2"))).module()
        for length in (5, 12, 31):
            ids = torch.randint(8, (2, length))
            torch.testing.assert_close(program(ids), zoo.load(run).eval()(ids))


def test_a_format_that_cannot_hold_a_model_of_timm_is_refused(tmp_path):
    import_timm()
    run = tmp_path / "run"
    words = [*VIT, "model.arch=test_vit", "model.encoding=rope_mixed", "~evaluate"]
    write_checkpoint(run, "vit_comrope", words)
    for to in ("hf", "llama", "vit"):
        refuse_export(run, to, OTHERS)


def test_a_run_needs_its_folder_and_generates_by_transformers(folder, tmp_path):
    copy, run = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(folder, copy)
    words = [*LM, f"model.path={copy}", "~evaluate", *language(tmp_path / "t.txt")[:2]]
    write_checkpoint(run, "lm_rope", words)
    ids = torch.tensor([[3, 4, 5]])
    model = zoo.load(run).model.model
    assert model.generate(ids, max_new_tokens=2, pad_token_id=0).shape == (1, 5)
    shutil.rmtree(copy)
    with pytest.raises(zoo.RecipeError, match=r"config\.json: no such file"):
        zoo.load(run)


def test_a_benchmark_takes_no_recipe(capsys):
    assert main(["bench", "lm_rope", "~model", "model.name=transformers", "rope"]) == 2
    assert capsys.readouterr().err.count("zoo bench takes no recipe") == 3
