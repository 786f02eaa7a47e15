"""Describe a recipe: all its keys, and the model that it builds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from torch import nn

from zoo.data.spec import DataSpec
from zoo.run.build import build_model
from zoo.run.load import load_experiment
from zoo.run.preflight import count_parameters, count_tokens, plan_backends


def describe_recipe(name: str, overrides: Sequence[str]) -> str:
    """Return the resolved recipe as YAML, with parameters, tokens and backends as comments."""
    experiment = load_experiment(name, overrides)
    recipe, spec = experiment.recipe, experiment.spec
    model = build_model(recipe, spec)

    counts = count_parameters(model)
    counts = {**counts, "all": sum(counts.values())}
    width = max(map(len, counts))
    lines = [f"# {recipe.name}, resolved", recipe.yaml(), "# parameters"]
    lines += [f"{part.ljust(width)}  {count:>12,}" for part, count in counts.items()]

    lines += ["", "# names of parameters, as optim.param_groups match them"]
    lines += [*_list_parameters(model), ""]
    lines += [f"# tokens per sample: {count_tokens(model, spec)}", "", "# attention"]
    for device in ("cpu", "cuda"):
        lines += _list_backends(model, spec, device)
    return "\n".join(lines)


def _list_parameters(model: nn.Module) -> Iterator[str]:
    """Yield names and shapes; those that differ only in a layer's number are listed once."""
    alike = Counter(
        (re.sub(r"\.\d+\.", ".*.", name), " x ".join(map(str, parameter.shape)))
        for name, parameter in model.named_parameters()
    )
    for (name, shape), count in alike.items():
        yield f"{name}  {shape}" + (f", {count} times" if count > 1 else "")


def _list_backends(model: nn.Module, spec: DataSpec, device: str) -> Iterator[str]:
    """Yield which backend computes attention, for each run of equal layers."""
    numbered = enumerate(plan_backends(model, spec, device))
    for (name, why), layers in groupby(numbered, key=lambda pair: pair[1]):
        numbers = [number for number, _ in layers]
        first, last = numbers[0], numbers[-1]
        where = f"layer {first}" if first == last else f"layers {first} to {last}"
        yield f"{where} on {device}: {name} ({why})"
