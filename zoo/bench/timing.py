"""Time and peak memory of a function, and rounds in which several functions take turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Trial = Callable[[], float]
"""Does what is measured once, and returns how much it took."""

# what the allocator of a CPU says in a RuntimeError
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def synchronize(device: str) -> None:
    """Wait until a device has done all that was queued."""
    if device == "cuda":
        torch.cuda.synchronize()


def time_once(act: Callable[[], object], device: str) -> float:
    """Return the seconds that one call takes."""
    synchronize(device)
    start = time.perf_counter()
    act()
    synchronize(device)
    return time.perf_counter() - start


def run_rounds(
    trials: Sequence[Trial], min_rounds: int, min_seconds: float = 0.0, warmup: int = 1
) -> Iterator[list[float]]:
    """Run all trials in turn, so that a machine that changes its pace changes it for all.

    Each round begins with the next trial: the one that follows the largest finds the caches cold.

    Args:
        trials: What takes turns.
        min_rounds: Rounds at least.
        min_seconds: Further rounds are run until this much time has passed.
        warmup: Rounds before, which do not count.

    Yields:
        What each trial took, round by round.
    """
    for _ in range(warmup):
        for trial in trials:
            trial()
    end, count = time.perf_counter() + min_seconds, 0
    while count < min_rounds or time.perf_counter() < end:
        order = [(count + step) % len(trials) for step in range(len(trials))]
        values = {index: trials[index]() for index in order}
        yield [values[index] for index in range(len(trials))]
        count += 1


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether an error says that there was too little memory, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(text in str(error) for text in OUT_OF_MEMORY)


def measure_peak_memory(act: Callable[[], object], device: str) -> int:
    """Return the peak bytes that torch allocates on a device during a call, beyond those before.

    On a CPU each allocation is traced. That gives the same bytes every time, whatever else the
    machine does; resident memory differs by what the C library keeps.
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
    # otherwise the tracer writes to standard error when it starts and stops
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        act()
    assert traced.profiler is not None
    assert traced.profiler.kineto_results is not None

    events: list[Any] = list(traced.profiler.kineto_results.events())
    events = [event for event in events if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
