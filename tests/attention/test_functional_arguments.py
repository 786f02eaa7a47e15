"""Arguments at the edge of the Python API are right, or an OptionError names the one that is not."""

import pytest
import torch

import zoo
from zoo import Dims
from zoo.errors import OptionError

pytestmark = pytest.mark.robustness

NAMES = [name for name in zoo.encoding_names() if name != "dape"]  # which adapts the bias of others
BACKENDS = ("auto", "reference", "chunked", "sdpa", "flex")
EMPTY = [(0, 8, 8), (2, 0, 0), (2, 8, 0), (0, 8, 1)]  # samples, keys, queries
B, H, M, K = 2, 4, 8, 16


def build(name, axes=1):
    length = (2, 4) if axes == 2 else M
    return zoo.encoding(name, Dims(H * K, heads=H, axes=axes, length=length))


@pytest.mark.parametrize("name", NAMES)
def test_empty_batches_give_empty_results(name):
    encoding = build(name, axes=min(zoo.encoding_class(name).axes))
    axes, causal = encoding.dims.axes, encoding.causal_only
    for batch, keys, queries in EMPTY:
        q, k = torch.randn(batch, H, queries, K), torch.randn(batch, H, keys, K)
        pos, x = torch.zeros(keys, axes), torch.randn(batch, keys, H * K)
        options = {"x": x, "causal": causal}
        for backend in BACKENDS:
            try:
                out = zoo.functional.attend(encoding, q, k, k, pos, backend=backend, **options)
            except OptionError:
                # a fused kernel that could not compute a full batch either
                assert backend in ("sdpa", "flex")
                continue
            assert out.shape == q.shape
            if out.requires_grad:
                out.sum().backward()
        assert zoo.functional.scores(encoding, q, k, pos, **options).shape == (
            batch,
            H,
            queries,
            keys,
        )
        assert zoo.functional.weights(encoding, q, k, pos, **options).shape == (
            batch,
            H,
            queries,
            keys,
        )
        assert zoo.functional.embed(encoding, x, pos).shape == x.shape


@pytest.mark.parametrize("name", NAMES)
def test_empty_batches_of_shared_heads_give_empty_results(name):
    try:
        encoding = zoo.encoding(name, Dims(H * K, heads=H, kv_heads=1, length=M))
    except OptionError:
        pytest.skip("refuses shared heads")
    for batch, keys, queries in EMPTY:
        q, k = torch.randn(batch, H, queries, K), torch.randn(batch, 1, keys, K)
        options = {"x": torch.randn(batch, keys, H * K), "causal": encoding.causal_only}
        out = zoo.functional.attend(encoding, q, k, k, torch.zeros(keys, 1), **options)
        assert out.shape == q.shape


@pytest.mark.parametrize("name", ["alibi", "rope", "comrope_ld"])
def test_layers_take_empty_batches(name):
    layer = zoo.Attention(Dims(H * K, heads=H, axes=1, length=M), name)
    for shape in ((0, M, H * K), (2, 0, H * K)):
        x = torch.randn(shape)
        assert layer(x, torch.zeros(shape[1], 1)).shape == shape


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        None,
        3,
        [None],
        [{}],
        [[]],
        {"nam": "rope"},
        {"name": None},
        {"name": 3},
        {"name": ["rope"]},
    ],
    ids=str,
)
def test_what_is_no_name_of_an_encoding_is_named(wrong):
    with pytest.raises(OptionError) as refused:
        zoo.encoding(wrong, Dims(32, heads=2))
    assert refused.value.key == "name"


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: zoo.encoding("rope", None), "dims"),
        (lambda: zoo.encoding({"name": "rope", "options": 3}, Dims(32, heads=2)), "options"),
        (lambda: zoo.encoding("rope", Dims(32, heads=2), base="x"), "base"),
        (lambda: zoo.encoding_class(None), "name"),
    ],
)
def test_other_arguments_of_an_encoding_are_named(make, key):
    with pytest.raises(OptionError) as refused:
        make()
    assert refused.value.key == key


WRONG = {
    "pos": [
        torch.zeros(M - 1, 1),
        torch.zeros(M + 1, 1),
        torch.zeros(3, M, 1),
        torch.zeros(1, 1),
        torch.zeros(1, 1, M, 1),
        torch.zeros(M, 1).cfloat(),
        None,
        [[0.0]] * M,
    ],
    "has_position": [
        torch.ones(M - 1).bool(),
        torch.ones(3, M).bool(),
        torch.ones(1).bool(),
        torch.ones(M),
        torch.ones(M).long(),
    ],
    "q": [
        torch.zeros(B, H, M + 1, K),
        torch.zeros(3, H, M, K),
        torch.zeros(B, H, M, K + 2),
        None,
        torch.zeros(B, 3, M, K),
        torch.zeros(H, M, K),
        torch.zeros(B, H, M, K).long(),
    ],
    "k": [torch.zeros(B, H, M, K + 2), torch.zeros(H, M, K), torch.zeros(B, H, M, K).double()],
    "v": [torch.zeros(B, H, M - 1, K), torch.zeros(1, H, M, K), torch.zeros(B, H, M, K).double()],
    "x": [torch.zeros(B, M - 1, H * K), torch.zeros(3, M, H * K), torch.zeros(B, M, 31)],
}


def arguments(**changed):
    heads = torch.randn(B, H, M, K)
    pos, x = torch.arange(M)[:, None].float(), torch.randn(B, M, H * K)
    return {"q": heads, "k": heads, "v": heads, "pos": pos, "x": x, **changed}


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "fox", "learned"])
def test_arguments_of_wrong_sizes_and_types_are_named(name):
    encoding = build(name)
    for key, values in WRONG.items():
        for value in values:
            with pytest.raises(OptionError) as refused:
                zoo.functional.attend(
                    encoding, **arguments(**{key: value}), causal=encoding.causal_only
                )
            assert refused.value.key == key, value


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_other_precision_are_right_or_named(name):
    encoding = build(name, axes=min(zoo.encoding_class(name).axes))
    pos = torch.zeros(M, encoding.dims.axes)
    usual = arguments(pos=pos)
    expected = zoo.functional.attend(encoding, **usual, causal=encoding.causal_only)
    wide = {key: value.double() for key, value in usual.items()}
    for key, changed in {
        "pos": usual | {"pos": pos.double()},
        "x": usual | {"x": wide["x"]},
        "q": wide,
    }.items():
        out, refused = None, None
        try:
            out = zoo.functional.attend(encoding, **changed, causal=encoding.causal_only)
        except OptionError as error:
            refused = error
        if refused is not None:
            assert refused.key == key
            assert "convert either" in str(refused)
        else:
            assert out.dtype == changed["q"].dtype
            torch.testing.assert_close(out.float(), expected, atol=1e-5, rtol=1e-4)


def test_arguments_of_a_layer_are_named():
    layer = zoo.Attention(Dims(H * K, heads=H), "rope")
    x = torch.randn(B, M, H * K)
    wrong = {
        "document": [torch.zeros(M - 1).long(), torch.zeros(3, M).long(), torch.zeros(M)],
        "has_position": [torch.ones(M - 1).bool(), torch.ones(M)],
        "pos": [torch.zeros(M - 1, 1), torch.zeros(3, M, 1)],
        "x": [x[0], x[..., :5], x.double()],
    }
    for key, values in wrong.items():
        for value in values:
            with pytest.raises(OptionError) as refused:
                layer(**({"x": x} | {key: value}))
            assert refused.value.key == key
