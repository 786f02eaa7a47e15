"""The machine: its processor, its free cores, its memory."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from zoo.reporting.numbers import pluralize


def describe_machine(device: str) -> dict[str, object]:
    """Return what a time depends on besides the code: processor, threads, GPU, versions."""
    has_affinity = hasattr(os, "sched_getaffinity")
    machine: dict[str, object] = {
        "device": device,
        "processor": read_processor(),
        # a container or a job scheduler may allow fewer cores than the machine has
        "cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return machine | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def format_machine(machine: Mapping[str, Any]) -> str:
    """Format a machine in one line."""
    cores = pluralize(machine["cores"], "core")
    cpu = f"{machine['processor']}, {cores}, {pluralize(machine['threads'], 'thread')}"
    return f"{machine['gpu']} ({cpu})" if "gpu" in machine else cpu


def read_processor(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor as Linux names it, with its family, its model and torch's instructions.

    A virtual machine often hides the name of the model, so that two processors whose results differ
    in the last digits are both "AMD EPYC"; their numbers and instructions tell them apart.

    Args:
        path: Where Linux describes the processor; elsewhere the name is what Python knows.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = dict(
        re.findall(r"^(model name|cpu family|model)[ \t]*:[ \t]*(.+)$", text, re.MULTILINE)
    )
    name = found.get("model name", "").strip() or platform.processor() or platform.machine()
    numbers = [f"family {found['cpu family']}"] if "cpu family" in found else []
    numbers += [f"model {found['model']}"] if "model" in found else []
    return f"{name} ({', '.join([*numbers, torch.backends.cpu.get_cpu_capability()])})"


def count_cores() -> int:
    """Return how many cores this process may run on."""
    return len(_list_cores())


def _list_cores() -> set[int]:
    # systems other than Linux do not say
    affinity = getattr(os, "sched_getaffinity", None)
    return set(range(os.cpu_count() or 1)) if affinity is None else affinity(0)


def measure_free_cores(seconds: float = 0.25) -> float | None:
    """Measure how many of this process's cores others leave idle.

    Linux counts the idle time of each core; elsewhere the load of the last minute has to do.

    Args:
        seconds: How long to watch; this process sleeps meanwhile.

    Returns:
        The cores' worth of time that was idle; None where the system does not say.
    """
    before = _read_idle_seconds()
    if before is not None:
        began = time.monotonic()
        time.sleep(seconds)
        after = _read_idle_seconds()
        return None if after is None else (after - before) / (time.monotonic() - began)
    try:
        return max(0.0, count_cores() - os.getloadavg()[0])
    except (AttributeError, OSError):
        return None


def _read_idle_seconds(path: Path = Path("/proc/stat")) -> float | None:
    """Return the idle seconds of this process's cores since the system started."""
    cores, ticks = {f"cpu{number}" for number in _list_cores()}, 0
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        for name, *values in filter(None, lines):
            if name in cores:
                # idle, and waiting for a disk
                ticks += int(values[3]) + int(values[4])
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def choose_threads(most: int, free: float | None) -> int:
    """Return how many threads a small model trains with: as many as cores are free, if known.

    Threads of a small model wait for one another every few microseconds. If they have to share a
    core with busy processes, all wait for the one that does not run, and one thread is faster.

    Args:
        most: The threads that an idle machine has.
        free: What `measure_free_cores` returned.
    """
    return most if free is None else min(most, max(1, round(free)))


@contextmanager
def use_float32_matmul(precision: str) -> Iterator[None]:
    """Within the context, compute products of float32 matrices with a precision of torch."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
