"""A diagnosis of an equipped model and one batch."""

import pytest
import torch
from torch import nn

import zoo
from zoo.errors import OptionError


def build_encoder(encoding="alibi", **options):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2)
    zoo.equip(encoder, encoding, **options)
    return encoder


class Classifier(nn.Module):
    """An equipped encoder as a part of a model that reads token ids."""

    def __init__(self):
        super().__init__()
        self.table, self.encoder = nn.Embedding(10, 32), build_encoder()

    def forward(self, ids, mask=None):
        return self.encoder(self.table(ids), src_key_padding_mask=mask).mean(1)


def test_the_page_shows_the_weights_of_the_model_itself(tmp_path):
    model = Classifier().train()
    ids = torch.randint(10, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, 6:] = True
    found = zoo.diagnose(
        model,
        {"ids": ids, "mask": mask},
        to=str(tmp_path / "page.html"),
        decode=lambda tokens: f"<{tokens[0]}>",
        verbose=False,
    )
    run = found.report.runs[0]
    assert run.encoding == ("alibi",)
    assert run.attended.samples[0].tokens[0] == f"<{int(ids[0, 0])}>"
    assert "<h1>" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "page.json").exists()

    model.eval()
    seen = []
    for layer in model.encoder.layers:
        attend = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, attend=attend, **kwargs: note(
            seen, attend(*args, **kwargs | {"need_weights": True, "average_attn_weights": False})
        )
    model(ids, mask)
    torch.testing.assert_close(run.attended.weights, torch.stack(seen, 1), atol=1e-6, rtol=0)
    assert (run.attended.weights[0, ..., 6:] == 0).all()


def note(seen, result):
    seen.append(result[1].detach())
    return result


def test_queries_layers_and_controls(tmp_path):
    model, batch = build_encoder("cope", causal=True), (torch.randn(2, 12, 32),)
    page = str(tmp_path / "page.html")
    one = zoo.diagnose(model, batch, to=page, queries=3, layers=[1], verbose=False).report.runs[0]
    assert one.attended.weights.shape == (2, 1, 4, 3, 12)
    assert {control.name for control in one.controls} > {"as they are", "shuffled"}
    assert "no metric changes" in one.facts["use of positions"]  # it counts, and reads no positions
    placed = zoo.diagnose(build_encoder(), batch, to=page, verbose=False).report.runs[0]
    changes = {c.name: c.metrics["change of the output"] for c in placed.controls}
    assert changes["shifted"] < 1e-5 < changes["shuffled"]
    few = zoo.diagnose(model, batch, to=page, controls=False, verbose=False).report.runs[0]
    assert not few.controls


def test_what_cannot_be_diagnosed_is_named(tmp_path):
    page = str(tmp_path / "page.html")
    with pytest.raises(OptionError, match=r"no encodings of zoo; call zoo\.equip"):
        zoo.diagnose(nn.Linear(2, 2), torch.zeros(1, 2), to=page, verbose=False)
    batch = torch.randn(1, 5, 32)
    with pytest.raises(OptionError, match="there is no layer 7"):
        zoo.diagnose(build_encoder(), batch, layers=[7], to=page, verbose=False)
    with pytest.raises(OptionError, match="leave data out"):
        zoo.diagnose(build_encoder(), batch, data=[], to=page, verbose=False)
    with pytest.raises(zoo.RecipeError, match="not the name of a page"):
        zoo.diagnose(build_encoder(), batch, to="page.txt", verbose=False)
