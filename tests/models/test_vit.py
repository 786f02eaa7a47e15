"""The vision transformer: shapes, places, pooling, weights as published."""

import pytest
import torch

import zoo
from zoo.attention.coordinates import PositionAugmentation
from zoo.data.spec import ImageSpec, SegmentationSpec, VideoSpec
from zoo.errors import OptionError
from zoo.models.transformer import BlockOptions
from zoo.models.vit import ViT

SAMPLES = ImageSpec(channels=3, height=16, width=24, classes=7)


def vit(encoding="rope_axial", spec=SAMPLES, **options):
    links = {encoding: lambda dims: zoo.encoding(encoding, dims)}
    return ViT(
        spec, **{"dim": 32, "depth": 2, "heads": 2, "patch_size": 4, "encoding": links, **options}
    )


@pytest.mark.parametrize("size", [(16, 24), (24, 16), (4, 4), (40, 8)])
@pytest.mark.parametrize("encoding", ["learned", "rope_axial", "liere", "comrope_ld"])
def test_any_size_that_the_patch_divides(size, encoding):
    assert vit(encoding)(torch.randn(2, 3, *size)).shape == (2, 7)


def test_a_size_that_the_patch_does_not_divide_is_refused():
    with pytest.raises(OptionError, match="patch_size 4 does not divide images of 18 x 24"):
        vit()(torch.randn(1, 3, 18, 24))


def test_rows_and_columns_are_not_interchangeable():
    tokens = vit().tokens(torch.randn(1, 3, 16, 24))
    assert tokens.grid_size.tolist() == [[[4, 6]]]
    assert tokens.pos[0, :7].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [0, 5], [1, 0]]


def test_class_and_register_tokens_have_no_place():
    tokens = vit(pool="class", registers=2).tokens(torch.randn(2, 3, 16, 24))
    assert tokens.has_position[0].tolist() == [False] * 3 + [True] * 24
    assert tokens.x.shape == (2, 27, 32)


def test_the_class_token_can_stand_at_the_centre():
    tokens = vit(pool="class", registers=1, cls_position="centre").tokens(torch.randn(1, 3, 16, 24))
    assert tokens.has_position[0, :3].tolist() == [True, False, True]
    assert tokens.index[0, 0].tolist() == [1.5, 2.5]


def test_a_place_for_no_class_token_is_refused():
    with pytest.raises(OptionError, match="no CLS token"):
        vit(cls_position="centre")


def test_jitter_moves_coordinates_in_training_only():
    model = vit(position_augmentation=PositionAugmentation(jitter=1.0))
    images = torch.randn(1, 3, 16, 24)
    still = model.eval().tokens(images).index
    moved = model.train().tokens(images).index
    assert torch.equal(still, still.round())
    assert 0.1 < (moved - still).abs().max() <= 0.5


def test_jitter_of_each_sample_places_no_class_token():
    model = vit(
        "rope_mixed",
        pool="class",
        position_augmentation=PositionAugmentation(jitter=1.0, per_sample=True),
    )
    tokens = model.train().tokens(torch.randn(2, 3, 16, 24))
    assert (tokens.index[0, 1:] != tokens.index[1, 1:]).all()
    assert torch.equal(tokens.index[:, 0], (tokens.grid_size[0] - 1).expand(2, -1) / 2)
    assert model(torch.randn(2, 3, 16, 24)).isfinite().all()


def test_an_image_moved_with_its_places_is_the_same_to_mean_pooling():
    model = vit("none").eval()
    model.head.weight.data.normal_()
    images = torch.randn(1, 3, 16, 24)
    rolled = images.roll((4, 8), dims=(2, 3))
    torch.testing.assert_close(model(images), model(rolled))
    placed = vit("rope_axial").eval()
    placed.head.weight.data.normal_()
    assert (placed(images) - placed(rolled)).abs().max() > 1e-4


def test_weights_start_as_published():
    model = vit(dim=256, heads=4, pool="class")
    query = model.blocks[0].attn.q_proj.weight
    assert query.abs().max() <= (6 / 512) ** 0.5
    assert query.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.05)
    assert model.patch_embed.weight.std().item() == pytest.approx((3 * 4 * 4) ** -0.5, rel=0.15)
    assert not model.head.weight.any()
    assert not model.cls_token.any()


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "rms"},
        {"mlp": "swiglu"},
        {"qk_norm": True},
        {"layer_scale": 0.1},
        {"dropout": 0.5},
        {"drop_path": 0.5},
    ],
    ids=lambda options: next(iter(options)),
)
def test_block_options_take_effect_and_train(options):
    images = torch.randn(4, 3, 16, 24)
    plain, changed = (vit(block=BlockOptions(**given)) for given in ({}, options))
    names = dict(changed.named_parameters()).keys() != dict(plain.named_parameters()).keys()
    changed.head.weight.data.normal_()
    first, second = changed(images), changed(images)
    assert names or not torch.equal(first, second) or options == {"norm": "rms"}
    first.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in changed.parameters())


def test_stochastic_depth_keeps_the_mean():
    from zoo.models.transformer import ResidualBranch

    dims = zoo.Dims(8, 1, layer=3, depth=4)
    branch = ResidualBranch(dims, BlockOptions(drop_path=0.25)).train()
    out = branch(torch.ones(20000, 2, 8))
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    assert torch.equal(branch.eval()(torch.ones(2, 2, 8)), torch.ones(2, 2, 8))


def test_a_shared_encoding_stands_once_and_others_once_per_layer():
    names = set(vit("learned").state_dict())
    assert "encoding.learned.table" in names
    names = set(vit("liere").state_dict())
    assert {"encoding.liere.0.generators", "encoding.liere.1.generators"} <= names


def test_the_whole_model_is_captured_by_the_compiler():
    model = vit(
        "rope_mixed",
        depth=1,
        pool="class",
        registers=1,
        position_augmentation=PositionAugmentation(jitter=0.5),
    ).eval()
    model.head.weight.data.normal_()
    images = torch.randn(2, 3, 16, 24)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    "spec",
    [SAMPLES, SegmentationSpec(3, 16, 24, 7), VideoSpec(3, 16, 24, 7, frames=4)],
    ids=lambda spec: type(spec).__name__,
)
@pytest.mark.parametrize("special", [{}, {"pool": "class", "registers": 2}], ids=["none", "three"])
def test_features_are_the_outputs_of_blocks_without_special_tokens(spec, special):
    options = {"tubelet": 2} if isinstance(spec, VideoSpec) else {}
    model = vit("liere", spec, depth=3, **options, **special).eval()
    outputs = []
    for block in model.blocks:
        block.register_forward_hook(lambda block, args, out: outputs.append(out.x))
    # twice the training height
    images = torch.randn(2, 3, *spec.grid[:-2], 32, 24)
    maps = model.features(images, [2, 0, -2])
    grid = model.grid_size(*images.shape[2:])
    special_tokens = 3 if special else 0
    for number, found in zip((2, 0, 1), maps, strict=True):
        expected = outputs[number][:, special_tokens:].mT.reshape(2, 32, *grid)
        assert torch.equal(found, expected)
    # what follows the last block gives the logits
    states = model.norm(maps[0].flatten(2).mT)
    if isinstance(spec, SegmentationSpec):
        logits = model.head(states.mT.unflatten(2, grid), (32, 24))
    elif not special:
        logits = model.head(states.mean(1))
    else:
        return
    torch.testing.assert_close(logits, model(images))


@pytest.mark.parametrize("layers", [[2], [-3], [], [0.5], "01", 1, [True]])
def test_layers_that_a_model_does_not_have_are_refused(layers):
    with pytest.raises(OptionError, match="layer"):
        vit().features(torch.randn(1, 3, 16, 24), layers)
