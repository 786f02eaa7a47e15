"""Recipe -> model, task, data, trainer. The one file that sees every registry."""

from __future__ import annotations

import logging
import warnings
from dataclasses import asdict
from typing import Any, cast

import lightning as L
import torch
from torch import nn

from zoo import functions, registry
from zoo.attention.encoding import Dims, Encoding, Link
from zoo.data.source import Source
from zoo.errors import Invalid
from zoo.recipe import Recipe
from zoo.registry import Choice
from zoo.tasks.task import Task


def build_data(recipe: Recipe, **changes: Any) -> Source:
    """The data module, not yet set up; `changes` replace options."""
    cls = registry.find("data", recipe.data.name)
    return cast(Source, cls(recipe.seed, **{**recipe.data.options, **changes}))


def build_model(recipe: Recipe) -> nn.Module:
    """The model as a plain module, with weights drawn from torch's random state. Loads no data."""
    given = recipe.model.options.items()
    options = {key: _links(value, key) if _is_choices(value) else value for key, value in given}
    return cast(nn.Module, registry.find("models", recipe.model.name)(build_data(recipe).samples, **options))


def build_task(recipe: Recipe) -> Task:
    """The task with its model and optimiser."""
    optim = registry.find("optim", recipe.optim.name)(**recipe.optim.options)
    cls = registry.find("tasks", recipe.task.name)
    return cast(Task, cls(build_model(recipe), optim, build_data(recipe).samples, **recipe.task.options))


def build_trainer(recipe: Recipe, **more: Any) -> L.Trainer:
    """Lightning's trainer. Whatever it would print on its own is left to us."""
    options = {key: value for key, value in asdict(recipe.trainer).items() if key != "compile"}
    if options["max_epochs"] is None and options["max_steps"] is not None:
        options["max_epochs"] = -1
    options["max_steps"] = options["max_steps"] or -1
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    hush()
    return L.Trainer(**{**options, "num_sanity_val_steps": 0, **quiet, "use_distributed_sampler": False, **more})


def hush() -> None:
    """Silence what a user of zoo can do nothing about."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for told in (
        ".*does not have many workers.*",
        ".*number of training batches.*",
        ".*LeafSpec.*",
        ".*isinstance.treespec.*",
        ".*_prims_common.check. is deprecated.*",
        ".*code generation for complex operators.*",
    ):
        warnings.filterwarnings("ignore", message=told)


def sample(data: Source) -> torch.Tensor:
    """One made-up input of the shape that the data has."""
    facts = data.samples
    return torch.zeros(1, facts.channels, facts.height, facts.width)


def _is_choices(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and all(isinstance(one, Choice) for one in value)


def _links(choices: tuple[Choice, ...], key: str) -> dict[str, Link]:
    links: dict[str, Link] = {}
    for at, choice in enumerate(choices):
        if choice.name in links:
            raise Invalid(f"{key}.{at}", f"{choice.name} stands twice in the list; list it once")
        links[choice.name] = _link(choice, f"{key}.{at}")
    return links


def _link(choice: Choice, key: str) -> Link:
    """An encoding that waits for its sizes, and whose faults name its place in the recipe."""

    waiting = functions.waiting(choice)

    def make(dims: Dims) -> Encoding:
        try:
            return waiting(dims)
        except Invalid as error:
            raise Invalid(f"{key}.{error.key}", str(error)) from None

    return make
