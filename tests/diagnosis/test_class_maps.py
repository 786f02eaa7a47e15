"""Colours of classes in the pictures of a segmenter."""

import torch

from zoo.diagnosis.page.class_maps import FIRST, UNKNOWN, choose_colours, colour_classes


def test_each_class_has_its_own_colour():
    for classes in (1, 2, 11, 150):
        colours = choose_colours(classes)
        assert len(set(colours)) == len(colours) == classes
        assert colours[0] == FIRST


def test_pixels_without_a_class_are_white():
    picture = colour_classes(torch.tensor([[0, -100, 7]]), choose_colours(3))
    assert [tuple(pixel) for pixel in picture[0].tolist()] == [FIRST, UNKNOWN, UNKNOWN]
