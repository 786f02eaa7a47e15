"""`metrics.csv`: one row per step at which something was logged, one column per metric."""

from __future__ import annotations

import csv
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only


def read(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of a file of metrics; a last line that a full disk cut is left out."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(line for line in file if line.endswith("\n"))
        return list(reader.fieldnames or ()), list(reader)


class MetricsFile(Logger):
    """Appends rows; a new metric widens the table. Rows of a resumed run that lie after its checkpoint are dropped."""

    def __init__(self, path: Path, keep_until: int | None = None) -> None:
        super().__init__()
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.columns = ["step", "epoch"]
        if path.is_file():
            columns, rows = read(path)
            self.columns = columns or self.columns
            self.rows = [row for row in rows if keep_until is None or int(row["step"]) < keep_until]
            self._rewrite()

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @property
    def experiment(self) -> None:
        return None

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """The recipe lies beside this file already."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"step": step, **metrics}
        self.rows.append(row)
        fresh = [name for name in row if name not in self.columns]
        self.columns += fresh
        if fresh or not self.path.exists():
            self._rewrite()
        else:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.columns).writerow(row)

    def _rewrite(self) -> None:
        fresh = self.path.with_suffix(".writing")
        with fresh.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)
        fresh.replace(self.path)
