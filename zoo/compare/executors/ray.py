"""Ray: one task for each cell, on the cluster that RAY_ADDRESS names, or on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from signal import SIGINT, SIGTERM, Signals, default_int_handler, getsignal, signal
from typing import Annotated, Any

from zoo.compare.executors.base import CellProcess, Resources
from zoo.errors import ConfigIssue, RecipeError
from zoo.registry import PLUGINS, Between, register


@register
class RayExecutor:
    """Each cell has `cpus` processors. The folder of the comparison must be on all nodes."""

    is_local = False

    def __init__(self, *, cpus: Annotated[int, Between(1)] = 1) -> None:
        self.cpus = cpus
        self.handles: list[_RayHandle] = []

    def plan_resources(self, cells: int, jobs: int | None, gpus: int) -> Resources:
        if find_spec("ray") is None:
            raise RecipeError(
                ConfigIssue("command line", "engine", "ray is not installed", "pip install ray")
            )
        if jobs is not None:
            raise RecipeError(
                ConfigIssue(
                    "command line", "jobs", "Ray itself says how many run at once", "leave it out"
                )
            )
        return Resources(cells, self.cpus, gpus)

    def start(self, tasks: Sequence[CellProcess], needs: Resources) -> None:
        library = self._library()
        handlers = {one: getsignal(one) for one in (SIGINT, SIGTERM)}
        library.init(ignore_reinit_error=True, log_to_driver=False)
        for one, handler in handlers.items():
            signal(one, handler)  # Ray has put its own in their place, which abort this process
        plugins = {
            "env_vars": {PLUGINS: os.environ.get(PLUGINS, "")}
        }  # workers of a cluster were started elsewhere
        asked = {
            "num_cpus": needs.threads,
            "num_gpus": needs.gpus,
            "max_retries": 0,
            "runtime_env": plugins,
        }
        run = library.remote(**asked)(_run)
        for task in tasks:
            self.handles.append(_RayHandle(library, run.remote(task)))

    def stop(self, signal: Signals) -> None:
        for handle in self.handles:
            if not handle.done():
                handle.library.cancel(
                    handle.reference
                )  # interrupts the task, which has its cell save and end

    def _library(self) -> Any:
        import ray

        return ray


def _run(task: CellProcess) -> int:
    """On a node. Ray breaks a task off as SIGINT would, which does nothing where Ray was started with that ignored."""
    signal(SIGINT, default_int_handler)
    return task()


class _RayHandle:
    """A reference of Ray as a handle. Ray does not tell whether a task has begun: it is said to run until it is done."""

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
