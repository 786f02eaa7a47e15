"""Seconds in which a text is continued greedily, with a cache, one sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.api import Attention
from zoo.bench.protocol import Contender, PreparedRun, RunFacts, Setting, Shape
from zoo.bench.timing import Trial, measure_peak_memory, time_once


class LayerMeasure:
    name, unit, rate, is_repeated = "layer", "seconds", "", True

    def choose_lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return asked

    def supports(self, contender: Contender) -> bool:
        return contender.layer is not None

    def prepare(self, contender: Contender, setting: Setting) -> PreparedRun:
        assert contender.layer is not None
        made = contender.layer(setting).to(setting.device)
        count = sum(parameter.numel() for parameter in made.parameters())
        return PreparedRun(
            build_layer_trial(made, setting.shape.batch, setting.device), RunFacts(parameters=count)
        )


def build_layer_trial(made: Attention, batch: int, device: str) -> Trial:
    """A run of a layer on random states for the tokens that it was made for."""
    dims = made.layer.dims
    states = torch.randn(batch, dims.tokens, dims.dim, device=device)

    def run() -> float:
        x = states.clone().requires_grad_()
        took = time_once(lambda: _run_layer(made, x), device)
        made.zero_grad()
        return took

    return run


def _run_layer(made: nn.Module, x: Tensor) -> None:
    made(x).square().mean().backward()


RATE = 1e-4


class TrainingStep:
    """Forward, loss, backward and a step of AdamW. The batch is random, and the same for all models of a shape."""

    def __init__(self, contender: Contender, setting: Setting) -> None:
        shape = setting.shape
        torch.manual_seed(0)
        self.model = contender.make(setting).to(setting.device).train()
        self.inputs, self.targets = (one.to(setting.device) for one in make_batch(shape))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.device, self.use_bf16 = setting.device, shape.precision == "bf16-mixed"
        with torch.no_grad(), self._autocast():
            self.plan = (
                contender.plan(self.model, self.inputs, setting.device) if contender.plan else ""
            )
        if shape.compile:
            self.model.compile()

    def step(self) -> None:
        """One step; gradients are gone after it."""
        with self._autocast():
            logits = self.model(self.inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), self.targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.use_bf16)

    def count_held_bytes(self) -> int:
        """Bytes that stay between steps: weights, buffers and what the optimiser remembers."""
        states = [
            one
            for state in self.optimizer.state.values()
            for one in state.values()
            if isinstance(one, Tensor)
        ]
        return sum(one.numel() * one.element_size() for one in [*states, *_tensors(self.model)])


def make_batch(shape: Shape) -> tuple[Tensor, Tensor]:
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
class DecodeMeasure:
    """`tokens` after a prompt of `prompt`, whose reading is part of the time."""

    prompt: int
    tokens: int
    name: ClassVar[str] = "decode"
    unit: ClassVar[str] = "seconds"
    rate: ClassVar[str] = "tokens"
    is_repeated: ClassVar[bool] = True

    def choose_lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return (self.prompt,)

    def supports(self, contender: Contender) -> bool:
        return contender.generate is not None

    def prepare(self, contender: Contender, setting: Setting) -> PreparedRun:
        assert contender.generate is not None
        generate, setting = contender.generate, setting.with_length(self.prompt + self.tokens)
        model = contender.make(setting).to(setting.device).eval()
        prompt = make_batch(setting.shape)[0][:1, : self.prompt].to(setting.device)

        def run() -> float:
            with (
                torch.no_grad(),
                torch.autocast(setting.device, torch.bfloat16, enabled=_uses_bf16(setting)),
            ):
                return time_once(lambda: generate(model, prompt, self.tokens), setting.device)

        return PreparedRun(run, RunFacts(amount=self.tokens, parameters=_count_parameters(model)))


@dataclass(frozen=True, kw_only=True)
class ContextMeasure:
    """Of one token where so many stand before it: the mean of `steps` in a row, which goes on from run to run."""

    contexts: tuple[int, ...]
    steps: int
    runs: int  # at most
    name: ClassVar[str] = "context"
    unit: ClassVar[str] = "seconds"
    rate: ClassVar[str] = "tokens"
    is_repeated: ClassVar[bool] = True

    def choose_lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return self.contexts

    def supports(self, contender: Contender) -> bool:
        return contender.stream is not None

    def prepare(self, contender: Contender, setting: Setting) -> PreparedRun:
        assert contender.stream is not None
        context, setting = (
            setting.shape.length,
            setting.with_length(max(self.contexts) + 1 + self.steps * self.runs),
        )
        model = contender.make(setting).to(setting.device).eval()
        stream = contender.stream(
            model, make_batch(setting.shape)[0][:1, :context].to(setting.device)
        )

        def several() -> None:
            for _ in range(self.steps):
                next(stream)

        def run() -> float:
            with (
                torch.no_grad(),
                torch.autocast(setting.device, torch.bfloat16, enabled=_uses_bf16(setting)),
            ):
                return time_once(several, setting.device) / self.steps

        run()  # reads the prompt
        return PreparedRun(run, RunFacts(amount=1, parameters=_count_parameters(model)))


def _uses_bf16(setting: Setting) -> bool:
    return setting.shape.precision == "bf16-mixed"


def _count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class MemoryMeasure:
    name, unit, rate, is_repeated = "memory", "bytes", "", False

    def choose_lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return asked

    def supports(self, contender: Contender) -> bool:
        return True

    def prepare(self, contender: Contender, setting: Setting) -> PreparedRun:
        made = TrainingStep(contender, setting)
        made.step()  # from now on the optimiser holds what it remembers
        facts = RunFacts(parameters=made.parameters, plan=made.plan)
        return PreparedRun(
            lambda: made.count_held_bytes() + measure_peak_memory(made.step, setting.device), facts
        )


class TrainMeasure:
    name, unit, is_repeated = "train", "seconds", True

    def __init__(self, counted: str) -> None:
        self.rate = counted

    def choose_lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return asked

    def supports(self, contender: Contender) -> bool:
        return True

    def prepare(self, contender: Contender, setting: Setting) -> PreparedRun:
        made, shape = TrainingStep(contender, setting), setting.shape
        amount = shape.batch * (shape.length if shape.kind == "text" else 1)
        facts = RunFacts(amount=amount, parameters=made.parameters, plan=made.plan)
        return PreparedRun(lambda: time_once(made.step, setting.device), facts)
