"""When to look at attention while training, so that it takes no more than a share of the time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Cadence:
    """Looks every `every` steps, or less often where that would take more than the share `budget` of the time.

    Time is in seconds since training began, looks included.
    """

    every: int
    budget: float
    spent: float = 0.0
    cost: float | None = None  # of the last look

    def expected(self, pace: float) -> float:
        """What the next look will cost, given the seconds of a step.

        That of the last one; the first is taken to cost as much as two steps: it sees fewer samples, but with weights.
        """
        return 2 * pace if self.cost is None else self.cost

    def next(self, step: int, steps: int, elapsed: float) -> int:
        """The step to look at, `step` itself or a later one, after so many `steps` of this training in `elapsed` seconds."""
        pace = max(elapsed - self.spent, 1e-9) / max(steps, 1)
        cost = self.expected(pace)
        needed = (self.spent + cost) / self.budget - cost  # of which the looks so far and this one are the budget
        later = step + math.ceil(max(0.0, needed - elapsed) / pace)
        return -(-later // self.every) * self.every

    def took(self, seconds: float) -> None:
        """Count a look."""
        self.cost, self.spent = seconds, self.spent + seconds

    def share(self, elapsed: float) -> float:
        """Of the time so far."""
        return self.spent / max(elapsed, 1e-9)
