"""What a measure makes of a contender, ready to be run in turns with those of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from zoo.bench.clock import Trial
from zoo.bench.contender import Contender
from zoo.bench.shapes import Setting


@dataclass(frozen=True, kw_only=True)
class Facts:
    """`amount` is how much is done in a run, in what the measure counts per second."""

    amount: float = 0.0
    parameters: int = 0
    plan: str = ""


class Ready(NamedTuple):
    """What is run, and what is known of it."""

    run: Trial
    facts: Facts


class Measure(Protocol):
    """What is measured of each contender, at each length."""

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str:
        """Of what a run gives."""
        ...

    @property
    def rate(self) -> str:
        """What is done per second; empty where a run is no time, or nothing is counted."""
        ...

    @property
    def repeated(self) -> bool:
        """Whether it differs from run to run."""
        ...

    def lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        """At which lengths it is measured, of those that are asked for or of its own."""
        ...

    def able(self, contender: Contender) -> bool:
        """Whether a contender can do this at all."""
        ...

    def ready(self, contender: Contender, setting: Setting) -> Ready:
        """Raises Invalid where the contender does not allow the setting."""
        ...
