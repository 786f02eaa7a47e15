"""What was found, as plain data: a row for each measure, length and contender."""

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


def describe_machine(device: str) -> dict[str, object]:
    """What a figure depends on beside the code: processor, cores, threads, GPU, versions."""
    found: dict[str, object] = {
        "device": device,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return found | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def told(machine: dict[str, object] | object) -> str:
    """In one line."""
    assert isinstance(machine, dict)
    cores = f"{machine['processor']}, {pluralize(machine['cores'], 'core')}, {pluralize(machine['threads'], 'thread')}"
    return f"{machine['gpu']} ({cores})" if "gpu" in machine else cores


def pluralize(number: Any, name: str) -> str:
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


@dataclass(frozen=True, kw_only=True)
class Row:
    """`values` are those of each round. Ratios are made within rounds, to the reference of the group and to zoo's `rival`."""

    measure: str
    unit: str
    length: int
    name: str
    peer: str | None
    rival: str | None
    group: int
    parameters: int
    plan: str
    values: tuple[float, ...]
    ratios: tuple[float, ...]  # empty where the reference has none
    rival_ratios: tuple[float, ...]  # this row over zoo's own, empty where it has no rival
    amount: float  # done in one run
    rate: str  # of what; empty where a run is no time
    fault: str | None = None

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    @property
    def per_second(self) -> float | None:
        return self.amount / median(self.values) if self.rate and self.values else None


@dataclass(frozen=True, kw_only=True)
class Result:
    """All rows of a comparison, and what it was made with. `partial` where it was stopped before its end."""

    zoo: str
    made: str
    command: str
    machine: Mapping[str, Any]
    shape: Mapping[str, Any]  # its sizes, and its `name`
    options: Mapping[str, Any]
    against: str
    left_out: Mapping[str, str]
    rows: tuple[Row, ...]
    partial: bool = False

    def plain(self) -> dict[str, Any]:
        """As JSON has it: each row with its median, quartiles and rate."""
        rows = [{**asdict(row), **_summed(row)} for row in self.rows]
        return {**asdict(self), "rows": rows}

    @classmethod
    def read(cls, path: Path) -> Self:
        """The result that a file holds. Raises DataError where it holds none."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            rows = tuple(_row(one) for one in found["rows"])
            return cls(**{**{field.name: found[field.name] for field in fields(cls)}, "rows": rows})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{path}: holds no benchmark") from None


def spread(values: Sequence[float]) -> tuple[float, float] | None:
    """The quartiles; None where there is one value or none."""
    if len(values) < 2:
        return None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def _summed(row: Row) -> dict[str, Any]:
    return {
        "median": median(row.values) if row.values else None,
        "ratio": row.ratio,
        "ratio_quartiles": spread(row.ratios),
        "rival_ratio": median(row.rival_ratios) if row.rival_ratios else None,
        "rival_quartiles": spread(row.rival_ratios),
        "per_second": row.per_second,
    }


def _row(found: Mapping[str, Any]) -> Row:
    told: dict[str, Any] = {field.name: found[field.name] for field in fields(Row)}
    told |= {key: tuple(told[key]) for key in ("values", "ratios", "rival_ratios")}
    return Row(**told)
