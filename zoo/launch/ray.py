"""Ray: one task for each cell, on the cluster that RAY_ADDRESS names, or on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from signal import SIGINT, SIGTERM, Signals, default_int_handler, getsignal, signal
from typing import Any, ClassVar

from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.launch.executor import CellProcess, Resources
from zoo.options import Count
from zoo.packages import explain_imports, suggest_install
from zoo.registry import PLUGINS, register


@register
@dataclass(kw_only=True)
class RayExecutor:
    """One Ray task for each cell. All nodes must see the output folder."""

    name: ClassVar[str] = "ray"

    cpus: Count = 1
    """With engine=ray or engine=slurm: CPUs of each cell."""

    is_local = False

    def __post_init__(self) -> None:
        self.handles: list[_RayHandle] = []

    def plan_resources(self, cells: int, jobs: int | None, gpus: int) -> Resources:
        """Leave it to Ray how many cells run at once."""
        if find_spec("ray") is None:
            raise _refuse("engine", "ray is not installed", suggest_install("ray"))
        if jobs is not None:
            raise _refuse("jobs", "Ray decides how many cells run at once", "leave it out")
        return Resources(cells, self.cpus, gpus)

    def start(self, processes: Sequence[CellProcess], resources: Resources) -> None:
        """Submit a task for each process."""
        library = self._import_ray()
        handlers = {number: getsignal(number) for number in (SIGINT, SIGTERM)}
        library.init(ignore_reinit_error=True, log_to_driver=False)
        for number, handler in handlers.items():
            # Ray has installed its own, which abort this process
            signal(number, handler)

        # workers of a cluster were started elsewhere, without our environment
        environment = {"env_vars": {PLUGINS: os.environ.get(PLUGINS, "")}}
        task = library.remote(
            num_cpus=resources.threads,
            num_gpus=resources.gpus,
            max_retries=0,
            runtime_env=environment,
        )(_run)
        for process in processes:
            self.handles.append(_RayHandle(library, task.remote(process)))

    def stop(self, signal: Signals) -> None:
        """Interrupt the tasks, upon which each cell saves its state and ends."""
        for handle in self.handles:
            if not handle.done():
                handle.library.cancel(handle.reference)

    def _import_ray(self) -> Any:
        with explain_imports():
            import ray

        return ray


def _run(process: CellProcess) -> int:
    """Run a cell on a node.

    Ray interrupts a task as SIGINT would, which does nothing if Ray was started with it ignored.
    """
    signal(SIGINT, default_int_handler)
    return process()


def _refuse(key: str, problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, key, problem, remedy))


class _RayHandle:
    """A reference of Ray as a handle.

    Ray does not say whether a task has begun: it counts as running until it is done.
    """

    def __init__(self, library: Any, reference: Any) -> None:
        self.library, self.reference = library, reference

    def running(self) -> bool:
        return not self.done()

    def done(self) -> bool:
        return bool(self.library.wait([self.reference], timeout=0)[0])

    def cancelled(self) -> bool:
        return False

    def result(self) -> int:
        return int(self.library.get(self.reference))
