"""Numeric options at the ends of their ranges: what is accepted stays finite over a step."""

import dataclasses
import math
import types
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
import torch
from torch import nn

import zoo
from zoo import registry
from zoo.data.spec import ImageSpec, PointSpec, TextClassificationSpec, TextSpec
from zoo.data.synthetic.flipflop import SYMBOLS
from zoo.errors import OptionError, ZooError
from zoo.options import Between
from zoo.options.signature import fields, read_options
from zoo.options.validation import MAX_FLOAT32, check_options

MOST = 64
"""Larger integers would be built in earnest."""


def list_ends(annotation):
    """Yield the values at the ends of all ranges of an annotation, as plain data."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for bounds in (mark for mark in arguments[1:] if isinstance(mark, Between)):
            numbers = [bounds.low, min(bounds.high, MAX_FLOAT32)]
            if arguments[0] is int:
                numbers = [int(number) for number in numbers if abs(number) <= MOST]
            yield from numbers
            return
        yield from list_ends(arguments[0])
    elif origin in (Union, types.UnionType):
        for member in arguments:
            yield from list_ends(member)
    elif origin is tuple:
        yield from ([end] for end in list_ends(arguments[0]))
    elif dataclasses.is_dataclass(annotation):
        options = fields(annotation)
        needed = {
            name: choose_usual(option.annotation)
            for name, option in options.items()
            if option.is_required
        }
        for name, option in options.items():
            yield from ({**needed, name: end} for end in list_ends(option.annotation))
    elif annotation is float:
        yield from (-MAX_FLOAT32, 0.0, MAX_FLOAT32)


def choose_usual(annotation):
    """Return some value of a required field."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)[0]
    if annotation is str:
        return "*"
    return max(next(iter(list_ends(annotation))), 2.0)


def list_changes(kind, name):
    """Yield one changed option of a member, typed, for each end that its annotation accepts."""
    schema = read_options(kind, name)
    for key, option in schema.items():
        for end in list_ends(option.annotation):
            try:
                yield check_options(schema, {key: end})
            except OptionError as error:
                assert key in str(error)  # noqa: PT017


def is_finite(*tensors):
    return all(tensor.isfinite().all() for tensor in tensors if tensor.is_floating_point())


def test_ends_are_found():
    bounded = Annotated[float, Between(1, 2)]
    assert [*list_ends(bounded | None)] == [1, 2]
    assert [*list_ends(tuple[bounded, ...])] == [[1], [2]]
    assert [*list_ends(Annotated[int, Between(3)])] == [3]
    assert {"base", "scaling"} <= {
        key for change in list_changes("encodings", "rope") for key in change
    }
    assert len([*list_changes("optim", "adamw")]) > 10


class Small(nn.Module):
    """A model with a matrix that Muon trains, and a table that gets gradients of 0."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.head = nn.Linear(4, 2)
        self.table = nn.Embedding(5, 4)

    def forward(self, x):
        return self.head(self.blocks[0](x)) + self.table.weight[0].sum()


@pytest.mark.parametrize("name", registry.names("optim"))
def test_optimizers(name):
    cls = registry.find("optim", name)
    for change in [{}, *list_changes("optim", name)]:
        momentum = {"momentum": 0.9} if "dampening" in change else {}
        try:
            settings = cls(**{"lr": 1e-3, **momentum, **change})
            model = Small()
            optimizer = settings.configure(model, 10)["optimizer"]
        except OptionError:
            continue
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
        assert is_finite(*model.parameters()), change


@pytest.mark.parametrize("name", registry.names("schedules"))
def test_schedules(name):
    for change in list_changes("schedules", name):
        try:
            optimizer = registry.find("optim", "adamw")(
                lr=1.0, schedule=zoo.options.Choice(name, change)
            )
        except OptionError:
            continue
        factors = [optimizer.lr_factor(step, 10) for step in range(11)]
        assert all(map(math.isfinite, factors)), change


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_encodings(name):
    grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(4.0))
    for axes, length, pos in ((1, 12, torch.arange(12.0)[:, None]), (2, (3, 4), grid)):
        dims = zoo.Dims(32, heads=2, axes=axes, length=length)
        for change in list_changes("encodings", name):
            torch.manual_seed(0)
            try:
                encoding = zoo.encoding({"name": name, **change}, dims)
                heads = [torch.randn(1, 2, 12, 16, requires_grad=True) for _ in range(3)]
                x = torch.randn(1, 12, 32)
                out = zoo.functional.attend(encoding, *heads, pos, x=x, causal=axes == 1)
            except OptionError:
                continue
            out.square().mean().backward()
            weights = [*encoding.parameters()]
            torch.optim.SGD([*weights, *heads], 1e-3).step()
            assert is_finite(out, *weights, *heads), (axes, change)


SPECS = {
    "vit": ImageSpec(1, 8, 8, classes=3),
    "decoder": TextSpec(8, SYMBOLS),
    "encoder": TextClassificationSpec(8, SYMBOLS, 3),
    "point_encoder": PointSpec(2, 1, 8, classes=3),
}
SMALL = {"dim": 16, "heads": 2, "depth": 1}


def make_inputs(spec):
    if isinstance(spec, PointSpec):
        return torch.randn(2, 8, 2), torch.randn(2, 8, 1), torch.ones(2, 8, dtype=torch.bool)
    if isinstance(spec, ImageSpec):
        return (torch.randn(2, 1, 8, 8),)
    return (torch.randint(len(SYMBOLS), (2, 8)),)


@pytest.mark.parametrize("name", SPECS)
def test_models(name):
    cls, spec = registry.find("models", name), SPECS[name]
    small = SMALL | ({"patch_size": 4} if name == "vit" else {})
    encoding = zoo.run.build.build_factories({"encoding": (zoo.options.Choice("none"),)})
    for change in [{}, *list_changes("models", name)]:
        torch.manual_seed(0)
        try:
            model = cls(spec, **{**encoding, **small, **change})
        except OptionError:
            continue
        out = model(*make_inputs(spec))
        out.square().mean().backward()
        torch.optim.SGD(model.parameters(), 1e-3).step()
        assert is_finite(out, *model.parameters()), change


def test_all_models_are_here():
    # the others are libraries, whose options are their own
    assert {*registry.names("models")} - {"timm", "transformers"} == {*SPECS}


FEW = {"train": 8, "val": 8, "test": 8}


@pytest.mark.parametrize("name", registry.names("data"))
def test_sources_that_make_samples(name):
    schema = read_options("data", name)
    if "path" in schema or "files" in schema or name in ("python_docs", "torch_dataset"):
        return  # these read samples, and have options of reading
    few = {key: 8 for key in FEW if schema.get(key) and schema[key].annotation is not float}
    for change in list_changes("data", name):
        try:
            data = registry.find("data", name)(0, **{**few, **change})
            data.setup("fit")
            batch = next(iter(data.build_loader("train")))
        except (ZooError, OptionError):
            continue
        assert is_finite(*(values for values in batch if isinstance(values, torch.Tensor))), change
