"""Whether the parts of a recipe fit, found out by making them, and what will happen when they run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zoo import registry
from zoo.attention.layer import SelfAttention
from zoo.config import Recipe
from zoo.data.spec import Samples
from zoo.diagnostics import capture
from zoo.errors import ConfigIssue, DataError, OptionError, RecipeError
from zoo.models.transformer import enable_activation_checkpointing
from zoo.run import conditions
from zoo.run.build import build_data, build_model, build_trainer, reader, sample


def check(recipe: Recipe, samples: Samples | None = None) -> None:
    """Make each part, the model on no device, and pass a sample through it.

    `samples` are the facts of the data where they are known, as from a checkpoint; then no data is asked. Raises
    RecipeError with every fault, or DataError where there is none but the data's.
    """
    blame, optim = Blame(recipe), None
    with blame.on("optim"):
        optim = registry.find("optim", recipe.optim.name)(**recipe.optim.options)
    with blame.on("data"):
        facts = build_data(recipe).samples if samples is None else samples
        _made(recipe, facts, optim, blame)
        for error in conditions.faults(recipe, facts):
            blame.note("evaluate", error)
    blame.faults += _trainer_faults(recipe)
    if blame.faults:
        raise RecipeError(*blame.faults)
    if blame.lacking:
        raise blame.lacking[0]


class Blame:
    """The faults of a recipe, each with the section that it was found in, and the data that is not there."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.faults: list[ConfigIssue] = []
        self.lacking: list[DataError] = []

    @contextmanager
    def on(self, section: str) -> Iterator[None]:
        try:
            yield
        except OptionError as error:
            self.note(section, error)
        except DataError as error:
            self.lacking.append(error)

    def note(self, section: str, error: OptionError) -> None:
        self.faults.append(
            self.recipe.make_issue(f"{section}.{error.key}" if error.key else section, str(error))
        )


def _made(recipe: Recipe, facts: Samples, optim: Any, blame: Blame) -> None:
    """The model, and all that is made for a model; what could not be made itself is told already."""
    task = None
    with blame.on("task"):
        task = reader(recipe, "task", facts)
    with blame.on("model"), _counted(), torch.device("meta"):
        model = build_model(recipe, facts)
        model(sample(facts))
        _remembers(recipe, model)
        with blame.on("optim"):
            if optim is not None:
                optim.configure(model, 1)
        with blame.on("trainer"):
            if recipe.trainer.activation_checkpointing:
                enable_activation_checkpointing(model)
        with blame.on("diagnostics"):
            if recipe.diagnostics.layers:
                capture.check(model, recipe.diagnostics.layers)
        with blame.on("task"):
            if task is not None:
                task(model, None, facts, **recipe.task.options)
        if not any(conditions.faults(recipe, facts)):
            for error in conditions.misfits(recipe, model, facts):
                blame.note("evaluate", error)


@contextmanager
def _counted() -> Iterator[None]:
    """Raises OptionError where a model has more weights than can be counted."""
    try:
        yield
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise OptionError("", "it would be larger than any memory; choose smaller sizes") from None


def _remembers(recipe: Recipe, model: nn.Module) -> None:
    """Raises OptionError where a model remembers the batch before and the data does not go on from it."""
    if not getattr(model, "memory_length", 0) or recipe.data.options.get("streams"):
        return
    told = f"the windows of data {recipe.data.name} do not go on from those of the batch before"
    remedy = "set data.streams to true" if "streams" in recipe.data.options else "set it to 0"
    raise OptionError("memory_length", f"{told}; {remedy}")


def _trainer_faults(recipe: Recipe) -> list[ConfigIssue]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            build_trainer(recipe, logger=False)
    except Exception as error:  # Lightning refuses in several kinds
        return [recipe.make_issue("trainer", str(error).splitlines()[0][:200])]
    return []


def plan(
    recipe: Recipe, model: nn.Module, device: str, samples: Samples | None = None
) -> list[tuple[str, str]]:
    """For each attention layer the interpreter it will use on a type of device, and why."""
    found: list[tuple[str, str]] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(module, SelfAttention)
        tokens, chain, _ = args
        found.append(module.plan(tokens, chain, device))

    hooks = [
        m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, SelfAttention)
    ]
    with torch.no_grad():
        model(sample(build_data(recipe).samples if samples is None else samples))
    for hook in hooks:
        hook.remove()
    return found


def parameters(model: nn.Module) -> Mapping[str, int]:
    """Numbers of parameters by part."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        words = name.split(".")
        part = (
            ".".join([words[0], words[2].partition("_")[0]]) if words[0] == "blocks" else words[0]
        )
        if words[0] == "encoding":
            part = f"encoding.{words[1]}"
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def tokens(recipe: Recipe, model: nn.Module, samples: Samples | None = None) -> int:
    """Tokens per sample, extra tokens included."""
    found: list[int] = []
    attention = next(module for module in model.modules() if isinstance(module, SelfAttention))
    hook = attention.register_forward_pre_hook(lambda module, args: found.append(len(args[0])))
    with torch.no_grad():
        model(sample(build_data(recipe).samples if samples is None else samples))
    hook.remove()
    return found[0]
