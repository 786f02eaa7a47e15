"""How much memory something takes at most, beyond what was held before, and whether there was too little of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Trial = Callable[[], float]
"""Does what is measured once, and says how much it took."""


def synchronize(device: str) -> None:
    """Until a device has done all that it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def time_once(act: Callable[[], object], device: str) -> float:
    """How long it takes to do something once."""
    synchronize(device)
    start = time.perf_counter()
    act()
    synchronize(device)
    return time.perf_counter() - start


def run_rounds(
    trials: Sequence[Trial], min_rounds: int, min_seconds: float = 0.0, warmup: int = 1
) -> Iterator[list[float]]:
    """What each trial took, round by round: all in turn, so that a machine that changes its pace changes it for all.

    Each round begins with the next of them: who comes after the largest finds the caches cold. At least so many rounds, and
    more while they have not taken so many seconds; `warm` ones before them do not count.
    """
    for _ in range(warmup):
        for trial in trials:
            trial()
    end, count = time.perf_counter() + min_seconds, 0
    while count < min_rounds or time.perf_counter() < end:
        found = {one: trials[one]() for one in _rotate(len(trials), count)}
        yield [found[one] for one in range(len(trials))]
        count += 1


def _rotate(count: int, first: int) -> Iterator[int]:
    """0 to count - 1, from another one on for each `first`."""
    return ((first + step) % count for step in range(count))


# what a CPU's allocator says in a RuntimeError
MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that there was too little memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        word in str(error) for word in MEMORY
    )


def measure_peak_memory(act: Callable[[], object], device: str) -> int:
    """Bytes that torch has allocated at most while it does something, over what it had before, on one device.

    On a CPU each allocation is traced: the same bytes every time, whatever else the process and the machine do, where
    resident memory differs by what the C library keeps.
    """
    return _peak_on_cuda(act) if device == "cuda" else _peak_on_cpu(act)


def _peak_on_cuda(act: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    act()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_on_cpu(act: Callable[[], object]) -> int:
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # the tracer would tell standard error when it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        act()
    assert traced.profiler is not None
    assert traced.profiler.kineto_results is not None
    events: list[Any] = [
        one for one in traced.profiler.kineto_results.events() if one.name() == "[memory]"
    ]
    now = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
