"""Describe a resolved recipe and its model, or an encoding, for `zoo show`."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from torch import nn

from zoo import registry
from zoo.attention import Dims, Encoding, Tokens
from zoo.attention import mixer as mixers
from zoo.attention.backends.dispatch import choose_backend
from zoo.attention.chain import Chain, depends_on_length, encoding, encoding_class
from zoo.attention.coordinates import grid
from zoo.attention.encoding import describe_facts
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.mixer import Mixer
from zoo.benchmark.recorded_layers import describe_recorded_layers, describe_recorded_memory
from zoo.citations import find_citations
from zoo.config import Overrides, load, recipe_files
from zoo.config.command_line import format_edits, parse_options
from zoo.data.spec import DataSpec
from zoo.data.tables.open_table import HUB
from zoo.diagnostics.portrait.portrait import draw_portrait
from zoo.encodings.common.chains import build_shortest_chain, format_chain
from zoo.errors import ARGUMENT, ConfigIssue, DataError, OptionError, RecipeError, ZooError
from zoo.models.decoder import Decoder
from zoo.models.layer_types import LAYER_KEYS
from zoo.models.transformer import Block, find_transformers
from zoo.options import Between, ByAxes, Choice
from zoo.options.description import format_type, format_word
from zoo.options.plain import format_call
from zoo.options.signature import (
    EXTRAS,
    EveryEncoding,
    Option,
    fields,
    options,
    read_class,
    read_comments,
    read_options,
)
from zoo.options.unknown import OptionOwner
from zoo.packages import explain_imports
from zoo.reporting.numbers import format_number
from zoo.reporting.tables import format_table
from zoo.run.build import Experiment, build_model
from zoo.run.load import load_for_description
from zoo.run.preflight import count_parameters, count_tokens, plan_backends
from zoo.run.requirements import describe_requirements, estimate_requirements
from zoo.suggestions import join_words
from zoo.utils import check_writable

SITE = "https://transformer-zoo.github.io/zoo/"
TEXT_LENGTH = 512
GRID_SIDE = 14
MAX_TOKENS = 2**20
"""Above this number of tokens nothing is computed."""
LAYER_TITLE = "time of a layer, forward and backward, relative to one without an encoding"
MEMORY_TITLE = (
    "memory of a layer on a GPU, by counting tensors (width 64, 4 heads, 8,192 tokens, bfloat16)"
)
Size = Annotated[int, Between(1, 2**16)]


def describe_recipe(name: str, overrides: Overrides) -> str:
    """Return the resolved recipe as YAML, with parameters, tokens and backends as comments.

    Of a recipe whose data are only on the Hub, the recipe is all that is known.
    """
    try:
        experiment, stands_for = load_for_description(name, overrides)
    except DataError as error:
        if not error.place.startswith(HUB):
            raise
        recipe = load(name, overrides)
        missing = f"# not on this machine: {error.place}, which tokens and parameters depend on"
        return "\n".join([missing, f"# {recipe.name}, resolved", recipe.yaml()])
    recipe, spec = experiment.recipe, experiment.spec
    model = build_model(recipe, spec)

    counts = count_parameters(model)
    counts = {**counts, "all": sum(counts.values())}
    table = format_table([(part, f"{count:,}") for part, count in counts.items()], left=[0])
    lines = [f"# {recipe.name}, resolved"]
    if stands_for:
        lines += [f"# {format_edits(stands_for)[0]}: set it to the location of your data"]
    lines += [recipe.yaml(), "# parameters", table]

    if recipe.model.options.get("layer_types"):
        lines += ["", *draw_layers(recipe.model, model)]
    lines += ["", "# names of parameters, as optim.param_groups match them"]
    lines += [*_list_parameters(model), ""]
    lines += [f"# tokens per sample: {count_tokens(model, spec)}"]
    for step, staged in experiment.list_stages():
        line = f"# FLOPs per sample: {_format_amount(staged.flops)} in a forward pass"
        lines += [f"{line}, from step {step:,} on" if step else line]
    lines += _describe_cache(experiment)
    lines += ["", "# attention"]
    # both are planned from the fields of the call, so no GPU is needed
    for device in ("cpu", "cuda"):
        lines += _list_backends(model, spec, device)
    longest = experiment.longest_stage
    needs = estimate_requirements(longest)
    where = "" if longest is experiment else ", in the stage with the longest samples"
    lines += ["", f"# training, by the formulas of docs/scale.md{where}"]
    lines += describe_requirements(needs)
    return "\n".join(lines)


def draw_layers(choice: Choice, model: nn.Module) -> list[str]:
    """Draw the pattern of a model whose layers differ: a row for each type, a mark for each layer.

    Args:
        choice: The model in the recipe.
        model: The model.
    """
    (transformer,) = find_transformers(model)
    types = choice.options["layer_types"]
    changed = {key for changes in types.values() for key in changes}
    if "mixer" in changed:
        # what the layers with attention have
        changed.add("encoding")
    keys = [key for key in LAYER_KEYS if key in changed]
    rows = []
    for name, changes in types.items():
        marks = "".join(
            "#" if layer_type == name else "." for layer_type in transformer.layer_types
        )
        values = {**choice.options, **changes}
        description = ", ".join(_describe_key(key, values[key]) for key in keys)
        if mixer := changes.get("mixer"):
            block = transformer.blocks[transformer.layer_types.index(name)]
            description = _describe_member("mixers", mixer)
            assert isinstance(block, Block)
            assert block.mixer is not None
            if block.mixer.uses_encodings:
                description += f", {_describe_key('encoding', values['encoding'])}"
            if unused := _list_unused_keys(choice, block.mixer):
                description += f"; {join_words(unused)} of the model do not reach it"
        rows.append((f"#   {name}", marks, description))
    title = "# types of layers; # marks those of a type, the first on the left"
    return [title, format_table(rows, left=(0, 1, 2))]


def _list_unused_keys(choice: Choice, mixer: Mixer) -> list[str]:
    """List the options of attention that a model gives, and that a mixer cannot use."""
    encodings = choice.options["encoding"]
    unused = [key for key in LAYER_KEYS if key != "encoding" and choice.options.get(key)]
    if mixer.uses_encodings:
        return unused
    classes = {member.name: encoding_class(member.name) for member in encodings}
    # what is added to the input reaches every layer
    lost = [
        name for name, cls in classes.items() if not cls.adds_to_input and cls.part != "nothing"
    ]
    return lost + unused


def _describe_key(key: str, value: Any) -> str:
    """Write an option of a type of layers: `window 64`, `no sinks`, `rope(base=100.0)`."""
    if key == "encoding":
        return " + ".join(_describe_member("encodings", member) for member in value)
    if value is None or isinstance(value, bool):
        return key if value else f"no {key}"
    if is_dataclass(value):
        settings = [f"{name} {getattr(value, name):g}" for name in fields(type(value))]
        return f"{key} ({', '.join(settings)})"
    return f"{key} {value:g}"


def _describe_member(kind: str, choice: Choice) -> str:
    """Write an encoding or a mixer with the options that are not its defaults."""
    declared = read_options(kind, choice.name)
    changed = {
        name: value
        for name, value in choice.options.items()
        if name not in declared or declared[name].default != value
    }
    settings = (f"{name}={format_word(value)}" for name, value in changed.items())
    return format_call(choice.name, settings)


def _format_amount(count: float) -> str:
    """Write a number of operations or bytes with three digits: 23.0 M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{format_number(count / size, 3)} {unit}"
    return str(count)


def _describe_cache(experiment: Experiment) -> Iterator[str]:
    """Yield the size of the KV cache after a sample, and of each run of equal layers."""
    model = experiment.meta_model
    if not isinstance(model, Decoder):
        return
    # dropout and augmentation do not belong to decoding
    cache, mode = KeyValueCache(), model.training
    with torch.device("meta"), torch.no_grad():
        model.eval()(*experiment.spec.build_inputs(), context=cache)
    model.train(mode)
    # on the meta device, a cache has shapes without numbers
    sizes = cache.measure()
    total = _format_amount(sum(size.bytes for size in sizes.values()))
    yield f"# KV cache of a sample: {total}B in 32 bits"
    for size, group in groupby(sizes, key=sizes.__getitem__):
        layers = [*group]
        content = f"{size.tokens:,} tokens" if size.tokens else "a state"
        suffix = " each" if len(layers) > 1 else ""
        yield f"{_name_layers(layers)}: {content}, {_format_amount(size.bytes)}B{suffix}"


def _name_layers(numbers: Sequence[int]) -> str:
    """Name layers that follow each other: `layer 5`, `layers 0 to 4`."""
    start, end = numbers[0], numbers[-1]
    return f"layer {start}" if start == end else f"layers {start} to {end}"


def _list_parameters(model: nn.Module) -> Iterator[str]:
    """Yield names and shapes; those that differ only in a layer's number are listed once."""
    # a model of 24 layers would otherwise list each weight 24 times
    weights = Counter(
        (re.sub(r"\.\d+\.", ".*.", name), " x ".join(map(str, parameter.shape)))
        for name, parameter in model.named_parameters()
    )
    for (name, shape), count in weights.items():
        yield f"{name}  {shape}" + (f", {count} times" if count > 1 else "")


def _list_backends(model: nn.Module, spec: DataSpec, device: str) -> Iterator[str]:
    """Yield which backend computes attention, for each run of equal layers."""
    numbered = enumerate(plan_backends(model, spec, device))
    for (name, why), layers in groupby(numbered, key=lambda pair: pair[1]):
        where = _name_layers([number for number, _ in layers])
        yield f"{where} on {device}: {name} ({why})"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes for which the parameters of an encoding are counted."""

    dim: Annotated[int, Between(1, 2**13)] = 512
    """Width of the model."""
    heads: Size = 8
    """Query heads."""
    kv_heads: Size | None = None
    """Key and value heads, where query heads share them."""
    depth: Annotated[int, Between(1, 2**10)] = 6
    """Layers of the model."""
    length: Size | tuple[Size, ...] | None = None
    """Tokens along each axis; null for 512 on one axis, or 14 along each of several."""
    axes: Literal[1, 2, 3] | None = None
    """Axes of positions; null for as many as `length` has, or the fewest the encoding takes."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Options of `zoo show ENCODING` in addition to sizes and the encoding's own."""

    picture: str | None = None
    """The PNG file to draw; null for none."""
    cite: bool = False
    """Print only the papers of the encoding, as BibTeX."""


@dataclass(frozen=True, kw_only=True)
class MixerSizes:
    """Sizes for which `zoo show MIXER` counts parameters and the state."""

    dim: Annotated[int, Between(1, 2**13)] = 512
    """Width of the model, whose heads are 8 unless the mixer has its own."""


class UnwrittenPicture(ZooError):
    """The picture of an encoding cannot be written; `text` is the rest of the output."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


def explain_encoding(name: str, arguments: Sequence[str]) -> str:
    """Return all there is to know about an encoding, and draw its picture if asked.

    Args:
        name: A registered encoding.
        arguments: `key=value` options: ShowOptions, Sizes, or options of the encoding.

    Raises:
        RecipeError: A word is no option, or has a value that cannot work.
        UnwrittenPicture: The picture cannot be written.
        PackageError: A package is missing that draws it.
    """
    cls = registry.find("encodings", name)
    option_values, facts, size_values, show_options = parse_options(
        arguments, (cls, EveryEncoding, Sizes, ShowOptions), OptionOwner("encodings", name)
    )
    if show_options["cite"]:
        return "\n\n".join(find_citations(name))
    given_facts = {fact: value for fact, value in facts.items() if value is not None}
    choices = build_shortest_chain(cls, {**option_values, **given_facts})
    picture = None if show_options["picture"] is None else _check_path(show_options["picture"])

    unwritten = ""
    with _report_option_errors():
        dims = choose_dims(Sizes(**size_values), cls)
        costs = describe_costs(choices, dims)
        # an option or the number of axes may decide a fact
        with torch.device("meta"):
            (*_, link) = Chain.of(encoding(choices, dims))
        if picture:
            has_sizes = any(word.partition("=")[0] in size_values for word in arguments)
            with explain_imports():
                try:
                    draw_portrait(choices, picture, dims if has_sizes else None)
                except OSError as error:
                    unwritten = f"{picture}: cannot be written, {error.strerror or error}"

    recipes = list_users().get(name, ["none yet"])
    blocks = [
        describe_formula(name, cls),
        _format_block("options", describe_options(cls)),
        _format_block("facts", describe_facts(link)),
        "\n".join(["recipes", *(f"  {recipe}" for recipe in recipes)]),
        _format_block(f"cost, for {_format_dims(dims)}", costs),
        _format_block(LAYER_TITLE, describe_layer_times(name, cls)),
    ]
    if memory := describe_recorded_memory(name):
        blocks.append(_format_block(MEMORY_TITLE, memory))
    # the page has the encodings of zoo, and none of a plug-in
    if cls.__module__.startswith("zoo.encodings."):
        blocks.append(f"play with it: {SITE}play.html#{name}")
    if picture and not unwritten:
        blocks.append(f"picture: {picture}")
    description = "\n\n".join(blocks)
    if unwritten:
        raise UnwrittenPicture(unwritten, description)
    return description


def explain_mixer(name: str, arguments: Sequence[str]) -> str:
    """Return formula, options, facts, recipes and cost of a mixer.

    Args:
        name: A registered mixer.
        arguments: `key=value` options: MixerSizes, or options of the mixer.

    Raises:
        RecipeError: A word is no option, or has a value that cannot work.
    """
    cls = registry.find("mixers", name)
    options, sizes = parse_options(arguments, (cls, MixerSizes), OptionOwner("mixers", name))
    with _report_option_errors():
        costs = describe_mixer_costs(name, options, sizes["dim"])
    recipes = list_mixer_users().get(name, ["none yet"])
    blocks = [
        describe_formula(name, cls),
        _format_block("options", describe_options(cls, "mixers") or {"none": ""}),
        _format_block("facts", mixers.describe_facts(cls)),
        "\n".join(["recipes", *(f"  {recipe}" for recipe in recipes)]),
        _format_block(f"cost of a layer, for dim {sizes['dim']}", costs),
    ]
    return "\n\n".join(blocks)


@torch.no_grad()
def describe_mixer_costs(name: str, options: Mapping[str, Any], dim: int) -> dict[str, str]:
    """Return parameters and size of the state of one layer, as text.

    Args:
        name: A registered mixer.
        options: Its options.
        dim: Width of the model, which has 8 heads.

    Raises:
        OptionError: The sizes do not go together.
    """
    cache = KeyValueCache()
    with torch.device("meta"):
        # the number of heads need not divide the width of a mixer without heads
        mixer = registry.find("mixers", name)(Dims(dim, 8, head_dim=max(dim // 8, 1)), **options)
        x = torch.zeros(1, 1, dim)
        mixer(Tokens.at(x, torch.zeros(1, 1)), Chain(mixer.dims, {}), cache)
    parameters = sum(parameter.numel() for parameter in mixer.parameters())
    state = _format_amount(cache.measure()[0].bytes)
    return {"parameters": f"{parameters:,}", "state of a sequence": f"{state}B in 32 bits"}


def list_mixer_users() -> dict[str, list[str]]:
    """Return the recipes that name each mixer in a type of layers."""
    users: dict[str, list[str]] = {}
    for recipe in recipe_files():
        try:
            types = load(recipe).model.options.get("layer_types") or {}
        # another recipe of a plug-in may be broken; `zoo show` of it says so
        except RecipeError:
            continue
        named = [changes["mixer"].name for changes in types.values() if "mixer" in changes]
        for name in dict.fromkeys(named):
            users.setdefault(name, []).append(recipe)
    return users


def choose_dims(sizes: Sizes, cls: type[Encoding]) -> Dims:
    """Return the sizes of the first layer.

    Raises:
        OptionError: The sizes do not go together.
    """
    if sizes.length == ():
        raise OptionError("length", "an empty list; give a number, or one for each axis")
    from_length = len(sizes.length) if isinstance(sizes.length, tuple) else None
    axes = sizes.axes or from_length or min(cls.axes)
    length = sizes.length or (TEXT_LENGTH if axes == 1 else GRID_SIDE)
    dims = Dims(sizes.dim, sizes.heads, axes, length, 0, sizes.depth, sizes.kv_heads)
    if dims.tokens > MAX_TOKENS:
        raise OptionError("length", f"{dims.tokens:,} tokens are more than {MAX_TOKENS:,}")
    return dims


def describe_costs(choices: Sequence[Choice], dims: Dims) -> dict[str, str]:
    """Return parameters and backends as text."""
    costs = {"parameters": describe_parameters(choices, dims)}
    for device in ("cpu", "cuda"):
        costs[f"attention on {device}"] = "{} ({})".format(*find_backend(choices, dims, device))
    return costs


def describe_layer_times(name: str, cls: type[Encoding]) -> dict[str, str]:
    """Return the recorded times of a layer by shape, and the command that measures one."""
    chain = format_chain(build_shortest_chain(cls))
    recorded = describe_recorded_layers(chain)
    shape = "lm_small" if 1 in cls.axes else "vit_s"
    command = f"zoo bench {name} against=none shape={shape} measures=[layer]"
    return {**(recorded or {"recorded": "not yet"}), "measure it with": command}


def describe_parameters(choices: Sequence[Choice], dims: Dims) -> str:
    """Write the number of parameters, and how many belong to each layer."""
    shared, layers = count_encoding_parameters(choices, dims)
    if not any(layers):
        return f"{shared:,}" + (" (for all layers)" if shared else "")
    per_layer = " to ".join(f"{count:,}" for count in sorted({min(layers), max(layers)}))
    common = f" and {shared:,} for all" if shared else ""
    return f"{shared + sum(layers):,} ({per_layer} in each of {len(layers)} layers{common})"


def count_encoding_parameters(choices: Sequence[Choice], dims: Dims) -> tuple[int, list[int]]:
    """Return the parameters that all layers share, and those of each layer."""
    with torch.device("meta"):
        layers = [
            list(Chain.of(encoding(choices, replace(dims, layer=layer))))
            for layer in range(dims.depth or 1)
        ]
    shared = sum(_count_elements(link) for link in layers[0] if link.shared)
    per_layer = [
        sum(_count_elements(link) for link in layer if not link.shared) for layer in layers
    ]
    return shared, per_layer


def _count_elements(link: Encoding) -> int:
    return sum(parameter.numel() for parameter in link.parameters())


@torch.no_grad()
def find_backend(choices: Sequence[Choice], dims: Dims, device: str) -> tuple[str, str]:
    """Return the backend of the first layer on a type of device, and why."""
    # the choice depends on the kind of call, not on its size
    small = replace(dims, length=(2,) * dims.axes)
    chain = Chain.of(encoding(choices, small))
    x = torch.zeros(1, small.tokens, small.dim)
    tokens = Tokens.at(x, grid(small.sizes, x), ordered=small.axes == 1)
    layer = SelfAttention(small, causal=_is_causal(chain))
    return choose_backend(layer.describe(chain.embed(tokens), chain, Context())[1], device)


def _is_causal(chain: Chain) -> bool:
    """Return whether layers have a causal mask: those of text, unless encodings need its length."""
    needs_all = chain.needs_full_sequence or any(map(depends_on_length, chain))
    return chain.dims.axes == 1 and not needs_all


def describe_formula(name: str, cls: type[Encoding] | type[Mixer]) -> str:
    """Write name and paper of an encoding or a mixer, then its formula."""
    about, _, _ = (inspect.getdoc(cls) or "").partition("\n\nArgs:\n")
    lines = about.splitlines()
    formula = "\n".join(["formula", *(f"  {line}".rstrip() for line in lines)])
    return f"{name}: {inspect.getdoc(sys.modules[cls.__module__])}\n\n{formula}"


def describe_options(cls: type, kind: str = "encodings") -> dict[str, str]:
    """Return type, default and meaning of each option of a member of a kind, as text.

    Those of a mapping follow it, under dotted keys.
    """
    descriptions = {}
    comments = read_comments(cls)
    for key, option in options(cls).items():
        text = f"{format_type(option.annotation)}; {_format_default(option)}"
        descriptions[key] = _join(text, comments.get(key, ""))
        for part in (option.annotation, *get_args(option.annotation)):
            if is_dataclass(part) and isinstance(part, type):
                for name, nested in _read_fields(part).items():
                    text = _join(format_type(nested.annotation), nested.comment)
                    descriptions[f"{key}.{name}"] = text
    if kind in EXTRAS:
        for key, option in _read_fields(EXTRAS[kind]).items():
            # None leaves what the class declares
            default = f"default {format_word(getattr(cls, key))}"
            text = f"{format_type(option.annotation)}; {default}"
            descriptions[key] = _join(text, option.comment)
    return descriptions


def _read_fields(cls: type) -> dict[str, Option]:
    """Return the options of a dataclass with their comments, which its file has."""
    return read_class(f"{cls.__module__}:{cls.__qualname__}")


def _join(text: str, comment: str) -> str:
    return f"{text}. {comment}" if comment else text


def _format_default(option: Option) -> str:
    for part in (option.annotation, *get_args(option.annotation)):
        for mark in get_args(part):
            if isinstance(mark, ByAxes) and option.default is None:
                return str(mark)
    return "required" if option.is_required else f"default {format_word(option.default)}"


def list_users() -> dict[str, list[str]]:
    """Return the recipes that name each encoding."""
    users: dict[str, list[str]] = {}
    for recipe in recipe_files():
        try:
            names = load(recipe).encodings
        # another recipe of a plug-in may be broken; `zoo show` of it says so
        except RecipeError:
            continue
        for name in names:
            users.setdefault(name, []).append(recipe)
    return users


def _check_path(location: str) -> Path:
    path = Path(location)
    if path.is_dir() or not path.parent.is_dir():
        message = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        hint = "name a file in one that exists"
        raise RecipeError(ConfigIssue(ARGUMENT, "picture", message, hint))
    try:
        check_writable(path.parent)
    except OSError as error:
        message = f"{path} cannot be written, {error.strerror or error}"
        hint = "name a file elsewhere"
        raise RecipeError(ConfigIssue(ARGUMENT, "picture", message, hint)) from None
    return path


@contextmanager
def _report_option_errors() -> Iterator[None]:
    """Report an option that cannot work as an error of the command line."""
    try:
        yield
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, str(error))) from None


def _format_block(title: str, lines: Mapping[str, str]) -> str:
    rows = [(f"  {key}", line) for key, line in lines.items()]
    return f"{title}\n{format_table(rows, left=(0, 1))}"


def _format_dims(dims: Dims) -> str:
    shape = " x ".join(map(str, dims.sizes))
    return f"dim {dims.dim}, {dims.heads} heads, depth {dims.depth}, {shape} tokens"
