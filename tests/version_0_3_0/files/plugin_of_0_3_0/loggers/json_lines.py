"""Writes metrics as lines of JSON into the run directory."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from zoo.registry import register
from zoo.run.loggers import LoggedRun, Tracker


@register
class JsonLines(Tracker):
    """Builds any logger of Lightning for a run.

    Args:
        file: Name of the file.
    """

    def __init__(self, *, file: str = "metrics.jsonl") -> None:
        self.file = file

    def build(self, run: LoggedRun) -> Logger:
        return JsonLinesLogger(run.folder / self.file, run.step)


class JsonLinesLogger(Logger):
    """Appends to a file, without the lines that a resumed run repeats."""

    def __init__(self, path: Path, keep_until: int) -> None:
        super().__init__()
        self.path = path
        lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
        path.write_text("".join(one for one in lines if json.loads(one)["step"] < keep_until))

    @property
    def name(self) -> str:
        return "json_lines"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """The recipe is in the run directory already."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
