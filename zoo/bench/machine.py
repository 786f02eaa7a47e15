"""The machine that is measured, in words."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch


def machine(device: str) -> dict[str, object]:
    """What a figure depends on beside the code: processor, cores, threads, GPU, versions."""
    found: dict[str, object] = {
        "device": device,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return found | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def told(machine: dict[str, object] | object) -> str:
    """In one line."""
    assert isinstance(machine, dict)
    cores = f"{machine['processor']}, {counted(machine['cores'], 'core')}, {counted(machine['threads'], 'thread')}"
    return f"{machine['gpu']} ({cores})" if "gpu" in machine else cores


def counted(number: Any, name: str) -> str:
    """So many of something."""
    return f"{number:,} {name}" + ("" if number == 1 else "s")


def _processor() -> str:
    """The model of the processor, as Linux has it, or what Python knows of it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"model name\s*:\s*(.+)", text)
    return named[1].strip() if named else platform.processor() or platform.machine()
