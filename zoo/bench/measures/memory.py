"""Bytes that training takes at most: what is held between steps, and what a step adds."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.bench.contender import Contender
from zoo.bench.memory import peak
from zoo.bench.shapes import Setting
from zoo.bench.training import Training
from zoo.bench.trial import Facts, Ready


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
