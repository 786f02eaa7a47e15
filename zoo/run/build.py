"""Build what a recipe describes: data module, model, task and trainer, each once per command."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, cast

import lightning as L
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import nn

from zoo import registry
from zoo.attention.chain import make_factory
from zoo.attention.encoding import Dims, Encoding, EncodingFactory
from zoo.attention.layer import LayerOptions, SelfAttention
from zoo.attention.mixer import Mixer, MixerFactory, make_mixer_factory
from zoo.config import Recipe, TrainerOptions
from zoo.config.schema import ONCE, OURS
from zoo.config.stages import count_stages, resolve_stage
from zoo.data.base import DataModule, Datasets
from zoo.data.spec import IGNORE_INDEX, DataSpec, is_kind_of, list_kinds, name_kinds
from zoo.errors import OptionError
from zoo.optim.base import freeze
from zoo.options import Choice
from zoo.run import processes
from zoo.run.checkpoint import RandomStreams
from zoo.run.sharded_strategy import ShardedStrategy
from zoo.tasks.base import Optimizer, Task

INPUT_PRECISIONS: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "16-true": torch.float16,
        "bf16-true": torch.bfloat16,
        "transformer-engine": torch.bfloat16,
        "transformer-engine-float16": torch.float16,
    }
)
"""Precisions of the trainer in which Lightning converts samples, and their types."""


class Experiment:
    """A recipe and what is built from it. A command makes one and hands it down.

    Each object is built at its first use and then kept, so that nothing is built twice.

    Args:
        recipe: The resolved recipe.
        spec: The facts of the samples that the model is built for, as a checkpoint stores them.
            None: those of the recipe's data.
        datasets: The samples of a Python program, for data `torch_dataset`.
    """

    def __init__(
        self, recipe: Recipe, spec: DataSpec | None = None, datasets: Datasets | None = None
    ) -> None:
        self.recipe = recipe
        self.datasets, self._spec = datasets, spec
        self._variants: dict[str, DataModule] = {}
        self._stages: dict[int, Experiment] = {}

    @cached_property
    def data(self) -> DataModule:
        """The data module, not yet set up. Raises OptionError or DataError."""
        return self._build_data({})

    @property
    def spec(self) -> DataSpec:
        """The facts of the samples that the model is built for."""
        return self.data.spec if self._spec is None else self._spec

    @cached_property
    def optimizer(self) -> Optimizer:
        """The optimizer's settings, not yet bound to a model. Raises OptionError."""
        optim = self.recipe.optim
        return cast(Optimizer, registry.find("optim", optim.name)(**optim.options))

    def build_callback(self, choice: Choice) -> L.Callback:
        """Build a callback that the recipe names. Raises OptionError."""
        return cast(L.Callback, registry.find("callbacks", choice.name)(**choice.options))

    @cached_property
    def meta_model(self) -> nn.Module:
        """The model on the meta device: names and shapes without memory. Raises OptionError."""
        with torch.device("meta"):
            return build_model(self.recipe, self.spec)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of a forward pass of one sample, at the training size.

        Matrix products, convolutions and attention are counted, a multiplication and an addition as
        two operations. In a layer with a window, a query counts as many keys as the window has;
        otherwise all of them, also under a causal mask. A backward pass takes about twice as many.
        """
        from torch.utils.flop_counter import FlopCounterMode

        counter = FlopCounterMode(display=False)
        hides = _note_hidden_pairs(self.meta_model)
        # on the meta device, operations are counted without being computed
        with torch.device("meta"), torch.no_grad(), counter, hides as hidden:
            self.meta_model(*self.spec.build_inputs())
        return counter.get_total_flops() - sum(hidden)

    @cached_property
    def trainer(self) -> L.Trainer:
        """Lightning's trainer, without loggers and callbacks. Raises what Lightning raises."""
        return build_trainer(self.recipe)

    def data_variant(self, options: Mapping[str, Any]) -> DataModule:
        """Return the data module with some options changed, built once per set of options.

        Raises:
            OptionError: An option has a value that cannot work.
        """
        # options may hold lists, which have no hash
        key = repr(sorted(options.items()))
        if key not in self._variants:
            self._variants[key] = self._build_data(options)
        return self._variants[key]

    def at_step(self, step: int) -> Experiment:
        """Return the experiment of the stage in force after so many steps; see `recipe.stages`.

        Raises:
            RecipeError: A change of the stage is not possible.
        """
        number = count_stages(self.recipe, step) if self.recipe.stages else 0
        if not number:
            return self
        if number not in self._stages:
            # the vocabulary is that of the whole run, only the length may differ
            recipe, spec = resolve_stage(self.recipe, step), self.spec
            if recipe.data.options.get("length") != self.recipe.data.options.get("length"):
                spec = spec.with_size((recipe.data.options["length"],))
            self._stages[number] = Experiment(recipe, spec, self.datasets)
        return self._stages[number]

    @property
    def longest_stage(self) -> Experiment:
        """The experiment of the stage with the longest samples, the first of several."""
        if not self.recipe.stages:
            return self
        return max((staged for _, staged in self.list_stages()), key=lambda one: one.spec.size)

    def list_stages(self) -> list[tuple[int, Experiment]]:
        """List the step from which each stage is in force, and its experiment, from step 0 on."""
        steps = [0, *(stage.from_step for stage in self.recipe.stages)]
        return [(step, self.at_step(step)) for step in steps]

    @property
    def training_data(self) -> DataModule:
        """The data to train on: windows of the longest stage, which the others divide."""
        return self.longest_stage.data

    def _build_data(self, changes: Mapping[str, Any]) -> DataModule:
        data = build_data(self.recipe, **changes)
        if self.datasets is not None:
            data.adopt_datasets(self.datasets)
        data.patch_size = self.recipe.model.options.get("patch_size")
        data.dtype = INPUT_PRECISIONS.get(self.recipe.trainer.precision, torch.float32)
        data.ignored_target = self.recipe.task.options.get("ignore_index", IGNORE_INDEX)
        return data

    def build_task(self, device: str = "cpu", *, is_trained: bool = True) -> Task:
        """Build the task with freshly initialised weights on a device; see `build_task`."""
        return build_task(self.recipe, self.spec, device, is_trained=is_trained)


@contextmanager
def _note_hidden_pairs(model: nn.Module) -> Iterator[list[int]]:
    """Make layers with a window compute all pairs, and list the operations of those outside it."""
    hidden: list[int] = []
    layers = [
        module for module in model.modules() if isinstance(module, SelfAttention) and module.window
    ]
    backends = [layer.backend for layer in layers]

    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(layer, SelfAttention)
        assert layer.window is not None
        tokens = len(arguments[0])
        seen = layer.window if layer.causal else 2 * layer.window - 1
        # a product of a query with a key, and of a weight with a value
        hidden.append(4 * layer.dims.heads * layer.head_dim * tokens * max(tokens - seen, 0))

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    for layer in layers:
        # other backends leave out some pairs
        layer.backend = "reference"
    try:
        yield hidden
    finally:
        for layer, backend, hook in zip(layers, backends, hooks, strict=True):
            layer.backend = backend
            hook.remove()


def build_data(recipe: Recipe, **changes: Any) -> DataModule:
    """Build the data module, not yet set up; `changes` replace options of the recipe.

    Raises:
        OptionError: An option cannot work, or no such processes can share the global batch.
        DataError: Its text cannot be read.
    """
    cls = registry.find("data", recipe.data.name)
    options = {**recipe.data.options, **changes}
    if options.pop("global_batch_size", None) is not None and "batch_size" not in changes:
        options["batch_size"] = processes.compute_batch_size(recipe)
    return cast(DataModule, cls(recipe.seed, **options))


def build_model(recipe: Recipe, spec: DataSpec) -> nn.Module:
    """Build a recipe's model for samples with the facts `spec`, as `zoo.build_model` does."""
    cls = find_reader(recipe, "model", spec)
    options = build_factories(recipe.model.options)
    return cast(nn.Module, cls(spec, **options))


def build_factories(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a model with a factory for each encoding and mixer.

    Args:
        options: Options by name, as `Recipe.model` has them.
    """
    # each encoding draws from its own stream, so that another encoding leaves all other weights
    # equal
    streams, factories = RandomStreams(), list[tuple[Choice, EncodingFactory]]()
    built: dict[str, Any] = {}
    for key, value in options.items():
        built[key] = _build_encodings(value, key, streams, factories)
    return built


def build_task(
    recipe: Recipe, spec: DataSpec, device: str = "cpu", *, is_trained: bool = True
) -> Task:
    """Build the task with its model on a device; see `zoo.build_model`.

    Args:
        recipe: A resolved recipe.
        spec: The facts of the samples.
        device: Where weights are drawn; "meta" allocates nothing.
        is_trained: Whether the task gets the optimizer, and the model its frozen weights.
    """
    optim = None
    if is_trained:
        optim = registry.find("optim", recipe.optim.name)(**recipe.optim.options)
    cls = find_reader(recipe, "task", spec)
    with torch.device(device):
        model = build_model(recipe, spec)
    if is_trained:
        # before Lightning wraps the model: DDP must not wait for gradients of frozen weights
        freeze(model, recipe.optim.options.get("param_groups", ()))
    return cast(Task, cls(model, optim, spec, **recipe.task.options))


def find_reader(recipe: Recipe, section: Literal["model", "task"], spec: DataSpec) -> Any:
    """Return the class of the model or the task.

    Raises:
        OptionError: It reads samples of another kind than the data yields.
    """
    name = getattr(recipe, section).name
    cls = registry.find(f"{section}s", name)
    kinds = list_kinds(cls)
    if not is_kind_of(spec, kinds):
        message = f"{section} {name} reads {name_kinds(kinds)}"
        raise OptionError("name", f"{message}, data {recipe.data.name} yields {spec.noun}")
    return cls


def build_trainer(recipe: Recipe) -> L.Trainer:
    """Build Lightning's trainer; it prints nothing itself and has no loggers or callbacks yet."""
    option_names = [field.name for field in fields(recipe.trainer) if field.name not in OURS]
    options = {name: getattr(recipe.trainer, name) for name in option_names}
    # -1 is Lightning's value for no limit
    if options["max_epochs"] is None and options["max_steps"] is not None:
        options["max_epochs"] = -1
    options["max_steps"] = options["max_steps"] or -1
    options["overfit_batches"] = options["overfit_batches"] or 0.0
    if recipe.trainer.fast_dev_run:
        options |= ONCE

    # a launcher has decided on devices and nodes already
    launched = processes.detect_launcher()
    if launched:
        options["devices"], options["num_nodes"] = launched
    if processes.is_slurm():
        # the submitted script decides what happens after a signal
        options["plugins"] = [SLURMEnvironment(auto_requeue=False)]

    world_size = processes.count_processes(recipe.trainer)
    options["strategy"] = _build_strategy(recipe.trainer, world_size)
    return L.Trainer(
        **options,
        logger=False,
        # preflight has passed a sample already; checkpoints, bars and samplers are those of zoo
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )


def _build_strategy(options: TrainerOptions, world_size: int) -> Strategy | str:
    """Build the strategy of a recipe for a number of processes.

    Raises:
        OptionError: The processes cannot be divided into the copies of the sharded weights.
    """
    if options.strategy == "fsdp":
        copies = options.replicas
        if copies > 1 and (world_size % copies or world_size == copies):
            message = f"{world_size} processes cannot shard {copies} copies of the weights"
            hint = "choose a smaller divisor of their number, or strategy ddp"
            raise OptionError("replicas", f"{message}; {hint}")
        return ShardedStrategy(world_size, copies, writes_shards=options.sharded_checkpoints)
    # gradients live in the buckets that are reduced, which saves a copy of them
    return "auto" if world_size == 1 else DDPStrategy(gradient_as_bucket_view=True)


IGNORED_WARNINGS = (
    ".*does not have many workers.*",
    # a block passes tables on, which nothing changes in place
    ".*FSDP2-wrapped module .* returned a view tensor.*",
    # the compiler looks at the gathered weights of FSDP
    ".*attribute of a Tensor that is not a leaf Tensor is being accessed.*",
    # weight averaging leaves nothing for our configure_model to do
    ".*WeightAveraging callback with a model that overrides.*",
    ".*number of training batches.*",
    # zoo itself says when processes have to be started with srun
    ".*srun. command is available.*",
    ".*LeafSpec.*",
    ".*isinstance.treespec.*",
    ".*_prims_common.check. is deprecated.*",
    ".*code generation for complex operators.*",
)


def silence_libraries() -> None:
    """Silence messages of libraries that a user of zoo cannot act on."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)


def _is_choices(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(v, Choice) for v in value)


def _build_encodings(
    value: Any, key: str, streams: RandomStreams, factories: list[tuple[Choice, EncodingFactory]]
) -> Any:
    """Replace each list of encodings, and each mixer, in the value of an option by factories.

    Equal entries have one factory, so that layers can share what it builds; `factories` collects
    them.
    """
    if isinstance(value, Choice):
        return _build_mixer_factory(value, key, streams)
    if isinstance(value, Mapping):
        return {
            word: _build_encodings(entry, f"{key}.{word}", streams, factories)
            for word, entry in value.items()
        }
    if not _is_choices(value):
        return value
    built: dict[str, EncodingFactory] = {}
    for index, choice in enumerate(value):
        if choice.name in built:
            raise OptionError(
                f"{key}.{index}", f"{choice.name} appears twice in the list; list it once"
            )
        # compared by equality: options may be mappings, which cannot be hashed
        same = next((factory for former, factory in factories if former == choice), None)
        built[choice.name] = same or _build_factory(choice, f"{key}.{index}", streams)
        factories.append((choice, built[choice.name]))
    return built


def _build_mixer_factory(choice: Choice, key: str, streams: RandomStreams) -> MixerFactory:
    """Return a factory of a mixer whose errors name its key in the recipe."""
    build = make_mixer_factory(choice)
    draws_as_attention = registry.find("mixers", choice.name).projects_heads

    def make(dims: Dims, block: LayerOptions) -> Mixer:
        stream = nullcontext() if draws_as_attention else streams.use(f"{choice.name} {dims.layer}")
        try:
            with stream:
                return build(dims, block)
        except OptionError as error:
            raise OptionError(f"{key}.{error.key}", error.message) from None

    return make


def _build_factory(choice: Choice, key: str, streams: RandomStreams) -> EncodingFactory:
    """Return a factory of an encoding whose errors name its key in the recipe."""
    build = make_factory(choice)

    def make(dims: Dims) -> Encoding:
        try:
            # by name and layer, so that a change of depth leaves the first layers equal
            with streams.use(f"{choice.name} {dims.layer}"):
                return build(dims)
        except OptionError as error:
            raise OptionError(f"{key}.{error.key}", error.message) from None

    return make
