"""`zoo show`: a recipe resolved, with what it will build; or an encoding, with its facts."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from zoo import registry
from zoo.errors import Fault, RecipeError

if TYPE_CHECKING:
    from torch import nn


def show(what: str, overrides: Sequence[str]) -> str:
    """Text about an encoding if `what` names one, else about a recipe."""
    if what in registry.names("encodings"):
        if overrides:
            raise RecipeError(
                Fault("command line", " ".join(overrides), "an encoding takes no overrides", "show a recipe with them")
            )
        return _encoding(what)
    return _recipe(what, overrides)


def _recipe(what: str, overrides: Sequence[str]) -> str:
    from zoo.build import build_model
    from zoo.check import parameters, plan, tokens
    from zoo.loading import load_recipe

    recipe = load_recipe(what, overrides)
    model = build_model(recipe)
    counts = parameters(model)
    width = max(map(len, counts))
    lines = [f"# {recipe.name}, resolved", recipe.yaml(), "# parameters"]
    lines += [f"{part.ljust(width)}  {count:>12,}" for part, count in counts.items()]
    lines += [f"{'all'.ljust(width)}  {sum(counts.values()):>12,}", ""]
    lines += ["# names of parameters, as optim.rules match them", *_named(model), ""]
    lines += [f"# tokens per sample: {tokens(recipe, model)}", "", "# attention"]
    for device in ("cpu", "cuda"):
        numbered = enumerate(plan(recipe, model, device))
        for (name, why), layers in groupby(numbered, key=lambda pair: pair[1]):
            span = [number for number, _ in layers]
            where = f"layer {span[0]}" if len(span) == 1 else f"layers {span[0]} to {span[-1]}"
            lines.append(f"{where} on {device}: {name} ({why})")
    return "\n".join(lines)


def _named(model: nn.Module) -> Iterator[str]:
    """Names and shapes; those that differ in numbers alone are told once."""
    alike = Counter(
        (re.sub(r"\.\d+\.", ".*.", name), " x ".join(map(str, p.shape))) for name, p in model.named_parameters()
    )
    for (name, shape), count in alike.items():
        yield f"{name}  {shape}" + (f", {count} times" if count > 1 else "")


def _encoding(name: str) -> str:
    from zoo.recipe.signature import extras, options
    from zoo.recipe.words import expected, value

    cls = registry.find("encodings", name)
    about, _, rest = (inspect.getdoc(cls) or "").partition("\n")
    lines = [f"{name}: {inspect.getdoc(sys.modules[cls.__module__])}", "", "formula", f"  {about}"]
    lines += [f"  {line}".rstrip() for line in rest.strip("\n").splitlines()]
    lines += ["", "options"]
    for key, option in {**options(cls), **extras("encodings")}.items():
        default = "required" if option.required else f"default {value(option.default)}"
        lines.append(f"  {key}: {expected(option.annotation)}; {default}")
    facts = {
        "module": "one for all layers" if cls.shared else "one per layer",
        "axes": " or ".join(map(str, cls.axes)),
        "coordinates": cls.coordinates,
        "relative": "yes: shifting all coordinates changes no score" if cls.relative else "no",
        "needs a causal mask": "yes" if cls.causal else "no",
        "needs a bias before it": "yes" if cls.absorbs else "no",
        "tokens without a place": "handled by the encoding" if cls.unplaced else "left alone",
    }
    lines += ["", "facts", *(f"  {key}: {fact}" for key, fact in facts.items())]
    used = [recipe for recipe, names in _used().items() if name in names]
    return "\n".join([*lines, "", "recipes", *(f"  {recipe}" for recipe in used or ["none yet"])])


def _used() -> dict[str, set[str]]:
    """{recipe: names of encodings in its file}."""
    from zoo.recipe import load, recipe_files

    found = {}
    for recipe in recipe_files():
        try:
            entries = load(recipe).model.options.get("encoding", ())
        except RecipeError:
            continue
        found[recipe] = {entry.name for entry in entries}
    return found
