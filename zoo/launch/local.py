"""This machine: several cells at the same time, on its CPU cores or one on each GPU."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from signal import SIGTERM, Signals
from threading import Lock
from typing import ClassVar

import torch

from zoo.launch.executor import CellProcess, Resources, RunningCell, StartMethod
from zoo.registry import register
from zoo.run.machine import count_cores

log = logging.getLogger("zoo")


@register
class LocalExecutor:
    """As many cells as CPU cores, which they share as threads; or one for each GPU."""

    name: ClassVar[str] = "local"

    is_local = True

    def __init__(self) -> None:
        self.handles: list[Future[int]] = []
        self.running: set[RunningCell] = set()
        self.free_devices: SimpleQueue[str | None] = SimpleQueue()
        self.lock = Lock()
        self.stopped: Signals | None = None
        self.pool: ThreadPoolExecutor | None = None
        self.method: StartMethod = "spawn"

    def plan_resources(self, cells: int, jobs: int | None, gpus: int) -> Resources:
        """Give each cell an equal share of the cores."""
        cores = count_cores()
        most = len(_list_devices()) if gpus else cores
        jobs = min(cells, jobs or max(1, most))
        return Resources(jobs, max(1, cores // jobs), gpus)

    def start(self, processes: Sequence[CellProcess], resources: Resources) -> None:
        """Queue the processes for a pool of threads, each of which has a device."""
        devices = _list_devices() if resources.gpus else []
        for number in range(resources.jobs):
            # more jobs than GPUs share them
            self.free_devices.put(devices[number % len(devices)] if devices else None)

        obstacle = find_obstacle(resources)
        if obstacle is None:
            self.method = "forkserver"
        else:
            log.info("each cell starts anew, which takes seconds: %s", obstacle)
        self.pool = pool = ThreadPoolExecutor(resources.jobs)
        for process in processes:
            self.handles.append(pool.submit(self._run, process))

    def stop(self, signal: Signals) -> None:
        """Cancel the cells that wait, and send a signal to those that run."""
        with self.lock:
            self.stopped = signal
            running = [*self.running]
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
        for cell in running:
            cell.send_signal(signal)

    def _run(self, cell: CellProcess) -> int:
        device = self.free_devices.get()
        try:
            if self.stopped is not None:
                return 128 + SIGTERM
            environment = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
            # Without the lock: the first one waits until the fork server has imported everything.
            running = cell.start(self.method, environment)
            with self.lock:
                self.running.add(running)
                missed = self.stopped
            if missed is not None:
                running.send_signal(missed)
            code = running.wait()
            self.running.discard(running)
            return code
        finally:
            self.free_devices.put(device)


def find_obstacle(resources: Resources) -> str | None:
    """Return why cells cannot be forked off a server; None where they can."""
    if resources.gpus:
        return "a GPU cannot be used after a fork"
    if sys.platform != "linux":
        return f"a fork is not safe on {sys.platform}"
    return None


def _list_devices() -> list[str]:
    """List the GPUs that a child process can be given, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return [word.strip() for word in visible.split(",")][:count]
    return [str(number) for number in range(count)]
