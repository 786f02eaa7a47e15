"""The machine: its processor, its cores, how it computes very small and very large products."""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from zoo.reporting.numbers import pluralize

log = logging.getLogger("zoo")

GRAIN = 2**15
"""Elements of an elementwise operation for which torch takes another thread."""
COMPUTES_DENORMALS = (
    "This process computes denormal numbers, with which alibi and fox are slow on some processors: "
    "call torch.set_flush_denormal(True) right after `import torch`, before its threads start"
)


def describe_machine(device: str) -> dict[str, object]:
    """Return what a time depends on besides the code: processor, threads, GPU, versions."""
    machine: dict[str, object] = {
        "device": device,
        "processor": read_processor(),
        # a container or a job scheduler may allow fewer cores than the machine has
        "cores": count_cores(),
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
        listing = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        listing = ""
    entries = dict(
        re.findall(r"^(model name|cpu family|model)[ \t]*:[ \t]*(.+)$", listing, re.MULTILINE)
    )
    name = entries.get("model name", "").strip() or platform.processor() or platform.machine()
    numbers = [f"family {entries['cpu family']}"] if "cpu family" in entries else []
    numbers += [f"model {entries['model']}"] if "model" in entries else []
    return f"{name} ({', '.join([*numbers, torch.backends.cpu.get_cpu_capability()])})"


def count_cores() -> int:
    """Return how many cores this process may run on."""
    # systems other than Linux do not say
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


def flush_denormals() -> None:
    """Flush denormal numbers to zero in this thread, and in the threads that it will start.

    Weights of far keys underflow to denormal numbers, which some processors compute in microcode.
    The commands call it before their first parallel operation, since threads that exist keep their
    mode. It changes the arithmetic of a whole process, so functions of the library do not.
    """
    torch.set_flush_denormal(True)


def are_denormals_flushed() -> bool:
    """Return whether all threads of torch's operations flush denormal numbers to zero."""
    # large enough that each thread has a part, whose products are denormal
    factors = torch.full((2 * GRAIN * torch.get_num_threads(),), 1e-30)
    products = factors * 1e-10
    # as bits: a thread that flushes reads a denormal number as zero too
    return not products.view(torch.int32).any()


def can_flush_denormals() -> bool:
    """Return whether this processor can flush denormal numbers to zero."""
    mode = bool((torch.tensor(1e-30) * 1e-10).view(torch.int32) == 0)
    return torch.set_flush_denormal(mode)


def check_denormals(device: str) -> None:
    """Log what a Python program can do if the threads of a CPU compute denormal numbers."""
    if device == "cpu" and not are_denormals_flushed() and can_flush_denormals():
        log.info(COMPUTES_DENORMALS)


@contextmanager
def use_float32_matmul(precision: str) -> Iterator[None]:
    """Within the context, compute products of float32 matrices with a precision of torch."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
