"""Check that the parts of a recipe fit together, and predict what will happen when they run."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zoo import registry
from zoo.attention import coordinates
from zoo.attention.backends.dispatch import choose_backend
from zoo.attention.call import AttentionCall
from zoo.attention.chain import list_links
from zoo.attention.encoding import Encoding
from zoo.attention.layer import AttentionInput, SelfAttention, find_encoded
from zoo.attention.mixer import Mixer
from zoo.attention.tokens import Tokens
from zoo.config import Recipe
from zoo.config.stages import LENGTH
from zoo.data.base import Datasets
from zoo.data.spec import DataSpec
from zoo.diagnostics import capture
from zoo.encodings.common.scaling import NEEDS_ORIGINAL, Scaling
from zoo.errors import ConfigIssue, DataError, Message, OptionError, RecipeError, Setting
from zoo.models.transformer import enable_activation_checkpointing, find_transformers
from zoo.models.vit import ViT
from zoo.options.plain import join
from zoo.run import conditions
from zoo.run.build import Experiment, find_reader, silence_libraries
from zoo.run.callbacks.stage_changes import explain_difference
from zoo.tasks.base import Task

UNBOUNDED = 2.0**20
"""A position that a model with memory reaches, which numbers tokens without end."""


def build_experiment(
    recipe: Recipe,
    spec: DataSpec | None = None,
    datasets: Datasets | None = None,
    *,
    is_trained: bool = True,
) -> Experiment:
    """Build an experiment and check that its parts fit together.

    Args:
        recipe: The resolved recipe.
        spec: The facts of the samples, as a checkpoint stores them. None: ask the recipe's data.
        datasets: The samples of a Python program, for data `torch_dataset`.
        is_trained: Whether the parts that only a training needs are checked too.

    Returns:
        The experiment, with the parts that the check has built.

    Raises:
        RecipeError: With every issue, each located in the recipe.
        DataError: There is no issue but that data is missing.
    """
    experiment = Experiment(recipe, spec, datasets)
    issues = check(experiment, is_trained=is_trained)
    if issues:
        raise RecipeError(*issues)
    return experiment


def check(experiment: Experiment, *, is_trained: bool = True) -> list[ConfigIssue]:
    """Build each part of an experiment, the model on the meta device, and pass a sample through it.

    Args:
        experiment: The experiment.
        is_trained: Whether it will be trained. A test has no optimizer, callbacks or loggers.

    Returns:
        Every issue, each located in the recipe.

    Raises:
        DataError: There is no issue but that data is missing.
    """
    silence_libraries()
    recipe = experiment.recipe
    issues = IssueCollector(recipe)
    if is_trained:
        _check_training(experiment, issues)
    # model and task are built for the samples, so they are checked only where the data says what it
    # yields
    with issues.collect("data"):
        experiment.spec  # noqa: B018
        if is_trained and recipe.data.options.get("aspect") == "keep":
            with issues.collect("data"):
                experiment.data.check_training()
        unmet = [*conditions.check_data(experiment)]
        # conditions that the data refuses need no model
        if _check_model(experiment, issues, is_trained=is_trained) and not unmet:
            with torch.device("meta"):
                unmet = [*conditions.check_model(experiment)]
        for error in unmet:
            issues.add("evaluate", error)
    issues.found += _check_trainer(experiment)
    if is_trained and recipe.stages and not issues.found:
        issues.found += _check_stages(experiment)
    # wrong keys are reported first: they can be corrected without the data
    if issues.missing_data and not issues.found:
        raise issues.missing_data[0]
    return issues.found


def check_data(experiment: Experiment, splits: Sequence[str]) -> None:
    """Check that data exist, and that the samples of some splits have the classes they should.

    Raises:
        DataError: Data is missing, or a model could learn nothing from it.
        RecipeError: It is not what the recipe says it is.
    """
    try:
        experiment.data.check_source()
        for split in splits:
            experiment.data.check_classes(split)
    except OptionError as error:
        issue = experiment.recipe.make_issue(f"data.{error.key}", str(error))
        raise RecipeError(issue) from None


def _check_stages(experiment: Experiment) -> Iterator[ConfigIssue]:
    """Yield why a stage cannot follow the one before."""
    recipe, steps = experiment.recipe, [0]
    if recipe.trainer.strategy == "fsdp":
        message = "a stage needs all weights in each process, and fsdp shards them"
        yield recipe.make_issue("stages", message, "choose strategy ddp, or leave stages out")
        return
    for number, stage in enumerate(recipe.stages):
        key, step = f"stages.{number}", stage.from_step
        issues: list[tuple[str, str | Message, str | Message]] = []
        if not stage.changes:
            issues.append(("", "the stage changes nothing", "give it model or data"))
        if step <= steps[-1]:
            issues.append(("from_step", f"{step} is not after {steps[-1]}", "sort the stages"))
        if recipe.trainer.max_steps is not None and step >= recipe.trainer.max_steps:
            message = f"step {step:,} comes after training, max_steps {recipe.trainer.max_steps:,}"
            issues.append(("from_step", message, "choose an earlier step"))
        steps.append(step)
        try:
            if not issues:
                issues += _check_stage(experiment, step)
        except RecipeError as error:
            found = ((one.key, one.problem, one.remedy) for one in error.issues)
            issues += found
        for word, problem, remedy in issues:
            yield recipe.make_issue(join(key, word) if word else key, problem, remedy)
        if issues:
            # later stages are made of this one
            return
    longest = experiment.longest_stage.spec.size[0]
    for number, stage in enumerate(recipe.stages):
        length = experiment.at_step(stage.from_step).spec.size[0]
        for one in (experiment.spec.size[0], length):
            if longest % one:
                message = f"windows of {longest} tokens have no equal parts of {one}"
                key = f"stages.{number}.{LENGTH}"
                yield recipe.make_issue(key, message, f"choose divisors of {longest}")
                return


def _check_stage(
    experiment: Experiment, step: int
) -> Iterator[tuple[str, str | Message, str | Message]]:
    """Yield key, problem and remedy of a stage, whose recipe has been resolved.

    Raises:
        RecipeError: Its recipe is wrong by itself.
    """
    staged = experiment.at_step(step)
    if found := check(staged):
        raise RecipeError(*found)
    if difference := explain_difference(experiment.meta_model, staged.meta_model):
        remedy = Message("start a new run from the weights with ", Setting("init_from"))
        yield "model", f"{difference}: weights cannot change their shape within a run", remedy
    if experiment.spec.size == staged.spec.size:
        return
    if not experiment.data.has_divisible_windows:
        message = f"samples of data {experiment.recipe.data.name} cannot be divided"
        hint = "leave it out, or train on text without streams"
        yield LENGTH, message, Message(hint)
    if named := [*_list_without_original(staged.meta_model)]:
        message = f"the length changes, and {named[0]} takes its training length from it"
        yield "model.encoding", message, Message("give scaling.original")


def _list_without_original(model: nn.Module) -> Iterator[str]:
    """Yield rules that read the training length of a model, because they are not given one."""
    for part in find_encoded(model):
        for link in list_links(part.chains):
            scaling = getattr(link, "scaling", None)
            if not isinstance(scaling, Scaling) or scaling.rule not in NEEDS_ORIGINAL:
                continue
            if scaling.original is None:
                yield f"scaling {scaling.rule}"


class IssueCollector:
    """Collects the issues of a recipe, each with its section, and the data that is missing."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.found: list[ConfigIssue] = []
        self.missing_data: list[DataError] = []

    @contextmanager
    def collect(self, section: str) -> Iterator[None]:
        """Collect the error that ends the block."""
        try:
            yield
        except OptionError as error:
            self.add(section, error)
        except DataError as error:
            self.missing_data.append(error)

    def add(self, section: str, error: OptionError) -> None:
        """Add an error of an option of a section."""
        key = f"{section}.{error.key}" if error.key else section
        self.found.append(self.recipe.make_issue(key, str(error)))


def _check_training(experiment: Experiment, issues: IssueCollector) -> None:
    """Check the parts of a training that need no model."""
    trainer = experiment.recipe.trainer
    with issues.collect("optim"):
        _check_precision(experiment)
    for number, choice in enumerate(trainer.callbacks):
        with issues.collect(f"trainer.callbacks.{number}"):
            experiment.build_callback(choice)
    for number, choice in enumerate(trainer.logger):
        with issues.collect(f"trainer.logger.{number}"):
            registry.find("loggers", choice.name)(**choice.options)


def _check_precision(experiment: Experiment) -> None:
    """Raise OptionError where the optimizer cannot work in the precision of the trainer."""
    precision = experiment.recipe.trainer.precision
    # its kernel divides gradients by the scale itself, so that no one else sees or clips them
    if getattr(experiment.optimizer, "fused", False) and precision == "16-mixed":
        message = "the kernel hides the scale of gradients that 16-mixed needs"
        raise OptionError("fused", f"{message}; leave it out, or choose bf16-mixed")


def _check_epsilon(recipe: Recipe, optimizer: torch.optim.Optimizer) -> None:
    """Raise OptionError where a number that keeps a denominator from 0 is 0 in float16."""
    if recipe.trainer.precision != "16-true":
        return
    for group in optimizer.param_groups:
        # Adafactor has two, of which the first may be left to torch
        epsilons = group.get("eps")
        pair = epsilons if isinstance(epsilons, tuple) else (epsilons,)
        for number, epsilon in enumerate(pair, 1):
            if epsilon is None or torch.tensor(epsilon, dtype=torch.float16, device="cpu"):
                continue
            key = "eps" if len(pair) == 1 else f"eps{number}"
            message = f"{epsilon:g} is 0 in float16, the precision of the weights"
            if key not in recipe.optim.options:
                raise OptionError("name", f"its epsilon of {message}; choose precision 16-mixed")
            raise OptionError(key, f"{message}; choose precision 16-mixed, or set it to 1e-4")


def check_optimizer(recipe: Recipe, checked: Experiment) -> None:
    """Check a recipe that differs from a checked one in its seed and its optimizer alone.

    Args:
        recipe: The resolved recipe.
        checked: What `build_experiment` returned for the other recipe.

    Raises:
        RecipeError: The optimizer cannot be built, or does not fit the model.
    """
    experiment = Experiment(recipe)
    issues = IssueCollector(recipe)
    with issues.collect("optim"):
        _check_precision(experiment)
        configured = experiment.optimizer.configure(checked.meta_model, 1)
        _check_epsilon(recipe, configured["optimizer"])
    if issues.found:
        raise RecipeError(*issues.found)


def _check_model(experiment: Experiment, issues: IssueCollector, *, is_trained: bool) -> bool:
    """Check the model and everything that is built for it; return whether it can be built."""
    recipe, spec, task = experiment.recipe, experiment.spec, None
    with issues.collect("task"):
        task = find_reader(recipe, "task", spec)
    # the meta device computes shapes only, so a model of any size is checked in a moment
    with issues.collect("model"), _refuse_overflow(), torch.device("meta"):
        model = experiment.meta_model
        model(*spec.build_inputs())
        _check_memory(recipe, model)
        _check_positions(model, is_trained=is_trained)
        if recipe.data.options.get("aspect") == "keep":
            _check_aspect(recipe, model)
            with issues.collect("data"):
                _check_pack(recipe, model, spec)
        # an optimizer that cannot be built has its issue already
        if is_trained and not any(issue.key.startswith("optim") for issue in issues.found):
            with issues.collect("optim"):
                configured = experiment.optimizer.configure(model, 1)
                _check_epsilon(recipe, configured["optimizer"])
        with issues.collect("trainer"):
            if recipe.trainer.activation_checkpointing:
                enable_activation_checkpointing(model)
            if recipe.trainer.compile == "blocks" and not find_transformers(model):
                message = "the model has no transformer blocks"
                raise OptionError("compile", f"{message}; set it to true for the whole model")
        with issues.collect("diagnostics"):
            if recipe.diagnostics.layers:
                capture.number_layers(model, recipe.diagnostics.layers)
        with issues.collect("task"):
            if task is not None:
                _check_monitor(recipe, task(model, None, spec, **recipe.task.options), issues)
        return True
    return False


@contextmanager
def _refuse_overflow() -> Iterator[None]:
    """Raise OptionError where a model has more weights than an integer can count."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        # a size that torch cannot hold is a TypeError
        if "overflow" not in str(error).lower():
            raise
        raise OptionError("", "the model exceeds any memory; choose smaller sizes") from None


def _check_memory(recipe: Recipe, model: nn.Module) -> None:
    """Raise OptionError where a model has memory, but no window continues the one before."""
    if not getattr(model, "memory_length", 0) or recipe.data.options.get("streams"):
        return
    message = f"the windows of data {recipe.data.name} do not continue those of the batch before"
    hint = "set data.streams to true" if "streams" in recipe.data.options else "set it to 0"
    raise OptionError("memory_length", f"{message}; {hint}")


def _check_aspect(recipe: Recipe, model: nn.Module) -> None:
    """Raise OptionError where a model cannot read images that keep their shape, or share rows."""
    # Models of other libraries have no rows of several images.
    if "places" not in inspect.signature(model.forward).parameters:
        message = "it reads batches of images of one size"
        raise OptionError("name", f"{message}; choose vit, or set data.aspect to fixed")
    for transformer in find_transformers(model):
        for link in list_links(transformer.chains):
            if link.one_grid_reason:
                message = f"{link.name}: {link.one_grid_reason}"
                raise OptionError("encoding", f"{message}; set data.aspect to fixed")
    augmentation = getattr(model, "position_augmentation", None)
    if recipe.data.options.get("pack") and augmentation is not None and augmentation.per_sample:
        message = "images that share a row share its draws"
        key = "position_augmentation.per_sample"
        raise OptionError(key, f"{message}; leave it out, or data.pack")


def _check_pack(recipe: Recipe, model: nn.Module, spec: DataSpec) -> None:
    """Raise OptionError where a row has no room for the patches of an image."""
    pack: int | None = recipe.data.options.get("pack")
    assert isinstance(model, ViT)
    patches = math.prod(model.grid_size(*spec.grid))
    if pack is not None and pack < patches:
        message = f"a row of {pack} patches, and an image of data.size has {patches}"
        raise OptionError("pack", f"{message}; write {patches} or more, or leave it out")


def _check_positions(model: nn.Module, *, is_trained: bool) -> None:
    """Raise OptionError where an encoding cannot read positions that the model will make.

    A sample on the meta device has shapes, but no values that an encoding could refuse.
    """
    for transformer in find_transformers(model):
        for link in list_links(transformer.chains):
            if link.dims.length is None:
                continue
            with torch.device("cpu"):
                try:
                    _check_positions_of(link, transformer, is_trained=is_trained)
                except OptionError as error:
                    key = transformer.locate(link.dims.layer, error.key)
                    raise OptionError(key, error.message) from None


def _check_positions_of(link: Encoding, model: nn.Module, *, is_trained: bool) -> None:
    sizes = link.dims.sizes
    index = coordinates.grid(sizes, torch.zeros(()))  # [N, P]
    grid_size = coordinates.grid_shape(sizes, index)

    def read(index: torch.Tensor) -> None:
        tokens = Tokens.at(index.new_empty(1, len(index), 0), index).replace(grid_size=grid_size)
        link.check_positions(coordinates.apply_convention(tokens, link.coordinates, sizes).pos)

    try:
        read(index)
    except OptionError as error:
        message = f"{link.name} with coordinates {link.coordinates}: {error.problem}"
        raise OptionError("encoding", f"{message}; use coordinates index") from None
    augmentation = getattr(model, "position_augmentation", None)
    if is_trained and augmentation is not None:
        try:
            for moved in augmentation.find_extremes(index):
                read(moved)
        except OptionError as error:
            message = f"{link.name}: training moves tokens, and {error.problem}"
            hint = "leave it out, or use an encoding without a table"
            raise OptionError("position_augmentation", f"{message}; {hint}") from None
    if getattr(model, "memory_length", 0):
        try:
            # further than any number of windows
            read(index + UNBOUNDED)
        except OptionError:
            message = f"{link.name} has a table, and with memory positions grow without end"
            hint = "set it to 0, or use an encoding without a table"
            raise OptionError("memory_length", f"{message}; {hint}") from None


def _check_monitor(recipe: Recipe, task: Task, issues: IssueCollector) -> None:
    """Add an issue for each option that needs the monitored metric of a task that has none."""
    if task.monitor:
        return
    message = f"task {recipe.task.name} monitors no metric"
    hint = "name one as `monitor` of its class, or leave the option out"
    for key in ("save_top_k", "early_stopping"):
        if getattr(recipe.trainer, key) is not None:
            issues.add("trainer", OptionError(key, f"{message}; {hint}"))


def _check_trainer(experiment: Experiment) -> list[ConfigIssue]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = experiment.trainer
    except OptionError as error:
        return [experiment.recipe.make_issue(f"trainer.{error.key}", error.message)]
    except Exception as error:
        # Lightning refuses with several types of exceptions
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        return [experiment.recipe.make_issue("trainer", cause[:200])]
    if experiment.datasets is not None and trainer.world_size > 1:
        message = "several processes cannot share the datasets of a Python program"
        hint = "set it to 1, or let the recipe name its data"
        return [experiment.recipe.make_issue("trainer.devices", message, hint)]
    return []


def plan_backends(model: nn.Module, spec: DataSpec, device: str) -> list[tuple[str, str]]:
    """Return (backend, reason) of each layer on a type of device, such as "cuda".

    That of a mixer is its name.
    """
    plans: list[tuple[str, str]] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(module, SelfAttention | Mixer)
        tokens, chain, _ = args
        plans.append(module.plan(tokens, chain, device))

    layers = [module for module in model.modules() if isinstance(module, SelfAttention | Mixer)]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]

    # models of other libraries compute attention in modules of their own, which report their calls
    def note_equipped(attention_input: AttentionInput) -> None:
        call = attention_input.describe(torch.arange(len(attention_input.tokens)))
        assert isinstance(call, AttentionCall)
        plans.append(choose_backend(call, device))

    equipped = [part for part in find_encoded(model) if part.calls_hooks]
    for part in equipped:
        part.attention_hooks.append(note_equipped)
    with torch.no_grad():
        model(*spec.build_inputs())
    for hook in hooks:
        hook.remove()
    for part in equipped:
        part.attention_hooks.remove(note_equipped)
    return plans


def count_parameters(model: nn.Module) -> Mapping[str, int]:
    """Return numbers of parameters by part of the model; summed over blocks."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        components = name.split(".")
        if components[0] == "blocks":
            # attn_branch counts with attn, and mlp_branch with mlp
            part = f"blocks.{components[2].partition('_')[0]}"
        elif components[0] == "encoding":
            part = f"encoding.{components[1]}"
        else:
            part = components[0]
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def count_tokens(model: nn.Module, spec: DataSpec) -> int:
    """Return the number of tokens per sample, class and register tokens included."""
    counts: list[int] = []
    see = capture.hook_attention(
        model, lambda attention_input: counts.append(len(attention_input.tokens))
    )
    with see, torch.no_grad():
        model(*spec.build_inputs())
    return counts[0]
