"""zoo's own contenders: a ViT or a decoder, or one attention layer, with a chain of encodings."""

from __future__ import annotations

import logging
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
from zoo.bench.protocol import Contender, Setting, find_refusal
from zoo.config.command_line import parse_encodings
from zoo.config.tree import COMMAND_LINE
from zoo.data.spec import ImageSpec, TextSpec
from zoo.errors import ConfigIssue, RecipeError
from zoo.models.decoder import Decoder
from zoo.models.generation import sample_tokens
from zoo.models.vit import ViT
from zoo.registry import Choice

log = logging.getLogger("zoo")

# comes before an encoding that consumes the biases of others
BIASED = Choice("alibi")


def choose_contenders(
    words: Sequence[str], against: str | None, setting: Setting, lengths: Sequence[int]
) -> tuple[list[Contender], dict[str, str]]:
    """Choose the reference and the encodings that the sizes allow.

    Args:
        words: Encodings of the command line; none for all.
        against: The reference; None for that of the shape.
        setting: What they are run in.
        lengths: At which lengths.

    Returns:
        The contenders, the reference first, and {encoding: why it is left out}. Named ones that
        are left out are logged.

    Raises:
        RecipeError: An encoding is unknown, the reference does not apply, or nothing else does.
    """
    settings = [setting.with_length(length) for length in lengths]
    if reason := find_refusal(build_contender([Choice("none")]), settings):
        raise RecipeError(ConfigIssue(COMMAND_LINE, "lengths", reason))
    (reference,) = list_contenders([against or setting.shape.default_reference], "against")
    if reason := find_refusal(reference, settings):
        remedy = f"name an encoding for {setting.shape.kind}s"
        raise RecipeError(ConfigIssue(COMMAND_LINE, "against", reason, remedy))

    chosen, excluded = [reference], {}
    for one in list_contenders(words):
        if one.name == reference.name:
            continue
        if reason := find_refusal(one, settings):
            excluded[one.name] = reason
        else:
            chosen.append(one)
    if excluded and len(chosen) == 1:
        raise RecipeError(*(ConfigIssue(COMMAND_LINE, *pair) for pair in excluded.items()))
    for name, reason in excluded.items() if words else ():
        log.info("%s is left out: %s", name, reason)
    return chosen, excluded


def list_contenders(words: Sequence[str], key: str | None = None) -> list[Contender]:
    """Return a contender for each word, as `parse_encodings` reads it; for no words, all."""
    if not words:
        return build_all_contenders()
    found = [build_contender(choices) for choices in parse_encodings(words, key)]
    return list({one.name: one for one in found}.values())


def build_all_contenders() -> list[Contender]:
    """Build a contender for each registered encoding, in the shortest chain it can be in."""
    classes = [registry.find("encodings", name) for name in registry.names("encodings")]
    return [build_contender(build_shortest_chain(cls)) for cls in classes]


def build_shortest_chain(
    cls: type[Encoding], options: Mapping[str, Any] | None = None
) -> list[Choice]:
    """Return the shortest chain that an encoding can be in: alone, or after a bias."""
    choice = Choice(cls.name, options or {})
    return [BIASED, choice] if cls.consumes_biases else [choice]


def build_contender(choices: Sequence[Choice]) -> Contender:
    """Build the contender of a chain of encodings, named after them."""

    def make(setting: Setting) -> nn.Module:
        build = _build_vit if setting.shape.kind == "image" else _build_decoder
        return build(setting, choices)

    def layer(setting: Setting) -> Attention:
        shape = setting.shape
        side = shape.length // shape.patch_size
        grid = (side, side) if shape.kind == "image" else (shape.length,)
        # depth 2, since the last layer may have less to do
        dims = Dims(shape.dim, shape.heads, len(grid), grid, depth=2)
        return Attention(dims, choices, causal=shape.kind == "text")

    return Contender(
        name=format_chain(choices),
        make=make,
        generate=_generate,
        stream=_stream_tokens,
        describe_backend=_describe_backend,
        layer=layer,
    )


def format_chain(choices: Sequence[Choice]) -> str:
    """Format a chain with its options: `kerple+dape`, `liere(block=8)`."""
    return "+".join(map(_format_choice, choices))


def _format_choice(choice: Choice) -> str:
    options = ",".join(f"{key}={value}" for key, value in choice.options.items())
    return f"{choice.name}({options})" if options else choice.name


def _build_vit(setting: Setting, choices: Sequence[Choice]) -> ViT:
    shape = setting.shape
    return ViT(
        ImageSpec(3, shape.length, shape.length, shape.outputs),
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        patch_size=shape.patch_size,
        pool="class",
        encoding={one.name: make_factory(one) for one in choices},
        position_augmentation=_build_augmentation(setting),
    )


def _build_decoder(setting: Setting, choices: Sequence[Choice]) -> Decoder:
    """Build a decoder whose positions are indices, whatever an encoding takes by default.

    The length of a text is not known before it is read.
    """
    shape = setting.shape
    indexed = [Choice(one.name, {"coordinates": "index", **one.options}) for one in choices]
    return Decoder(
        TextSpec(shape.length, NumberVocabulary(shape.outputs)),
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        encoding={one.name: make_factory(one) for one in indexed},
        position_augmentation=_build_augmentation(setting),
    )


def _build_augmentation(setting: Setting) -> PositionAugmentation:
    return PositionAugmentation(jitter=setting.jitter, per_sample=setting.jitter > 0)


class NumberVocabulary:
    """A vocabulary of tokens without meaning."""

    unit: Literal["token"] = "token"

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def encode(self, text: str) -> list[int]:
        """Return the numbers that a text lists."""
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as a list of numbers."""
        return " ".join(map(str, tokens))

    def to_dict(self) -> dict[str, str]:
        """Return what identifies the vocabulary."""
        return {"count": str(self.count)}


def _stream_tokens(model: nn.Module, prompt: Tensor) -> Iterator[int]:
    tokens = prompt[0].tolist()
    return sample_tokens(model, tokens, KeyValueCache(), torch.Generator(), temperature=0)


def _generate(model: nn.Module, prompt: Tensor, count: int) -> list[int]:
    return list(islice(_stream_tokens(model, prompt), count))


class _BackendFound(Exception):
    """The backend is known, so that nothing has to be computed."""


def _describe_backend(model: nn.Module, inputs: Tensor, device: str) -> str:
    """Return the backend of the first layer, and why it was chosen."""

    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(layer, SelfAttention)
        tokens, chain, _ = arguments
        backend, reason = layer.plan(tokens, chain, device)
        raise _BackendFound(f"{backend} ({reason})")

    first = next(module for module in model.modules() if isinstance(module, SelfAttention))
    hook = first.register_forward_pre_hook(note)
    try:
        model(inputs)
    except _BackendFound as found:
        return str(found)
    finally:
        hook.remove()
    raise AssertionError("a model that does not run its first layer")
