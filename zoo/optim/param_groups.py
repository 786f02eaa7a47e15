"""Learning rates, decays and freezing by the names of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from torch import nn

from zoo.errors import OptionError
from zoo.registry import Between, nearest


@dataclass(frozen=True, kw_only=True)
class ParamGroup:
    """Of the parameters whose names match a shell pattern: a factor on the rate, the decay, or that they stay as they are.

    What is None stays as it would be without the rule. Of several rules the first that matches a name counts, alone.
    """

    match: str
    lr: Annotated[float, Between(1e-12, 1e12)] | None = None
    weight_decay: Annotated[float, Between(0)] | None = None
    freeze: bool = False

    def __post_init__(self) -> None:
        if self.freeze and (self.lr, self.weight_decay) != (None, None):
            raise OptionError(
                "freeze",
                "what is frozen has neither rate nor decay; leave out freeze, or lr and weight_decay",
            )
        if not self.freeze and self.lr is None and self.weight_decay is None:
            raise OptionError(
                "match", "the rule says nothing of what it matches; add lr, weight_decay or freeze"
            )


def freeze(model: nn.Module, rules: Sequence[ParamGroup]) -> None:
    """Have the parameters that rules freeze take no gradient, before anything asks which ones do."""
    for name, parameter in model.named_parameters():
        rule = find_group(name, rules)
        parameter.requires_grad_(rule is None or not rule.freeze)


def find_group(name: str, rules: Sequence[ParamGroup]) -> ParamGroup | None:
    """The rule that counts for a name."""
    return next((rule for rule in rules if fnmatchcase(name, rule.match)), None)


def build_param_groups(
    model: nn.Module, rules: Sequence[ParamGroup], lr: float, decays: dict[str, float]
) -> list[dict[str, Any]]:
    """An optimiser's groups of parameters for each rule, in their order, given the decay of each name without rules.

    Raises OptionError where a rule counts for no parameter, or where all are frozen.
    """
    named = dict(model.named_parameters())
    matched = {
        at: [name for name in named if find_group(name, rules) is rule]
        for at, rule in enumerate(rules)
    }
    for at, names in matched.items():
        if not names:
            raise OptionError(f"param_groups.{at}.match", _unmatched(rules[at], named))
    if all(
        rule is not None and rule.freeze for rule in (find_group(name, rules) for name in named)
    ):
        raise OptionError("param_groups", "they freeze every parameter; leave something to train")
    found: dict[tuple[int, float], dict[str, Any]] = {}
    for at, names in matched.items():
        rule = rules[at]
        rate = lr if rule.lr is None else lr * rule.lr
        for name in () if rule.freeze else names:
            decay = decays[name] if rule.weight_decay is None else rule.weight_decay
            group = found.setdefault((at, decay), {"params": [], "weight_decay": decay, "lr": rate})
            group["params"].append(named[name])
    return list(found.values())


def _unmatched(rule: ParamGroup, names: dict[str, nn.Parameter]) -> str:
    if any(fnmatchcase(name, rule.match) for name in names):
        return (
            f"rules before it match all that {rule.match} matches, and the first counts; move it up"
        )
    return f"no parameter has a name like {rule.match}; {nearest(rule.match, names)}"
