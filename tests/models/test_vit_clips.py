"""The vision transformer on clips: tubelets on three axes."""

import pytest
import torch

import zoo
from zoo.attention.coordinates import PositionAugmentation
from zoo.data.spec import ImageSpec, VideoSpec
from zoo.errors import OptionError
from zoo.models.vit import ViT

SAMPLES = VideoSpec(channels=1, height=8, width=16, classes=5, frames=6)


def vit(encoding="rope_axial", samples=SAMPLES, **options):
    links = {encoding: lambda dims: zoo.encoding(encoding, dims)}
    return ViT(
        samples,
        **{
            "dim": 48,
            "depth": 2,
            "heads": 2,
            "patch_size": 4,
            "tubelet": 2,
            "encoding": links,
            **options,
        },
    )


@pytest.mark.parametrize(
    "encoding", ["none", "learned", "sinusoidal", "rope_axial", "rope_mixed", "liere", "comrope_ld"]
)
@pytest.mark.parametrize("size", [(6, 8, 16), (4, 16, 8)])
def test_any_size_that_the_tubelet_divides(encoding, size):
    assert vit(encoding)(torch.randn(2, 1, *size)).shape == (2, 5)


def test_tokens_stand_by_frame_row_and_column():
    tokens = vit(pool="class").tokens(torch.randn(1, 1, 6, 8, 16))
    assert tokens.grid_size.tolist() == [[[3, 2, 4]]]
    assert tokens.index[0, 1:6].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 1, 0]]
    assert tokens.index[0, -1].tolist() == [2, 1, 3]


def test_a_token_reads_its_own_tubelet():
    model, clip = vit().eval(), torch.randn(1, 1, 6, 8, 16)
    before = model.tokens(clip).x
    clip[..., 2:4, 4:8, 8:12] += 1
    changed = (model.tokens(clip).x != before).any(-1)[0].nonzero().flatten().tolist()
    assert changed == [1 * 8 + 1 * 4 + 2]


@pytest.mark.parametrize(("shape", "key"), [((5, 8, 16), "tubelet"), ((6, 9, 16), "patch_size")])
def test_a_size_that_is_not_divided_is_refused(shape, key):
    with pytest.raises(OptionError, match="does not divide") as error:
        vit()(torch.randn(1, 1, *shape))
    assert error.value.key == key


def test_images_have_no_tubelets():
    with pytest.raises(OptionError, match="no frames to join into tubelets of 2"):
        vit(samples=ImageSpec(1, 8, 16, 5))


def test_frames_do_not_move_in_training():
    model, clip = (
        vit(position_augmentation=PositionAugmentation(jitter=0.5, stretch=1.5, shift=2.0)),
        torch.randn(1, 1, 6, 8, 16),
    )
    still, moved = model.eval().tokens(clip).index, model.train().tokens(clip).index
    assert torch.equal(still[..., 0], moved[..., 0])
    assert (still != moved)[..., 1:].all()


@pytest.mark.nightly  # laws and a test of images capture the same code
def test_the_whole_model_is_captured_by_the_compiler():
    model = vit(
        "comrope_ld",
        depth=1,
        position_augmentation=PositionAugmentation(jitter=0.5, stretch=2.0, shift=1.0),
    )
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert compiled(torch.randn(2, 1, 6, 8, 16)).shape == (2, 5)
