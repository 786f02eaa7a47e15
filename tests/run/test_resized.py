"""Images that are resized to the training size before a model reads them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zoo.data.spec import ImageSpec, SegmentationSpec, VideoSpec
from zoo.run.resized import ResizedInputs, explain_unresizable, resize_maps


class Copy(nn.Module):
    """Returns its input as logits of pixels, and notes the shapes that it was given."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def forward(self, images):
        self.shapes.append(tuple(images.shape))
        return images


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def resize(images, *sides):
    return F.interpolate(images, sides, mode="bilinear", align_corners=False, antialias=True)


@pytest.mark.parametrize("shape", [(2, 3, 32, 16), (2, 3, 4, 4), (2, 3, 8, 12)])
def test_the_model_reads_the_training_size_and_masks_keep_their_own(shape):
    images, model = draw(*shape), Copy()
    logits = ResizedInputs(model, (8, 12), is_dense=True)(images)
    assert model.shapes == [(2, 3, 8, 12)]
    expected = images if shape[2:] == (8, 12) else resize(resize(images, 8, 12), *shape[2:])
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)


def test_logits_of_whole_images_are_not_resized():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 12, 5))
    images = draw(2, 3, 16, 24)
    logits = ResizedInputs(model, (8, 12), is_dense=False)(images)
    torch.testing.assert_close(logits, model(resize(images, 8, 12)), rtol=0, atol=0)


def test_each_frame_of_a_video_is_resized_by_itself():
    videos = draw(2, 3, 5, 16, 16)
    frames = [resize(videos[:, :, time], 8, 8) for time in range(5)]
    torch.testing.assert_close(resize_maps(videos, (8, 8)), torch.stack(frames, dim=2))


def test_half_precision_keeps_its_dtype():
    assert resize_maps(draw(1, 3, 16, 16).bfloat16(), (8, 8)).dtype == torch.bfloat16


def test_double_precision_is_computed_in_it():
    images = draw(1, 3, 16, 12).double()
    found = resize_maps(images, (8, 8))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, resize(images, 8, 8), rtol=0, atol=1e-15)


def test_a_fine_pattern_is_averaged():
    """Without antialiasing, a pattern that alternates by pixel would keep every second one."""
    stripes = torch.tensor([0.0, 1.0]).repeat(16).expand(1, 1, 32, 32)
    inner = resize_maps(stripes, (8, 8))[..., 1:-1]
    torch.testing.assert_close(inner, torch.full_like(inner, 0.5))


def test_only_images_have_pixels():
    for spec in (ImageSpec(1, 8, 8, 2), SegmentationSpec(1, 8, 8, 2), VideoSpec(1, 8, 8, 2, 4)):
        assert explain_unresizable(spec) == ""
