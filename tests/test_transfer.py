"""Models that start from the weights of others: what they compute then, and what the report says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from language import SAMPLES, decoder, links, lively
from torch import nn

from zoo.data.corpus.tokenizer import Characters
from zoo.data.spec import ImageSpec, VideoSpec
from zoo.models.decoder import Decoder
from zoo.models.encoder import Encoder
from zoo.models.transformer import BlockOptions
from zoo.models.vit import ViT
from zoo.run.init_from import Source, TransferReport, copy_weights

IMAGES = ImageSpec(channels=1, height=8, width=16, classes=5)
CLIPS = VideoSpec(channels=1, height=8, width=16, classes=5, frames=6)
SIZES = {"dim": 48, "depth": 2, "heads": 2, "patch_size": 4}
ENCODINGS = ["none", "learned", "rope_mixed", "liere", "comrope_ld"]


def vit(encoding="learned", samples=IMAGES, **options):
    return lively(ViT(samples, **{**SIZES, "encoding": links(encoding), **options}))


def start(model, source):
    return copy_weights(model, Source(Path("run"), source.state_dict(), source))


def same(found, right):
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_model_of_the_same_sizes_is_the_same(encoding):
    model, trained, images = vit(encoding), vit(encoding), torch.randn(2, 1, 8, 16)
    report = start(model, trained)
    assert set(report.copied) == set(model.state_dict())
    assert not report.resampled and not report.left and not report.unused  # noqa: PT018
    same(model(images), trained(images))


def test_a_table_is_that_which_another_size_reads():
    trained, model = vit(), vit(samples=replace(IMAGES, height=20, width=12))
    report, images = start(model, trained), torch.randn(2, 1, 20, 12)
    assert report.resampled == {"encoding.learned.table": "[8, 48] to [15, 48]"}
    same(model(images), trained(images))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_clip_that_stands_still_is_read_as_an_image(encoding):
    trained, model = vit(encoding), vit(encoding, CLIPS, tubelet=2)
    report, images = start(model, trained), torch.randn(2, 1, 8, 16)
    assert report.resampled["patch_embed.weight"] == "[48, 1, 4, 4] to [48, 1, 2, 4, 4]"
    assert not report.left
    same(model(images[:, :, None].expand(-1, -1, 6, -1, -1)), trained(images))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_image_is_read_as_the_one_tubelet_of_a_clip(encoding):
    trained, model = vit(encoding, CLIPS, tubelet=6), vit(encoding)
    report, images = start(model, trained), torch.randn(2, 1, 8, 16)
    assert not report.left
    same(model(images), trained(images[:, :, None].expand(-1, -1, 6, -1, -1)))


def test_a_table_of_frames_is_their_mean_to_an_image():
    trained, model = vit(samples=CLIPS, tubelet=2), vit()
    start(model, trained)
    found, right = model.encoding["learned"].table, trained.encoding["learned"].table
    same(found, right.unflatten(0, (3, 8)).mean(0))


def test_what_does_not_fit_is_left_and_named():
    trained = vit(depth=3, block=BlockOptions(layer_scale=0.1))
    model = vit("rope_mixed", samples=replace(IMAGES, classes=7), registers=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report, after = start(model, trained), model.state_dict()
    assert report.left == {
        "register_tokens": "not in the checkpoint",
        "head.weight": "[5, 48] there, [7, 48] here",
        "head.bias": "[5] there, [7] here",
        **{
            f"encoding.rope_mixed.{layer}.frequencies": "not in the checkpoint"
            for layer in range(2)
        },
    }
    assert all(torch.equal(after[name], before[name]) for name in report.left)
    assert report.unused["encoding.learned.table"] == "[8, 48], not of this model"
    assert "blocks.0.mlp_branch.scale" in report.unused
    assert all(
        name.startswith("blocks.2.")
        for name in report.unused
        if "scale" not in name and "table" not in name
    )


def test_generators_on_other_axes_have_another_meaning():
    report = start(vit("comrope_ap", CLIPS, dim=96, heads=2), vit("comrope_ap", dim=96, heads=2))
    assert report.left["encoding.comrope_ap.0.generators"].endswith("as here, of another meaning")


def test_another_vocabulary_has_the_rows_of_the_characters_that_both_have():
    trained = decoder("rope", tie_embeddings=False)
    other = lively(
        Decoder(
            replace(SAMPLES, vocabulary=Characters("zkjab!")),
            dim=16,
            depth=2,
            heads=2,
            tie_embeddings=False,
            encoding=links("rope"),
        )
    )
    before = other.embed_tokens.weight.detach().clone()
    report = start(other, trained)
    table, source = other.embed_tokens.weight, trained.embed_tokens.weight
    assert torch.equal(table[1:5], source[[10, 9, 0, 1]])
    assert torch.equal(table[[0, 5]], before[[0, 5]])
    assert torch.equal(other.lm_head.weight[1:5], trained.lm_head.weight[[10, 9, 0, 1]])
    assert set(report.resampled) == {"embed_tokens.weight", "lm_head.weight"}


def test_a_vocabulary_of_the_same_size_is_not_taken_for_the_same():
    turned = replace(SAMPLES, vocabulary=Characters(SAMPLES.vocabulary.symbols[::-1]))
    model, trained = (
        Decoder(turned, dim=16, depth=2, heads=2, encoding=links("rope")),
        decoder("rope"),
    )
    start(model, trained)
    assert torch.equal(model.embed_tokens.weight, trained.embed_tokens.weight.flip(0))


def test_an_encoder_starts_from_a_decoder():
    model = Encoder(SAMPLES, dim=16, depth=2, heads=2, encoding=links("rope"))
    trained = decoder("rope")
    report = start(model, trained)
    assert not report.left and not report.unused  # noqa: PT018
    assert torch.equal(model.embed_tokens.weight[:11], trained.embed_tokens.weight)


def test_a_module_that_says_nothing_goes_by_shapes():
    report = start(
        nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)),
        nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 5)),
    )
    assert report.copied == ("0.weight", "0.bias")
    assert set(report.left) == {"1.weight", "1.bias"}


def test_a_long_report_is_shortened():
    report = TransferReport(
        Path("run"), ("a",), {"b": "[1] to [2]"}, {f"c{n}": "why" for n in range(30)}, {}
    )
    lines = list(report.lines())
    assert (
        lines[0]
        == "Initialised from run: 1 weights copied, 1 resampled, 30 left at their initial value; 0 not used"
    )
    assert lines[1:3] == ["  resampled b: [1] to [2]", "  left c0: why"]
    assert lines[-1] == "  left: 18 more"
    assert len(lines) == 15
