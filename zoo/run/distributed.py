"""The processes that train as one, and what they tell each other."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import ParallelStrategy
from torch import distributed

from zoo.errors import AlreadyReported, ZooError

PATIENCE = 300  # seconds for a process to save and end, once it is asked to


def surroundings() -> tuple[int, int] | None:
    """Processes on each node, and nodes, where a launcher has started several and says so; else None."""
    environment, found = os.environ, (1, 1)
    if TorchElasticEnvironment.detect():
        local = int(environment["LOCAL_WORLD_SIZE"])
        found = local, int(environment["WORLD_SIZE"]) // local
    elif SLURMEnvironment.detect():
        nodes = int(environment.get("SLURM_NNODES", 1))
        found = (
            int(
                environment.get("SLURM_NTASKS_PER_NODE")
                or int(environment["SLURM_NTASKS"]) // nodes
            ),
            nodes,
        )
    return None if found == (1, 1) else found  # one alone may start others


def under_slurm() -> bool:
    """Whether it is SLURM that tells the ranks; torchrun may have been started by it."""
    return bool(SLURMEnvironment.detect()) and not TorchElasticEnvironment.detect()


def start(count: int, words: Sequence[str]) -> None:
    """Run `zoo WORDS` in so many processes on this machine, and wait for them.

    Signals are passed on to all. Raises AlreadyReported with the exit code of one that failed, which ends the others.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _hush()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(PATIENCE))
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            max_restarts=0,
            run_id=str(os.getpid()),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "zoo", *words)
        except ChildFailedError as error:
            raise AlreadyReported(
                _told(failure.exitcode for failure in error.failures.values())
            ) from None
        except SignalException as error:
            raise AlreadyReported(128 + error.sigval) from None


def _told(codes: Iterable[int]) -> int:
    """The exit code that says most: one that zoo gives, before a crash, before those that were ended for it."""
    positive = [code for code in codes if code > 0]
    return next((code for code in positive if code != 1), 1)


def _hush() -> None:
    """The processes tell what happens themselves."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)


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

    def all_gather(self, value: Value) -> list[Value]:
        """The values of all, by rank."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            distributed.all_gather_object(values, value, self._group)
        return values

    def broadcast(self, value: Value, by: int = 0) -> Value:
        """The value that one of them has, in all."""
        values = [value]
        if self.count > 1:
            distributed.broadcast_object_list(values, by, self._group)
        return values[0]

    def all_reduce_max(self, number: int) -> int:
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
            and type(error)
            in (RuntimeError, distributed.DistBackendError, distributed.DistNetworkError)
            and re.search("gloo|nccl|connection|socket", str(error), re.IGNORECASE) is not None
        )

    def run_on_rank_zero(self, make: Callable[[], Value]) -> Value:
        """What the first process makes, in all; where it fails, all fail, and the first tells why."""
        value: Value | None = None
        failure: ZooError | None = None
        if self.first:
            try:
                value = make()
            except ZooError as error:
                failure = error
        made, code = self.broadcast((value, failure.code if failure else None))
        if code is not None:
            raise failure or AlreadyReported(code)
        return made  # type: ignore[return-value]


def _connect(strategy: ParallelStrategy, count: int) -> None:
    """As Lightning does it, but before it: what is trained, and where, has to be agreed on first."""
    around = strategy.cluster_environment
    assert around is not None
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = (
        around.main_address,
        str(around.main_port),
    )
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
