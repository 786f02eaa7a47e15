"""A model in training: its step on one batch, as it is timed and weighed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.bench.contender import Contender
from zoo.bench.shapes import Setting, Shape

RATE = 1e-4


class Training:
    """Forward, loss, backward and a step of AdamW. The batch is random, and the same for all models of a shape."""

    def __init__(self, contender: Contender, setting: Setting) -> None:
        shape = setting.shape
        torch.manual_seed(0)
        self.model = contender.make(setting).to(setting.device).train()
        self.inputs, self.targets = (one.to(setting.device) for one in batch(shape))
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.device, self.rounded = setting.device, shape.precision == "bf16-mixed"
        with torch.no_grad(), self._rounding():
            self.plan = contender.plan(self.model, self.inputs, setting.device) if contender.plan else ""
        if shape.compile:
            self.model.compile()

    def step(self) -> None:
        """One step; gradients are gone after it."""
        with self._rounding():
            logits = self.model(self.inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), self.targets.flatten())
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()

    def _rounding(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.rounded)

    def held(self) -> int:
        """Bytes that stay between steps: weights, buffers and what the optimiser remembers."""
        states = [one for state in self.optimiser.state.values() for one in state.values() if isinstance(one, Tensor)]
        return sum(one.numel() * one.element_size() for one in [*states, *_tensors(self.model)])


def batch(shape: Shape) -> tuple[Tensor, Tensor]:
    """Inputs and targets: images [B, 3, L, L] and classes [B], or tokens [B, L] of both."""
    draw = torch.Generator().manual_seed(0)
    if shape.kind == "image":
        images = torch.randn(shape.batch, 3, shape.length, shape.length, generator=draw)
        return images, torch.randint(shape.outputs, (shape.batch,), generator=draw)
    inputs, targets = torch.randint(shape.outputs, (2, shape.batch, shape.length), generator=draw)
    return inputs, targets


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
