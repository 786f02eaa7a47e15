"""Windows of the training size over a larger image."""

import torch
from torch import nn

from zoo.data.spec import ImageSpec, SegmentationSpec
from zoo.run.sliding_window import SlidingWindow, explain_unslidable


class Mark(nn.Module):
    """Marks each pixel by its place in the window, and notes the sizes of windows."""

    def __init__(self):
        super().__init__()
        self.sizes = set()

    def forward(self, images):
        self.sizes.add(tuple(images.shape[2:]))
        return torch.cat([images, 2 * images], dim=1)


def test_pixels_are_averaged_over_windows_that_have_the_training_size():
    model = Mark()
    images = torch.randn(2, 1, 20, 33, generator=torch.Generator().manual_seed(0))
    for stride in (None, 3, 8):
        found = SlidingWindow(model, (8, 12), stride)(images)
        torch.testing.assert_close(found, torch.cat([images, 2 * images], dim=1))
    assert model.sizes == {(8, 12)}


def test_a_smaller_image_is_read_whole():
    model = Mark()
    SlidingWindow(model, (8, 12))(torch.zeros(1, 1, 4, 24))
    assert model.sizes == {(4, 12)}


def test_samples_without_masks_are_refused():
    assert explain_unslidable(SegmentationSpec(1, 8, 8, 2)) == ""
    assert "images have no masks" in explain_unslidable(ImageSpec(1, 8, 8, 2))
