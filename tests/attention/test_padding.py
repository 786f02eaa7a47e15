"""Padding and documents: a masked token changes nothing, wherever it stands."""

import pytest
import torch
from parts import KINDS, mark_others

import zoo
from zoo.attention.chain import Chain
from zoo.attention.tokens import document_positions
from zoo.encodings.common.chains import build_shortest_chain

LENGTH = 12
DIMS = zoo.Dims(32, heads=4, length=LENGTH, kv_heads=2, depth=2)
# Documents of twelve tokens: padding on the left, on the right, inside, twice inside, and packed.
ROWS = {
    "left": [-1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "right": [0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1],
    "inner": [0, 0, 0, 0, -1, -1, -1, -1, 0, 0, 0, 0],
    "scattered": [-1, 0, -1, 0, 0, -1, -1, 0, 0, -1, 0, 0],
    "packed": [0, 0, 0, 0, 0, 1, 1, 1, 1, -1, -1, -1],
    "packed with inner padding": [0, 0, -1, 0, 0, -1, 1, 1, -1, -1, 1, 1],
}
HARDEST = "packed with inner padding"

CAUSAL = [one for one in zoo.encoding_names() if 1 in zoo.encoding_class(one).axes]
BIDIRECTIONAL = [one for one in CAUSAL if not zoo.encoding_class(one).causal_only]


def make_layer(name, causal=True):
    """Make a layer with one encoding for text, whose parameters are off their initial values."""
    cls = zoo.encoding_class(name)
    # these two refuse heads that share a key
    shares = name not in ("repo", "tape")
    dims = DIMS if shares else zoo.Dims(32, heads=4, length=LENGTH, depth=2)
    torch.manual_seed(0)
    choices = build_shortest_chain(cls)
    # Index coordinates, so that a causal model knows them.
    entries = [{"name": one.name, "coordinates": "index"} for one in choices]
    layer = zoo.Attention(dims, entries, causal=causal).double().eval()
    with torch.no_grad():
        for parameter in layer.encoding.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def compute_alone(layer, x, documents):
    """Compute each document without padding, and put the results in the places of its tokens."""
    out = torch.zeros_like(x)
    for number in sorted(set(documents.tolist()) - {-1}):
        own = documents == number
        out[:, own] = layer(x[:, own])
    return out


def list_pairs(names):
    """List encodings with rows; for every commit, each encoding has one row, and KINDS have all."""
    pairs = [mark_others(names, names if row == HARDEST else KINDS, row) for row in ROWS]
    return [pair for listed in pairs for pair in listed]


@torch.no_grad()
@pytest.mark.parametrize("cached", [False, True], ids=["one pass", "cached"])
@pytest.mark.parametrize(("name", "row"), list_pairs(CAUSAL))
def test_a_masked_token_changes_nothing_in_a_causal_layer(name, row, cached):
    layer = make_layer(name)
    documents = torch.tensor(ROWS[row])
    x = torch.randn(2, LENGTH, 32, dtype=torch.double)
    right = compute_alone(layer, x, documents)
    positions = document_positions(documents[None])[0, :, None].double()
    # The second sample has no padding: rows of a batch differ.
    rows = torch.stack([documents, torch.zeros_like(documents)])
    places = torch.stack([positions, torch.arange(LENGTH)[:, None].double()])
    context = zoo.KeyValueCache() if cached else None
    steps = [slice(0, 5), slice(5, 9), slice(9, 10), slice(10, 12)] if cached else [slice(None)]
    found = torch.cat(
        [layer(x[:, n], places[:, n], document=rows[:, n], context=context) for n in steps], 1
    )
    kept = documents >= 0
    torch.testing.assert_close(found[0, kept], right[0, kept], atol=1e-10, rtol=0)
    torch.testing.assert_close(found[1], layer(x[1:])[0], atol=1e-10, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(("name", "row"), list_pairs(BIDIRECTIONAL))
def test_a_masked_token_changes_nothing_in_a_bidirectional_layer(name, row):
    layer = make_layer(name, causal=False)
    documents = torch.tensor(ROWS[row])
    x = torch.randn(2, LENGTH, 32, dtype=torch.double)
    found, kept = layer(x, document=documents), documents >= 0
    right = compute_alone(layer, x, documents)
    torch.testing.assert_close(found[:, kept], right[:, kept], atol=1e-10, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("cached", [False, True], ids=["one pass", "cached"])
def test_token_shift_passes_over_padding(row, cached):
    from zoo.attention.layer import LayerOptions, SelfAttention

    dims = zoo.Dims(32, heads=4, depth=1)
    layer = SelfAttention(dims, LayerOptions(token_shift=True), causal=True).double()
    chain = Chain(dims, {})
    documents = torch.tensor(ROWS[row])
    x = torch.randn(2, LENGTH, 32, dtype=torch.double)

    def compute(x, documents, context=None):
        pos = document_positions(documents[None])[0, :, None]
        tokens = zoo.attention.tokens.Tokens.at(x, pos, None, documents)
        return layer(tokens, chain, context or zoo.attention.layer.Context())[0].x

    right = compute_alone(lambda x: compute(x, torch.zeros(x.shape[1]).long()), x, documents)
    context = zoo.KeyValueCache() if cached else None
    steps = [slice(0, 5), slice(5, 9), slice(9, 10), slice(10, 12)] if cached else [slice(None)]
    found = torch.cat([compute(x[:, n], documents[n], context) for n in steps], 1)
    kept = documents >= 0
    torch.testing.assert_close(found[:, kept], right[:, kept], atol=1e-10, rtol=0)


def test_positions_pass_over_padding():
    documents = torch.tensor([[-1, 0, 0, -1, 0, 1, -1, 1, -1], [0, 0, 1, 1, 1, 2, 2, 2, 2]])
    right = torch.tensor([[0, 0, 1, 0, 2, 0, 0, 1, 0], [0, 1, 0, 1, 2, 0, 1, 2, 3]])
    assert torch.equal(document_positions(documents), right)
