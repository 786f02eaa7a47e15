"""`zoo show RECIPE`: the recipe resolved, with what it will build."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from torch import nn

from zoo import registry
from zoo.run.build import build_model
from zoo.run.load import load_recipe
from zoo.run.preflight import parameters, plan, tokens


def resolved(name: str, overrides: Sequence[str]) -> str:
    """The recipe with everything that it takes over, and what it will build."""
    recipe = load_recipe(name, overrides)
    model = build_model(recipe)
    counts = parameters(model)
    width = max(map(len, counts))
    lines = [f"# {recipe.name}, resolved", recipe.yaml(), "# parameters"]
    lines += [f"{part.ljust(width)}  {count:>12,}" for part, count in counts.items()]
    lines += [f"{'all'.ljust(width)}  {sum(counts.values()):>12,}", ""]
    lines += ["# names of parameters, as optim.param_groups match them", *_named(model), ""]
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
        (re.sub(r"\.\d+\.", ".*.", name), " x ".join(map(str, p.shape)))
        for name, p in model.named_parameters()
    )
    for (name, shape), count in alike.items():
        yield f"{name}  {shape}" + (f", {count} times" if count > 1 else "")


def show(what: str, words: Sequence[str]) -> str:
    """Text about an encoding if `what` names one, else about a recipe; `words` are sizes and options, or overrides."""
    if what in registry.names("encodings"):
        from zoo.cli.explain_encoding import explained

        return explained(what, words)

    return resolved(what, words)
