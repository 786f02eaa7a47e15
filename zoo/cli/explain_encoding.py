"""`zoo show ENCODING`: formula, paper, options, facts and recipes; what it costs in given sizes; and its picture."""

from __future__ import annotations

import inspect
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch

from zoo import registry
from zoo.api import Attention, encoding
from zoo.attention import Dims, Encoding, Tokens
from zoo.attention.backends.dispatch import choose
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.kv_cache import Context
from zoo.attention.layer import SelfAttention
from zoo.bench.measures import passing
from zoo.bench.models import alone
from zoo.bench.timing import rounds
from zoo.config.command_line import parse_options
from zoo.config.signature import EveryEncoding, Option, extras, options
from zoo.config.tree import COMMAND_LINE, format_value
from zoo.config.validate import describe_type
from zoo.diagnostics.portrait import draw
from zoo.encodings.facts import declared
from zoo.errors import ConfigIssue, OptionError, RecipeError
from zoo.registry import Between, Choice

TEXT, SIDE = 512, 14  # tokens along the one axis of a text, and along each of several
MOST, LONGEST = 2**20, 4096  # tokens that are counted for, and that a layer is timed with
BATCH, ROUNDS = 2, 3  # samples that a layer is timed with, and rounds at least
Size = Annotated[int, Between(1, 2**16)]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes that an encoding is measured in: by default those of a text of 512 tokens, or of 14 along each of several axes."""

    dim: Annotated[int, Between(1, 2**13)] = 512
    heads: Size = 8
    kv_heads: Size | None = None
    depth: Annotated[int, Between(1, 2**10)] = 6
    length: Size | tuple[Size, ...] | None = None
    axes: Literal[1, 2, 3] | None = (
        None  # None: as many as `length` has, or the fewest that the encoding takes
    )


def sized(sizes: Sizes, cls: type[Encoding]) -> Dims:
    """The sizes of the first layer. Raises OptionError where they do not go together."""
    if sizes.length == ():
        raise OptionError("length", "a list of none; give a number, or one along each axis")
    several = len(sizes.length) if isinstance(sizes.length, tuple) else None
    axes = sizes.axes or several or min(cls.axes)
    length = sizes.length or (TEXT if axes == 1 else SIDE)
    dims = Dims(sizes.dim, sizes.heads, axes, length, 0, sizes.depth, sizes.kv_heads)
    if dims.tokens > MOST:
        raise OptionError("length", f"{dims.tokens:,} tokens are more than {MOST:,}")
    return dims


def parameters(choices: Sequence[Choice], dims: Dims) -> tuple[int, list[int]]:
    """Numbers of parameters: of what all layers share, and of each layer's own."""
    with torch.device("meta"):
        layers = [
            [*_links(choices, replace(dims, layer=layer))] for layer in range(dims.depth or 1)
        ]
    shared = sum(_count(link) for link in layers[0] if link.shared)
    return shared, [sum(_count(link) for link in layer if not link.shared) for layer in layers]


def _links(choices: Sequence[Choice], dims: Dims) -> Iterator[Encoding]:
    return iter(Chain.of(encoding(choices, dims)))


def _count(link: Encoding) -> int:
    return sum(parameter.numel() for parameter in link.parameters())


@torch.no_grad()
def interpreter(choices: Sequence[Choice], dims: Dims, device: str) -> tuple[str, str]:
    """What computes attention in the first layer on a type of device, and why; one axis is under a causal mask."""
    few = replace(dims, length=(2,) * dims.axes)
    chain = Chain.of(encoding(choices, few))
    x = torch.zeros(1, few.tokens, few.dim)
    tokens = Tokens.at(x, grid(few.sizes, x), ordered=few.axes == 1)
    layer = SelfAttention(few, causal=few.axes == 1)
    return choose(layer.describe(chain.embed(tokens), chain, Context())[1], device)


def times(choices: Sequence[Choice], dims: Dims, seconds: float) -> str:
    """Forward and backward of a layer, relative to one without an encoding: medians of rounds that take turns."""
    if dims.tokens > LONGEST:
        return f"not measured with more than {LONGEST:,} tokens"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dims = replace(dims, depth=max(dims.depth or 0, 2))  # the last layer may have less to do
    layers = [
        Attention(dims, one, causal=dims.axes == 1).to(device)
        for one in (choices, [Choice("none")])
    ]
    found = [*rounds([passing(layer, BATCH, device) for layer in layers], ROUNDS, seconds)]
    ours, plain = (statistics.median(each) for each in zip(*found, strict=True))
    where = "a GPU" if device == "cuda" else f"a CPU, torch's threads: {torch.get_num_threads()}"
    told = f"{ours * 1e3:.2f} against {plain * 1e3:.2f} ms, forward and backward of a layer, batch {BATCH}"
    return f"{ours / plain:.2f} of that without an encoding ({told}, medians of {len(found)} rounds on {where})"


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What `zoo show` does beside telling."""

    picture: str | None = ""  # the PNG that is drawn, NAME.png if it is empty
    seconds: Annotated[float, Between(0)] = (
        1.0  # for which the time of a layer is measured; 0 for not at all
    )


def explained(name: str, words: Sequence[str]) -> str:
    """All there is to say of an encoding. Raises RecipeError where a word is no size and no option, or cannot work."""
    cls = registry.find("encodings", name)
    asked, sizes, own, facts = parse_options(words, (ShowOptions, Sizes, cls, EveryEncoding))
    choices = alone(
        cls, {**own, **{fact: given for fact, given in facts.items() if given is not None}}
    )
    path = None if asked["picture"] is None else _place(asked["picture"] or f"{name}.png")
    with _blamed():
        dims = sized(Sizes(**sizes), cls)
        told = costs(choices, dims, asked["seconds"])
        if path:
            draw(
                choices,
                path,
                dims if any(word.partition("=")[0] in sizes for word in words) else None,
            )
    blocks = [about(name, cls), _block("options", choosable(cls)), _block("facts", declared(cls))]
    blocks += [
        "\n".join(["recipes", *(f"  {recipe}" for recipe in users().get(name, ["none yet"]))])
    ]
    blocks += [_block(f"cost, for {_sizes(dims)}", told)]
    return "\n\n".join([*blocks, *([f"picture: {path}"] if path else [])])


def _place(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        problem = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE, "picture", problem, "name a file in one that exists, or null for none"
            )
        )
    return path


@contextmanager
def _blamed() -> Iterator[None]:
    try:
        yield
    except OptionError as invalid:
        raise RecipeError(ConfigIssue(COMMAND_LINE, invalid.key, str(invalid))) from None


def about(name: str, cls: type[Encoding]) -> str:
    """What it is and its paper, then its formula."""
    lines = (inspect.getdoc(cls) or "").splitlines()
    formula = "\n".join(["formula", *(f"  {line}".rstrip() for line in lines)])
    return f"{name}: {inspect.getdoc(sys.modules[cls.__module__])}\n\n{formula}"


def choosable(cls: type[Encoding]) -> dict[str, str]:
    """{option: what is expected, and its default}"""
    known: Mapping[str, Option] = {**options(cls), **extras("encodings")}
    return {
        key: f"{describe_type(option.annotation)}; {_default(option)}"
        for key, option in known.items()
    }


def _default(option: Option) -> str:
    return "required" if option.required else f"default {format_value(option.default)}"


def users() -> dict[str, list[str]]:
    """{encoding: recipes that name it}"""
    from zoo.config import load, recipe_files

    found: dict[str, list[str]] = {}
    for recipe in recipe_files():
        try:
            entries = load(recipe).model.options.get("encoding", ())
        except RecipeError:
            continue
        for entry in entries:
            found.setdefault(entry.name, []).append(recipe)
    return found


def costs(choices: Sequence[Choice], dims: Dims, seconds: float) -> dict[str, str]:
    """{what: how much}: parameters, how attention is computed, and time if it is given any."""
    found = {"parameters": counted(choices, dims)}
    for device in ("cpu", "cuda"):
        found[f"attention on {device}"] = "{} ({})".format(*interpreter(choices, dims, device))
    return found | ({"time": times(choices, dims, seconds)} if seconds else {})


def counted(choices: Sequence[Choice], dims: Dims) -> str:
    """Parameters in all, and of what."""
    shared, layers = parameters(choices, dims)
    if not any(layers):
        return f"{shared:,}" + (" (for all layers)" if shared else "")
    each = " to ".join(f"{count:,}" for count in sorted({min(layers), max(layers)}))
    common = f" and {shared:,} for all" if shared else ""
    return f"{shared + sum(layers):,} ({each} in each of {len(layers)} layers{common})"


def _block(title: str, lines: Mapping[str, str]) -> str:
    return "\n".join([title, *(f"  {key}: {line}" for key, line in lines.items())])


def _sizes(dims: Dims) -> str:
    shape = " x ".join(map(str, dims.sizes))
    return f"dim {dims.dim}, {dims.heads} heads, depth {dims.depth}, {shape} tokens"
