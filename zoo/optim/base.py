"""What all optimizers of torch share: parameter groups, learning rate, schedules, weight decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from zoo import registry
from zoo.errors import OptionError
from zoo.optim.param_groups import (
    ParamGroup,
    build_param_groups,
    find_encoding_parameters,
    find_group,
)
from zoo.registry import Between, Choice, Choices, register

Share = Annotated[float, Between(0, 0.9999)]
Positive = Annotated[float, Between(1e-30)]
NotNegative = Annotated[float, Between(0)]

COSINE = Choice("cosine")

# arguments of torch that are pairs, and the options that they consist of
PAIRS = MappingProxyType(
    {
        "betas": ("beta1", "beta2"),
        "etas": ("eta_minus", "eta_plus"),
        "step_sizes": ("min_step", "max_step"),
    }
)


@dataclass(kw_only=True)
class TorchOptimizer:
    """Creates an optimizer of torch and the schedule of its learning rate.

    Only the weights of linear and convolutional layers decay; norms, biases, special tokens,
    tables, frequencies and generators do not. An option beyond those of this class is an argument
    of the optimizer in torch.

    Raises:
        OptionError: Options do not fit together.
    """

    algorithm: ClassVar[Callable[..., Optimizer]]
    """The class in torch."""

    lr: Annotated[float, Between(1e-12, 1e12)]
    """Learning rate after warmup."""
    weight_decay: NotNegative = 0.0
    """Weight decay."""
    schedule: Annotated[Choice, Choices("schedules")] = COSINE
    """What the learning rate does after warmup."""
    warmup_ratio: Share = 0.05
    """Share of all steps over which the learning rate rises linearly."""
    min_lr_ratio: Annotated[float, Between(0, 1)] = 0.01
    """Learning rate at the end, as a share of `lr`."""
    encoding_lr: Annotated[float, Between(1e-12, 1e12)] = 1.0
    """Factor on the learning rate of all parameters that belong to encodings. It has no effect on
    an encoding without parameters, nor where one of `param_groups` matches."""
    param_groups: tuple[ParamGroup, ...] = ()
    """Learning rate, weight decay or freezing of parameters by name; the first that matches a name
    applies."""

    def __post_init__(self) -> None:
        cls = registry.find("schedules", self.schedule.name)
        self._shape: Schedule = cls(**self.schedule.options)
        length = self.warmup_ratio + self._shape.decay_ratio
        if length > 1:
            problem = f"warmup and decay take {length:g} times the steps of training"
            remedy = f"set it to at most {1 - self.warmup_ratio:g}, or lower warmup_ratio"
            raise OptionError("schedule.decay_ratio", f"{problem}; {remedy}")
        usual = type(self).__dataclass_fields__["min_lr_ratio"].default
        if not self._shape.reaches_minimum and self.min_lr_ratio != usual:
            problem = f"schedule {self.schedule.name} never comes to it"
            raise OptionError("min_lr_ratio", f"{problem}; leave it out, or choose cosine")

    def configure(self, model: nn.Module, steps: int) -> dict[str, Any]:
        """Create optimizer and schedule in Lightning's form, for so many training steps.

        Raises:
            OptionError: A parameter group matches nothing, or all parameters are frozen.
        """
        optimizer = self.build(model, self._group_parameters(model))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.lr_factor(step, steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def build(self, model: nn.Module, groups: list[dict[str, Any]]) -> Optimizer:
        """Create the optimizer of a model for groups of its parameters."""
        return self.algorithm(groups, lr=self.lr, **self.own_arguments())

    def own_arguments(self) -> dict[str, Any]:
        """Return the arguments of the optimizer in torch that not all optimizers have."""
        shared = {field.name for field in fields(TorchOptimizer)}
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        own = {name: value for name, value in own.items() if name not in shared}
        for pair, (first, second) in PAIRS.items():
            if first in own:
                own[pair] = own.pop(first), own.pop(second)
        return own

    def lr_factor(self, step: int, steps: int) -> float:
        """Compute the learning rate of a step as a share of `lr`."""
        warmup = round(self.warmup_ratio * steps)
        if step < warmup:
            return (step + 1) / warmup
        height = self._shape.height(step, warmup, steps)
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * height

    def _group_parameters(self, model: nn.Module) -> list[dict[str, Any]]:
        """Group the parameters by learning rate and weight decay."""
        matrices = set(find_matrices(model.modules()))
        scaled = find_encoding_parameters(model) if self.encoding_lr != 1 else frozenset()
        decays: dict[str, float] = {}
        by_settings: dict[tuple[bool, bool], list[nn.Parameter]] = {
            (False, True): [],
            (False, False): [],
        }
        for name, parameter in model.named_parameters():
            is_matrix = id(parameter) in matrices
            decays[name] = self.weight_decay * is_matrix
            if find_group(name, self.param_groups) is None:
                key = name in scaled, is_matrix
                by_settings.setdefault(key, []).append(parameter)

        groups: list[dict[str, Any]] = []
        for (is_scaled, is_decayed), parameters in by_settings.items():
            group: dict[str, Any] = {"params": parameters}
            group["weight_decay"] = self.weight_decay if is_decayed else 0.0
            if is_scaled:
                group["lr"] = self.lr * self.encoding_lr
            groups.append(group)
        if self.param_groups:
            groups += build_param_groups(model, self.param_groups, self.lr, decays)
        return groups


def find_matrices(modules: Iterable[nn.Module]) -> list[int]:
    """Return the ids of the weights of linear and convolutional layers."""
    kinds = nn.Linear | nn.modules.conv._ConvNd
    return [id(module.weight) for module in modules if isinstance(module, kinds)]


class Schedule:
    """The base class of schedules. Options of a schedule are keyword-only arguments."""

    decay_ratio: float = 0.0
    """Share of all steps that the schedule needs for itself, after warmup."""

    reaches_minimum = True
    """Whether it falls from `lr` to `min_lr_ratio * lr`."""

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step: 1 stands for `lr`, 0 for `min_lr_ratio * lr`.

        Args:
            step: Steps done, at least `start`.
            start: Steps of warmup.
            steps: Steps of training.
        """
        raise NotImplementedError


@register
class Cosine(Schedule):
    """Half a period of a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983)."""

    name = "cosine"

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        return (1 + math.cos(math.pi * _measure_progress(step, start, steps))) / 2


@register
class Linear(Schedule):
    """A straight line down to the end of training."""

    name = "linear"

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        return 1 - _measure_progress(step, start, steps)


@register
class Constant(Schedule):
    """The full learning rate until the end."""

    name = "constant"
    reaches_minimum = False

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        return 1.0


@register
@dataclass(kw_only=True)
class WarmupStableDecay(Schedule):
    """Constant, then a straight line down (Hu et al. 2024, arXiv:2404.06395)."""

    name = "wsd"

    decay_ratio: Annotated[float, Between(1e-6, 1)] = 0.2
    """Share of all steps over which the learning rate falls at the end."""

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        decay = max(round(self.decay_ratio * steps), 1)
        return min(max((steps - step) / decay, 0.0), 1.0)


def _measure_progress(step: int, start: int, steps: int) -> float:
    return min((step - start) / max(steps - start, 1), 1.0)
