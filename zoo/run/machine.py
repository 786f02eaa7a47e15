"""The machine: its processor, cores and GPU, and how it computes very small and large products."""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zoo.reporting.numbers import pluralize

log = logging.getLogger("zoo")

GRAIN = 2**15
"""Elements of an elementwise operation for which torch takes another thread."""


class Peak(NamedTuple):
    """Dense operations per second that a GPU does at most, in 10^12, by the type of numbers.

    None: the GPU has no fast products of that type.
    """

    half: float | None
    """float16."""
    bfloat16: float | None
    tf32: float | None
    float32: float


PEAKS = {
    r"Tesla V100-SXM2-\d+GB": Peak(125, None, None, 15.7),
    r"Tesla T4": Peak(65, None, None, 8.1),
    r"NVIDIA A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe": Peak(312, 312, 156, 19.5),
    r"NVIDIA L4": Peak(121, 121, 60, 30.3),
    r"NVIDIA L40S": Peak(362, 362, 183, 91.6),
    r"NVIDIA H100 PCIe": Peak(756, 756, 378, 51),
    r"NVIDIA H100 80GB HBM3": Peak(989, 989, 494, 67),
    r"NVIDIA H200": Peak(989, 989, 494, 67),
}
"""Peaks by the whole name of a GPU, from NVIDIA's data sheets, without their factor for sparsity.

A part of a GPU (MIG) and a variant of another power have another name, and are not listed.
"""
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


def find_peak_flops(gpu: str, precision: str, float32_matmul: str = "highest") -> float | None:
    """Return the operations per second that a GPU does at most; None if they are not known.

    Args:
        gpu: The name of the GPU, as its driver has it.
        precision: `trainer.precision`.
        float32_matmul: `trainer.float32_matmul`.
    """
    peak = next((peak for name, peak in PEAKS.items() if re.fullmatch(name, gpu)), None)
    if peak is None:
        return None
    found = {
        "16-mixed": peak.half,
        "16-true": peak.half,
        "bf16-mixed": peak.bfloat16,
        "bf16-true": peak.bfloat16,
        # a GPU without TF32 computes float32 products as such
        "32-true": (float32_matmul == "high" and peak.tf32) or peak.float32,
    }.get(precision)
    return None if found is None else found * 1e12


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
