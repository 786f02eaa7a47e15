"""The result of an evaluation as data: what was measured under each condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from zoo.config.schema import format_size
from zoo.run.conditions import Condition

METRIC_LISTS = ("position_losses", "position_accuracies", "position_counts")


@dataclass(frozen=True, kw_only=True)
class ConditionResult:
    """The measurements under one condition; no metrics if model or machine refused.

    Attributes:
        condition: The condition.
        metrics: Metrics on the test data, such as "test/loss".
        refused: Why nothing could be measured; empty if something was.
        windows: How texts were cut into windows; empty for other data.
        position_losses: The mean loss at each position of the windows, None where no token is a
            target; empty for tasks without it.
        position_accuracies: The accuracy at each position.
        position_counts: The number of targets at each position.
    """

    condition: Condition
    metrics: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""
    windows: str = ""
    position_losses: tuple[float | None, ...] = ()
    position_accuracies: tuple[float | None, ...] = ()
    position_counts: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without empty values; `from_dict` reads it."""
        plain = self.condition.to_dict() | {"metrics": dict(self.metrics)}
        plain |= {"refused": self.refused, "windows": self.windows}
        plain |= {name: [*getattr(self, name)] for name in METRIC_LISTS}
        always = {"metrics", *(one.name for one in fields(Condition))}
        return {key: value for key, value in plain.items() if value or key in always}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned. Raises KeyError, ValueError or TypeError if it is not."""
        metrics = {str(name): _read_number(value) for name, value in plain["metrics"].items()}
        return cls(
            condition=Condition.from_dict(plain),
            metrics=metrics,
            refused=str(plain.get("refused", "")),
            windows=str(plain.get("windows", "")),
            **{name: tuple(plain.get(name, ())) for name in METRIC_LISTS},
        )


def _read_number(value: Any) -> float:
    # JSON has no NaN; zoo writes null for it
    return float("nan") if value is None else float(value)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation of a checkpoint under all conditions of its recipe.

    Attributes:
        recipe: The name of the recipe.
        checkpoint: The checkpoint.
        data: The data it was tested on, in a line.
        count: Test samples, under the first condition.
        trained_size: The training size: tokens `(length,)`, or pixels `(height, width)`.
        conditions: What was measured under each condition; the first is the test data of the
            recipe, without changes.
        resizing: How images were resized; empty for other data.
        figure: A PNG file of metrics by size, position and variant, if one was drawn.
        partial: Whether the evaluation was interrupted.
    """

    recipe: str
    checkpoint: Path
    data: str
    count: int
    trained_size: tuple[int, ...]
    conditions: tuple[ConditionResult, ...]
    resizing: str = ""
    figure: Path | None = None
    partial: bool = False

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics under the first condition."""
        return self.conditions[0].metrics

    def find(self, name: str) -> ConditionResult:
        """Return what was measured under a condition, such as "256" or "256 by yarn".

        Raises:
            KeyError: There is no such condition.
        """
        for one in self.conditions:
            if one.condition.name == name:
                return one
        names = ", ".join(repr(one.condition.name) for one in self.conditions)
        raise KeyError(f"no condition {name!r}; there are {names}")

    @property
    def has_equal_windows(self) -> bool:
        """True if the first condition cut texts into windows as all other sizes did."""
        own = self.conditions[0].windows
        sized = [one for one in self.conditions[1:] if one.condition.size and not one.refused]
        return all(one.windows == own for one in sized)

    def list_lines(self) -> dict[str, dict[str, ConditionResult]]:
        """Collect what was measured by size, for curves.

        Returns:
            {extrapolation method: {size: measurement}}, from small to large sizes. The method is
            empty for the encodings as they were trained, which come first. Each method starts at
            the training size, where it changes nothing.
        """
        sized = [one for one in self.conditions if one.condition.size]
        # windows with another overlap give their tokens another context
        if not self.has_equal_windows:
            sized = sized[1:]
        lines: dict[str, dict[str, ConditionResult]] = {"": {}}
        for one in sorted(sized, key=lambda one: _order(one.condition)):
            assert one.condition.size is not None
            line = lines.setdefault(one.condition.extrapolation or "", {})
            line[format_size(one.condition.size)] = one
        trained = format_size(self.trained_size)
        # each curve begins where all methods agree, so that they can be compared by eye
        start = {trained: lines[""][trained]} if trained in lines[""] else {}
        return {method: {**start, **line} if method else line for method, line in lines.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, as `zoo eval --json` prints it; `from_dict` reads it."""
        plain: dict[str, Any] = {
            "recipe": self.recipe,
            "checkpoint": str(self.checkpoint),
            "data": self.data,
            "count": self.count,
            "metrics": dict(self.metrics),
            "trained_size": [*self.trained_size],
            "conditions": [one.to_dict() for one in self.conditions],
        }
        if self.resizing:
            plain["resizing"] = self.resizing
        if self.figure:
            plain["figure"] = str(self.figure)
        if self.partial:
            plain["partial"] = True
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned. Raises KeyError, ValueError or TypeError if it is not."""
        conditions = tuple(ConditionResult.from_dict(one) for one in plain["conditions"])
        if not conditions:
            raise ValueError("an evaluation has at least one condition")
        return cls(
            recipe=str(plain["recipe"]),
            checkpoint=Path(plain["checkpoint"]),
            data=str(plain["data"]),
            count=int(plain["count"]),
            trained_size=tuple(map(int, plain["trained_size"])),
            conditions=conditions,
            resizing=str(plain.get("resizing", "")),
            figure=Path(plain["figure"]) if "figure" in plain else None,
            partial=bool(plain.get("partial", False)),
        )


def _order(condition: Condition) -> tuple[int, int]:
    """Order sizes by the number of tokens or pixels, then by height."""
    size = condition.size or (0,)
    return size[0] * size[-1], size[0]
