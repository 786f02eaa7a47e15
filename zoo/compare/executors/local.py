"""This machine: several cells at the same time, on its cores or one on each GPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from signal import SIGTERM, Signals
from subprocess import Popen
from threading import Lock

import torch

from zoo.compare.executors.base import CellProcess, Resources, wait_for_exit
from zoo.registry import register


@register
class LocalExecutor:
    """As many cells as there are cores, which they share out as threads; or one for each GPU, which sees no other."""

    is_local = True

    def __init__(self) -> None:
        self.free_devices: SimpleQueue[str | None] = (
            SimpleQueue()
        )  # what a cell that begins sees of GPUs
        self.processes: set[Popen[bytes]] = set()
        self.handles: list[Future[int]] = []
        self.lock, self.stopped = Lock(), False
        self.pool: ThreadPoolExecutor | None = None

    def plan_resources(self, cells: int, jobs: int | None, gpus: int) -> Resources:
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        most = len(_list_devices()) if gpus else cores
        found = min(cells, jobs or max(1, most))
        return Resources(found, max(1, cores // found), gpus)

    def start(self, tasks: Sequence[CellProcess], needs: Resources) -> None:
        devices = _list_devices() if needs.gpus else []
        for number in range(needs.jobs):  # more jobs than GPUs share them
            self.free_devices.put(devices[number % len(devices)] if devices else None)
        self.pool = pool = ThreadPoolExecutor(needs.jobs)
        for task in tasks:
            self.handles.append(pool.submit(self._run, task))

    def stop(self, signal: Signals) -> None:
        with self.lock:
            self.stopped = True
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
        for process in [*self.processes]:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal)

    def _run(self, task: CellProcess) -> int:
        place = self.free_devices.get()
        try:
            with self.lock:
                if self.stopped:
                    return 128 + SIGTERM
                process = task.start({} if place is None else {"CUDA_VISIBLE_DEVICES": place})
                self.processes.add(process)
            code = wait_for_exit(process)
            self.processes.discard(process)
            return code
        finally:
            self.free_devices.put(place)


def _list_devices() -> list[str]:
    """The GPUs that a process started from here can be told to see."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return (
        [word.strip() for word in told.split(",")][:count]
        if told
        else [str(number) for number in range(count)]
    )
