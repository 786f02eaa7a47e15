"""Random crops of files: boxes, what they depend on, and what stays out of the cache."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from test_images import first, images, labels, stream
from test_images import folder as folder

from zoo.data.images import DecodedRows
from zoo.data.random_crop import RATIOS, RandomCrop
from zoo.data.vision import Augmentation, ImageDecoder

CROP = RandomCrop(0, 0.08, 0.5)
SIDE = 16
DECODER = ImageDecoder((SIDE, SIDE), 3, "crop")
CROPPED = {"augment": Augmentation(area=0.1, flip=0.5)}


def encode_ramp(width, height, kind="JPEG", orientation=1):
    """A picture whose red grows to the right, and whose green grows downwards, once upright."""
    x = np.linspace(0, 255, width)[None].repeat(height, 0)
    y = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    picture = Image.fromarray(np.stack([x, y, 0 * x], -1).astype(np.uint8))
    exif = Image.Exif()
    if orientation == 6:
        picture = picture.transpose(Image.Transpose.ROTATE_90)
        exif[0x0112] = orientation
    file = io.BytesIO()
    picture.save(file, kind, quality=95, exif=exif)
    return file.getvalue()


def test_boxes_have_the_areas_and_ratios_that_are_asked_for():
    width, height = 500, 400
    drawn = [CROP.draw(0, number).draw_box(width, height) for number in range(2000)]
    left, top, right, bottom = np.array([box for box, _ in drawn]).T
    assert left.min() >= 0
    assert top.min() >= 0
    assert right.max() <= width
    assert bottom.max() <= height
    shares = (right - left) * (bottom - top) / (width * height)
    assert 0.07 < shares.min() < 0.1
    # boxes of the full area rarely fit, so that the mean is below that of the draws
    assert shares.max() > 0.9
    assert 0.44 < shares.mean() < 0.54
    ratios = (right - left) / (bottom - top)
    assert RATIOS[0] * 0.98 < ratios.min() < ratios.max() < RATIOS[1] * 1.02
    # whole pixels at both borders occur
    assert {left.min(), top.min()} == {0}
    assert (right.max(), bottom.max()) == (width, height)
    assert 0.45 < np.mean([is_flipped for _, is_flipped in drawn]) < 0.55


@pytest.mark.parametrize(("size", "expected"), [((100, 10), (13, 10)), ((10, 100), (10, 13))])
def test_of_a_narrow_picture_the_largest_central_box_is_taken(size, expected):
    (left, top, right, bottom), _ = RandomCrop(0, 1.0 - 1e-9, 0.0).draw(0, 0).draw_box(*size)
    assert (right - left, bottom - top) == expected
    assert (left, top) == ((size[0] - expected[0]) // 2, (size[1] - expected[1]) // 2)


def test_a_crop_depends_on_seed_epoch_and_number_only():
    boxes = {
        RandomCrop(seed, 0.08, 0.5).draw(epoch, number).draw_box(500, 400)
        for seed in range(3)
        for epoch in range(3)
        for number in range(3)
    }
    assert len(boxes) == 27
    assert CROP.draw(2, 7).draw_box(500, 400) == CROP.draw(2, 7).draw_box(500, 400)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(50, 40), (400, 320)], ids=str)
@pytest.mark.parametrize("orientation", [1, 6])
def test_pixels_are_those_of_the_box_in_the_upright_original(kind, size, orientation):
    content = encode_ramp(*size, kind, orientation)
    for number in range(6):
        (left, top, right, bottom), is_flipped = CROP.draw(1, number).draw_box(*size)
        pixels = DECODER.decode(content, CROP.draw(1, number)).astype(float)  # [3, SIDE, SIDE]
        # the red of a column is the place of its middle, in levels of the whole picture
        middles = (np.arange(SIDE) + 0.5) / SIDE
        columns = left + middles * (right - left) - 0.5
        rows = top + middles * (bottom - top) - 0.5
        red = 255 * (columns[::-1] if is_flipped else columns) / (size[0] - 1)
        # scales of a JPEG and its lossy colours move a level or two, borders a little more
        assert np.abs(pixels[0].mean(0) - red)[1:-1].max() < 6
        assert np.abs(pixels[1].mean(1) - 255 * rows / (size[1] - 1))[1:-1].max() < 6


def test_a_large_jpeg_is_decoded_at_a_smaller_scale(monkeypatch):
    content, sizes = encode_ramp(800, 640), []
    load = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, *args: sizes.append(self.size) or load(self, *args)
    )
    DECODER.decode(content, RandomCrop(0, 0.9, 0.0).draw(0, 0))
    assert sizes == [(100, 80)]
    # never below the pixels of the result
    boxes = [CROP.draw(0, number).draw_box(800, 640)[0] for number in range(8)]
    for number, box in enumerate(boxes):
        DECODER.decode(content, CROP.draw(0, number))
        factor = sizes[-1][0] / 800
        assert min(box[2] - box[0], box[3] - box[1]) * factor >= SIDE * 0.99


def test_training_images_are_crops_and_all_others_are_not(folder, cache):
    cropped, whole = images(folder, val=0.25, **CROPPED), images(folder, val=0.25)
    for one, other in zip(cropped.test_dataloader(), whole.test_dataloader(), strict=True):
        assert torch.equal(one[0], other[0])
    assert torch.equal(first(cropped.val_dataloader()), first(whole.val_dataloader()))
    assert labels(cropped.train_dataloader()) == labels(whole.train_dataloader())
    assert not torch.equal(first(cropped.train_dataloader()), first(whole.train_dataloader()))
    assert not isinstance(cropped.subsets["train"].rows, DecodedRows)
    assert isinstance(cropped.subsets["val"].rows, DecodedRows)
    kept = [path.stat().st_size for path in cache.rglob("*.tokens")]
    # of the cropped run: 10 of val, and the 10 of test that both share; of the other, all 40
    assert [size // (3 * 8 * 8) // 10 for size in sorted(kept)] == [1, 1, 4]


@pytest.mark.parametrize("options", [{"workers": 1}, {"batch_size": 5}], ids=str)
def test_crops_do_not_depend_on_what_loads(folder, options):
    one = images(folder, **CROPPED).train_dataloader()
    two = images(folder, **CROPPED, **options).train_dataloader()
    expected = torch.cat([batch[0] for batch in one])
    assert torch.equal(torch.cat([batch[0].clone() for batch in two]), expected)


@pytest.mark.parametrize("read", [images, stream])
def test_a_resumed_epoch_repeats_its_crops_and_another_does_not(folder, read):
    loader = read(folder, **CROPPED).train_dataloader()
    whole = [batch[0] for batch in loader]
    resumed = read(folder, **CROPPED).train_dataloader()
    resumed.load_state_dict({"consumed": 16})
    assert all(torch.equal(a[0], b) for a, b in zip(resumed, whole[2:], strict=True))
    loader.epoch_sampler.set_epoch(1)
    pixels = [torch.cat(batches).flatten(1).sum(1) for batches in (whole, [b[0] for b in loader])]
    assert not torch.equal(*(one.sort().values for one in pixels))


def test_crops_are_flipped_once(folder):
    data = images(folder, augment=Augmentation(area=0.99, flip=1.0))
    batch = next(iter(data.train_dataloader()))
    assert torch.equal(
        data.transform(*batch, training=True, classes=4)[0],
        data.transform(*batch, training=False, classes=4)[0],
    )
