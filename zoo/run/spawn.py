"""Start the processes of a command, or join those that a launcher has started."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence

import torch

from zoo.errors import AlreadyReported, RecipeError
from zoo.run.build import Experiment
from zoo.run.distributed import Processes, detect_launcher

log = logging.getLogger("zoo")

SHUTDOWN_TIMEOUT = 300  # seconds for a process to save and end after a signal


def join_processes(experiment: Experiment, command: Sequence[str]) -> Processes | None:
    """Return the processes that the recipe or a launcher asks for, this one among them.

    Only the first process keeps logging. Where the recipe asks for several and nobody has started
    them, run `zoo COMMAND` in each, wait for them and return None.

    Raises:
        RecipeError: The recipe asks for several nodes, which a launcher has to start.
        AlreadyReported: The started processes failed and have printed why.
    """
    recipe, trainer = experiment.recipe, experiment.trainer
    if detect_launcher() is None and trainer.world_size > 1:
        if recipe.trainer.num_nodes > 1:
            problem = f"{recipe.trainer.num_nodes} nodes, but no launcher says which node this is"
            remedy = "start it with torchrun or SLURM: zoo launch"
            raise RecipeError(recipe.make_issue("trainer.num_nodes", problem, remedy))
        spawn_processes(trainer.world_size, command)
        return None

    if recipe.trainer.num_threads is not None:
        torch.set_num_threads(recipe.trainer.num_threads)
    processes = Processes.connect(trainer)
    if processes.count > 1 and processes.first:
        log.info("Training in %d processes", processes.count)
    if not processes.first:
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.WARNING)
    return processes


def spawn_processes(count: int, command: Sequence[str]) -> None:
    """Run `zoo COMMAND` in several processes on this machine and wait for them.

    All of them receive the signals that this process receives.

    Raises:
        AlreadyReported: A process failed, which ended the others; has its exit code.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _silence_launcher()
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_TIMEOUT))
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
            elastic_launch(config, sys.executable)("-m", "zoo", *command)
        except ChildFailedError as error:
            codes = [failure.exitcode for failure in error.failures.values()]
            raise AlreadyReported(choose_exit_code(codes)) from None
        except SignalException as error:
            raise AlreadyReported(128 + error.sigval) from None


def choose_exit_code(codes: Iterable[int]) -> int:
    """Return the most telling exit code: zoo's own before that of a crash or of a kill."""
    positive = [code for code in codes if code > 0]
    return next((code for code in positive if code != 1), 1)


def _silence_launcher() -> None:
    """Leave it to the processes to say what happens."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
