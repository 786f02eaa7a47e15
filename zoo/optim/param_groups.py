"""Parameter groups: learning rate, weight decay and freezing by parameter name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from torch import nn

from zoo.attention.encoding import Encoding
from zoo.errors import OptionError
from zoo.registry import Between, nearest


@dataclass(frozen=True, kw_only=True)
class ParamGroup:
    """Settings of the parameters whose names match; of several groups the first applies, alone."""

    match: str
    """Shell pattern of parameter names, such as `encoding.*`."""

    lr: Annotated[float, Between(1e-12, 1e12)] | None = None
    """Factor on the learning rate. None: 1."""

    weight_decay: Annotated[float, Between(0)] | None = None
    """Weight decay. None: that of the optimizer."""

    freeze: bool = False
    """Do not train these parameters."""

    def __post_init__(self) -> None:
        has_settings = self.lr is not None or self.weight_decay is not None
        if self.freeze and has_settings:
            problem = "frozen parameters have neither learning rate nor weight decay"
            raise OptionError("freeze", f"{problem}; leave out freeze, or lr and weight_decay")
        if not self.freeze and not has_settings:
            problem = "the group changes nothing of what it matches"
            raise OptionError("match", f"{problem}; add lr, weight_decay or freeze")


def freeze(model: nn.Module, groups: Sequence[ParamGroup]) -> None:
    """Turn off gradients of the parameters that groups freeze, and turn on all others."""
    for name, parameter in model.named_parameters():
        group = find_group(name, groups)
        parameter.requires_grad_(group is None or not group.freeze)


def find_group(name: str, groups: Sequence[ParamGroup]) -> ParamGroup | None:
    """Find the group that applies to a parameter."""
    return next((group for group in groups if fnmatchcase(name, group.match)), None)


def find_encoding_parameters(model: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that belong to encodings, wherever they are in a model."""
    owned: set[int] = set()
    for module in model.modules():
        if isinstance(module, Encoding):
            owned |= {id(parameter) for parameter in module.parameters()}
    return frozenset(name for name, each in model.named_parameters() if id(each) in owned)


def build_param_groups(
    model: nn.Module, groups: Sequence[ParamGroup], lr: float, decays: dict[str, float]
) -> list[dict[str, Any]]:
    """Build the optimizer's parameter groups, in the order of `groups`.

    Args:
        model: The model.
        groups: The settings.
        lr: The optimizer's learning rate.
        decays: Weight decay of each parameter by name, where a group sets none.

    Raises:
        OptionError: A group applies to no parameter, or all parameters are frozen.
    """
    parameters = dict(model.named_parameters())
    found = {name: find_group(name, groups) for name in parameters}
    for at, group in enumerate(groups):
        if not any(one is group for one in found.values()):
            problem = _explain_no_match(group, list(parameters))
            raise OptionError(f"param_groups.{at}.match", problem)
    if all(group is not None and group.freeze for group in found.values()):
        problem = "they freeze every parameter; leave something to train"
        raise OptionError("param_groups", problem)

    result: list[dict[str, Any]] = []
    for group in groups:
        if group.freeze:
            continue
        rate = lr if group.lr is None else lr * group.lr
        by_decay: dict[float, dict[str, Any]] = {}
        for name in (name for name, one in found.items() if one is group):
            decay = decays[name] if group.weight_decay is None else group.weight_decay
            settings = {"params": [], "weight_decay": decay, "lr": rate}
            by_decay.setdefault(decay, settings)["params"].append(parameters[name])
        result += by_decay.values()
    return result


def _explain_no_match(group: ParamGroup, names: list[str]) -> str:
    if any(fnmatchcase(name, group.match) for name in names):
        problem = f"groups before it match all that {group.match} matches, and the first applies"
        return f"{problem}; move it up"
    return f"no parameter has a name like {group.match}; {nearest(group.match, names)}"
