"""Kernels for patches of another size read what the patches were."""

import pytest
import torch
from torch.nn import functional as F

from zoo.models.vit import resample_kernel

KERNEL = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(0))


def test_a_kernel_that_fits_is_itself():
    assert resample_kernel(KERNEL, (4, 4)) is KERNEL


@pytest.mark.parametrize("size", [5, 8, 14])
def test_enlarged_patches_are_read_as_before(size):
    patch = torch.randn(3, 2, 4, 4)
    large = F.interpolate(patch, (size, size), mode="bilinear")
    torch.testing.assert_close(
        F.conv2d(large, resample_kernel(KERNEL, (size, size))), F.conv2d(patch, KERNEL)
    )


def test_reduced_patches_are_read_as_nearly_as_can_be():
    patches = torch.eye(16).reshape(16, 1, 4, 4).expand(-1, 2, -1, -1)
    small, kernel = (
        F.interpolate(patches, (2, 2), mode="bilinear", antialias=True),
        resample_kernel(KERNEL, (2, 2)),
    )

    def error(kernel):
        return (F.conv2d(small, kernel) - F.conv2d(patches, KERNEL)).square().sum()

    assert error(kernel) < min(
        error(kernel + change) for change in 1e-2 * torch.randn(20, 5, 2, 2, 2)
    )


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_what_stands_still_is_read_as_an_image(frames):
    image = torch.randn(3, 2, 4, 4)
    clip = image[:, :, None].expand(-1, -1, frames, -1, -1)
    kernel = resample_kernel(KERNEL, (frames, 4, 4))
    torch.testing.assert_close(F.conv3d(clip, kernel)[:, :, 0], F.conv2d(image, KERNEL))
    assert kernel.abs().sum((0, 1, 3, 4)).count_nonzero() == 1


def test_a_tubelet_that_stands_still_is_read_as_by_images_and_other_tubelets():
    kernel, image = torch.randn(5, 2, 3, 4, 4), torch.randn(3, 2, 4, 4)
    still = F.conv3d(image[:, :, None].expand(-1, -1, 3, -1, -1), kernel)[:, :, 0]
    torch.testing.assert_close(
        F.conv2d(image, resample_kernel(kernel, (4, 4))), still, atol=1e-4, rtol=1e-4
    )
    two = F.conv3d(image[:, :, None].expand(-1, -1, 2, -1, -1), resample_kernel(kernel, (2, 4, 4)))[
        :, :, 0
    ]
    torch.testing.assert_close(two, still, atol=1e-4, rtol=1e-4)
