"""Seconds of a whole training step: forward, loss, backward and the optimiser."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.bench.clock import seconds
from zoo.bench.contender import Contender
from zoo.bench.shapes import Setting
from zoo.bench.training import Training
from zoo.bench.trial import Facts, Ready


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
