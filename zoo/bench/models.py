"""zoo's own models, an encoding or a list of them each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo import registry
from zoo.api import Attention, make_factory
from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import SelfAttention
from zoo.bench.protocol import Contender, Setting
from zoo.data.spec import ImageSpec, TextSpec
from zoo.models.decoder import Decoder
from zoo.models.generation import sample_tokens
from zoo.models.vit import ViT
from zoo.registry import Choice

BIASED = Choice("alibi")  # stands before an encoding that takes up the biases of others


class NumberVocabulary:
    """A vocabulary of so many tokens that stand for nothing."""

    unit: Literal["token"] = "token"

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def to_dict(self) -> dict[str, str]:
        return {"count": str(self.count)}


def build_shortest_chain(
    cls: type[Encoding], options: Mapping[str, Any] | None = None
) -> list[Choice]:
    """The shortest list that an encoding can stand in."""
    choice = Choice(cls.name, options or {})
    return [BIASED, choice] if cls.consumes_biases else [choice]


def build_all_contenders() -> list[Contender]:
    """Each registered encoding in the shortest list that it can stand in."""
    return [
        build_contender(build_shortest_chain(registry.find("encodings", name)))
        for name in registry.names("encodings")
    ]


def build_contender(choices: Sequence[Choice]) -> Contender:
    """A model with these encodings, named after them."""

    def make(setting: Setting) -> nn.Module:
        return (
            _build_vit(setting, choices)
            if setting.shape.kind == "image"
            else _build_decoder(setting, choices)
        )

    def layer(setting: Setting) -> Attention:
        shape = setting.shape
        side = shape.length // shape.patch_size
        grid = (side, side) if shape.kind == "image" else (shape.length,)
        dims = Dims(
            shape.dim, shape.heads, len(grid), grid, depth=2
        )  # the last layer may have less to do
        return Attention(dims, choices, causal=shape.kind == "text")

    return Contender(
        name=format_chain(choices),
        make=make,
        generate=_generate,
        stream=_stream_tokens,
        plan=_find_plan,
        layer=layer,
    )


def format_chain(choices: Sequence[Choice]) -> str:
    """`kerple+dape`, `liere(block=8)`."""
    return "+".join(map(_format_choice, choices))


def _format_choice(choice: Choice) -> str:
    options = ",".join(f"{key}={value}" for key, value in choice.options.items())
    return f"{choice.name}({options})" if options else choice.name


def _build_vit(setting: Setting, choices: Sequence[Choice]) -> ViT:
    shape = setting.shape
    samples = ImageSpec(3, shape.length, shape.length, shape.outputs)
    return ViT(
        samples,
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        patch_size=shape.patch_size,
        pool="class",
        encoding={one.name: make_factory(one) for one in choices},
        position_augmentation=_build_augmentation(setting),
    )


def _build_augmentation(setting: Setting) -> PositionAugmentation:
    """What is done to places in training."""
    return PositionAugmentation(jitter=setting.jitter, per_sample=setting.jitter > 0)


def _build_decoder(setting: Setting, choices: Sequence[Choice]) -> Decoder:
    """A text has no end that is known before it is read: places are counted, whatever an encoding does elsewhere."""
    shape = setting.shape
    counted = {
        one.name: make_factory(Choice(one.name, {"coordinates": "index", **one.options}))
        for one in choices
    }
    return Decoder(
        TextSpec(shape.length, NumberVocabulary(shape.outputs)),
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        encoding=counted,
        position_augmentation=_build_augmentation(setting),
    )


def _stream_tokens(model: nn.Module, prompt: Tensor) -> Iterator[int]:
    return sample_tokens(
        model, prompt[0].tolist(), KeyValueCache(), torch.Generator(), temperature=0
    )


def _generate(model: nn.Module, prompt: Tensor, count: int) -> list[int]:
    return list(islice(_stream_tokens(model, prompt), count))


class _PlanFound(Exception):
    """What computes attention is known, and nothing has to be computed for it."""


def _find_plan(model: nn.Module, inputs: Tensor, device: str) -> str:
    """In the first layer."""

    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(layer, SelfAttention)
        tokens, chain, _ = arguments
        raise _PlanFound("{} ({})".format(*layer.plan(tokens, chain, device)))

    first = next(module for module in model.modules() if isinstance(module, SelfAttention))
    hook = first.register_forward_pre_hook(note)
    try:
        model(inputs)
    except _PlanFound as known:
        return str(known)
    finally:
        hook.remove()
    raise AssertionError("a model that does not run its first layer")
