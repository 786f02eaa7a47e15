"""Weights in shards: two processes that have one model between them."""

import copy
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from language import SAMPLES
from several import run
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import zoo
from zoo.attention.chain import make_factory
from zoo.attention.mixer import make_mixer_factory
from zoo.config.command_line import parse_overrides
from zoo.data.spec import ImageSpec
from zoo.errors import OptionError
from zoo.models.decoder import Decoder
from zoo.models.vit import ViT
from zoo.options import Choice
from zoo.run.build import silence_libraries
from zoo.tasks.sharding import Sharding, shard

STEPS = 10
KINDS = ("comrope_ld", "fox", "learned", "shaw", "tupe")
"""Encodings with matrices, gates, a table, vectors by distance, and projections."""


def losses(encoding, rank=0, mesh=None):
    """Of ten steps on batches of eight, in all processes; each of two takes a half."""
    torch.manual_seed(0)
    small = [
        "model.dim=16",
        "model.depth=2",
        "model.heads=2",
        "model.position_augmentation.jitter=0",
        "model.block.drop_path=0",
    ]
    model = zoo.build_model(
        zoo.load_recipe("vit_comrope", parse_overrides([*small, f"model.encoding={encoding}"]))
    )
    if mesh is not None:
        shard(model, mesh)
        assert all(isinstance(weight, DTensor) for weight in model.parameters())
    optimizer, draw = (
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        torch.Generator().manual_seed(1),
    )
    own, found = slice(None) if mesh is None else slice(rank * 4, rank * 4 + 4), []
    for _ in range(STEPS):
        images, labels = (
            torch.randn(8, 1, 16, 16, generator=draw),
            torch.randint(10, (8,), generator=draw),
        )
        loss = F.cross_entropy(model(images[own]), labels[own])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return torch.stack(found)


@pytest.mark.parametrize(
    "encoding", ["comrope_ld", pytest.param("[learned, rope_axial]", marks=pytest.mark.nightly)]
)
def test_ten_steps_lose_what_the_plain_model_does(encoding, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = losses(encoding)

    def work(rank):
        distributed.init_process_group("gloo", rank=rank, world_size=2)
        found = losses(encoding, rank, init_device_mesh("cpu", (2,)))
        distributed.all_reduce(found)
        torch.testing.assert_close(found / 2, plain, atol=1e-6, rtol=1e-6)

    assert run(2, work) == [0, 0], Path("rank-0.log").read_text()


MIXERS = {
    "gated_delta": {"heads": 4},
    "gated_delta by channel": {"heads": 4, "decay": "channel"},
    "short_conv": {},
    "linear": {},
}
"""Options of mixers, which a layer of a hybrid has in place of attention."""


class Slope(zoo.Encoding):
    """An encoding of a user: distances times one number, a parameter without dimensions."""

    def __init__(self, dims):
        super().__init__(dims)
        self.slope = torch.nn.Parameter(torch.tensor(-0.1))

    def modify(self, call):
        return call.add_bias(lambda b, h, i, j: self.slope * call.distance(b, i, j))


def build_small(name):
    """Build a decoder with an encoding, or a ViT if it has no causal mask or sequences.

    With the name of a mixer it is a hybrid of the mixer and attention.
    """
    torch.manual_seed(0)
    if name in MIXERS:
        mixer = make_mixer_factory(Choice(name.split()[0], MIXERS[name]))
        sizes = {"dim": 64, "depth": 2, "heads": 4, "layer_pattern": ("mixed", "full")}
        sizes |= {"layer_types": {"mixed": {"mixer": mixer}, "full": {}}}
        rope = {"rope": make_factory(Choice("rope"))}
        return Decoder(SAMPLES, **sizes, encoding=rope), torch.randint(11, (4, 12))
    if name == "slope":
        encoding = {name: Slope}
    else:
        consumes = zoo.encoding_class(name).consumes_biases
        chain = ["alibi", name] if consumes else [name]
        encoding = {one: make_factory(Choice(one)) for one in chain}
    sizes = {"dim": 64, "depth": 1, "heads": 4, "encoding": encoding}
    try:
        return Decoder(SAMPLES, **sizes), torch.randint(11, (4, 12))
    except OptionError:
        spec = ImageSpec(channels=1, height=6, width=6, classes=3)
        return ViT(spec, patch_size=2, **sizes), torch.randn(4, 1, 6, 6)


def gather(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def step_once(model, x):
    """Train for a step; return output, gradients and weights afterwards, each of them whole."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    out = model(x)
    out.square().mean().backward()
    # gathering is collective, so every process takes the names in the same order
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    found = {"norm": gather(norm)}
    weights = dict(model.named_parameters())
    for name, weight in weights.items():
        if weight.grad is not None:
            found[f"gradient of {name}"] = gather(weight.grad)
    optimizer.step()
    return out.detach(), found | {name: gather(weight.detach()) for name, weight in weights.items()}


def compare_step(name, rank, mesh):
    """Assert that a sharded step of a model is a step of the whole model."""
    plain, x = build_small(name)
    sharded, own = copy.deepcopy(plain), slice(2 * rank, 2 * rank + 2)
    expected_out, expected = step_once(plain.eval(), x)
    shard(sharded, mesh)
    assert all(isinstance(weight, DTensor) for weight in sharded.parameters())
    assert [*sharded.state_dict()] == [*plain.state_dict()]
    out, found = step_once(sharded.eval(), x[own])
    torch.testing.assert_close(out, expected_out[own], atol=1e-5, rtol=1e-5)
    assert found.keys() == expected.keys()
    for key, value in found.items():
        assert value.shape == expected[key].shape, key
        torch.testing.assert_close(
            value, expected[key], atol=1e-5, rtol=1e-4, msg=lambda text, key=key: f"{key}: {text}"
        )


def count_bytes(tensors):
    local = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
    return sum(one.numel() * one.element_size() for one in local)


def check_bytes(mesh):
    """Assert what docs/scale.md says of a process: 16 P / W bytes, where dimensions are even."""
    model, x = build_small("rope")
    shard(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).square().mean().backward()
    optimizer.step()
    weights = [*model.parameters()]
    moments = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
    size = sum(weight.numel() for weight in weights)
    total = count_bytes([*weights, *(weight.grad for weight in weights), *moments])
    assert total == pytest.approx(16 * size / 2, rel=0.01)


def check_dtypes(mesh, *, reshard_after_forward):
    """Assert that weights of blocks travel as bfloat16, and numbers of encodings as float32."""
    model, x = build_small("fire")
    shard(model, mesh, Sharding(torch.bfloat16, reshard_after_forward))
    seen = {}

    def note(block, *_):
        seen.update({name: weight.dtype for name, weight in block.named_parameters()})

    for block in model.blocks:
        block.norm1.register_forward_hook(lambda *_, block=block: note(block))
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    is_whole = [not isinstance(weight, DTensor) for weight in model.blocks[0].parameters()]
    assert all(is_whole) is not reshard_after_forward
    assert all(weight.dtype == torch.float32 for weight in model.encoding.parameters())
    out.float().square().mean().backward()
    assert set(seen.values()) == {torch.bfloat16}
    assert all(weight.grad.dtype == torch.float32 for weight in model.parameters())


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["kinds", "every"]
)
def test_a_sharded_step_of_every_encoding_is_a_step_of_the_whole_model(
    every, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def work(rank):
        distributed.init_process_group("gloo", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        warnings.simplefilter("error")
        silence_libraries()
        failed = {}
        # texts and images have one axis and two; mrope, which takes three, rotates as rope does
        names = [one for one in zoo.encoding_names() if {1, 2} & {*zoo.encoding_class(one).axes}]
        for name in [*(names if every else KINDS), "slope", *MIXERS]:
            try:
                compare_step(name, rank, mesh)
            except Exception as error:
                failed[name] = "".join(traceback.format_exception(error)[-3:])
        check_bytes(mesh)
        check_dtypes(mesh, reshard_after_forward=True)
        check_dtypes(mesh, reshard_after_forward=False)
        assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())

    assert run(2, work) == [0, 0], Path("rank-0.log").read_text()
