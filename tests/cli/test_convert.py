"""Published weights become a checkpoint that gives what the published model gives; what is none is told by name."""

import json

import published
import pytest
import torch
from tiny import TINY
from without_torchvision import import_timm

import zoo as package

SMALL = {"dim": 32, "depth": 2, "heads": 4, "patch_size": 16, "classes": 10}
HEADS = "model.heads=4"
ENCODINGS = {
    "mixed": ({}, ["rope_mixed"]),
    "mixed_ape": ({"side": 14}, ["learned", "rope_mixed"]),
    "axial": ({"mixed": False}, ["rope_axial"]),
    "axial_ape": ({"mixed": False, "side": 14}, ["learned", "rope_axial"]),
}
SIZES = [(224, 224), (160, 288)]


@pytest.fixture
def convert(zoo, tmp_path):
    """convert(weights, *overrides, name=...) -> (exit code, result or what was told, the run)."""

    def run(weights, *overrides, name="published.pth"):
        torch.save(weights, tmp_path / name)
        code, out, err = zoo("convert", name, *overrides, "--json", "to=published")
        return code, json.loads(out) if code == 0 else err, tmp_path / "published"

    return run


def agrees(checkpoint, weights, heads, size):
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, right = package.load(checkpoint)(images), published.logits(weights, images, heads)
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", ENCODINGS)
def test_logits_are_those_of_the_published_model(convert, kind, size):
    made, encoding = ENCODINGS[kind]
    weights = published.weights(**SMALL, **made)
    code, result, checkpoint = convert(weights, HEADS)
    assert (code, result["weights"], result["dropped"]) == (0, len(weights), [])
    found = package.load(checkpoint).model.encoding
    assert [*found] == encoding
    agrees(checkpoint, weights, SMALL["heads"], size)


def test_the_true_shapes_of_a_small_vit(convert):
    weights = published.weights(dim=384, depth=2, heads=6, patch_size=16, classes=1000)
    code, _, checkpoint = convert(weights)
    assert code == 0
    agrees(checkpoint, weights, 6, (160, 288))


def test_the_authors_own_layout(convert):
    weights = published.weights(**SMALL)
    theirs = dict(weights, freqs_t_x=torch.zeros(196), freqs_t_y=torch.zeros(196))
    theirs["freqs"] = theirs.pop("rope.freqs").flatten(2)
    code, _, checkpoint = convert({"model": theirs}, HEADS)
    assert code == 0
    agrees(checkpoint, weights, SMALL["heads"], (160, 288))


@pytest.mark.parametrize(
    ("kind", "size"), [("mixed_ape", (224, 224)), ("mixed", (160, 288)), ("axial", (160, 288))]
)
def test_logits_are_those_of_timm(convert, kind, size):
    timm = import_timm()
    made, _ = ENCODINGS[kind]
    name = f"vit_small_patch16_{kind.replace('axial', 'rope').replace('mixed', 'rope_mixed')}_224"
    theirs = timm.create_model(name, depth=2, dynamic_img_size=True)
    weights = published.weights(dim=384, depth=2, heads=6, patch_size=16, classes=1000, **made)
    theirs.load_state_dict(weights)
    code, _, checkpoint = convert(weights)
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        assert code == 0
        torch.testing.assert_close(
            package.load(checkpoint)(images), theirs.eval()(images), atol=1e-4, rtol=1e-4
        )


def test_a_safetensors_file(zoo, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    weights = published.weights(**SMALL)
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    assert zoo("convert", "model.safetensors", "to=run")[0] == 0
    agrees(tmp_path / "run", weights, SMALL["heads"], (32, 48))


def test_keys_and_shapes_are_told_at_once(convert):
    weights = published.weights(**SMALL)
    weights["mask_token"], weights["norm.bias"] = torch.zeros(1), torch.zeros(31)
    del weights["blocks.1.mlp.fc2.bias"]
    code, message, checkpoint = convert(weights)
    assert code == 5
    assert "unknown: mask_token [1]" in message
    del weights["mask_token"]
    code, message, checkpoint = convert(weights)
    assert code == 5
    assert "blocks.1.mlp.down_proj.bias: not in the file" in message
    assert "norm.bias: [31] in the file, [32] by the recipe" in message
    assert not checkpoint.exists()


def test_what_is_none_of_the_layout_is_told(convert):
    code, message, _ = convert({"conv.weight": torch.zeros(3), "head.weight": torch.zeros(3)})
    assert code == 5
    assert "missing: patch_embed.proj.weight" in message
    weights = published.weights(**SMALL)
    weights["head.weight"] = weights["head.weight"][0]
    code, message, _ = convert(weights)
    assert code == 5
    assert "wrong number of dimensions: head.weight" in message


def test_a_recipe_of_other_sizes_is_told_by_its_weights(convert):
    code, message, _ = convert(published.weights(**SMALL, side=14), "model.dim=64")
    assert code == 5
    assert "norm.weight: [32] in the file, [64] by the recipe" in message


def test_files_that_are_none(convert, zoo, tmp_path):
    (tmp_path / "text.bin").write_text("no weights")
    for file in ("text.bin", "absent.pth"):
        code, _, message = zoo("convert", file, "to=run")
        assert (code, file in message) == (5, True)
    code, message, _ = convert({"model": print})
    assert code == 5
    assert "no code in it was run" in message


def test_an_existing_run_is_kept(convert):
    weights = published.weights(**SMALL)
    assert convert(weights)[0] == 0
    code, message, checkpoint = convert(weights)
    assert (code, checkpoint.exists()) == (2, True)
    assert "exists already" in message


def test_a_run_starts_from_published_weights(convert, zoo):
    convert(published.weights(**SMALL))
    tiny = [
        *TINY,
        "model.dim=32",
        "model.depth=2",
        "model.heads=4",
        "model.encoding=rope_mixed",
        "model.pool=class",
        "model.block.key_bias=true",
        "model.block.layer_scale=1",
    ]
    code, out, _ = zoo("fit", "vit_comrope", *tiny, "init_from=published", "--json")
    assert code == 0
    message = json.loads(out)["init_from"]
    assert message["left"] == {"patch_embed.weight": "[32, 3, 16, 16] there, [32, 1, 4, 4] here"}
    assert (message["resampled"], message["unused"]) == ({}, {})
