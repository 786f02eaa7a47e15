"""The result of a benchmark as data: a row for each measure, length and contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Self

from zoo.errors import DataError, ZooError
from zoo.utils import read_json

MB = 2**20


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
    """The attention backend."""
    values: tuple[float, ...]
    """One for each round."""
    ratios: tuple[float, ...]
    """Values over those of the reference; empty if it has none."""
    counterpart_ratios: tuple[float, ...]
    """Values over those of the counterpart; empty without one."""
    amount: float
    """The work of a run, in units of `rate`."""
    rate: str
    """The unit of rates; empty if a run returns no time."""
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
    """All rows of a benchmark, with the machine, the shape and the options."""

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
    problem: ZooError | None = None
    """Why it is not complete or not written; a file of the result does not record it."""

    def describe_depth(self) -> str:
        """Return how many layers the measured models have, such as 6 layers."""
        is_single = {row.measure for row in self.rows} == {"layer"}
        return "1 layer" if is_single else f"{self.shape['depth']} layers"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, each row with its median, quartiles and rate."""
        plain = asdict(replace(self, problem=None))
        del plain["problem"]
        return {**plain, "rows": [{**asdict(row), **_summarize(row)} for row in self.rows]}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the result of a file. Raises DataError if it holds none."""
        data = read_json(path, "holds no benchmark")
        try:
            values = {
                field.name: data[field.name] for field in fields(cls) if field.name != "problem"
            }
            return cls(**{**values, "rows": tuple(_read_row(row) for row in data["rows"])})
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


def _read_row(data: Mapping[str, Any]) -> BenchRow:
    values: dict[str, Any] = {field.name: data[field.name] for field in fields(BenchRow)}
    lists = {key: tuple(values[key]) for key in ("values", "ratios", "counterpart_ratios")}
    return BenchRow(**{**values, **lists})


def merge_references(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Merge the rows of the reference, which is in each group."""
    merged: dict[tuple[str, int, str], BenchRow] = {}
    for row in rows:
        key = row.measure, row.length, row.name
        if before := merged.get(key):
            row = replace(
                before,
                values=before.values + row.values,
                ratios=before.ratios + row.ratios,
                error=before.error or row.error,
            )
        merged[key] = row
    return list(merged.values())


def select_rows(
    rows: Sequence[BenchRow], measure: str, length: int | None = None
) -> list[BenchRow]:
    """Return the rows of a measure, and of a length, that have values, the smallest ratio first."""
    selected = [row for row in rows if row.measure == measure and row.values]
    if length is not None:
        selected = [row for row in selected if row.length == length]
    return sorted(selected, key=lambda row: row.ratio or median(row.values))


def list_lengths(rows: Sequence[BenchRow], *measures: str) -> list[int]:
    """List the lengths of some measures, sorted."""
    return sorted({row.length for row in rows if row.measure in measures})
