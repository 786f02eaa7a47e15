"""The optimizers of torch.optim, with the names of their options in torch.

A pair becomes two options: `betas` is `beta1` and `beta2`. `zoo.options.validation` explains why
LBFGS and SparseAdam are not supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from zoo.errors import OptionError
from zoo.optim.base import NotNegative, Positive, Share, TorchOptimizer, find_encoding_parameters
from zoo.options import Between
from zoo.registry import register


@register
@dataclass(kw_only=True)
class AdamW(TorchOptimizer):
    """Adam with decoupled weight decay (AdamW; Loshchilov and Hutter 2019, arXiv:1711.05101)."""

    name = "adamw"
    algorithm = torch.optim.AdamW

    weight_decay: NotNegative = 0.05
    """Weight decay."""
    beta1: Share = 0.9
    """Decay of the mean of gradients."""
    beta2: Share = 0.999
    """Decay of the mean of squared gradients."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    amsgrad: bool = False
    """Divide by the largest mean of squared gradients so far."""
    fused: bool = False
    """Update all weights in one kernel of the device."""


@register
@dataclass(kw_only=True)
class Adam(TorchOptimizer):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980); weight decay is part of the gradient."""

    name = "adam"
    algorithm = torch.optim.Adam

    beta1: Share = 0.9
    """Decay of the mean of gradients."""
    beta2: Share = 0.999
    """Decay of the mean of squared gradients."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    amsgrad: bool = False
    """Divide by the largest mean of squared gradients so far."""
    fused: bool = False
    """Update all weights in one kernel of the device."""


@register
@dataclass(kw_only=True)
class NAdam(TorchOptimizer):
    """Adam with Nesterov momentum (Dozat 2016)."""

    name = "nadam"
    algorithm = torch.optim.NAdam

    beta1: Share = 0.9
    """Decay of the mean of gradients."""
    beta2: Share = 0.999
    """Decay of the mean of squared gradients."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    momentum_decay: NotNegative = 4e-3
    """Decay of the momentum."""
    decoupled_weight_decay: bool = False
    """Decay weights as AdamW does."""


@register
@dataclass(kw_only=True)
class RAdam(TorchOptimizer):
    """Adam with a rectified variance (Liu et al. 2020, arXiv:1908.03265)."""

    name = "radam"
    algorithm = torch.optim.RAdam

    beta1: Share = 0.9
    """Decay of the mean of gradients."""
    beta2: Share = 0.999
    """Decay of the mean of squared gradients."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    decoupled_weight_decay: bool = False
    """Decay weights as AdamW does."""


@register
@dataclass(kw_only=True)
class SGD(TorchOptimizer):
    """Stochastic gradient descent with optional momentum."""

    name = "sgd"
    algorithm = torch.optim.SGD

    momentum: Share = 0.0
    """Factor of the previous update."""
    dampening: Annotated[float, Between(0, 1)] = 0.0
    """Dampening of the momentum."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    fused: bool = False
    """Update all weights in one kernel of the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (not self.momentum or self.dampening):
            message = "Nesterov momentum needs a momentum and no dampening"
            raise OptionError("nesterov", f"{message}; set momentum to 0.9, dampening to 0")
        if self.dampening and not self.momentum:
            message = "there is no momentum to dampen"
            raise OptionError("dampening", f"{message}; set momentum, or leave it out")


@register
@dataclass(kw_only=True)
class RMSprop(TorchOptimizer):
    """RMSprop (Tieleman and Hinton 2012)."""

    name = "rmsprop"
    algorithm = torch.optim.RMSprop

    alpha: Share = 0.99
    """Decay of the mean of squared gradients."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    momentum: Share = 0.0
    """Factor of the previous update."""
    centered: bool = False
    """Divide by the standard deviation of gradients instead of their root mean square."""


@register
@dataclass(kw_only=True)
class Adafactor(TorchOptimizer):
    """Adafactor, which needs less memory (Shazeer and Stern 2018, arXiv:1804.04235)."""

    name = "adafactor"
    algorithm = torch.optim.Adafactor

    beta2_decay: Annotated[float, Between(-10, 0)] = -0.8
    """Power of the decay of the mean of squared gradients."""
    eps1: Annotated[float, Between(1e-18, 1e12)] | None = None
    """Smallest squared gradient; null: the epsilon of the parameter's dtype."""
    eps2: Positive = 1e-3
    """Smallest root mean square of a weight."""
    d: Annotated[float, Between(1, 1e12)] = 1.0
    """Largest root mean square of an update."""

    def own_arguments(self) -> dict[str, Any]:
        """Return the arguments of Adafactor, with both epsilons as one pair."""
        arguments = super().own_arguments()
        arguments["eps"] = arguments.pop("eps1"), arguments.pop("eps2")
        return arguments


@register
@dataclass(kw_only=True)
class Muon(TorchOptimizer):
    """Muon (Jordan et al. 2024) for the matrices of blocks, and AdamW for all other parameters."""

    name = "muon"
    algorithm = torch.optim.Muon

    weight_decay: NotNegative = 0.1
    """Weight decay."""
    momentum: Share = 0.95
    """Decay of the mean of gradients, for matrices."""
    nesterov: bool = True
    """Use Nesterov momentum, for matrices."""
    ns_steps: Annotated[int, Between(1, 99)] = 5
    """Newton-Schulz iterations that make an update orthogonal."""
    adjust_lr_fn: Literal["original", "match_rms_adamw"] = "match_rms_adamw"
    """Scaling of `lr` for a matrix. match_rms_adamw makes updates as large as those of AdamW."""
    beta1: Share = 0.9
    """Decay of the mean of gradients, for AdamW."""
    beta2: Share = 0.999
    """Decay of the mean of squared gradients, for AdamW."""

    def build(self, model: nn.Module, groups: list[dict[str, Any]]) -> Optimizer:
        """Create Muon and AdamW as one optimizer."""
        # Muon is meant for hidden matrices: not for embeddings, heads and encodings.
        of_encodings = find_encoding_parameters(model)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
        matrices = {
            identity
            for identity in linear
            if names[identity].startswith("blocks.") and names[identity] not in of_encodings
        }
        if not matrices:
            message = "muon trains matrices of transformer blocks, and the model has none"
            raise OptionError("name", f"{message}; choose adamw")
        # Split every group into its matrices (part 0) and all other parameters (part 1).
        parts: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        for group in groups:
            for is_rest, part in enumerate(parts):
                chosen = [p for p in group["params"] if (id(p) not in matrices) == bool(is_rest)]
                if chosen:
                    part.append({**group, "params": chosen})
        arguments = self.own_arguments()
        betas = arguments.pop("betas")
        optimizers: list[Optimizer] = []
        if parts[0]:
            optimizers.append(torch.optim.Muon(parts[0], lr=self.lr, **arguments))
        if parts[1]:
            optimizers.append(torch.optim.AdamW(parts[1], lr=self.lr, betas=betas))
        return CombinedOptimizer(optimizers)


class CombinedOptimizer(Optimizer):
    """Several optimizers for different parameters that step, save and load as one."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        groups = [
            {**group, "part": number}
            for number, part in enumerate(parts)
            for group in part.param_groups
        ]
        super().__init__(groups, {})
        self._share_state()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a state, and share it with the parts."""
        super().__setstate__(state)
        self._share_state()

    def _share_state(self) -> None:
        # Schedules and checkpoints change the combined groups: the parts hold the same objects.
        for number, part in enumerate(self.parts):
            part.param_groups = [group for group in self.param_groups if group["part"] == number]
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Compute the loss if there is a closure, and take a step with each part."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss
