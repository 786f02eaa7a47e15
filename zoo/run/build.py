"""Recipe -> model, task, data, trainer. The one file that sees every registry."""

from __future__ import annotations

import logging
import warnings
from dataclasses import asdict
from typing import Any, Literal, cast, get_args, get_type_hints

import lightning as L
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn

from zoo import api, registry
from zoo.attention.encoding import Dims, Encoding, EncodingFactory
from zoo.config import Recipe
from zoo.config.schema import ONCE, OURS, TrainerOptions
from zoo.data.base import DataModule
from zoo.data.spec import Samples, TextClassificationSpec, TextSpec
from zoo.errors import OptionError
from zoo.optim.param_groups import freeze
from zoo.registry import Choice
from zoo.run import distributed
from zoo.run.rng import Aside
from zoo.tasks.base import Task

SILENT: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


def placed(options: TrainerOptions) -> dict[str, Any]:
    """Options of a trainer. What a launcher says of devices and nodes goes before what the recipe says."""
    devices, nodes = distributed.surroundings() or (options.devices, options.num_nodes)
    where: dict[str, Any] = {
        "accelerator": options.accelerator,
        "devices": devices,
        "num_nodes": nodes,
    }
    if (
        distributed.under_slurm()
    ):  # what to do after a signal is up to the script that was submitted
        where["plugins"] = [SLURMEnvironment(auto_requeue=False)]
    return where | {"strategy": _strategy(options.strategy, _count(where))}


def _count(where: dict[str, Any]) -> int:
    """How many processes there will be in all, as Lightning finds it out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return int(L.Trainer(**where, **SILENT).world_size)


def _strategy(name: str, count: int) -> Strategy | str:
    if name == "fsdp":
        return ModelParallelStrategy(
            count, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    return "auto" if count == 1 else DDPStrategy(gradient_as_bucket_view=True)


def build_data(recipe: Recipe, **changes: Any) -> DataModule:
    """The data module, not yet set up; `changes` replace options."""
    cls = registry.find("data", recipe.data.name)
    return cast(DataModule, cls(recipe.seed, **{**recipe.data.options, **changes}))


def build_model(recipe: Recipe, samples: Samples | None = None) -> nn.Module:
    """The model as a plain module, with weights drawn from torch's random state. Loads no data.

    Encodings draw theirs from streams of their own, so that all other weights are those of a model without any.
    `samples` are the facts it is built for, where they are known; else they are asked of the data. Raises OptionError where
    the model reads samples of another kind.
    """
    facts = build_data(recipe).samples if samples is None else samples
    given, aside = recipe.model.options.items(), Aside()
    options = {
        key: _links(value, key, aside) if _is_choices(value) else value for key, value in given
    }
    return cast(nn.Module, reader(recipe, "model", facts)(facts, **options))


def build_task(recipe: Recipe, samples: Samples | None = None, device: str = "cpu") -> Task:
    """The task with its model, on a device, and its optimiser; `samples` as in `build_model`."""
    facts = build_data(recipe).samples if samples is None else samples
    optim = registry.find("optim", recipe.optim.name)(**recipe.optim.options)
    cls = reader(recipe, "task", facts)
    with torch.device(device):
        model = build_model(recipe, facts)
    freeze(model, recipe.optim.options.get("param_groups", ()))
    return cast(Task, cls(model, optim, facts, **recipe.task.options))


def reader(recipe: Recipe, section: Literal["model", "task"], samples: Samples) -> Any:
    """The class that a section names. Raises OptionError where it reads samples of another kind than the data's."""
    name = getattr(recipe, section).name
    cls = registry.find(f"{section}s", name)
    wanted = get_type_hints(cls.__init__).get("samples", object)
    if not isinstance(samples, wanted):
        kinds = " or ".join(kind.noun for kind in get_args(wanted) or (wanted,))
        raise OptionError(
            "name", f"{section} {name} reads {kinds}, data {recipe.data.name} yields {samples.noun}"
        )
    return cls


def build_trainer(recipe: Recipe, **more: Any) -> L.Trainer:
    """Lightning's trainer. Whatever it would print on its own is left to us."""
    hush()
    options = {key: value for key, value in asdict(recipe.trainer).items() if key not in OURS}
    options |= placed(recipe.trainer)
    options["overfit_batches"] = options["overfit_batches"] or 0.0
    options["plugins"] = [*options.get("plugins", []), *more.pop("plugins", [])]
    if options["max_epochs"] is None and options["max_steps"] is not None:
        options["max_epochs"] = -1
    options["max_steps"] = options["max_steps"] or -1
    if recipe.trainer.fast_dev_run:
        options |= ONCE
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return L.Trainer(
        **{**options, "num_sanity_val_steps": 0, **quiet, "use_distributed_sampler": False, **more}
    )


def hush() -> None:
    """Silence what a user of zoo can do nothing about."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for told in (
        ".*does not have many workers.*",
        ".*WeightAveraging callback with a model that overrides.*",  # ours has nothing to do where weights are averaged
        ".*number of training batches.*",
        ".*srun. command is available.*",  # zoo says itself where processes want to be started by it
        ".*LeafSpec.*",
        ".*isinstance.treespec.*",
        ".*_prims_common.check. is deprecated.*",
        ".*code generation for complex operators.*",
    ):
        warnings.filterwarnings("ignore", message=told)


def sample(samples: Samples) -> torch.Tensor:
    """One made-up input of the shape that samples have."""
    if isinstance(samples, TextSpec | TextClassificationSpec):
        return torch.zeros(1, samples.length, dtype=torch.long)
    return torch.zeros(1, samples.channels, *samples.grid)


def _is_choices(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) > 0
        and all(isinstance(one, Choice) for one in value)
    )


def _links(choices: tuple[Choice, ...], key: str, aside: Aside) -> dict[str, EncodingFactory]:
    links: dict[str, EncodingFactory] = {}
    for at, choice in enumerate(choices):
        if choice.name in links:
            raise OptionError(
                f"{key}.{at}", f"{choice.name} stands twice in the list; list it once"
            )
        links[choice.name] = _link(choice, f"{key}.{at}", aside)
    return links


def _link(choice: Choice, key: str, aside: Aside) -> EncodingFactory:
    """An encoding that waits for its sizes, and whose faults name its place in the recipe."""

    waiting = api.make_factory(choice)

    def make(dims: Dims) -> Encoding:
        try:
            with aside(f"{choice.name} {dims.layer}"):
                return waiting(dims)
        except OptionError as error:
            problem = str(error)
            if choice.name not in problem:
                problem = f"{choice.name}: {problem}"
            raise OptionError(f"{key}.{error.key}", problem) from None

    return make
