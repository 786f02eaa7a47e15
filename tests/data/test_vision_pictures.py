"""Images as a model has them, made pictures for people again."""

import pytest
import torch

from zoo.data.digits import Digits
from zoo.data.images import Images


def test_images_get_back_their_own_light():
    source = Images(0, path="nowhere", classes=2, size=4, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    pixels = torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8)
    seen, _ = source.transform(pixels, torch.zeros(2), training=False, classes=2)
    assert torch.allclose(source.denormalize(seen) * 255, pixels.float(), atol=1e-3)


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 1, 3, 4, 4)], ids=["images", "clips"])
def test_what_is_not_known_is_stretched_sample_by_sample(shape):
    ramp = torch.linspace(-1, 3, torch.Size(shape[1:]).numel()).view(shape[1:])
    found = Digits(0).denormalize(torch.stack([ramp, 10 * ramp]))
    assert torch.allclose(found[0], (ramp + 1) / 4, atol=1e-6)
    assert torch.allclose(found[1], found[0], atol=1e-6)
    assert Digits(0).denormalize(torch.ones(shape)).abs().max() == 0
