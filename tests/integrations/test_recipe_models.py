"""Models of timm and transformers in recipes: trained, tested at other sizes, diagnosed."""

import pytest
import torch
from without_torchvision import import_timm

import zoo
from zoo.data.corpus.tokenizer import Bytes

VIT = ["~model", "model.name=timm", "model.arch=vit_tiny_patch16_224", "model.patch_size=8"]
LM = ["~model", "model.name=transformers", "model.encoding=fox", "data.length=16"]


def build(recipe, *words):
    return zoo.build_model(zoo.load_recipe(recipe, [*words, "~evaluate"]))


def test_a_vision_transformer_of_timm_is_trained_tested_and_diagnosed(tmp_path):
    import_timm()
    words = [
        *VIT,
        "model.encoding=comrope_ld",
        "data.batch_size=64",
        "evaluate.resolutions=[16,24]",
    ]
    words += ["trainer.max_steps=1", "diagnostics.every_n_steps=null"]
    run = zoo.fit("vit_comrope", words, run_dir=tmp_path / "run", verbose=False)
    assert set(run.metrics) >= {"test/accuracy", "test/loss"}
    found = zoo.evaluate(run, resolutions=[24], verbose=False)
    assert set(found["resolutions"]) == {"24"}
    report = zoo.diagnose(
        run, samples=1, limit=1, verbose=False, to=str(tmp_path / "p.html")
    ).report
    assert report.runs[0].encoding == ("comrope_ld",)
    assert report.runs[0].attended.extra == ("class",)


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


def test_a_folder_without_a_model_is_refused(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(zoo.RecipeError, match=r"has no config\.json"):
        build("lm_rope", *LM, f"model.path={tmp_path}")


def test_a_model_of_transformers_is_trained_and_diagnosed(folder, tmp_path):
    texts = torch.randint(90, (24, 17), generator=torch.Generator().manual_seed(0))
    data = {"train": texts, "val": texts[:4], "test": texts[:4]}
    spec = zoo.TextSpec(16, Bytes())
    words = [*LM[:-1], f"model.path={folder}", "~evaluate", "~generate", "trainer.max_steps=2"]
    run = zoo.fit("lm_rope", words, data=data, spec=spec, run_dir=tmp_path / "run", verbose=False)
    assert run.metrics["test/loss"] > 0
    page = str(tmp_path / "page.html")
    found = zoo.diagnose(run, data={"test": texts[:4]}, samples=2, to=page, verbose=False)
    assert found.report.runs[0].encoding == ("fox",)
