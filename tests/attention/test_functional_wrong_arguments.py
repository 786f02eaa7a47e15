"""Whatever a user passes to the layer, the functions, masks and memories is computed or refused.

Each argument is replaced by values of a wrong type, shape, batch, device and dtype in turn. The
error names the argument; torch's own errors never reach the user, and nothing is computed silently.
"""

import inspect
from functools import partial

import pytest
import torch

import zoo
import zoo.functional as F
from zoo.errors import OptionError
from zoo.registry import names

B, N, DIM, HEADS = 2, 5, 32, 4
WRONG_SCALARS = ["no", 1.5, None, 0, -1, [1]]


def make_encoding(name):
    cls = zoo.encoding_class(name)
    axes = 1 if 1 in cls.axes else min(cls.axes)
    length = 8 if axes == 1 else (2, 4) if axes == 2 else (2,) * axes
    # dape changes the biases of an encoding before it
    entry = ["alibi", "dape"] if name == "dape" else name
    return zoo.encoding(entry, zoo.Dims(DIM, HEADS, axes, length, depth=1))


def make_arguments(encoding):
    axes, count = encoding.dims.axes, N
    heads = partial(torch.randn, B, HEADS, count, DIM // HEADS)
    pos = torch.arange(float(count))[:, None].expand(count, axes).contiguous() * 0 + torch.tensor(
        [[float(n % 4)] * axes for n in range(count)]
    )
    return {"q": heads(), "k": heads(), "v": heads(), "pos": pos, "x": torch.randn(B, count, DIM)}


def list_wrong(value):
    """Yield (what is wrong, value) for a tensor with one token for each row of its axis -2."""
    yield "type", "no"
    yield "none", None
    yield "device", value.to("meta")
    yield "dtype", value.to(torch.complex64)
    yield "axes", value[..., None]
    yield "shorter", value.narrow(-2, 0, value.shape[-2] - 1)
    yield "channels", value[..., :-1] if value.shape[-1] > 1 else torch.cat([value] * 2, -1)
    yield "empty", value.narrow(-2, 0, 0)
    if value.dim() > 2:
        yield "batch", torch.cat([value, value[:1]])


def expect_refusal(call, key, label):
    with pytest.raises(OptionError) as caught:
        pytest.fail(f"{label}: {key} is not refused, result {call()!r:.80}")
    assert key in f"{caught.value.key} {caught.value}", f"{label}: {caught.value}"


@pytest.mark.parametrize("name", names("encodings"))
def test_functions_refuse_wrong_tensors(name):
    encoding = make_encoding(name)
    given = make_arguments(encoding)
    causal = encoding.causal_only
    functions = {
        "attend": partial(F.attend, encoding, causal=causal),
        "scores": partial(F.scores, encoding, causal=causal),
        "weights": partial(F.weights, encoding, causal=causal),
        "embed": partial(F.embed, encoding),
    }
    for label, function in functions.items():
        known = inspect.signature(function).parameters
        arguments = {key: value for key, value in given.items() if key in known}
        function(**arguments)  # right as it is
        for key, value in arguments.items():
            for fault, wrong in list_wrong(value):
                # fewer queries than keys, values of another width, and optional states are right
                right = {("x", "none"), ("q", "shorter"), ("q", "empty"), ("v", "channels")}
                # positions [N, P] are those of any batch
                right = {("x", "batch")} if label == "embed" else right
                if (key, fault) in right:
                    continue
                # keys and states decide the numbers that others are compared with
                is_leading = key in ("k", "x") and fault in ("shorter", "batch", "empty")
                named = "" if is_leading else key
                expect_refusal(
                    partial(function, **{**arguments, key: wrong}), named, f"{label} {key} {fault}"
                )


@pytest.mark.parametrize("name", names("encodings"))
@pytest.mark.parametrize("coordinate", [float("nan"), float("inf"), 1e30])
def test_coordinates_that_are_no_positions_have_one_message(name, coordinate):
    encoding = make_encoding(name)
    given = make_arguments(encoding)
    given["pos"][1, 0] = coordinate
    with pytest.raises(OptionError, match=r"^pos has the coordinate .* not a finite number up to"):
        F.attend(encoding, **given, causal=encoding.causal_only)
    layer = zoo.Attention(encoding.dims, encoding, causal=encoding.causal_only)
    with pytest.raises(OptionError, match=r"^pos has the coordinate"):
        layer(given["x"], given["pos"])


@pytest.mark.parametrize("name", names("encodings"))
def test_the_layer_refuses_wrong_tensors(name):
    encoding = make_encoding(name)
    given = make_arguments(encoding)
    layer = zoo.Attention(encoding.dims, encoding, causal=encoding.causal_only)
    x, pos = given["x"], given["pos"]
    layer(x, pos)
    for fault, wrong in list_wrong(x):
        named = "" if fault in ("shorter", "batch", "empty") else "x"
        if fault != "batch":  # positions [N, P] are those of any batch
            expect_refusal(partial(layer, wrong, pos), named, f"x {fault}")
    for fault, wrong in list_wrong(pos):
        if fault != "none":
            expect_refusal(partial(layer, x, wrong), "pos", f"pos {fault}")
    for key, right in (
        ("has_position", torch.ones(N, dtype=torch.bool)),
        ("document", torch.zeros(N, dtype=torch.long)),
    ):
        for wrong in (
            "no",
            right.to("meta"),
            right.float(),
            right[:-1],
            right[:0],
            right.expand(B + 1, N),
            right.to(torch.uint64),
        ):
            expect_refusal(partial(layer, x, pos, **{key: wrong}), key, f"{key} {wrong!r:.40}")


@pytest.mark.parametrize("name", names("encodings"))
@pytest.mark.parametrize("backend", ["auto", "reference", "chunked"])
def test_packed_documents_are_computed_as_each_alone(name, backend):
    encoding = make_encoding(name).double()
    given = make_arguments(encoding)
    given["pos"][2:] = given["pos"][:3].clone()
    given = {key: value.double() for key, value in given.items()}
    attend = partial(F.attend, encoding, causal=encoding.causal_only, backend=backend)
    parts = [slice(0, 2), slice(2, N)]
    alone = [attend(**{key: value[..., part, :] for key, value in given.items()}) for part in parts]
    document = torch.tensor([0, 0, 1, 1, 1])
    packed = attend(**given, document=document)
    torch.testing.assert_close(packed, torch.cat(alone, -2), atol=1e-9, rtol=1e-9)
    heads = {key: value for key, value in given.items() if key != "v"}
    options = {"causal": encoding.causal_only, "document": document}
    weights = F.weights(encoding, **heads, **options)
    for part in parts:
        own = {key: value[..., part, :] for key, value in heads.items()}
        expected = F.weights(encoding, **own, causal=encoding.causal_only)
        torch.testing.assert_close(weights[..., part, part], expected, atol=1e-9, rtol=1e-9)
    hidden = (F.scores(encoding, **heads, **options) == -torch.inf)[0, 0]
    assert hidden[:2, 2:].all()
    assert hidden[2:, :2].all()


@pytest.mark.parametrize("wrong", [[0] * N, torch.zeros(N), torch.zeros(N - 1).long()], ids=str)
def test_functions_refuse_wrong_documents(wrong):
    given = make_arguments(make_encoding("rope"))
    expect_refusal(
        partial(F.attend, make_encoding("rope"), **given, document=wrong), "document", ""
    )


@pytest.mark.parametrize("name", names("encodings"))
@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_without_tokens_returns_none(name, causal):
    encoding = make_encoding(name)
    if encoding.dims.axes > 1 or (encoding.causal_only and not causal):
        return
    if encoding.needs_full_sequence or (causal and encoding.coordinates != "index"):
        return
    layer = zoo.Attention(encoding.dims, encoding, causal=causal)
    empty, document = torch.zeros(B, 0, DIM), torch.zeros(B, 0, dtype=torch.long)
    assert layer(empty).shape == layer(empty, document=document).shape == empty.shape
    if causal:
        assert layer(empty, context=zoo.KeyValueCache()).shape == empty.shape


@pytest.mark.parametrize("name", ["rope", "t5", "fire", "none"])
def test_documents_that_are_apart_are_refused_where_positions_restart(name):
    encoding = make_encoding(name)
    layer, x = zoo.Attention(encoding.dims, encoding, causal=True), torch.randn(B, N, DIM)
    layer(x, document=torch.tensor([0, 0, -1, 0, 1]))  # padding is no other document
    with pytest.raises(OptionError, match=r"document are apart, .*pass pos"):
        layer(x, document=torch.tensor([0, 1, 0, 1, 1]))
    # with positions, numbers only tell what is visible
    layer(x, torch.arange(float(N))[:, None], document=torch.tensor([0, 1, 0, 1, 1]))


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        *(("keys", value) for value in ("no", 1.5, None, 0, -1, True)),
        *(("queries", value) for value in ("no", 1.5, 0, -1, True, N + 1)),
        *(("window", value) for value in ("no", 1.5, 0, -1, True)),
        *(("causal", value) for value in ("no", 1, None)),
        ("document", "no"),
        ("document", torch.zeros(N)),
        ("document", torch.zeros(N + 3, dtype=torch.long)),
        ("document", torch.zeros(N - 1, dtype=torch.long)),
        ("document", torch.zeros(N, dtype=torch.uint64)),
        ("document", torch.zeros(N, dtype=torch.long, device="meta")),
    ],
    ids=lambda value: f"{value!r:.30}",
)
def test_block_masks_refuse_wrong_arguments(key, wrong):
    given = {"keys": N, "document": torch.zeros(B, N, dtype=torch.long)}
    F.block_mask(**given)
    expect_refusal(partial(F.block_mask, **{**given, key: wrong}), key, "block_mask")


@pytest.mark.parametrize("key", ["causal", "sinks"])
@pytest.mark.parametrize("wrong", ["no", 1, None])
def test_switches_are_true_or_false(key, wrong):
    dims = zoo.Dims(DIM, HEADS)
    expect_refusal(partial(zoo.Attention, dims, "rope", **{key: wrong}), key, "Attention")
    if key == "causal":
        encoding = make_encoding("rope")
        for function in (F.attend, F.scores, F.weights):
            known = inspect.signature(function).parameters
            given = {k: v for k, v in make_arguments(encoding).items() if k in known}
            expect_refusal(partial(function, encoding, **given, causal=wrong), key, "causal")


def list_memories():
    for kind in ("softmax", "linear"):
        yield f"cache-{kind}", zoo.KeyValueCache, kind
    yield "segment", partial(zoo.SegmentMemory, 4), "softmax"


@pytest.mark.parametrize(("make", "kind"), [(m, k) for _, m, k in list_memories()])
def test_memories_refuse_calls_that_they_do_not_continue(make, kind):
    changes = {"model.dim": DIM, "model.depth": 1, "model.heads": HEADS, "data.length": 8}
    if kind == "linear":
        changes["model.layer_types"] = {"linear": {"mixer": "linear"}}
        changes["model.layer_pattern"] = ["linear"]
    model = zoo.build_model(zoo.load_recipe("lm_rope", changes)).eval()
    tokens = torch.zeros(B, 3, dtype=torch.long)
    with torch.no_grad():
        memory = make()
        model(tokens, context=memory)
        with pytest.raises(OptionError, match="context holds 2 rows, and this call has 1"):
            model(tokens[:1], context=memory)

        memory = make()
        model(tokens, context=memory)
        for wrong in ("no", torch.zeros(1), torch.tensor(0), torch.tensor([2]), torch.tensor([-1])):
            expect_refusal(partial(memory.reorder, wrong), "rows", "reorder")
        expect_refusal(
            partial(memory.reorder, torch.zeros(1, dtype=torch.long, device="meta")),
            "rows",
            "reorder",
        )
        memory.reorder(torch.tensor([1]))
        model(tokens[:1], context=memory)

        # one row continues in all
        memory = make()
        model(tokens[:1], context=memory)
        assert len(model(tokens, context=memory)) == B


@pytest.mark.parametrize("length", ["no", -1, 1.5, True, None])
def test_the_length_of_a_memory_is_a_count(length):
    expect_refusal(partial(zoo.SegmentMemory, length), "length", "SegmentMemory")
