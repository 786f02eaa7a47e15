"""This machine: several cells at the same time, on its CPU cores or one on each GPU."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from signal import SIGTERM, Signals
from threading import Lock
from typing import ClassVar

import torch

from zoo.launch.executor import CellProcess, Resources, RunningProcess, wait_for_exit
from zoo.launch.fork_server import NEVER_BEGUN, ForkServer, find_obstacle
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
        self.running: set[RunningProcess] = set()
        self.free_devices: SimpleQueue[str | None] = SimpleQueue()
        self.lock, self.stopped = Lock(), False
        self.pool: ThreadPoolExecutor | None = None
        self.server: ForkServer | None = None
        self.unfinished = 0

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
            self.server = ForkServer(processes[0].folder)
        else:
            log.info("each cell starts anew, which takes seconds: %s", obstacle)
        self.pool = pool = ThreadPoolExecutor(resources.jobs)
        self.unfinished = len(processes)
        for process in processes:
            self.handles.append(pool.submit(self._run, process))

    def stop(self, signal: Signals) -> None:
        """Cancel the cells that wait, and send a signal to those that run."""
        with self.lock:
            self.stopped = True
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
        for process in [*self.running]:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal)

    def _run(self, cell: CellProcess) -> int:
        device = self.free_devices.get()
        try:
            code = self._run_once(cell, device, forked=True)
            if code == NEVER_BEGUN:
                log.info("%s: the fork server has ended, so this cell starts anew", cell.run)
                code = self._run_once(cell, device, forked=False)
            return code
        finally:
            self.free_devices.put(device)
            self._conclude()

    def _run_once(self, cell: CellProcess, device: str | None, *, forked: bool) -> int:
        with self.lock:
            if self.stopped:
                return 128 + SIGTERM
            process = self._start(cell, device, forked=forked)
            self.running.add(process)
        code = wait_for_exit(process)
        self.running.discard(process)
        return code

    def _start(self, cell: CellProcess, device: str | None, *, forked: bool) -> RunningProcess:
        if self.server is None or not forked:
            return cell.start({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
        if not self.server.is_alive():
            # it was killed; cells that it had forked run on
            self.server.close()
            self.server = ForkServer(cell.folder)
        return self.server.start(cell)

    def _conclude(self) -> None:
        """Count a cell that has ended, and end the fork server with the last one."""
        with self.lock:
            self.unfinished -= 1
            is_last = self.unfinished == 0 or (self.stopped and not self.running)
            if is_last and self.server is not None:
                self.server.close()
                self.server = None


def _list_devices() -> list[str]:
    """List the GPUs that a child process can be given, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return [word.strip() for word in visible.split(",")][:count]
    return [str(number) for number in range(count)]
