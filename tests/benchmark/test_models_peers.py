"""Other libraries take part where they are installed, and it is said once where they are not."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import nn

from zoo.benchmark.measures import TrainMeasure
from zoo.benchmark.models import build_peers, read_versions
from zoo.benchmark.protocol import SHAPES, Workload

SMALL = replace(SHAPES["vit_s"], batch=1, length=32)


class Fake(nn.Module):
    """Stands for a model of timm's: patches of the size that it was made for, and a head."""

    def __init__(self, size, classes):
        super().__init__()
        self.size, self.head = size, nn.Linear(3, classes)

    def forward(self, images):
        assert images.shape[-2:] == (self.size, self.size)
        return self.head(images.mean((2, 3)))


@pytest.fixture
def timm(monkeypatch):
    """The names that were asked for, of a library that is not there."""
    names = []

    def create_model(name, img_size, num_classes):
        names.append(name)
        return Fake(img_size, num_classes)

    made = ModuleType("timm")
    made.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", made)
    return names


def test_timm_has_three_of_our_encodings(timm):
    found = build_peers(SMALL, ["none", "learned", "rope_axial", "rope_mixed"])
    runs = [TrainMeasure("images").prepare(one, Workload(shape=SMALL)).run() for one in found]
    assert min(runs) > 0
    assert timm == [
        "vit_small_patch16_224",
        "vit_small_patch16_rope_224",
        "vit_small_patch16_rope_mixed_224",
    ]
    assert [one.counterpart for one in found] == ["learned", "rope_axial", "rope_mixed"]


def test_only_rivals_of_what_is_compared_take_part(timm):
    assert [one.name for one in build_peers(SMALL, ["rope_mixed"])] == ["timm rope_mixed"]
    assert not build_peers(SHAPES["vit_toy"], ["rope_mixed"])


def test_a_library_that_is_not_there_is_told_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "timm", None)
    caplog.set_level("INFO")
    assert not build_peers(SMALL, ["rope_mixed", "learned"])
    (record,) = caplog.records
    assert "timm" in record.message


def test_x_transformers_trains_and_continues():
    pytest.importorskip("x_transformers")
    shape = SHAPES["lm_toy"]
    found = build_peers(shape, ["rope", "alibi", "fox", "t5", "cope", "none"])
    assert len(found) == 7  # alibi and fox also as the library computes them unless told
    assert read_versions(found).keys() == {"x-transformers"}
    for one in found:
        model = one.make(Workload(shape=shape))
        assert model(shape.make_inputs()).shape == (shape.batch, shape.length, shape.outputs)
        with torch.no_grad():
            assert one.generate(model, shape.make_inputs()[:1, :4], 3).shape == (1, 3)
