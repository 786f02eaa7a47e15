"""What every task has beside what Lightning asks of it, and what it asks of an optimiser."""

from __future__ import annotations

from typing import Any, Protocol

import lightning as L
from torch import nn

from zoo.samples import Samples


class Task(L.LightningModule):
    """A model under training. `monitor` names the metric that makes a checkpoint the best, `mode` its better end.

    `samples` are the facts that it was built for, and which other data has to adopt.
    """

    monitor: str
    mode: str  # max or min
    model: nn.Module
    samples: Samples


class Optimiser(Protocol):
    """A member of `zoo/tasks/optim`."""

    def configure(self, model: nn.Module, steps: int) -> dict[str, Any]:
        """Optimiser and schedule in Lightning's form, for a training of so many steps."""
        ...
