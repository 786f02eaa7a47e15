"""How much memory something takes at most, beyond what was held before, and whether there was too little of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# what a CPU's allocator says in a RuntimeError
MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def exhausted(error: Exception) -> bool:
    """Whether an error says that there was too little memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in MEMORY)


def peak(act: Callable[[], object], device: str) -> int:
    """Bytes that torch has allocated at most while it does something, over what it had before, on one device.

    On a CPU each allocation is traced: the same bytes every time, whatever else the process and the machine do, where
    resident memory differs by what the C library keeps.
    """
    return _on_cuda(act) if device == "cuda" else _on_cpu(act)


def _on_cuda(act: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    act()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _on_cpu(act: Callable[[], object]) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the tracer would tell standard error when it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        act()
    assert traced.profiler is not None
    assert traced.profiler.kineto_results is not None
    events: list[Any] = [one for one in traced.profiler.kineto_results.events() if one.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
