"""Padding changes no measure, profile or map of attention; means are those over real queries."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from language import decoder, encoder, give_mixer, lively
from parts import draw_part, run_parts
from reports import compute_measures
from torch import nn
from without_torchvision import import_timm

import zoo
from zoo.attention.layer import find_encoded
from zoo.attention.tokens import document_positions
from zoo.data.spec import PointSpec
from zoo.diagnosis.equipped_model import BoundModel
from zoo.diagnosis.inputs import capture_attention
from zoo.diagnosis.report import draw_profiles
from zoo.diagnostics.callback import draw_attention, summarize_layer
from zoo.diagnostics.capture import capture_model
from zoo.diagnostics.encoding_panels import draw_encodings, list_reported_panels
from zoo.diagnostics.token_layout import find_layout
from zoo.errors import OptionError
from zoo.integrations.equip import observe_attention
from zoo.models.point_encoder import PointEncoder
from zoo.reporting.panel import Panel

LENGTHS = torch.tensor([5, 9, 8])  # tokens of the samples
SIDES = [(0, 3), (4, 30)]  # columns appended on the left and on the right
QUERIES = 5  # fewer than tokens, so that the choice of queries matters


def pad(values, before, after, filled=0):
    """Append columns to [B, N, ...]."""
    axes = (0, 0) * (values.dim() - 2)
    return nn.functional.pad(values, (*axes, before, after), value=filled)


def draw_ids(low=0, high=10):
    return torch.randint(low, high, (3, 9), generator=torch.Generator().manual_seed(1))


def mark_real(side="right"):
    """Return which of 9 columns are no padding, bool [3, 9]."""
    places = torch.arange(9)
    if side == "left":
        places = places.flip(0)
    return places < LENGTHS[:, None]


def locate(mask):
    """Return the positions of tokens, which do not count padding."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)


PACKED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, -1, -1], [0] * 9, [0, 0, 1, 1, 1, 2, 2, 2, 2]])
DOCUMENTS = {"left": mark_real("left").long() - 1, "packed": PACKED}


def pad_documents(documents):
    """Return a function of the appended columns that makes token ids and documents."""
    return lambda *sides: (pad(draw_ids(), *sides, filled=7), pad(documents, *sides, filled=-1))


def list_panels(model, inputs, layers, grid):
    return list_reported_panels(layers)


def describe(model, inputs, draw=list_panels):
    """Return everything that a page and a logger show of attention, as flat tensors by name."""
    layout = find_layout(model, inputs, QUERIES)
    seen = capture_attention(model, inputs, layout, None)
    shown = {"weights": seen.weights, "rollout": seen.rollout, "grid": torch.tensor(layout.grid)}
    shown["queries"] = torch.tensor(layout.queries)
    for measure in compute_measures(seen.layers, seen.zeroed, seen.shifted):
        shown[measure.name] = measure.values
        if measure.even is not None:
            shown[f"even {measure.name}"] = torch.tensor(measure.even)
    for panel in (*draw_profiles(seen.layers), *draw(model, inputs, seen.layers, layout.grid)):
        shown.update(flatten(panel, panel.title))
    for layer in capture_model(model, inputs, QUERIES):
        shown[f"picture {layer.layer}"] = draw_attention(layer)
        for name, value in summarize_layer(layer).items():
            shown[f"logged {layer.layer} {name}"] = torch.tensor(value)
    return shown


def flatten(part, name):
    """Yield the tensors of a panel."""
    if isinstance(part, torch.Tensor):
        yield name, part
    elif isinstance(part, dict):
        for key, value in part.items():
            yield from flatten(value, f"{name} {key}")
    elif isinstance(part, tuple | list):
        for number, value in enumerate(part):
            yield from flatten(value, f"{name} {number}")
    elif isinstance(part, Panel):
        yield from flatten(vars(part), name)


def check_padding(model, make_inputs, subject="", draw=list_panels):
    """Compare what is shown without and with appended columns of padding."""
    right = describe(model, make_inputs(0, 0), draw)
    for sides in SIDES:
        compare(right, describe(model, make_inputs(*sides), draw), f"{subject}, {sides} columns")


def compare(right, found, where, atol=2e-4):
    assert {"distance", "self", "first", "entropy"} <= right.keys()
    assert found.keys() == right.keys(), where
    for name, values in right.items():
        torch.testing.assert_close(
            found[name].double(),
            values.double(),
            atol=3 if name.startswith("picture") else atol,  # of 255 levels
            rtol=atol,
            equal_nan=True,
            msg=lambda text, name=name: f"{where}: {name}\n{text}",
        )


@pytest.mark.parametrize("kind", [decoder, encoder], ids=["decoder", "encoder"])
@pytest.mark.parametrize("case", DOCUMENTS)
@run_parts(2)
def test_padding_changes_nothing_for_any_encoding(kind, case, step):
    tried = 0
    for name in draw_part(zoo.encoding_names(), step, [*DOCUMENTS].index(case)):
        make_inputs = pad_documents(DOCUMENTS[case])
        try:
            model = kind(*(("alibi", name) if name == "dape" else (name,)), depth=1)
            model(*make_inputs(0, 0))
        except OptionError:  # made for images, or for causal models
            continue
        check_padding(model, make_inputs, name)
        tried += 1
    assert tried > 20 // step


@pytest.mark.parametrize(
    "options",
    [give_mixer("linear"), {"sinks": True}, {"window": 4}, {"softcap": 2.0}, {"kv_heads": 1}],
    ids=" ".join,
)
def test_padding_changes_nothing_for_any_attention(options):
    for kind in (decoder, encoder):
        check_padding(kind("rope", **options), pad_documents(PACKED), kind.__name__)


def test_padding_changes_no_panel_of_the_encodings():
    # sinusoidal is added to the input: correlations of word and position are drawn
    for model in (encoder("sinusoidal", cls_token=True), decoder("fox")):
        check_padding(model, pad_documents(DOCUMENTS["left"]), draw=draw_encodings)


@pytest.mark.parametrize("pool", ["mean", "class"])
def test_padding_changes_nothing_for_points(pool):
    spec = PointSpec(features=2, axes=1, length=64, classes=2)
    encoding = {"rope": lambda dims: zoo.encoding("rope", dims)}
    model = lively(PointEncoder(spec, dim=16, depth=2, heads=2, encoding=encoding, pool=pool))
    torch.manual_seed(0)
    features, coordinates = torch.randn(3, 9, 2), torch.rand(3, 9, 1)
    given = (features, coordinates, mark_real())
    check_padding(model, lambda *sides: tuple(pad(part, *sides, filled=0) for part in given))


# models of other libraries

transformers = pytest.importorskip("transformers")
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 97, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build(kind, **options):
    sizes = GPT2 if kind == "GPT2" else SIZES
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **options})
    torch.manual_seed(0)
    cls = getattr(transformers, f"{kind}Model")
    return cls._from_config(config, attn_implementation="eager").eval()


def equipped(kind, encoding):
    model = build(kind)
    zoo.equip(model, encoding)
    draw = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "zoo_encoding" in name:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=draw)
    return model


def make_batch(mask, before=0, after=0):
    """Return padded texts with their mask and positions."""
    places = pad(locate(mask), before, after)
    given = {"input_ids": draw_ids(3, 97), "attention_mask": mask.long()}
    return {name: pad(one, before, after) for name, one in given.items()} | {"position_ids": places}


def pack(before=0, after=0):
    """Return packed texts without a mask, which restarting positions keep apart."""
    places = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5], [*range(9)], [0, 1, 0, 1, 2, 0, 1, 2, 3]])
    return {"input_ids": draw_ids(3, 97), "position_ids": places}


def give_pairs(before=0, after=0):
    """Return packed and padded texts with a mask of pairs."""
    numbers = pad(PACKED, before, after, filled=-1)
    count = numbers.shape[1]
    visible = (numbers[:, :, None] == numbers[:, None]) & (numbers >= 0)[:, None]
    visible = visible & torch.ones(count, count).tril().bool()
    return {
        "input_ids": pad(draw_ids(3, 97), before, after),
        "attention_mask": torch.where(visible, 0, torch.finfo().min)[:, None],
        "position_ids": torch.where(numbers >= 0, document_positions(numbers), 0),
    }


class Encoder(nn.Module):
    """An encoder of torch, of embedded tokens, with the two ways to mask them."""

    def __init__(self, encoding=None, batch_first=True, causal=None):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=batch_first)
        self.encoder, self.table = nn.TransformerEncoder(layer, 2), nn.Embedding(97, 16)
        self.batch_first = batch_first
        zoo.equip(self.encoder, encoding, causal=causal)
        lively(self)

    def forward(self, ids, padding=None, pairs=None):
        x = self.table(ids)
        x = x if self.batch_first else x.transpose(0, 1)
        return self.encoder(x, mask=pairs, src_key_padding_mask=padding)


def pad_encoder(before=0, after=0):
    mask = pad(mark_real("left"), before, after, filled=False)
    return {"ids": pad(draw_ids(), before, after), "padding": ~mask}


def pair_encoder(before=0, after=0):
    numbers = pad(PACKED, before, after, filled=-1)
    visible = (numbers[:, :, None] == numbers[:, None]) & (numbers >= 0)[:, None]
    # torch has no softmax of nothing: padding sees the first token
    visible[..., before] |= numbers < 0
    pairs = ~visible.repeat_interleave(2, 0)
    return {"ids": pad(draw_ids(), before, after), "pairs": pairs}


FOREIGN = {
    "plain Llama, right": (lambda: build("Llama"), lambda *n: make_batch(mark_real(), *n)),
    "plain Llama, left": (lambda: build("Llama"), lambda *n: make_batch(mark_real("left"), *n)),
    "plain GPT-2, left": (lambda: build("GPT2"), lambda *n: make_batch(mark_real("left"), *n)),
    "plain BERT": (lambda: build("Bert"), lambda *n: make_batch(mark_real(), *n)),
    "Llama with a mask of pairs": (lambda: build("Llama"), give_pairs),
    "rope": (lambda: equipped("Llama", "rope"), lambda *n: make_batch(mark_real("left"), *n)),
    "fox": (lambda: equipped("Llama", "fox"), lambda *n: make_batch(mark_real(), *n)),
    "alibi of pairs": (lambda: equipped("Llama", "alibi"), give_pairs),
    "a window": (
        lambda: build("Mistral", sliding_window=4, num_key_value_heads=2),
        lambda *n: make_batch(mark_real("left"), *n),
    ),
    "BERT with t5": (lambda: equipped("Bert", "t5"), lambda *n: make_batch(mark_real(), *n)),
    "torch": (lambda: Encoder("rope"), pad_encoder),
    "torch, sequence first": (lambda: Encoder("alibi", batch_first=False), pad_encoder),
    "torch, a mask of pairs": (lambda: Encoder("rope"), pair_encoder),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_padding_changes_nothing_for_models_of_other_libraries(name):
    build_model, give = FOREIGN[name]
    model = build_model()
    context = nullcontext() if find_encoded(model) else observe_attention(model)
    with context, torch.no_grad():
        right = describe(BoundModel(model, give()), ())
        for sides in SIDES:
            compare(right, describe(BoundModel(model, give(*sides)), ()), f"{name}, {sides}")


def average_by_hand(weights, real, positions, documents):
    """Compute measures in float64, one query after another, from weights [B, H, N, N]."""
    heads = weights.shape[1]
    sums = {name: np.zeros(heads) for name in ("entropy", "distance", "self", "first", "near")}
    similarity, ranks, count = np.zeros((heads, heads)), np.zeros(heads), 0
    for row, sample in enumerate(weights.double().numpy()):
        queries = np.flatnonzero(real[row])
        for query in queries:
            count += 1
            shares = sample[:, query] / sample[:, query].sum(-1, keepdims=True)
            far = np.abs(positions[row, query] - positions[row])
            document = np.flatnonzero(documents[row] == documents[row, query])
            logs = np.log(np.where(shares > 0, shares, 1))
            sums["entropy"] -= (shares * logs).sum(-1)
            sums["distance"] += (shares * far).sum(-1)
            sums["self"] += shares[:, query]
            sums["first"] += shares[:, document[0]]
            sums["near"] += shares[:, far <= 8].sum(-1)
            unit = sample[:, query] / np.linalg.norm(sample[:, query], axis=-1, keepdims=True)
            similarity += unit @ unit.T
        for head in range(heads):
            values = np.linalg.svd(sample[head, queries], compute_uv=False)
            parts = values[values > 0] / values.sum()
            ranks[head] += np.exp(-(parts * np.log(parts)).sum()) / len(weights)
    found = {name: total / count for name, total in sums.items()}
    others = (similarity.sum(-1) - similarity.diagonal()) / (heads - 1) / count
    return found | {"similarity": others, "effective_rank": ranks}


@pytest.mark.parametrize(
    "case", ["plain Llama, right", "plain Llama, left", "Llama with a mask of pairs", "plain BERT"]
)
def test_measures_are_means_over_real_queries(case, tmp_path):
    build_model, give = FOREIGN[case]
    model, batch = build_model(), give(2, 12)
    documents = batch["attention_mask"].numpy() - 1
    if batch["attention_mask"].dim() == 4:
        documents = pad(PACKED, 2, 12, filled=-1).numpy()
    with torch.no_grad():
        weights = model(**batch, output_attentions=True).attentions
    page = tmp_path / "page.html"
    (run,) = zoo.diagnose(model, batch, to=page, controls=False, verbose=False).report.runs
    measures = {measure.name: measure.values.numpy() for measure in run.measures}
    for layer, shown in enumerate(weights):
        positions = batch["position_ids"].numpy()
        right = average_by_hand(shown, documents >= 0, positions, documents)
        for name, values in right.items():
            np.testing.assert_allclose(measures[name][layer], values, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("name", ["torch", "torch, sequence first", "rope"])
def test_the_change_of_the_output_leaves_padding_out(name, tmp_path):
    build_model, give = FOREIGN[name]
    model, page = build_model(), tmp_path / "page.html"
    changes = []
    for sides in [(0, 0), (0, 3), (4, 30)]:
        (run,) = zoo.diagnose(model, give(*sides), to=page, verbose=False).report.runs
        changes.append([one.metrics["change of the output"] for one in run.controls])
    for found in changes[1:]:
        assert found == pytest.approx(changes[0], abs=1e-4)
    assert max(changes[0]) > 0.05


def test_a_page_names_only_real_tokens(tmp_path):
    model, page = equipped("Llama", "rope"), tmp_path / "page.html"
    batch = make_batch(mark_real("left"), 4, 30)
    (run,) = zoo.diagnose(model, batch, to=page, controls=False, verbose=False).report.runs
    assert run.attended.grid == (9,)
    for sample, length, row in zip(run.attended.samples, LENGTHS, draw_ids(3, 97), strict=True):
        expected = ["" if place < 9 - length else str(int(row[place])) for place in range(9)]
        assert [*sample.tokens] == expected


def test_patches_that_no_query_sees_are_padding(tmp_path):
    timm = import_timm()
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = timm.models.VisionTransformer(**sizes, num_classes=3).eval()
    zoo.equip(model, "rope_axial")
    lively(model)
    visible = torch.ones(17, 17, dtype=torch.bool)
    visible[:, 12:] = False
    images = torch.randn(2, 3, 16, 16)
    (found,) = capture_model(BoundModel(model, {"x": images, "attn_mask": visible}), ())
    assert (found.weights[:, :, 12:] == 0).all()
    torch.testing.assert_close(found.weights[:, :, :12].sum(-1), torch.ones(2, 2, 12))
