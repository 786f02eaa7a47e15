"""The machine: its processor, its cores, its memory."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from zoo.reporting.numbers import pluralize


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
    # systems other than Linux do not say
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


@contextmanager
def use_float32_matmul(precision: str) -> Iterator[None]:
    """Within the context, compute products of float32 matrices with a precision of torch."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
