"""SLURM, through submitit: a job array, one task for each cell, which goes on after its time was over."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from signal import Signals
from subprocess import Popen
from typing import Annotated, Any

from zoo.compare.executors.base import CellProcess, Resources, wait_for_exit
from zoo.errors import ConfigIssue, RecipeError
from zoo.launch import slurm
from zoo.registry import Between, Count, register

TRIES = 1_000_000  # of a cell whose time is over: it has saved its state, and goes on as often as it takes
LOGS = "slurm"  # in the folder of the comparison


@register
class SlurmExecutor:
    """Each cell has `cpus` processors and `gpus`, by default one where the recipe asks for a GPU. `time` is that of a cell's
    one try: where it is over, the cell saves its state and is put into the queue again.
    """

    is_local = False

    def __init__(
        self,
        *,
        time: str = "24:00:00",
        partition: str | None = None,
        account: str | None = None,
        cpus: Count = 1,
        gpus: Annotated[int, Between(0, 1)] | None = None,
    ) -> None:
        slurm.SlurmLauncher(
            time=time, partition=partition, account=account
        )  # says what is wrong with them
        self.minutes = -(-slurm.parse_time_limit(time) // 60)
        self.partition, self.account, self.cpus, self.gpus = partition, account, cpus, gpus
        self.handles: list[_SlurmHandle] = []

    def plan_resources(self, cells: int, jobs: int | None, gpus: int) -> Resources:
        if find_spec("submitit") is None:
            raise RecipeError(
                ConfigIssue(
                    "command line", "engine", "submitit is not installed", "pip install submitit"
                )
            )
        if shutil.which("srun") is None:
            raise RecipeError(
                ConfigIssue(
                    "command line", "engine", "there is no srun here", "start it where SLURM is"
                )
            )
        return Resources(
            min(cells, jobs or cells), self.cpus, gpus if self.gpus is None else self.gpus
        )

    def start(self, tasks: Sequence[CellProcess], needs: Resources) -> None:
        executor = self._executor(tasks[0].folder / tasks[0].run.parent.parent / LOGS)
        asked = {"slurm_partition": self.partition, "slurm_account": self.account}
        executor.update_parameters(
            name="zoo-compare",
            timeout_min=self.minutes,
            cpus_per_task=needs.threads,
            gpus_per_node=needs.gpus,
            slurm_array_parallelism=needs.jobs,
            **{key: value for key, value in asked.items() if value is not None},
        )
        with executor.batch():
            self.handles = [
                _SlurmHandle(executor.submit(RequeuedCell(task))) for task in tasks
            ]  # submitted as the batch ends

    def stop(self, signal: Signals) -> None:
        for handle in self.handles:
            if not handle.cancelled() and not handle.done():
                handle.job.cancel()

    def _executor(self, logs: Path) -> Any:
        import submitit

        return submitit.AutoExecutor(folder=logs, cluster="slurm", slurm_max_num_timeout=TRIES)


class RequeuedCell:
    """A task as submitit runs it, on a node. Where the time is over it is asked for what is to be done then."""

    def __init__(self, task: CellProcess) -> None:
        self.task = task
        self.process: Popen[bytes] | None = None

    def __call__(self) -> int:
        self.process = process = self.task.start()
        return wait_for_exit(process)

    def checkpoint(self) -> Any:
        """Have the cell save its state; it begins again in a job of the same kind."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        return DelayedSubmission(RequeuedCell(self.task))


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
