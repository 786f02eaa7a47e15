"""SLURM, through submitit: a job array with one task for each cell."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Annotated, Any, ClassVar

from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.launch.executor import CellProcess, Resources, RunningCell
from zoo.launch.slurm import SlurmLauncher, parse_time_limit
from zoo.options import Between, Count
from zoo.packages import explain_imports, suggest_install
from zoo.registry import register

# of a cell whose time is over: it has saved its state, and continues as often as it takes
MAX_TIMEOUTS = 1_000_000
LOGS = "slurm"  # in the output folder


@register
@dataclass(kw_only=True)
class SlurmExecutor:
    """A job array with one task for each cell."""

    name: ClassVar[str] = "slurm"

    time: str = "24:00:00"
    """With engine=slurm: time limit of a cell, after which it is requeued and continues."""
    partition: str | None = None
    """With engine=slurm: partition of the cluster."""
    account: str | None = None
    """With engine=slurm: account that the jobs are charged to."""
    cpus: Count = 1
    """With engine=slurm: CPUs of each cell."""
    gpus: Annotated[int, Between(0, 1)] | None = None
    """With engine=slurm: GPUs of each cell; null takes one if the recipe asks for a GPU."""

    is_local = False

    def __post_init__(self) -> None:
        SlurmLauncher(time=self.time, partition=self.partition, account=self.account)  # checks them
        self.handles: list[_SlurmHandle] = []

    def plan_resources(self, cells: int, jobs: int | None, gpus: int) -> Resources:
        """Return the resources of the cells: all run at once, unless `jobs` limits them."""
        if find_spec("submitit") is None:
            raise _refuse("submitit is not installed", suggest_install("submitit"))
        if shutil.which("srun") is None:
            raise _refuse("there is no srun on this machine", "start it where SLURM is")
        gpus = gpus if self.gpus is None else self.gpus
        return Resources(min(cells, jobs or cells), self.cpus, gpus)

    def start(self, processes: Sequence[CellProcess], resources: Resources) -> None:
        """Submit one array of all processes."""
        folder = processes[0].folder / processes[0].run.parent.parent
        executor = self._build_executor(folder / LOGS)
        options = {"slurm_partition": self.partition, "slurm_account": self.account}
        executor.update_parameters(
            name="zoo-compare",
            timeout_min=-(-parse_time_limit(self.time) // 60),
            cpus_per_task=resources.threads,
            gpus_per_node=resources.gpus,
            slurm_array_parallelism=resources.jobs,
            **{key: value for key, value in options.items() if value is not None},
        )
        # they are submitted when the batch ends
        with executor.batch():
            jobs = [executor.submit(RequeuedCell(process)) for process in processes]
            self.handles = [_SlurmHandle(job) for job in jobs]

    def stop(self, signal: Signals) -> None:
        """Cancel all jobs that are not done."""
        for handle in self.handles:
            if not handle.cancelled() and not handle.done():
                handle.job.cancel()

    def _build_executor(self, logs: Path) -> Any:
        with explain_imports():
            import submitit

        return submitit.AutoExecutor(
            folder=logs, cluster="slurm", slurm_max_num_timeout=MAX_TIMEOUTS
        )


class RequeuedCell:
    """A cell as submitit runs it on a node; `checkpoint` is called when its time is over."""

    def __init__(self, cell: CellProcess) -> None:
        self.cell = cell
        self.running: RunningCell | None = None

    def __call__(self) -> int:
        self.running = self.cell.start()
        return self.running.wait()

    def checkpoint(self) -> Any:
        """Save the state of the cell, and return the job that continues it."""
        with explain_imports():
            from submitit.helpers import DelayedSubmission

        if self.running is not None:
            self.running.send_signal(SIGTERM)
            self.running.wait()
        return DelayedSubmission(RequeuedCell(self.cell))


def _refuse(message: str, hint: str) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, "engine", message, hint))


class _SlurmHandle:
    """A job of submitit as a handle; it has a number once it is submitted."""

    def __init__(self, job: Any) -> None:
        self.job = job

    def running(self) -> bool:
        return not self.cancelled() and self.job.state == "RUNNING"

    def done(self) -> bool:
        return not self.cancelled() and bool(self.job.done())

    def cancelled(self) -> bool:
        return not hasattr(self.job, "job_id") or str(self.job.state).startswith("CANCELLED")

    def result(self) -> int:
        return int(self.job.result())
