"""Whether the parts of a recipe fit, found out by making them, and what will happen when they run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zoo import registry
from zoo.attention.attend import choose
from zoo.attention.context import Context
from zoo.attention.layer import SelfAttention
from zoo.build import build_data, build_model, build_trainer, sample
from zoo.errors import Fault, Invalid, RecipeError
from zoo.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Make each part, the model on no device, and pass a sample through it. Raises RecipeError with every fault."""
    faults: list[Fault] = []

    @contextmanager
    def blamed(section: str) -> Iterator[None]:
        try:
            yield
        except Invalid as error:
            faults.append(recipe.fault(f"{section}.{error.key}" if error.key else section, str(error)))

    with blamed("optim"):
        registry.find("optim", recipe.optim.name)(**recipe.optim.options)
    with blamed("data"):
        data = build_data(recipe)
        with blamed("model"), torch.device("meta"):
            model = build_model(recipe)
            model(sample(data))
            with blamed("task"):
                registry.find("tasks", recipe.task.name)(model, None, data.samples, **recipe.task.options)
            for size in recipe.evaluate.resolutions or ():
                with blamed("evaluate.resolutions"):
                    _fits(recipe, model, size)
    faults += _trainer_faults(recipe)
    if faults:
        raise RecipeError(*faults)


def _fits(recipe: Recipe, model: nn.Module, size: int) -> None:
    if "size" not in recipe.data.options:
        raise Invalid("", f"data {recipe.data.name} has no option size, so it has one resolution")
    try:
        model(sample(build_data(recipe, size=size)))
    except Invalid as error:
        raise Invalid("", str(error)) from None


def _trainer_faults(recipe: Recipe) -> list[Fault]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            build_trainer(recipe, logger=False)
    except Exception as error:  # Lightning refuses in several kinds
        return [recipe.fault("trainer", str(error).splitlines()[0][:200])]
    return []


def plan(recipe: Recipe, model: nn.Module, device: str) -> list[tuple[str, str]]:
    """For each attention layer the interpreter it will use on a type of device, and why."""
    found: list[tuple[str, str]] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(module, SelfAttention)
        tokens, chain, _ = args
        able = choose(module.describe(tokens, chain, Context())[1], device)
        found.append(able if module.backend == "auto" else (module.backend, "as the recipe says"))

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, SelfAttention)]
    with torch.no_grad():
        model(sample(build_data(recipe)))
    for hook in hooks:
        hook.remove()
    return found


def parameters(model: nn.Module) -> Mapping[str, int]:
    """Numbers of parameters by part."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        words = name.replace("trunk.", "").split(".")
        part = ".".join([words[0], words[2].partition("_")[0]]) if words[0] == "blocks" else words[0]
        if words[0] == "encoding":
            part = f"encoding.{words[1]}"
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def tokens(recipe: Recipe, model: nn.Module) -> int:
    """Tokens per sample, extra tokens included."""
    found: list[int] = []
    attention = next(module for module in model.modules() if isinstance(module, SelfAttention))
    hook = attention.register_forward_pre_hook(lambda module, args: found.append(len(args[0])))
    with torch.no_grad():
        model(sample(build_data(recipe)))
    hook.remove()
    return found[0]
