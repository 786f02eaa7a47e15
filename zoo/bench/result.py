"""What a benchmark measured, as plain data: a row for each measure, length and contender."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Self

import torch

from zoo.errors import DataError
from zoo.utils import refuse_old_version


def describe_machine(device: str) -> dict[str, object]:
    """Return what a time depends on besides the code: processor, threads, GPU, versions."""
    has_affinity = hasattr(os, "sched_getaffinity")
    machine: dict[str, object] = {
        "device": device,
        "processor": _read_processor(),
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


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: 1 core, 2 cores."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _read_processor() -> str:
    """Return the model of the processor as Linux names it, or what Python knows of it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"model name\s*:\s*(.+)", text)
    return match[1].strip() if match else platform.processor() or platform.machine()


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """A contender under one measure at one length. Ratios are taken within rounds."""

    measure: str
    unit: str
    length: int
    name: str
    library: str | None
    """The other library; None for models of zoo."""
    counterpart: str | None
    """For a model of another library: the name of zoo's model that it is compared with."""
    group: int
    parameters: int
    backend: str
    """What computes attention."""
    values: tuple[float, ...]
    """One for each round."""
    ratios: tuple[float, ...]
    """Values over those of the reference; empty if it has none."""
    counterpart_ratios: tuple[float, ...]
    """Values over those of the counterpart; empty without one."""
    amount: float
    """How much a run does, in units of `rate`."""
    rate: str
    """What is counted per second; empty if a run returns no time."""
    error: str | None = None

    @property
    def ratio(self) -> float | None:
        """The median ratio to the reference."""
        return median(self.ratios) if self.ratios else None

    @property
    def per_second(self) -> float | None:
        """The amount per second."""
        return self.amount / median(self.values) if self.rate and self.values else None


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All rows of a benchmark, and what it was made with."""

    zoo_version: str
    created: str
    """UTC."""
    command: str
    machine: Mapping[str, Any]
    shape: Mapping[str, Any]
    """The fields of `Shape`, and its `name`."""
    options: Mapping[str, Any]
    reference: str
    excluded: Mapping[str, str]
    """{encoding: why it does not apply}"""
    rows: tuple[BenchRow, ...]
    partial: bool = False
    """Whether it was stopped before its end."""

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON can hold it, each row with its median, quartiles and rate."""
        rows = [{**asdict(row), **_summarize(row)} for row in self.rows]
        return {**asdict(self), "rows": rows}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the result of a file. Raises DataError if it holds none."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            refuse_old_version(found, path)
            values = {field.name: found[field.name] for field in fields(cls)}
            return cls(**{**values, "rows": tuple(_read_row(one) for one in found["rows"])})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{path}: holds no benchmark") from None


def compute_quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the first and third quartile; None for fewer than two values."""
    if len(values) < 2:
        return None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def _summarize(row: BenchRow) -> dict[str, Any]:
    ratios = row.counterpart_ratios
    return {
        "median": median(row.values) if row.values else None,
        "ratio": row.ratio,
        "ratio_quartiles": compute_quartiles(row.ratios),
        "counterpart_ratio": median(ratios) if ratios else None,
        "counterpart_quartiles": compute_quartiles(ratios),
        "per_second": row.per_second,
    }


def _read_row(found: Mapping[str, Any]) -> BenchRow:
    values: dict[str, Any] = {field.name: found[field.name] for field in fields(BenchRow)}
    lists = {key: tuple(values[key]) for key in ("values", "ratios", "counterpart_ratios")}
    return BenchRow(**{**values, **lists})
