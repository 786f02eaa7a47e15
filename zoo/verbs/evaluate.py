"""`zoo eval`: measure a checkpoint, at its own resolution and at others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L

from zoo.build import build_data, build_trainer
from zoo.data.source import Source
from zoo.loading import restore
from zoo.recipe import Recipe
from zoo.run import checkpoints, folder
from zoo.tasks.task import Task

log = logging.getLogger("zoo")

UNLESS_SAID = ("trainer.accelerator=auto", "trainer.devices=1", "trainer.num_nodes=1", "trainer.strategy=auto")


def evaluate(place: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Test a checkpoint; returns what `--json` prints. The trainer of training is not taken over unless overridden."""
    path = checkpoints.locate(place)
    recipe, task = restore(path, [*UNLESS_SAID, *overrides])
    trainer = build_trainer(recipe, logger=False)
    result: dict[str, Any] = {"recipe": recipe.name, "checkpoint": str(path)}
    result["count"], result["metrics"] = _test(trainer, task, build_data(recipe))
    if recipe.evaluate.resolutions:
        result["resolutions"] = {
            str(size): _test(trainer, task, build_data(recipe, size=size))[1] for size in recipe.evaluate.resolutions
        }
        result["figure"] = str(_draw(recipe, result, folder.holder(path)))
    return result


def table(result: dict[str, Any]) -> str:
    """The result for people to read."""
    names = list(result["metrics"])
    rows = [("", *names), ("as trained", *(f"{result['metrics'][name]:.4f}" for name in names))]
    for size, metrics in result.get("resolutions", {}).items():
        rows.append((f"{size} x {size}", *(f"{metrics[name]:.4f}" for name in names)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.append(f"{result['count']} samples, {result['checkpoint']}")
    if "figure" in result:
        lines.append(f"figure: {result['figure']}")
    return "\n".join(lines)


def _test(trainer: L.Trainer, task: Task, data: Source) -> tuple[int, dict[str, float]]:
    (metrics,) = trainer.test(task, datamodule=data, verbose=False)
    return data.count("test"), {name: float(value) for name, value in metrics.items()}


def _draw(recipe: Recipe, result: dict[str, Any], run: Path) -> Path:
    """Accuracy against resolution, that of training included, as a PNG in the run directory."""
    from matplotlib.figure import Figure

    trained = recipe.data.options["size"]
    found = {trained: result["metrics"]} | {int(size): metrics for size, metrics in result["resolutions"].items()}
    points = sorted((size, metrics["test/accuracy"]) for size, metrics in found.items())
    figure = Figure(figsize=(6, 4), layout="constrained", dpi=150)
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True), marker="o", color="#2b6cb0")
    for size, value in points:
        axes.annotate(f"{value:.3f}", (size, value), textcoords="offset points", xytext=(0, 8), ha="center", fontsize=9)
    axes.axvline(trained, color="#999999", linestyle="--", linewidth=1, label=f"trained at {trained}")
    axes.set(xlabel="resolution in pixels", ylabel="test accuracy", title=recipe.name)
    axes.margins(x=0.08, y=0.2)
    axes.set_xticks([size for size, _ in points])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    path = run / "resolutions.png"
    figure.savefig(path)
    return path
