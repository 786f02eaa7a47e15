"""The processes that train as one, and what they tell each other."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.strategies import ParallelStrategy
from torch import distributed

from zoo.errors import Told, ZooError

Value = TypeVar("Value")


class Processes:
    """All processes of a run, seen by one of them. They talk on the CPU, beside whatever the training sends.

    Each method is called by all of them at once; alone, a process talks to itself at no cost.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self._group = distributed.new_group(backend="gloo") if count > 1 else None

    @classmethod
    def joined(cls, trainer: L.Trainer) -> Processes:
        """Those that the trainer has been told of, once each of them has come here."""
        strategy = trainer.strategy
        if trainer.world_size == 1 or not isinstance(strategy, ParallelStrategy):
            return cls()
        if not distributed.is_initialized():
            _connect(strategy, trainer.world_size)
        return cls(trainer.global_rank, trainer.world_size)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def gathered(self, value: Value) -> list[Value]:
        """The values of all, by rank."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            distributed.all_gather_object(values, value, self._group)
        return values

    def told(self, value: Value, by: int = 0) -> Value:
        """The value that one of them has, in all."""
        values = [value]
        if self.count > 1:
            distributed.broadcast_object_list(values, by, self._group)
        return values[0]

    def most(self, number: int) -> int:
        """The largest of the numbers that they have."""
        if self.count == 1:
            return number
        found = torch.tensor(int(number))
        distributed.all_reduce(found, distributed.ReduceOp.MAX, self._group)
        return int(found)

    def lost(self, error: Exception) -> bool:
        """Whether an error came of another process that is gone."""
        return (
            self.count > 1
            and type(error) in (RuntimeError, distributed.DistBackendError, distributed.DistNetworkError)
            and re.search("gloo|nccl|connection|socket", str(error), re.IGNORECASE) is not None
        )

    def agreed(self, make: Callable[[], Value]) -> Value:
        """What the first process makes, in all; where it fails, all fail, and the first tells why."""
        value: Value | None = None
        failure: ZooError | None = None
        if self.first:
            try:
                value = make()
            except ZooError as error:
                failure = error
        made, code = self.told((value, failure.code if failure else None))
        if code is not None:
            raise failure or Told(code)
        return made  # type: ignore[return-value]


def _connect(strategy: ParallelStrategy, count: int) -> None:
    """As Lightning does it, but before it: what is trained, and where, has to be agreed on first."""
    around = strategy.cluster_environment
    assert around is not None
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = around.main_address, str(around.main_port)
    device = strategy.root_device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(
        backend,
        rank=around.global_rank(),
        world_size=count,
        device_id=device if device.type == "cuda" else None,
    )
    atexit.register(_disconnect)


def _disconnect() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
