"""Who starts the processes of a run: torchrun, SLURM, or zoo itself, with what torchrun is made of."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from zoo.errors import Told

PATIENCE = 300  # seconds for a process to save and end, once it is asked to


def surroundings() -> tuple[int, int] | None:
    """Processes on each node, and nodes, where a launcher has started several and says so; else None."""
    environment, found = os.environ, (1, 1)
    if TorchElasticEnvironment.detect():
        local = int(environment["LOCAL_WORLD_SIZE"])
        found = local, int(environment["WORLD_SIZE"]) // local
    elif SLURMEnvironment.detect():
        nodes = int(environment.get("SLURM_NNODES", 1))
        found = int(environment.get("SLURM_NTASKS_PER_NODE") or int(environment["SLURM_NTASKS"]) // nodes), nodes
    return None if found == (1, 1) else found  # one alone may start others


def under_slurm() -> bool:
    """Whether it is SLURM that tells the ranks; torchrun may have been started by it."""
    return bool(SLURMEnvironment.detect()) and not TorchElasticEnvironment.detect()


def start(count: int, words: Sequence[str]) -> None:
    """Run `zoo WORDS` in so many processes on this machine, and wait for them.

    Signals are passed on to all. Raises Told with the exit code of one that failed, which ends the others.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _hush()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(PATIENCE))
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=count, max_restarts=0, run_id=str(os.getpid()), rdzv_backend="c10d",
            rdzv_endpoint="localhost:0", local_addr="localhost", logs_specs=DefaultLogsSpecs(log_dir=folder),
        )  # fmt: skip
        try:
            elastic_launch(config, sys.executable)("-m", "zoo", *words)
        except ChildFailedError as error:
            raise Told(_told(failure.exitcode for failure in error.failures.values())) from None
        except SignalException as error:
            raise Told(128 + error.sigval) from None


def _told(codes: Iterable[int]) -> int:
    """The exit code that says most: one that zoo gives, before a crash, before those that were ended for it."""
    positive = [code for code in codes if code > 0]
    return next((code for code in positive if code != 1), 1)


def _hush() -> None:
    """The processes tell what happens themselves."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
