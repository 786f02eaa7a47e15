"""Seconds in which a text is continued greedily, with a cache, one sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from zoo.bench.clock import seconds
from zoo.bench.contender import Contender
from zoo.bench.shapes import Setting
from zoo.bench.training import batch
from zoo.bench.trial import Facts, Ready


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
            with torch.no_grad(), torch.autocast(setting.device, torch.bfloat16, enabled=_rounded(setting)):
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
        context, setting = setting.shape.length, setting.at(max(self.contexts) + 1 + self.steps * self.runs)
        model = contender.make(setting).to(setting.device).eval()
        stream = contender.stream(model, batch(setting.shape)[0][:1, :context].to(setting.device))

        def several() -> None:
            for _ in range(self.steps):
                next(stream)

        def run() -> float:
            with torch.no_grad(), torch.autocast(setting.device, torch.bfloat16, enabled=_rounded(setting)):
                return seconds(several, setting.device) / self.steps

        run()  # reads the prompt
        return Ready(run, Facts(amount=1, parameters=_count(model)))


def _rounded(setting: Setting) -> bool:
    return setting.shape.precision == "bf16-mixed"


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
