"""Encoders of torch with encodings of zoo, against the encoders as they are; a diagnosis of them."""

import copy

import pytest
import torch
from torch import nn

import zoo
from zoo.errors import OptionError

B, N, D, H = 2, 9, 32, 4


def build_layer(**options):
    return nn.TransformerEncoderLayer(D, H, 48, **{"batch_first": True, **options})


def build(**options):
    """Build an encoder of two layers with random weights, in evaluation mode."""
    torch.manual_seed(0)
    is_nested = not {"batch_first", "norm_first", "bias"} & set(options)  # torch warns otherwise
    encoder = nn.TransformerEncoder(build_layer(**options), 2, enable_nested_tensor=is_nested)
    for parameter in encoder.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.3)
    return encoder.eval()


def draw_states(batch_first=True):
    x = torch.randn(B, N, D, generator=torch.Generator().manual_seed(1))
    return x if batch_first else x.transpose(0, 1)


def pad(count=3):
    """True for the last tokens of the first text."""
    padding = torch.zeros(B, N, dtype=torch.bool)
    padding[0, N - count :] = True
    return padding


CAUSAL = torch.ones(N, N, dtype=torch.bool).triu(1)
MASKS = {
    "none": {},
    "padding": {"src_key_padding_mask": pad()},
    "causal": {"mask": CAUSAL, "is_causal": True},
    "float": {"mask": torch.zeros(N, N).masked_fill(CAUSAL, float("-inf"))},
    "both": {"mask": CAUSAL, "src_key_padding_mask": pad()},
    "batch": {"mask": CAUSAL.expand(B * H, N, N)},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize(
    "options", [{}, {"batch_first": False}, {"norm_first": True, "bias": False}], ids=str
)
@pytest.mark.parametrize("has_grad", [False, True])
def test_without_an_encoding_the_attention_is_that_of_torch(options, masks, has_grad):
    model, x = build(**options), draw_states(options.get("batch_first", True))
    expected = model(x, **MASKS[masks])
    zoo.equip(model, "none")
    with torch.set_grad_enabled(has_grad):
        out = model(x, **MASKS[masks])
    kept = ~pad() if "src_key_padding_mask" in MASKS[masks] else torch.ones(B, N).bool()
    kept = kept if options.get("batch_first", True) else kept.T
    torch.testing.assert_close(out[kept], expected[kept], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoding", ["alibi", "rope", "learned", "t5"])
@pytest.mark.parametrize("make", [build, lambda: build().layers[0]], ids=["encoder", "layer"])
def test_the_fused_kernels_of_inference_leave_no_encoding_out(make, encoding):
    model, x = make(), draw_states()
    plain = model(x, src_key_padding_mask=pad())
    zoo.equip(model, encoding, length=N)
    with torch.no_grad():
        for parameter in model.zoo_encoding.parameters():
            parameter.add_(torch.randn(parameter.shape))
    with_grad = model(x, src_key_padding_mask=pad())
    with torch.no_grad():
        fused = model(x, src_key_padding_mask=pad())
    assert (with_grad - plain)[~pad()].abs().max() > 1e-2
    torch.testing.assert_close(fused, with_grad, atol=1e-5, rtol=1e-5)

    zoo.unequip(model)
    assert torch.equal(model(x, src_key_padding_mask=pad()), plain)


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("is_average", [False, True])
def test_an_attention_alone_gives_outputs_and_weights(batch_first, is_average):
    torch.manual_seed(0)
    model, x = nn.MultiheadAttention(D, H, batch_first=batch_first), draw_states(batch_first)
    options = {"key_padding_mask": pad(), "attn_mask": CAUSAL, "average_attn_weights": is_average}
    expected = model(x, x, x, **options)
    zoo.equip(model, "none")
    for one, other in zip(model(x, x, x, **options), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert model(x, x, x, need_weights=False)[1] is None

    text = x[:, 0]
    single, weights = model(text, text, text)
    assert single.shape == text.shape
    assert weights.shape == (len(single), len(single))


@torch.no_grad()
def test_attention_with_alibi_is_attention_with_its_bias():
    torch.manual_seed(0)
    model, x = nn.MultiheadAttention(D, H, batch_first=True), draw_states()
    distance = (torch.arange(N)[:, None] - torch.arange(N)).abs()
    slopes = 2.0 ** (-8 * torch.arange(1, H + 1) / H)
    bias = (-slopes[:, None, None] * distance).repeat(B, 1, 1)
    expected, _ = model(x, x, x, attn_mask=bias)
    zoo.equip(model, "alibi")
    torch.testing.assert_close(model(x, x, x)[0], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_causal_module_hides_later_tokens():
    model, x = build(), draw_states()
    with pytest.raises(OptionError, match="causal mask"):
        zoo.equip(model, "fox")
    zoo.equip(model, "fox", causal=True)
    torch.testing.assert_close(model(x)[:, :5], model(x[:, :5]), atol=1e-5, rtol=1e-5)


def test_a_copy_of_an_equipped_encoder_has_its_own_encodings():
    model, x = build(), draw_states()
    zoo.equip(model, "t5")
    twin, before = copy.deepcopy(model), model(x)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(torch.randn(parameter.shape))
    assert not torch.equal(twin(x), before)
    assert torch.equal(model(x), before)
    with pytest.raises(OptionError, match="a copy"):
        zoo.unequip(twin)


def test_dropout_is_on_in_training_alone():
    model, x = nn.MultiheadAttention(D, H, dropout=0.5, batch_first=True), draw_states()
    zoo.equip(model, "alibi")
    assert not torch.equal(model(x, x, x)[0], model(x, x, x)[0])
    model.eval()
    assert torch.equal(model(x, x, x)[0], model(x, x, x)[0])


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda model, x: model(x, x.clone(), x), "self-attention"),
        (lambda model, x: model(x, x, x, attn_mask=torch.ones(N, N)), "0 and -inf"),
        (lambda model, x: model(x, x, x, attn_mask=torch.rand(B * H, N, N) > 0.5), "all heads"),
    ],
)
def test_what_would_be_left_out_is_refused(call, word):
    model = nn.MultiheadAttention(D, H, batch_first=True)
    zoo.equip(model, "alibi")
    with pytest.raises(OptionError, match=word):
        call(model, draw_states())


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (nn.MultiheadAttention(D, H, kdim=8), "cross-attention"),
        (nn.MultiheadAttention(D, H, add_bias_kv=True), "add_bias_kv"),
        (nn.Transformer(D, H, 1, 1, 48, batch_first=True), "Transformer is no model of"),
        (nn.Linear(D, D), "Linear is no model of"),
    ],
)
def test_modules_that_cannot_be_equipped_are_refused_by_name(model, word):
    before = list(model.state_dict())
    with pytest.raises(OptionError, match=word):
        zoo.equip(model, "alibi")
    assert list(model.state_dict()) == before


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
    expected = torch.stack(seen, 1)
    expected[0, ..., 6:, :] = 0  # queries that are padding
    torch.testing.assert_close(run.attended.weights, expected, atol=1e-6, rtol=0)
    assert (run.attended.weights[0, ..., 6:] == 0).all()


def note(seen, result):
    seen.append(result[1].detach())
    return result


def test_queries_layers_and_controls(tmp_path):
    model, batch = build_encoder("cope", causal=True), (torch.randn(2, 12, 32),)
    page = str(tmp_path / "page.html")
    one = zoo.diagnose(model, batch, to=page, queries=3, layers=[1], verbose=False).report.runs[0]
    assert one.attended.weights.shape == (2, 1, 4, 3, 12)
    assert {control.name for control in one.controls} > {"unchanged", "shuffled"}
    assert "no metric changes" in one.facts["use of positions"]  # it counts, and reads no positions
    placed = zoo.diagnose(build_encoder(), batch, to=page, verbose=False).report.runs[0]
    changes = {c.name: c.metrics["change of the output"] for c in placed.controls}
    assert changes["shifted"] < 1e-5 < changes["shuffled"]
    few = zoo.diagnose(model, batch, to=page, controls=False, verbose=False).report.runs[0]
    assert [control.name for control in few.controls] == ["unchanged"]


def test_what_cannot_be_diagnosed_is_named(tmp_path):
    page = str(tmp_path / "page.html")
    with pytest.raises(OptionError, match="Linear is no model of transformers or timm"):
        zoo.diagnose(nn.Linear(2, 2), torch.zeros(1, 2), to=page, verbose=False)
    batch = torch.randn(1, 5, 32)
    with pytest.raises(zoo.RecipeError, match=r"layers: .*there is no layer 7"):
        zoo.diagnose(build_encoder(), batch, layers=[7], to=page, verbose=False)
    with pytest.raises(OptionError, match="leave data out"):
        zoo.diagnose(build_encoder(), batch, data=[], to=page, verbose=False)
    with pytest.raises(zoo.RecipeError, match="not the name of a page"):
        zoo.diagnose(build_encoder(), batch, to="page.txt", verbose=False)


def test_an_attention_of_a_derived_class_is_refused():
    class Own(nn.MultiheadAttention):
        pass

    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    layer.self_attn = Own(32, 4, batch_first=True)
    with pytest.raises(OptionError, match="class Own"):
        zoo.equip(layer, "none")
