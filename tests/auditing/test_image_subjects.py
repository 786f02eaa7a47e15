"""`zoo.audit` of vision transformers of timm, whose tokens are patches."""

import pytest
import torch
from without_torchvision import import_timm

import zoo

ROTATED = (
    "eva02_tiny_patch14_224",
    "vit_small_patch16_rope_224",
    "vit_small_patch16_rope_mixed_224",
)
SIZES = {"img_size": 48, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}


def build(name):
    timm = import_timm()
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **SIZES).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def ask(model):
    report = zoo.audit(model)
    return report, {result.law: result.status for result in report.results}


@pytest.mark.parametrize("name", ROTATED)
def test_rotated_vision_transformers_keep_what_they_can_be_asked(name):
    report, status = ask(build(name))
    assert report.is_sound, str(report)
    assert status["order"] == status["batch"] == "kept"
    reasons = {result.law: result.reason for result in report.results}
    assert "takes no position ids" in reasons["shift"]
    assert all(reasons[law] for law in status if status[law] == "not asked")


def test_without_its_rotation_it_does_not_see_the_order():
    model = build("vit_small_patch16_rope_224")
    model.rope = None
    _, status = ask(model)
    assert status["order"] == "broken"


def test_rows_that_touch_are_found():
    model = build("vit_small_patch16_rope_224")
    model.blocks[0].mlp.register_forward_hook(lambda module, args, out: out + out.mean(0))
    _, status = ask(model)
    assert status["batch"] == "broken"


def test_other_models_of_timm_are_refused_by_name():
    model = import_timm().create_model("resnet10t", pretrained=False)
    with pytest.raises(zoo.RecipeError, match="no model of transformers that reads token ids"):
        zoo.audit(model)
