"""The base class of optimizers: parameter groups, learning rate schedules and weight decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from zoo import registry
from zoo.attention.encoding import Encoding
from zoo.errors import OptionError
from zoo.options import Between, Choice, Choices
from zoo.registry import register
from zoo.suggestions import find_meant, list_known, offer

Share = Annotated[float, Between(0, 0.9999)]
# weights in float32 stay finite over a step, whose updates may square these numbers
Positive = Annotated[float, Between(1e-30, 1e12)]
NotNegative = Annotated[float, Between(0, 1e12)]

COSINE = Choice("cosine")

# Arguments of torch that are pairs, and the two options that each consists of.
PAIRS = MappingProxyType(
    {
        "betas": ("beta1", "beta2"),
        "etas": ("eta_minus", "eta_plus"),
        "step_sizes": ("min_step", "max_step"),
    }
)


@dataclass(kw_only=True)
class TorchOptimizer:
    """A factory of a torch optimizer and its learning rate schedule.

    Weight decay applies only to the weights of linear and convolutional layers, not to norms,
    biases, special tokens, tables, frequencies and generators. Options that a subclass adds are
    arguments of the optimizer in torch.

    Raises:
        OptionError: Options do not fit together.
    """

    algorithm: ClassVar[Callable[..., Optimizer]]
    """The optimizer class of torch."""

    lr: Annotated[float, Between(1e-12, 1e12)]
    """Learning rate after warmup."""
    weight_decay: NotNegative = 0.0
    """Weight decay."""
    schedule: Annotated[Choice, Choices("schedules")] = COSINE
    """Schedule of the learning rate after warmup."""
    warmup_ratio: Share = 0.05
    """Fraction of all steps over which the learning rate rises linearly."""
    min_lr_ratio: Annotated[float, Between(0, 1)] = 0.01
    """Learning rate at the end, as a fraction of `lr`."""
    encoding_lr: Annotated[float, Between(1e-12, 1e12)] = 1.0
    """Factor of the learning rate of all parameters of encodings, except those that one of
    `param_groups` matches."""
    param_groups: tuple[ParamGroup, ...] = ()
    """Learning rate, weight decay or freezing of parameters by name. The first group that matches a
    name applies."""

    def __post_init__(self) -> None:
        cls = registry.find("schedules", self.schedule.name)
        self._shape: Schedule = cls(**self.schedule.options)
        length = self.warmup_ratio + self._shape.decay_ratio
        if length > 1:
            message = f"warmup and decay take {length:g} times the steps of training"
            hint = f"set it to at most {1 - self.warmup_ratio:g}, or lower warmup_ratio"
            raise OptionError("schedule.decay_ratio", f"{message}; {hint}")
        # A value that has no effect is an error, but the default is not a choice.
        usual = type(self).__dataclass_fields__["min_lr_ratio"].default
        if not self._shape.reaches_minimum and self.min_lr_ratio != usual:
            message = f"schedule {self.schedule.name} never reaches it"
            raise OptionError("min_lr_ratio", f"{message}; leave it out, or choose cosine")

    def configure(self, model: nn.Module, steps: int) -> dict[str, Any]:
        """Create optimizer and schedule in Lightning's form.

        Args:
            model: The model to train.
            steps: Number of training steps.

        Raises:
            OptionError: A parameter group matches nothing, or all parameters are frozen.
        """
        optimizer = self.build(model, self._group_parameters(model))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.lr_factor(step, steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def build(self, model: nn.Module, groups: list[dict[str, Any]]) -> Optimizer:
        """Create the optimizer for groups of a model's parameters."""
        return self.algorithm(groups, lr=self.lr, **self.own_arguments())

    def own_arguments(self) -> dict[str, Any]:
        """Return the arguments of the torch optimizer other than the options of all optimizers."""
        shared = {field.name for field in fields(TorchOptimizer)}
        arguments = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        arguments = {name: value for name, value in arguments.items() if name not in shared}
        for pair, (first_key, second_key) in PAIRS.items():
            if first_key in arguments:
                arguments[pair] = arguments.pop(first_key), arguments.pop(second_key)
        # Without it torch updates many weights at once on a GPU; false would forbid that too.
        if not arguments.get("fused", True):
            del arguments["fused"]
        return arguments

    def lr_factor(self, step: int, steps: int) -> float:
        """Compute the learning rate of a step as a fraction of `lr`."""
        warmup = round(self.warmup_ratio * steps)
        if step < warmup:
            # step + 1, since a first step with the rate 0 would change nothing
            return (step + 1) / warmup
        height = self._shape.height(step, warmup, steps)
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * height

    def _group_parameters(self, model: nn.Module) -> list[dict[str, Any]]:
        """Group the parameters by learning rate and weight decay."""
        # Matrices decay; `encoding_lr` scales encodings. Both groups without a scale always exist,
        # so that the groups in a checkpoint do not depend on the encoding.
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
    """The base class of schedules. Options are keyword-only arguments."""

    decay_ratio: float = 0.0
    """Fraction of all steps that the schedule needs after warmup."""

    reaches_minimum = True
    """True if it falls from `lr` to `min_lr_ratio * lr`."""

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step: 1 stands for `lr`, 0 for `min_lr_ratio * lr`.

        Args:
            step: Number of completed steps, at least `start`.
            start: Number of warmup steps.
            steps: Number of training steps.
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
    """A linear decrease until the end of training."""

    name = "linear"

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        return 1 - _measure_progress(step, start, steps)


@register
class Constant(Schedule):
    """The full learning rate until the end of training."""

    name = "constant"
    reaches_minimum = False

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        return 1.0


@register
@dataclass(kw_only=True)
class WarmupStableDecay(Schedule):
    """Constant, then a linear decrease (WSD; Hu et al. 2024, arXiv:2404.06395)."""

    name = "wsd"

    decay_ratio: Annotated[float, Between(1e-6, 1)] = 0.2
    """Fraction of all steps over which the learning rate falls at the end."""

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        decay = max(round(self.decay_ratio * steps), 1)
        return min(max((steps - step) / decay, 0.0), 1.0)


def _measure_progress(step: int, start: int, steps: int) -> float:
    return min((step - start) / max(steps - start, 1), 1.0)


@dataclass(frozen=True, kw_only=True)
class ParamGroup:
    """Settings of the parameters whose names match; only the first matching group applies."""

    match: str
    """Shell pattern of parameter names, such as `encoding.*`."""

    lr: Annotated[float, Between(1e-12, 1e12)] | None = None
    """Factor of the learning rate. None: 1."""

    weight_decay: NotNegative | None = None
    """Weight decay. None: that of the optimizer."""

    freeze: bool = False
    """Do not train these parameters."""

    def __post_init__(self) -> None:
        has_settings = self.lr is not None or self.weight_decay is not None
        if self.freeze and has_settings:
            message = "frozen parameters have neither learning rate nor weight decay"
            raise OptionError("freeze", f"{message}; leave out freeze, or lr and weight_decay")
        if not self.freeze and not has_settings:
            message = "the group has no effect on the parameters that it matches"
            raise OptionError("match", f"{message}; add lr, weight_decay or freeze")


def freeze(model: nn.Module, groups: Sequence[ParamGroup]) -> None:
    """Disable gradients of the parameters that groups freeze, and enable all others."""
    for name, parameter in model.named_parameters():
        group = find_group(name, groups)
        parameter.requires_grad_(group is None or not group.freeze)


def find_group(name: str, groups: Sequence[ParamGroup]) -> ParamGroup | None:
    """Return the group that applies to a parameter, or None."""
    return next((group for group in groups if fnmatchcase(name, group.match)), None)


def find_encoding_parameters(model: nn.Module) -> frozenset[str]:
    """Return the names of all parameters of encodings in a model."""
    # By identity, because an encoding may be registered under several names.
    owned: set[int] = set()
    for module in model.modules():
        if isinstance(module, Encoding):
            owned |= {id(parameter) for parameter in module.parameters()}
    return frozenset(name for name, parameter in model.named_parameters() if id(parameter) in owned)


def build_param_groups(
    model: nn.Module, groups: Sequence[ParamGroup], lr: float, decays: dict[str, float]
) -> list[dict[str, Any]]:
    """Build the optimizer's parameter groups, in the order of `groups`.

    Args:
        model: The model.
        groups: The settings.
        lr: The optimizer's learning rate.
        decays: Weight decay of each parameter by name, for groups that set none.

    Raises:
        OptionError: A group applies to no parameter, or all parameters are frozen.
    """
    parameters = dict(model.named_parameters())
    assigned = {name: find_group(name, groups) for name in parameters}
    for at, group in enumerate(groups):
        if not any(candidate is group for candidate in assigned.values()):
            message = _explain_no_match(group, list(parameters))
            raise OptionError(f"param_groups.{at}.match", message)
    if all(group is not None and group.freeze for group in assigned.values()):
        message = "all parameters are frozen; leave some to train"
        raise OptionError("param_groups", message)

    # A group whose parameters have different weight decays becomes several for the optimizer.
    result: list[dict[str, Any]] = []
    for group in groups:
        if group.freeze:
            continue
        rate = lr if group.lr is None else lr * group.lr
        by_decay: dict[float, dict[str, Any]] = {}
        for name in (name for name, assigned_group in assigned.items() if assigned_group is group):
            decay = decays[name] if group.weight_decay is None else group.weight_decay
            settings = {"params": [], "weight_decay": decay, "lr": rate}
            by_decay.setdefault(decay, settings)["params"].append(parameters[name])
        result += by_decay.values()
    return result


def _explain_no_match(group: ParamGroup, names: list[str]) -> str:
    if any(fnmatchcase(name, group.match) for name in names):
        message = f"groups before it match all that {group.match} matches, and the first applies"
        return f"{message}; move it up"
    # the modules that hold parameters are what patterns name
    parts = [name.split(".") for name in names]
    prefixes = {".".join(path[:end]): None for path in parts for end in range(1, len(path) + 1)}
    if meant := find_meant(group.match.rstrip(".*"), prefixes):
        hint = offer(group.match, [meant[0] if meant[0] in names else f"{meant[0]}.*"])
    else:
        hint = list_known(names)
    return f"no parameter has a name like {group.match}; {hint}"
