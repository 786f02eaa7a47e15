"""Blocks computed again in the backward pass give the same gradients as blocks that are stored."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.attention.chain import make_factory
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError
from zoo.models.transformer import (
    GRAPHS_PER_BLOCK,
    STORED,
    Block,
    BlockOptions,
    Transformer,
    compile_blocks,
    enable_activation_checkpointing,
)
from zoo.options import Choice

CHAINS = [
    ["rope"],
    ["tape"],
    ["learned", "fox"],
    ["t5"],
    ["alibi", "dape"],
    ["stickbreaking"],
    ["shaw"],
]


class Stack(Transformer):
    forward = Transformer.run_blocks


def stack(names, **block):
    torch.manual_seed(0)
    links = {name: make_factory(Choice(name)) for name in names}
    options = BlockOptions(dropout=0.2, drop_path=0.2, **block)
    model = Stack(dim=16, heads=2, depth=3, encoding=links, block=options)
    model.add_blocks(axes=1, length=12, causal=True)
    return model.double().train()


def gradients(model, context=None, segments=1):
    torch.manual_seed(1)
    model.zero_grad()
    x = torch.randn(2, 12, 16, dtype=torch.float64, requires_grad=True)
    for segment in x.chunk(segments, dim=1) if segments > 1 else (x,):
        pos = torch.arange(segment.shape[1], dtype=torch.float64)[:, None]
        out = model(
            Tokens.at(segment, pos + (context.seen if context else 0), ordered=True), context
        ).x
        out.square().sum().backward(retain_graph=True)
    return [x.grad, *(p.grad for p in model.parameters())]


def equal(one, two):
    return len(one) == len(two) and all(
        a is b is None or torch.equal(a, b) for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("names", CHAINS, ids="+".join)
def test_gradients_are_those_of_stored_blocks(names, selective):
    model = stack(names)
    stored, keys = gradients(model), list(model.state_dict())
    enable_activation_checkpointing(model, selective=selective)
    assert equal(gradients(model), stored)
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize(
    "context", [lambda: SegmentMemory(6), KeyValueCache], ids=["memory", "cache"]
)
def test_what_a_block_remembers_is_as_it_was_the_first_time(context):
    model = stack(["tape"], token_shift=context is KeyValueCache)
    stored = gradients(model, context(), segments=3)
    enable_activation_checkpointing(model)
    assert equal(gradients(model, context(), segments=3), stored)


def test_memory_holds_the_same_after_a_pass():
    model, kept = stack(["rope"]), []
    for _ in range(2):
        memory = SegmentMemory(6)
        gradients(model, memory, segments=2)
        kept.append(memory.state_dict())
        enable_activation_checkpointing(model)
    assert kept[0]["seen"] == kept[1]["seen"] == 12
    for layer, tokens in kept[0]["layers"].items():
        assert torch.equal(tokens["x"], kept[1]["layers"][layer]["x"])


def test_each_block_is_computed_twice_in_training_alone(monkeypatch):
    calls = []
    forward = Block.forward
    monkeypatch.setattr(
        Block, "forward", lambda self, *given: (calls.append(self), forward(self, *given))[1]
    )
    model = stack(["rope"])
    enable_activation_checkpointing(model)
    gradients(model)
    assert len(calls) == 6
    gradients(model.eval())
    assert len(calls) == 9


class Products(TorchDispatchMode):
    """Counts the operations whose outputs selective checkpointing stores."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in STORED
        return function(*args, **(kwargs or {}))


def test_selective_checkpointing_computes_no_product_again(monkeypatch):
    model, counts, calls = stack(["rope"]), [], []
    forward = Block.forward
    monkeypatch.setattr(
        Block, "forward", lambda self, *given: (calls.append(self), forward(self, *given))[1]
    )
    for selective in (None, True, False):
        if selective is not None:
            enable_activation_checkpointing(model, selective=selective)
        with Products() as products:
            gradients(model)
        counts.append(products.count)
    stored, selective, whole = counts
    assert selective == stored < whole
    assert len(calls) == 3 + 6 + 6


@pytest.mark.nightly  # below, blocks are compiled one by one
@pytest.mark.parametrize("selective", [False, True])
def test_a_compiled_model_has_the_same_gradients(selective):
    model = stack(["rope"])
    stored = gradients(model)
    enable_activation_checkpointing(model, selective=selective)
    model.compile(backend="aot_eager", fullgraph=True)
    assert equal(gradients(model), stored)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, which it hides
def test_blocks_that_are_compiled_one_by_one_have_the_same_gradients():
    model = stack(["rope"])
    stored, graphs = gradients(model), []
    compile_blocks(model, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
    assert equal(gradients(model), stored)
    assert graphs
    # one graph more than torch allows by default would be computed uncompiled
    assert torch._dynamo.config.recompile_limit >= GRAPHS_PER_BLOCK * len(model.blocks)
    with pytest.raises(OptionError, match="no transformer blocks to compile; set it to true"):
        compile_blocks(torch.nn.Linear(2, 2))


def test_a_model_without_blocks_is_refused():
    with pytest.raises(OptionError, match="the model has no transformer blocks"):
        enable_activation_checkpointing(torch.nn.Linear(2, 2))
