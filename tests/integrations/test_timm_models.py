"""Vision transformers of timm with encodings of zoo, against the models as they are."""

import copy
import importlib

import pytest
import torch
from without_torchvision import import_timm

import_timm()

import zoo  # noqa: E402
from zoo.errors import OptionError  # noqa: E402

loss_functions = importlib.import_module("timm.loss")
optim = importlib.import_module("timm.optim")
task = importlib.import_module("timm.task")
eva = importlib.import_module("timm.models.eva")
vision = importlib.import_module("timm.models.vision_transformer")

SIZES = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 64,
    "depth": 2,
    "num_heads": 4,
    "num_classes": 7,
}
ROPE = {**SIZES, "use_rot_pos_emb": True, "dynamic_img_size": True}
MIXED = {**ROPE, "rope_type": "mixed", "rope_temperature": 10.0, "rope_grid_indexing": "ij"}
VARIANTS = {
    "plain": (vision.VisionTransformer, {}),
    "registers": (vision.VisionTransformer, {"reg_tokens": 4, "no_embed_class": True}),
    "norms": (
        vision.VisionTransformer,
        {"qk_norm": True, "scale_attn_norm": True, "init_values": 0.1, "pre_norm": True},
    ),
    "post": (
        vision.VisionTransformer,
        {"block_fn": vision.ResPostBlock, "class_token": False, "global_pool": "avg"},
    ),
    "eva": (eva.Eva, {"qkv_fused": False, "swiglu_mlp": True}),
    "eva fused": (eva.Eva, {"scale_attn_inner": True}),
    "eva rope": (eva.Eva, {"attn_type": "rope", "num_reg_tokens": 2}),
    "eva grouped": (
        eva.Eva,
        {"attn_type": "rope", "qkv_fused": False, "num_kv_heads": 2, "qk_norm": True},
    ),
}


def build(cls, **options):
    """Build a tiny model in evaluation mode, with random weights so large that attention matters."""
    torch.manual_seed(0)
    model = cls(**{**SIZES, **options}).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def draw_images(height=32, width=32):
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", VARIANTS)
def test_without_positions_the_attention_is_that_of_timm(name):
    cls, options = VARIANTS[name]
    model = build(cls, **options)
    model.pos_embed.zero_()
    images = draw_images()
    expected = model(images)
    zoo.equip(model, "none")
    torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=1e-5)
    zoo.unequip(model)
    assert torch.equal(model(images), expected)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [(32, 32), (48, 40), (16, 24)])
def test_learned_is_the_table_of_timm_to_the_bit(sizes):
    model = build(vision.VisionTransformer, no_embed_class=True, dynamic_img_size=True)
    torch.nn.init.normal_(model.pos_embed)
    images = draw_images(*sizes)
    table, expected = model.pos_embed[0].clone(), model(images)
    zoo.equip(model, {"name": "learned", "antialias": True})
    assert (model(images) - expected).abs().max() > 1e-3
    model.zoo_encoding["learned"].table.copy_(table)
    assert torch.equal(model(images), expected)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [(32, 32), (48, 40), (16, 24)])
def test_rope_mixed_is_that_of_timm_to_rounding(sizes):
    model = build(eva.Eva, **MIXED, use_abs_pos_emb=False)
    model.rope.freqs.mul_(3)
    frequencies, expected = model.rope.freqs.clone(), model(draw_images(*sizes))
    zoo.equip(model, "rope_mixed")
    assert (model(draw_images(*sizes)) - expected).abs().max() > 1e-4
    for number, encoding in enumerate(model.zoo_encoding["rope_mixed"]):
        encoding.frequencies.copy_(frequencies[:, number])
    # Angles of timm are products in float32.
    torch.testing.assert_close(model(draw_images(*sizes)), expected, atol=1e-6, rtol=1e-5)


def test_a_task_of_timm_trains_an_equipped_model():
    model = build(vision.VisionTransformer).train()
    zoo.equip(model, "comrope_ld")
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    step = task.ClassificationTask(model, loss_functions.LabelSmoothingCrossEntropy(0.1))
    optimizer = optim.create_optimizer_v2(model, opt="adamw", lr=1e-2, weight_decay=0.05)
    losses = []
    for _ in range(6):
        loss = step(draw_images(), torch.tensor([1, 4]))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    kept = [name for name, one in model.named_parameters() if torch.equal(one, before[name])]
    assert not kept
    assert not model.pos_embed.any()  # set to 0 and frozen


@pytest.mark.parametrize(
    "encoding", ["alibi", "t5", "learned", "rope_axial", "comrope_ld", "liere"]
)
@pytest.mark.parametrize("cls", [vision.VisionTransformer, eva.Eva], ids=lambda cls: cls.__name__)
def test_images_of_another_size_and_gradients(cls, encoding):
    model = build(cls, dynamic_img_size=True).train()
    zoo.equip(model, encoding)
    model(draw_images(32, 48)).square().sum().backward()
    for key, parameter in model.zoo_encoding.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@torch.no_grad()
def test_a_mask_hides_patches():
    model = build(vision.VisionTransformer)
    zoo.equip(model, "alibi")
    mask = torch.ones(17, 17, dtype=torch.bool)
    mask[:, 16] = False
    images = draw_images()
    changed = images.clone()
    changed[..., 24:, 24:] += 1  # the last patch
    one, other = (model.forward_features(x, attn_mask=mask)[:, :16] for x in (images, changed))
    torch.testing.assert_close(one, other)
    with pytest.raises(OptionError, match="bool mask"):
        model.forward_features(images, attn_mask=mask.float())
    with pytest.raises(OptionError, match="is_causal"):
        model.forward_features(images, is_causal=True)


@torch.no_grad()
def test_a_copy_has_encodings_of_its_own():
    model = build(vision.VisionTransformer)
    zoo.equip(model, "t5")
    twin = copy.deepcopy(model)
    images = draw_images()
    before = model(images)
    for parameter in twin.parameters():
        parameter.add_(torch.randn_like(parameter))
    assert not torch.equal(twin(images), before)
    assert torch.equal(model(images), before)


def test_models_that_cannot_be_equipped_are_refused_by_name():
    cases = {
        "ParallelScalingBlock": {"block_fn": vision.ParallelScalingBlock},
        "patch_drop_rate": {"patch_drop_rate": 0.5},
    }
    for word, options in cases.items():
        with pytest.raises(OptionError, match=word):
            zoo.equip(build(vision.VisionTransformer, **options), "alibi")


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["none", "alibi", "t5", "learned", "rope_axial", "rope_mixed"])
def test_patches_that_a_mask_hides_change_nothing(encoding):
    model = build(vision.VisionTransformer)
    zoo.equip(model, encoding)
    images = draw_images()[:1]
    changed = images.clone()
    side = model.patch_embed.patch_size[0]
    changed[..., -side:, -side:] += 3  # the last patch
    count = model.patch_embed.num_patches + model.num_prefix_tokens
    mask = torch.ones(1, 1, count, count, dtype=torch.bool)
    mask[..., -1] = False

    def compute(pixels, **options):
        return model.forward_features(pixels, **options)[:, :-1]

    found = [compute(one, attn_mask=mask) for one in (images, changed)]
    torch.testing.assert_close(*found, atol=1e-6, rtol=0)
    assert (compute(images) - compute(changed)).abs().max() > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("cls", [vision.VisionTransformer, eva.Eva], ids=lambda cls: cls.__name__)
def test_intermediates_of_timm_are_those_of_the_equipped_blocks(cls):
    model = build(cls, dynamic_img_size=True)
    images = draw_images(32, 48)
    before = model.forward_intermediates(images)
    zoo.equip(model, "liere")
    outputs = []
    handles = [
        block.register_forward_hook(lambda block, args, out: outputs.append(out))
        for block in model.blocks
    ]
    last, maps = model.forward_intermediates(images)
    for found, states in zip(maps, outputs, strict=True):
        assert torch.equal(found, states[:, 1:].mT.reshape(2, 64, 4, 6))
    assert torch.equal(last, model.forward_features(images))
    assert (maps[-1] - before[1][-1]).abs().max() > 1e-3
    for handle in handles:
        handle.remove()
    zoo.unequip(model)
    last, maps = model.forward_intermediates(images)
    assert torch.equal(last, before[0])
    assert all(map(torch.equal, maps, before[1]))


@pytest.mark.parametrize("per_sample", [False, True])
def test_patches_move_in_training_mode_only(per_sample):
    model, plain = (build(vision.VisionTransformer) for _ in range(2))
    images = draw_images()
    change = {"jitter": 0.5, "stretch": 1.5, "shift": 1, "per_sample": per_sample}
    report = zoo.equip(model, "rope_mixed", position_augmentation=change)
    assert "patches move in training mode" in str(report)
    zoo.equip(plain, "rope_mixed")
    model.zoo_encoding.load_state_dict(plain.zoo_encoding.state_dict())
    assert torch.equal(model(images), plain(images))
    index = []
    model.zoo_encoding.token_hooks.append(lambda tokens: index.append(tokens.index) or tokens)

    # in training each pass moves them, of each sample alike or not, and never the CLS token
    model.train()
    losses = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(6):
        loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([1, 4]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert len(index[0]) == (2 if per_sample else 1)
    assert (index[0][:, 1:] != index[1][:, 1:]).all()
    assert not index[0][:, 0].any()
    assert not per_sample or (index[0][0, 1:] != index[0][1, 1:]).any()
    # and in evaluation none
    model.eval()
    assert torch.equal(model(images), model(images))
    assert torch.equal(index[-1], index[-1].round())


@pytest.mark.parametrize(
    ("encoding", "change", "words"),
    [
        ("none", {"jitter": 0.5}, "none takes no coordinates that could move"),
        (["ssmax", "none"], {"shift": 1}, "ssmax and none take no coordinates"),
        ("rope_mixed", {"jitter": -1}, "position_augmentation.jitter: must be at least 0"),
        ("rope_mixed", {"jiter": 1}, "position_augmentation.jiter: unknown key; did you mean"),
        ("rope_mixed", {"rescale": 2}, "rescale: unknown key; did you mean stretch?"),
        ("rope_mixed", {}, "no change is enabled"),
        ("rope_mixed", 0.5, "expected a mapping"),
    ],
)
def test_changes_of_positions_that_cannot_be_made_are_refused(encoding, change, words):
    model = build(vision.VisionTransformer)
    with pytest.raises(OptionError, match=words):
        zoo.equip(model, encoding, position_augmentation=change)
    assert not hasattr(model, "zoo_encoding")
