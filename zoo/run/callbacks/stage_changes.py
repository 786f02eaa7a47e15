"""Change the model and the length of windows within a training, as the stages of a recipe say."""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
import torch
from torch import nn

from zoo.config.stages import count_stages
from zoo.errors import RecipeError
from zoo.models.transformer import compile_model, enable_activation_checkpointing
from zoo.options.plain import format_value, walk
from zoo.run.build import Experiment, build_model
from zoo.tasks.base import Task

log = logging.getLogger("zoo")


class StageChanges(L.Callback):
    """Begins each stage after its number of optimizer steps, before anything is measured or saved.

    Args:
        experiment: The experiment of the whole recipe.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.current = 0
        """Stages that have begun."""

    def begin(self, task: Task, step: int) -> None:
        """Give a task the model of the stage in force after so many steps, with its own weights."""
        recipe = self.experiment.recipe
        number = count_stages(recipe, step)
        staged = self.experiment.at_step(step)
        data, window = self.experiment.training_data, self.experiment.longest_stage.spec.size
        # images and points have sizes too, which no stage changes
        data.parts = window[0] // staged.spec.size[0]
        if number == self.current:
            return
        self.current = number
        trainer = recipe.trainer
        # its initial weights are dropped, so the random state must not see that they were drawn
        with torch.random.fork_rng(devices=[]):
            model = build_model(staged.recipe, staged.spec)
        move_weights(task.model, model)
        model.train(task.model.training)
        if trainer.activation_checkpointing:
            selective = trainer.activation_checkpointing == "selective"
            enable_activation_checkpointing(model, selective=selective)
        compile_model(model, trainer.compile, trainer.compile_mode)
        task.model, task.spec = model, staged.spec

    def on_train_start(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Refuse stages that training ends before. Raises RecipeError."""
        steps, recipe = pl_module.count_planned_steps(), self.experiment.recipe
        issues = [
            recipe.make_issue(
                f"stages.{number}.from_step",
                f"training ends after {steps:,} steps, so the stage never begins",
                "choose an earlier step, or train for longer",
            )
            for number, stage in enumerate(recipe.stages)
            if stage.from_step >= steps
        ]
        if issues:
            raise RecipeError(*issues)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the stage of the step, and begin the one that follows it."""
        if not pl_module.completes_step():
            return
        pl_module.log("train/stage", float(self.current), batch_size=1)
        number = count_stages(self.experiment.recipe, trainer.global_step)
        if number == self.current:
            return
        self.begin(pl_module, trainer.global_step)
        stage = self.experiment.recipe.stages[number - 1]
        leaves = ((key, one) for key, one in walk(stage.changes) if not isinstance(one, dict))
        changes = ", ".join(f"{key} {format_value(one)}" for key, one in leaves)
        log.info("Stage %d from step %d on: %s", number, trainer.global_step, changes)


def move_weights(source: nn.Module, target: nn.Module) -> None:
    """Make the parameters of a model those of another, as the same objects.

    The optimizer and DistributedDataParallel hold the objects. So do buffers that are saved; others
    follow from the options, and only move to the device.

    Args:
        source: The model that has them.
        target: The model to get them. Its names and shapes are equal; see `explain_difference`.
    """
    # a shared module has several names, of which the target may know another one first
    saved, twins = source.state_dict().keys(), dict(source.named_modules(remove_duplicate=False))
    for name, module in target.named_modules():
        twin = twins.get(name)
        for key, parameter in module._parameters.items():
            if parameter is not None and twin is not None:
                module._parameters[key] = twin._parameters[key]
        for key, buffer in module._buffers.items():
            former = None if twin is None else twin._buffers.get(key)
            if buffer is None or former is None:
                continue
            is_saved = f"{name}.{key}".removeprefix(".") in saved
            module._buffers[key] = former if is_saved else buffer.to(former.device, former.dtype)


def explain_difference(before: nn.Module, after: nn.Module) -> str:
    """Return the first weight in which two models differ; empty if they have the same."""
    sides = [
        [*((name, tuple(one.shape)) for name, one in model.named_parameters()), *_list_saved(model)]
        for model in (before, after)
    ]
    for (name, shape), (other, other_shape) in zip(*sides, strict=False):
        if name != other:
            return f"{name} would be followed by other weights, {other}"
        if shape != other_shape:
            return f"{name} has shape {[*shape]}, and {[*other_shape]} after the change"
    longer = sides[0][len(sides[1]) :] or sides[1][len(sides[0]) :]
    if not longer:
        return ""
    verb = "would be lost" if len(sides[0]) > len(sides[1]) else "would be new"
    return f"{longer[0][0]} {verb}"


def _list_saved(model: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of the buffers that a checkpoint has."""
    buffers = {name for name, _ in model.named_buffers()}
    return [(name, tuple(one.shape)) for name, one in model.state_dict().items() if name in buffers]
