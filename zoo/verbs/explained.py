"""`zoo show ENCODING`: formula, paper, options, facts and recipes; what it costs in given sizes; and its picture."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from zoo import registry
from zoo.attention import Encoding
from zoo.attention.encoding import Dims
from zoo.bench.ours import alone
from zoo.diagnostics.portrait import draw
from zoo.errors import Fault, Invalid, RecipeError
from zoo.recipe.signature import EveryEncoding, Option, extras, options
from zoo.recipe.tree import COMMAND_LINE
from zoo.recipe.words import expected, value
from zoo.registry import Between, Choice
from zoo.verbs.costs import Sizes, interpreter, parameters, sized, times
from zoo.verbs.facts import declared
from zoo.verbs.options import typed


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What `zoo show` does beside telling."""

    picture: str | None = ""  # the PNG that is drawn, NAME.png if it is empty
    seconds: Annotated[float, Between(0)] = 1.0  # for which the time of a layer is measured; 0 for not at all


def explained(name: str, words: Sequence[str]) -> str:
    """All there is to say of an encoding. Raises RecipeError where a word is no size and no option, or cannot work."""
    cls = registry.find("encodings", name)
    asked, sizes, own, facts = typed(words, (ShowOptions, Sizes, cls, EveryEncoding))
    choices = alone(cls, {**own, **{fact: given for fact, given in facts.items() if given is not None}})
    path = None if asked["picture"] is None else _place(asked["picture"] or f"{name}.png")
    with _blamed():
        dims = sized(Sizes(**sizes), cls)
        told = costs(choices, dims, asked["seconds"])
        if path:
            draw(choices, path, dims if any(word.partition("=")[0] in sizes for word in words) else None)
    blocks = [about(name, cls), _block("options", choosable(cls)), _block("facts", declared(cls))]
    blocks += ["\n".join(["recipes", *(f"  {recipe}" for recipe in users().get(name, ["none yet"]))])]
    blocks += [_block(f"cost, for {_sizes(dims)}", told)]
    return "\n\n".join([*blocks, *([f"picture: {path}"] if path else [])])


def _place(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        problem = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise RecipeError(Fault(COMMAND_LINE, "picture", problem, "name a file in one that exists, or null for none"))
    return path


@contextmanager
def _blamed() -> Iterator[None]:
    try:
        yield
    except Invalid as invalid:
        raise RecipeError(Fault(COMMAND_LINE, invalid.key, str(invalid))) from None


def about(name: str, cls: type[Encoding]) -> str:
    """What it is and its paper, then its formula."""
    lines = (inspect.getdoc(cls) or "").splitlines()
    formula = "\n".join(["formula", *(f"  {line}".rstrip() for line in lines)])
    return f"{name}: {inspect.getdoc(sys.modules[cls.__module__])}\n\n{formula}"


def choosable(cls: type[Encoding]) -> dict[str, str]:
    """{option: what is expected, and its default}"""
    known: Mapping[str, Option] = {**options(cls), **extras("encodings")}
    return {key: f"{expected(option.annotation)}; {_default(option)}" for key, option in known.items()}


def _default(option: Option) -> str:
    return "required" if option.required else f"default {value(option.default)}"


def users() -> dict[str, list[str]]:
    """{encoding: recipes that name it}"""
    from zoo.recipe import load, recipe_files

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
