"""Seconds in which a text is continued greedily, with a cache, one sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.api import Attention
from zoo.bench.protocol import Contender, Facts, Ready, Setting, Shape
from zoo.bench.timing import Trial, peak, seconds


class Layer:
    name, unit, rate, repeated = "layer", "seconds", "", True

    def lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return asked

    def able(self, contender: Contender) -> bool:
        return contender.layer is not None

    def ready(self, contender: Contender, setting: Setting) -> Ready:
        assert contender.layer is not None
        made = contender.layer(setting).to(setting.device)
        count = sum(parameter.numel() for parameter in made.parameters())
        return Ready(passing(made, setting.shape.batch, setting.device), Facts(parameters=count))


def passing(made: Attention, batch: int, device: str) -> Trial:
    """A run of a layer on random states for the tokens that it was made for."""
    dims = made.layer.dims
    states = torch.randn(batch, dims.tokens, dims.dim, device=device)

    def run() -> float:
        x = states.clone().requires_grad_()
        took = seconds(lambda: _pass(made, x), device)
        made.zero_grad()
        return took

    return run


def _pass(made: nn.Module, x: Tensor) -> None:
    made(x).square().mean().backward()


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
            self.plan = (
                contender.plan(self.model, self.inputs, setting.device) if contender.plan else ""
            )
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
        states = [
            one
            for state in self.optimiser.state.values()
            for one in state.values()
            if isinstance(one, Tensor)
        ]
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


@dataclass(frozen=True, kw_only=True)
class Decode:
    """`tokens` after a prompt of `prompt`, whose reading is part of the time."""

    prompt: int
    tokens: int
    name: ClassVar[str] = "decode"
    unit: ClassVar[str] = "seconds"
    rate: ClassVar[str] = "tokens"
    repeated: ClassVar[bool] = True

    def lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return (self.prompt,)

    def able(self, contender: Contender) -> bool:
        return contender.generate is not None

    def ready(self, contender: Contender, setting: Setting) -> Ready:
        assert contender.generate is not None
        generate, setting = contender.generate, setting.at(self.prompt + self.tokens)
        model = contender.make(setting).to(setting.device).eval()
        prompt = batch(setting.shape)[0][:1, : self.prompt].to(setting.device)

        def run() -> float:
            with (
                torch.no_grad(),
                torch.autocast(setting.device, torch.bfloat16, enabled=_rounded(setting)),
            ):
                return seconds(lambda: generate(model, prompt, self.tokens), setting.device)

        return Ready(run, Facts(amount=self.tokens, parameters=_count(model)))


@dataclass(frozen=True, kw_only=True)
class Later:
    """Of one token where so many stand before it: the mean of `steps` in a row, which goes on from run to run."""

    contexts: tuple[int, ...]
    steps: int
    runs: int  # at most
    name: ClassVar[str] = "context"
    unit: ClassVar[str] = "seconds"
    rate: ClassVar[str] = "tokens"
    repeated: ClassVar[bool] = True

    def lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return self.contexts

    def able(self, contender: Contender) -> bool:
        return contender.stream is not None

    def ready(self, contender: Contender, setting: Setting) -> Ready:
        assert contender.stream is not None
        context, setting = (
            setting.shape.length,
            setting.at(max(self.contexts) + 1 + self.steps * self.runs),
        )
        model = contender.make(setting).to(setting.device).eval()
        stream = contender.stream(model, batch(setting.shape)[0][:1, :context].to(setting.device))

        def several() -> None:
            for _ in range(self.steps):
                next(stream)

        def run() -> float:
            with (
                torch.no_grad(),
                torch.autocast(setting.device, torch.bfloat16, enabled=_rounded(setting)),
            ):
                return seconds(several, setting.device) / self.steps

        run()  # reads the prompt
        return Ready(run, Facts(amount=1, parameters=_count(model)))


def _rounded(setting: Setting) -> bool:
    return setting.shape.precision == "bf16-mixed"


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class Memory:
    name, unit, rate, repeated = "memory", "bytes", "", False

    def lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return asked

    def able(self, contender: Contender) -> bool:
        return True

    def ready(self, contender: Contender, setting: Setting) -> Ready:
        made = Training(contender, setting)
        made.step()  # from now on the optimiser holds what it remembers
        facts = Facts(parameters=made.parameters, plan=made.plan)
        return Ready(lambda: made.held() + peak(made.step, setting.device), facts)


class Train:
    name, unit, repeated = "train", "seconds", True

    def __init__(self, counted: str) -> None:
        self.rate = counted

    def lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return asked

    def able(self, contender: Contender) -> bool:
        return True

    def ready(self, contender: Contender, setting: Setting) -> Ready:
        made, shape = Training(contender, setting), setting.shape
        amount = shape.batch * (shape.length if shape.kind == "text" else 1)
        facts = Facts(amount=amount, parameters=made.parameters, plan=made.plan)
        return Ready(lambda: seconds(made.step, setting.device), facts)
