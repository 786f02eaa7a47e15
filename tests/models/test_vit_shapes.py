"""Images of eight shapes in one batch are computed as if each were alone, by every encoding for grids."""

import pytest
import torch
from language import give_mixer

import zoo
from zoo.attention.coordinates import CONVENTIONS, PositionAugmentation
from zoo.data.patch_rows import place_patches
from zoo.data.spec import ImageSpec, SegmentationSpec, VideoSpec
from zoo.errors import OptionError
from zoo.models.vit import ViT

PATCH = 4
GRIDS = [(4, 4), (2, 8), (8, 2), (1, 16), (3, 5), (5, 3), (1, 1), (2, 7)]
ENCODINGS = [name for name in zoo.encoding_names() if 2 in zoo.encoding_class(name).axes]
BLOCKS = {"comrope_ap": 2, "comrope_ld": 4, "liere": 4}
STILL = {"cape": {"global_shift": 0.0, "local_shift": 0.0, "scale": 1.0}}
CLASSES = ImageSpec(2, 16, 16, 5)
PIXELS = SegmentationSpec(2, 16, 16, 5)
SPECIAL = {"pool": "class", "registers": 2, "cls_position": "centre"}


def vit(name, spec=CLASSES, encoding=None, **options):
    """Build a model in training mode and float64, with random weights."""
    torch.manual_seed(0)
    given = {**STILL.get(name, {}), **(encoding or {})}
    if name in BLOCKS:
        given["block"] = BLOCKS[name]
    links = {name: lambda dims: zoo.encoding(name, dims, **given)}
    sizes = {"dim": 48, "depth": 2, "heads": 4, "patch_size": PATCH}
    model = ViT(spec, encoding=links, **sizes, **options).double()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.train()


def draw_images():
    """Images of eight shapes, and a batch that has them in its upper left corners."""
    generator = torch.Generator().manual_seed(1)
    sides = [(PATCH * rows, PATCH * columns) for rows, columns in GRIDS]
    images = [torch.randn(2, *each, generator=generator, dtype=torch.float64) for each in sides]
    # what padding holds changes nothing
    batch = torch.full((8, 2, *map(max, zip(*sides, strict=True))), 7.0, dtype=torch.float64)
    for place, image in zip(batch, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return images, batch


def compute_both(model, pack):
    """Return the logits of each image alone and in the batch, and gradients of both by parameter."""
    images, batch = draw_images()
    alone = [model(image[None])[0] for image in images]
    together = model(batch, *place_patches(GRIDS, pack=pack))
    if isinstance(together, torch.Tensor) and together.dim() == 4:
        pairs = zip(together, images, strict=True)
        together = [one[:, : image.shape[1], : image.shape[2]] for one, image in pairs]
    gradients = []
    for outputs in (alone, together):
        generator = torch.Generator().manual_seed(2)
        total = sum(
            (one * torch.randn(one.shape, generator=generator, dtype=one.dtype)).sum()
            for one in outputs
        )
        found = torch.autograd.grad(total, [*model.parameters()], allow_unused=True)
        gradients.append([one for one in found if one is not None])
    return alone, together, gradients


def require_equal(model, pack):
    alone, together, gradients = compute_both(model, pack)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-8)
    assert any(one.abs().max() > 1e-3 for one in alone)


@pytest.mark.parametrize(
    ("pack", "spec"),
    [
        pytest.param(None, CLASSES, id="padded-classes", marks=pytest.mark.nightly),
        pytest.param(32, CLASSES, id="packed-classes"),
        pytest.param(None, PIXELS, id="padded-pixels"),
        pytest.param(32, PIXELS, id="packed-pixels", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("name", ENCODINGS)
def test_images_of_eight_shapes_are_computed_as_if_alone(name, pack, spec):
    options = SPECIAL if spec is CLASSES else {"dense_head": "multiscale", "registers": 1}
    require_equal(vit(name, spec, **options), pack)


@pytest.mark.parametrize(
    "options",
    [{}, give_mixer("linear"), {"backend": "reference"}, {"sinks": True}],
    ids=["mean", "linear", "reference", "sinks"],
)
def test_other_attention_and_heads_compute_the_same(options):
    require_equal(vit("rope_mixed", CLASSES, **options), 32)
    require_equal(vit("rope_mixed", PIXELS, **options), None)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_each_image_has_coordinates_of_its_own(convention):
    require_equal(vit("rope_mixed", encoding={"coordinates": convention}), 32)


def test_float32_rounds_no_more_than_that():
    model = vit("comrope_ld").float()
    images, batch = draw_images()
    with torch.no_grad():
        together = model(batch.float(), *place_patches(GRIDS, pack=32))
        alone = torch.cat([model(image[None].float()) for image in images])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_another_image_in_the_row_changes_nothing():
    model = vit("fire", **SPECIAL)
    _, batch = draw_images()
    rows = place_patches(GRIDS, pack=32)
    assert len(rows.places) < len(GRIDS)
    with torch.no_grad():
        before = model(batch, *rows)
        batch[0] += 1
        after = model(batch, *rows)
    torch.testing.assert_close(after[1:], before[1:])
    assert (after[0] - before[0]).abs().max() > 1e-3


@pytest.mark.parametrize("pack", [None, 32])
def test_augmented_grids_keep_their_centres(pack):
    change = PositionAugmentation(jitter=0.5, stretch=1.5, aspect=1.2)
    model = vit("rope_mixed", position_augmentation=change, registers=1)
    _, batch = draw_images()
    rows = place_patches(GRIDS, pack=pack)
    tokens = model.tokens(batch, *rows)
    for number, grid in enumerate(GRIDS):
        own = (tokens.document == number) & tokens.has_position
        moved = tokens.index[own]
        centre = (torch.tensor(grid) - 1) / 2
        # draws of jitter have mean 0
        assert (moved.mean(0) - centre).abs().max() < 1
        assert (tokens.grid_size[own] == torch.tensor(grid)).all()
        plain = model.eval().tokens(batch, *rows).index[own]
        model.train()
        assert (moved != plain).any()


def test_draws_of_each_image_need_rows_of_their_own():
    change = PositionAugmentation(shift=1.0, per_sample=True)
    model = vit("rope_mixed", position_augmentation=change)
    _, batch = draw_images()
    shifts = model.tokens(batch, *place_patches(GRIDS)).index[:, 0]
    assert len(shifts.unique(dim=0)) == len(GRIDS)
    with pytest.raises(OptionError, match="images that share a row share its draws"):
        model(batch, *place_patches(GRIDS, pack=32))


def test_a_table_that_is_resized_once_refuses_several_grids():
    model = vit("learned", encoding={"antialias": True})
    _, batch = draw_images()
    with pytest.raises(OptionError, match="antialias needs grids of one size"):
        model(batch, *place_patches(GRIDS))
    assert model.encoding["learned"].one_grid_reason


def test_videos_are_refused():
    spec = VideoSpec(2, 16, 16, 5, frames=2)
    model = vit("rope_mixed", spec)
    with pytest.raises(OptionError, match="videos have one size each"):
        model(torch.zeros(1, 2, 2, 16, 16).double(), torch.zeros(1, 4).long())
