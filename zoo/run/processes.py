"""The processes that train together: how they start, how many they are, how they communicate."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import lightning as L
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.accelerators import (
    Accelerator,
    CPUAccelerator,
    CUDAAccelerator,
    MPSAccelerator,
    XLAAccelerator,
)
from lightning.pytorch.strategies import ParallelStrategy
from torch import distributed

from zoo.config import Recipe, TrainerOptions
from zoo.errors import AlreadyReported, OptionError, RecipeError, ZooError
from zoo.run.machine import count_cores
from zoo.suggestions import join_words
from zoo.utils import write_json

log = logging.getLogger("zoo")

JOB, RESULT = "job.json", "result.json"
PASSES = 3  # of a training sample: a backward pass takes about the operations of two forward passes
SHUTDOWN_TIMEOUT = 300  # seconds for a process to save and end after a signal

ACCELERATORS: dict[str, tuple[type[Accelerator], ...]] = {
    "auto": (XLAAccelerator, MPSAccelerator, CUDAAccelerator, CPUAccelerator),
    "gpu": (MPSAccelerator, CUDAAccelerator),
    "cuda": (CUDAAccelerator,),
    "mps": (MPSAccelerator,),
    "tpu": (XLAAccelerator,),
    "cpu": (CPUAccelerator,),
}


def detect_launcher() -> tuple[int, int] | None:
    """Return (processes per node, nodes) of torchrun or SLURM; None for a lone process."""
    environment, counts = os.environ, (1, 1)
    if TorchElasticEnvironment.detect():
        local = int(environment["LOCAL_WORLD_SIZE"])
        counts = local, int(environment["WORLD_SIZE"]) // local
    elif SLURMEnvironment.detect():
        nodes = int(environment.get("SLURM_NNODES", 1))
        per_node = environment.get("SLURM_NTASKS_PER_NODE")
        counts = int(per_node or int(environment["SLURM_NTASKS"]) // nodes), nodes
    # a lone process may start others itself
    return None if counts == (1, 1) else counts


def is_slurm() -> bool:
    """Return whether SLURM assigns the ranks; within a SLURM job, torchrun may do so instead."""
    return bool(SLURMEnvironment.detect()) and not TorchElasticEnvironment.detect()


def count_processes(options: TrainerOptions) -> int:
    """Return the world size: that of the launcher's environment, else of the recipe.

    Raises:
        MisconfigurationException: Lightning refuses the devices.
    """
    devices, nodes = detect_launcher() or (options.devices, options.num_nodes)
    available = [cls for cls in ACCELERATORS[options.accelerator] if cls.is_available()]
    if not available:
        # the trainer itself names the missing accelerator
        return nodes
    cls = available[0]
    if devices == "auto":
        return nodes * cls.auto_device_count()
    return nodes * len(cls.get_parallel_devices(cls.parse_devices(devices)))


def compute_batch_size(recipe: Recipe, processes: int | None = None) -> int | None:
    """Return the samples of one process in one backward pass; None if the data do not say.

    Args:
        recipe: The recipe, with the batch of a process or of a step.
        processes: Number of processes. None: those that would train here.

    Raises:
        OptionError: The samples of a step cannot be divided among the processes.
    """
    options, trainer = recipe.data.options, recipe.trainer
    total: int | None = options.get("global_batch_size")
    if total is None:
        return options.get("batch_size")
    if processes is None:
        try:
            processes = count_processes(trainer)
        except MisconfigurationException:
            # the trainer says what is wrong with its devices
            processes = 1
    return divide_batch(total, processes, trainer.accumulate_grad_batches)


class StepSize(NamedTuple):
    """How many samples a step of the optimizer takes, and from where.

    Attributes:
        batch: Samples of one process in one backward pass; None if the data do not say.
        accumulated: Backward passes of one step.
        processes: Number of processes.
    """

    batch: int | None
    accumulated: int
    processes: int

    @classmethod
    def read(cls, recipe: Mapping[str, Any], processes: int) -> Self:
        """Read it from a recipe as plain data, which is known to be valid."""
        data = recipe.get("data", {})
        accumulated = recipe.get("trainer", {}).get("accumulate_grad_batches", 1)
        batch = data.get("batch_size")
        if total := data.get("global_batch_size"):
            batch = total // (accumulated * processes)
        return cls(batch, accumulated, processes)

    @classmethod
    def plan(cls, recipe: Recipe, processes: int) -> Self:
        """Plan the steps of a recipe.

        Raises:
            OptionError: The samples of a step cannot be divided among the processes.
        """
        batch = compute_batch_size(recipe, processes)
        return cls(batch, recipe.trainer.accumulate_grad_batches, processes)

    @property
    def total(self) -> int:
        """Samples of a step of all processes."""
        return (self.batch or 0) * self.accumulated * self.processes

    def __str__(self) -> str:
        return f"{self.total:,} ({self.batch} x {self.accumulated} accumulated x {self.processes})"

    def explain_change(self, before: StepSize) -> str:
        """Return a warning where devices or accumulation change the size, with the way back.

        A change of the batch size itself is one that the user has accepted.
        """
        if self.batch is None or before.batch is None:
            return ""
        current, earlier = self.accumulated * self.processes, before.accumulated * before.processes
        if current == earlier or self.total == before.total:
            return ""
        message = f"Samples of a step: {self} from here on, {before} before"
        if self.batch != before.batch or earlier % self.processes:
            return f"{message}; the learning rate was chosen for those before"
        needed = earlier // self.processes
        return f"{message}; trainer.accumulate_grad_batches={needed} keeps their number"


def divide_batch(total: int, processes: int, accumulated: int) -> int:
    """Return the samples of one process in one backward pass of a step.

    Args:
        total: Samples of a step.
        processes: Number of processes.
        accumulated: Backward passes of a step.

    Raises:
        OptionError: They cannot be divided; the message names the nearest numbers that can.
    """
    parts = processes * accumulated
    if total % parts == 0:
        return total // parts
    # divisors come in pairs, of which the smaller is at most the root
    low = [number for number in range(1, isqrt(total) + 1) if total % number == 0]
    divisors = sorted({*low, *(total // number for number in low)})
    below = [number for number in divisors if number < parts]
    nearest = [*below[-1:], *(number for number in divisors if number > parts)][:2]
    listed = join_words((f"{number:,}" for number in nearest), "or")
    # with these devices, accumulation alone can follow
    if all(number % processes == 0 for number in nearest):
        ways = join_words((number // processes for number in nearest), "or")
        listed += f" (trainer.accumulate_grad_batches={ways})"
    multiples = (total - total % parts, total - total % parts + parts)
    sizes = join_words((f"{size:,}" for size in multiples if size), "or")
    noun = "process" if processes == 1 else "processes"
    counts = f"{processes:,} {noun} x {accumulated:,} accumulated"
    message = f"{total:,} samples of a step are not divisible by {parts:,} ({counts})"
    hint = (
        f"the nearest divisors of {total:,}: {listed}; the nearest multiples of {parts:,}: {sizes}"
    )
    raise OptionError("global_batch_size", f"{message}; {hint}")


Value = TypeVar("Value")


class Processes:
    """All processes of a run, seen from one of them.

    They exchange Python objects over gloo on the CPU, in addition to the collectives of training.
    Methods are collective: every rank must call them. A lone process pays nothing.

    Args:
        rank: The number of this process.
        count: The number of all of them.
        timeout: Seconds to wait for the others in an exchange; None: torch's default.
    """

    def __init__(self, rank: int = 0, count: int = 1, timeout: float | None = None) -> None:
        self.rank, self.count, self.timeout = rank, count, timeout
        # NCCL moves tensors on GPUs only, and these are objects of Python
        self._group = (
            distributed.new_group(timeout=_to_delta(timeout), backend="gloo") if count > 1 else None
        )

    @classmethod
    def connect(cls, trainer: L.Trainer, timeout: float | None = None) -> Processes:
        """Connect the processes of a trainer, once each of them has called this.

        Args:
            trainer: The trainer.
            timeout: Seconds that a process waits for the others in any collective; None: torch's
                default.
        """
        strategy = trainer.strategy
        if trainer.world_size == 1 or not isinstance(strategy, ParallelStrategy):
            return cls()
        if not distributed.is_initialized():
            _initialise(strategy, trainer.world_size, timeout)
        return cls(trainer.global_rank, trainer.world_size, timeout)

    @property
    def first(self) -> bool:
        """True on rank 0, which writes files and logs."""
        return self.rank == 0

    def all_gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            distributed.all_gather_object(values, value, self._group)
        return values

    def broadcast(self, value: Value, by: int = 0) -> Value:
        """Return the value of rank `by` in all processes."""
        values = [value]
        if self.count > 1:
            distributed.broadcast_object_list(values, by, self._group)
        return values[0]

    def all_reduce_max(self, number: int) -> int:
        """Return the largest number of all processes."""
        return self.find_largest([number])[0]

    def find_largest(self, numbers: Sequence[int]) -> list[int]:
        """Return the largest number of all processes at each place, in one reduction."""
        if self.count == 1:
            return [*numbers]
        largest = torch.tensor([int(number) for number in numbers])
        distributed.all_reduce(largest, distributed.ReduceOp.MAX, self._group)
        result: list[int] = largest.tolist()
        return result

    def run_on_rank_zero(self, make: Callable[[], Value]) -> Value:
        """Run a function in the first process and return its result in all of them.

        Raises:
            ZooError: It failed; the first process raises its error, the others AlreadyReported.
        """
        value: Value | None = None
        failure: ZooError | None = None
        if self.first:
            try:
                value = make()
            except ZooError as error:
                failure = error
        # the others wait in this broadcast, so a failure has to reach them too
        result, code = self.broadcast((value, failure.code if failure else None))
        if code is not None:
            raise failure or AlreadyReported(code)
        return result  # type: ignore[return-value]

    def explain_lost(self, error: Exception) -> str:
        """Return what a connection error says about another process."""
        if not re.search("timed? ?out", str(error), re.IGNORECASE):
            return "cannot reach another process, which has died or hangs"
        if self.timeout is None:
            return "waited for another process, which hangs, until torch gave up"
        limit = f"trainer.collective_timeout={self.timeout:g}"
        return f"waited {self.timeout:g} seconds for another process, which hangs ({limit})"

    def is_connection_error(self, error: Exception) -> bool:
        """Return whether an error means that another process has died."""
        types = (RuntimeError, distributed.DistBackendError, distributed.DistNetworkError)
        pattern = "gloo|nccl|connection|socket"
        matches = re.search(pattern, str(error), re.IGNORECASE) is not None
        return self.count > 1 and type(error) in types and matches


def _to_delta(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _initialise(strategy: ParallelStrategy, world_size: int, timeout: float | None) -> None:
    """Initialise the process group as Lightning does, but before training is set up.

    The processes have to agree on what is trained, and where, before that.
    """
    cluster = strategy.cluster_environment
    assert cluster is not None
    os.environ["MASTER_ADDR"] = cluster.main_address
    os.environ["MASTER_PORT"] = str(cluster.main_port)
    device = strategy.root_device
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if is_cuda else "gloo",
        rank=cluster.global_rank(),
        world_size=world_size,
        timeout=_to_delta(timeout),
        # the device of this rank, which NCCL would otherwise guess
        device_id=device if is_cuda else None,
    )
    # Lightning destroys only a group that it made itself
    atexit.register(_disconnect)


def _disconnect() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def count_missing_processes(recipe: Recipe, trainer: L.Trainer) -> int:
    """Return how many processes the recipe asks for that nobody has started; 0 if none.

    Raises:
        RecipeError: The recipe asks for several nodes, which a launcher has to start.
    """
    if detect_launcher() is not None or trainer.world_size == 1:
        return 0
    if recipe.trainer.num_nodes > 1:
        message = f"{recipe.trainer.num_nodes} nodes, but no launcher says which node this is"
        hint = "start one process per device with torchrun or SLURM"
        raise RecipeError(recipe.make_issue("trainer.num_nodes", message, hint))
    return trainer.world_size


def join_processes(recipe: Recipe, trainer: L.Trainer) -> Processes:
    """Return the processes that a launcher has started, this one among them.

    Only the first process keeps logging.
    """
    if isinstance(recipe.trainer.num_threads, int):
        torch.set_num_threads(recipe.trainer.num_threads)
    processes = Processes.connect(trainer, recipe.trainer.collective_timeout)
    if processes.count > 1 and processes.first:
        log.info("Training in %d processes", processes.count)
    if not processes.first:
        # warnings of any process are shown, progress of the first only
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.WARNING)
    return processes


def run_in_processes(
    count: int, task: str, recipe: Recipe, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a task in several processes on this machine and wait for them.

    They read the recipe and the options from a file in a temporary folder, and the first of them
    writes the result there. All of them receive the signals that this process receives.

    Args:
        count: How many processes.
        task: What they do, a key of `zoo.cli.worker.TASKS`.
        recipe: The resolved recipe.
        options: Further arguments of the task, as plain data.

    Returns:
        The result of the first process, as plain data.

    Raises:
        AlreadyReported: A process failed, which ended the others; has its exit code.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _silence_launcher()
    # without this, each process would use all cores
    threads = max(1, count_cores() // count)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_TIMEOUT))
    with tempfile.TemporaryDirectory(prefix="zoo-") as name:
        folder = Path(name)
        job = {"task": task, "name": recipe.name, "recipe": recipe.plain(), "options": options}
        write_json(job, folder / JOB)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            # a process that is started again would train anew; the user decides to resume
            max_restarts=0,
            run_id=str(os.getpid()),
            rdzv_backend="c10d",
            # port 0: the system chooses a free one, so that several runs share a machine
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            logs_specs=DefaultLogsSpecs(log_dir=name),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "zoo.cli.worker", name)
        except ChildFailedError as error:
            codes = [failure.exitcode for failure in error.failures.values()]
            raise AlreadyReported(choose_exit_code(codes)) from None
        except SignalException as error:
            # as a shell reports a signal
            raise AlreadyReported(128 + error.sigval) from None
        result: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return result


def choose_exit_code(codes: Iterable[int]) -> int:
    """Return the most telling exit code: zoo's own before that of a crash or of a kill."""
    # The launcher ends the others once one has failed: they report its signal, or die of it.
    ended = 128 + signal.SIGTERM
    positive = [code for code in codes if code > 0]
    if positive and all(code == ended for code in positive):
        return ended
    return next((code for code in positive if code not in (1, ended)), 1)


def _silence_launcher() -> None:
    """Turn off the launcher's own log: the processes report what happens."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
