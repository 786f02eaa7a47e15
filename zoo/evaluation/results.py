"""The result of an evaluation: what was measured under each condition, as data, text and figure.

The figure shows metrics by size, by position and by variant of the data.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import torch

from zoo.config.schema import format_size
from zoo.errors import DataError
from zoo.packages import explain_imports
from zoo.reporting.panel import Bars, Line, LineChart, NamedHeatmap, Panel, Scale
from zoo.reporting.tables import (
    ResultColumn,
    ResultRow,
    ResultTable,
    ResultValue,
    format_latex,
    format_table,
    format_tables,
)
from zoo.run.conditions import Condition
from zoo.tasks.metrics import DEPTHS, DIRECTIONS
from zoo.utils import write_file

POSITION_LISTS = ("position_losses", "position_accuracies", "position_counts")
METRIC_LISTS = (*POSITION_LISTS, "depth_exacts", "entropies")
BINS = 24  # of positions, so that each point is a mean of many tokens
X_NAMES = {"pixels": "resolution in pixels", "tokens": "length of windows in tokens"}
FILES = {"pixels": "resolutions", "tokens": "lengths", "": "data_variants"}
UNCHANGED = "unchanged"
ENTROPY, EVEN = "attention/entropy", "attention/even_entropy"
"""Of attention in nats: the mean over layers, and that of even attention to all visible keys."""
LOSS, ACCURACY, MIOU = "test/loss", "test/accuracy", "test/miou"
SHOWN_CLASSES = 20  # of one line; of more classes it shows the worst
WIDTH, HEIGHT = 380, 240  # in pixels
DECIMALS = 4

Point = tuple[float, float]


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
        depth_exacts: The share of right answers in each tenth of the text that states them, None
            where there is none; empty for tasks without such a place.
        entropies: The mean entropy of attention in each layer in nats, if it was measured.
        baselines: {metric: {baseline: value}} of what a model must beat on these samples; empty for
            extrapolation methods, whose samples are those of their size.
        class_ious: Of segmentation, the intersection over union of each class by name; None for
            classes that do not occur. Empty for other tasks.
    """

    condition: Condition
    metrics: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""
    windows: str = ""
    position_losses: tuple[float | None, ...] = ()
    position_accuracies: tuple[float | None, ...] = ()
    position_counts: tuple[int, ...] = ()
    depth_exacts: tuple[float | None, ...] = ()
    entropies: tuple[float, ...] = ()
    class_ious: Mapping[str, float | None] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without empty values; `from_dict` reads it."""
        plain = self.condition.to_dict() | {"metrics": dict(self.metrics)}
        plain |= {"refused": self.refused, "windows": self.windows}
        plain |= {name: [*getattr(self, name)] for name in METRIC_LISTS}
        plain["class_ious"] = dict(self.class_ious)
        plain["baselines"] = {metric: dict(values) for metric, values in self.baselines.items()}
        always = {"metrics", *(attribute.name for attribute in fields(Condition))}
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
            **{name: _read_numbers(name, plain.get(name, ())) for name in METRIC_LISTS},
            class_ious={
                str(name): None if value is None else _read_number(value)
                for name, value in plain.get("class_ious", {}).items()
            },
            baselines={
                str(metric): {str(name): _read_number(value) for name, value in values.items()}
                for metric, values in plain.get("baselines", {}).items()
            },
        )


def _read_number(value: Any) -> float:
    # JSON has no NaN; zoo writes null for it
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    return float(value)


def _read_numbers(name: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise TypeError(f"{name} is no list")
    types = {*map(type, values)}
    if name == "position_counts" and not types <= {int}:
        raise TypeError(f"{name} holds something else than integers")
    # null where no token is a target
    if not types <= {int, float, type(None)}:
        for value in values:
            _read_number(value)
    return tuple(values)


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
        problem: Why a file of it could not be written; empty if all were.
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
    problem: str = ""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics under the first condition."""
        return self.conditions[0].metrics

    def find(self, name: str) -> ConditionResult:
        """Return what was measured under a condition, such as "256" or "256 by yarn".

        Raises:
            KeyError: There is no such condition.
        """
        for measured in self.conditions:
            if measured.condition.name == name:
                return measured
        names = ", ".join(repr(candidate.condition.name) for candidate in self.conditions)
        raise KeyError(f"no condition {name!r}; there are {names}")

    @property
    def has_equal_windows(self) -> bool:
        """True if the first condition cut texts into windows as all other sizes did."""
        first_windows = self.conditions[0].windows
        sized = [
            measured
            for measured in self.conditions[1:]
            if measured.condition.size and not measured.refused
        ]
        return all(measured.windows == first_windows for measured in sized)

    def list_lines(self) -> dict[str, dict[tuple[int, ...], ConditionResult]]:
        """Collect what was measured by size, for curves.

        Returns:
            {extrapolation method: {size: measurement}}, from small to large sizes, which are
            lengths `(length,)` or sides `(height, width)`. The method is empty for the encodings
            as they were trained, which come first. Each method starts at the training size, where
            it changes nothing.
        """
        sized = [candidate for candidate in self.conditions if candidate.condition.size]
        # windows with another overlap give their tokens another context
        if not self.has_equal_windows:
            sized = sized[1:]
        lines: dict[str, dict[tuple[int, ...], ConditionResult]] = {"": {}}
        for measured in sorted(sized, key=lambda measured: _order(measured.condition)):
            assert measured.condition.size is not None
            line = lines.setdefault(measured.condition.method or "", {})
            line[measured.condition.size] = measured
        trained = self.trained_size
        # each curve begins where all methods agree, so that they can be compared by eye
        start = {trained: lines[""][trained]} if trained in lines[""] else {}
        return {method: {**start, **line} if method else line for method, line in lines.items()}

    def chart(self) -> Any:
        """Return the chart of the figure, which a notebook shows and altair can change.

        Raises:
            DataError: Only one condition was measured.
        """
        if len(self.conditions) < 2:
            raise DataError("there is nothing to draw: name lengths, resolutions or data_variants")
        with explain_imports():
            from zoo.reporting import charts

        return charts.finish(draw_result(self))

    def latex(self) -> str:
        """Return a table of all conditions for LaTeX, as table.tex has it."""
        return format_latex(build_result_table(self))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, as `zoo eval --json` prints it; `from_dict` reads it."""
        plain: dict[str, Any] = {
            "recipe": self.recipe,
            "checkpoint": str(self.checkpoint),
            "data": self.data,
            "count": self.count,
            "metrics": dict(self.metrics),
            "trained_size": [*self.trained_size],
            "conditions": [measured.to_dict() for measured in self.conditions],
        }
        if self.resizing:
            plain["resizing"] = self.resizing
        if self.figure:
            plain["figure"] = str(self.figure)
        if self.partial:
            plain["partial"] = True
        if self.problem:
            plain["problem"] = self.problem
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned. Raises KeyError, ValueError or TypeError if it is not."""
        conditions = tuple(ConditionResult.from_dict(entry) for entry in plain["conditions"])
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
            problem=str(plain.get("problem", "")),
        )


def _order(condition: Condition) -> tuple[int, int]:
    """Order sizes by the number of tokens or pixels, then by height."""
    size = condition.size or (0,)
    return size[0] * size[-1], size[0]


def table(result: Evaluation) -> str:
    """Format a row for each condition, then the refused conditions and how data were prepared."""
    names = list(result.metrics)
    titled = {_title(measured): measured for measured in result.conditions}
    rows = [("", *names)]
    rows += [
        (title, *(f"{measured.metrics[name]:.4f}" for name in names))
        for title, measured in titled.items()
        if not measured.refused
    ]
    lines = [format_table(rows)]
    lines += [
        f"{title}: refused: {measured.refused}"
        for title, measured in titled.items()
        if measured.refused
    ]
    lines += _describe_classes(result.conditions[0].class_ious)
    lines += [
        f"baselines, {title}: {_format_baselines(measured.baselines)}"
        for title, measured in titled.items()
        if measured.baselines
    ]
    lines.append(f"{result.count} samples, {result.checkpoint}")
    lines += _describe_windows(titled)
    if result.resizing:
        lines.append(f"images: {result.resizing}")
    if result.figure:
        lines.append(f"figure: {result.figure}")
    return "\n".join(lines)


def _describe_classes(ious: Mapping[str, float | None]) -> Iterator[str]:
    """Yield the intersection over union of each class, or of the worst ones."""
    present = {name: value for name, value in ious.items() if value is not None}
    title = "IoU by class"
    if len(present) > SHOWN_CLASSES:
        title = f"IoU of the {SHOWN_CLASSES} worst of {len(present)} classes"
        present = dict(sorted(present.items(), key=lambda pair: pair[1])[:SHOWN_CLASSES])
    if present:
        yield f"{title}: {', '.join(f'{name} {value:.4f}' for name, value in present.items())}"


def _format_baselines(baselines: Mapping[str, Mapping[str, float]]) -> str:
    return "; ".join(
        f"{metric} {', '.join(f'{name} {value:.4f}' for name, value in values.items())}"
        for metric, values in baselines.items()
    )


def build_result_table(result: Evaluation) -> ResultTable:
    """Return a row for each condition and a column for each metric, for a paper.

    Extrapolation methods are compared with each other and with the unchanged model at each size.
    """
    has_methods = any(entry.condition.kind == "extrapolation" for entry in result.conditions)
    measured = [entry for entry in result.conditions if not entry.refused]
    rows = tuple(
        ResultRow(
            name=_title(entry),
            values=tuple(ResultValue(entry.metrics.get(name)) for name in result.metrics),
            block=_name_block(entry) if has_methods else "",
        )
        for entry in measured
    )
    columns = []
    for name in result.metrics:
        # without methods the rows do not compete with each other
        better = DIRECTIONS.get(name.rpartition("/")[2]) if has_methods else None
        title = name.removeprefix("test/").replace("_", " ")
        columns.append(ResultColumn(title=title, group="test", decimals=DECIMALS, better=better))
    windows = "; ".join(_describe_windows({_title(entry): entry for entry in measured}))
    notes = [
        f"{result.recipe} on {result.data}, {result.count:,} samples.",
        windows and f"{windows}.",
    ]
    notes += [
        f"Baselines, {_title(entry)}: {_format_baselines(entry.baselines)}."
        for entry in measured
        if entry.baselines
    ]
    refused = [_title(entry) for entry in result.conditions if entry.refused]
    notes += [f"Refused: {', '.join(refused)}."] if refused else []
    notes += ["Interrupted before its end."] if result.partial else []
    return ResultTable(
        head="condition",
        columns=tuple(columns),
        rows=rows,
        caption=" ".join(note for note in notes if note),
        label=f"{result.recipe}-evaluation",
    )


def _name_block(measured: ConditionResult) -> str:
    """Return what a row is compared within: the size, for sizes and extrapolation methods."""
    if measured.condition.kind in ("size", "extrapolation") and measured.condition.size is not None:
        return format_size(measured.condition.size)
    return measured.condition.name


def _title(measured: ConditionResult) -> str:
    return "test" if measured.condition.kind == "trained" else measured.condition.describe()


def _describe_windows(titled: Mapping[str, ConditionResult]) -> Iterator[str]:
    """Yield how texts were cut into windows."""
    cut = {title: measured.windows for title, measured in titled.items() if measured.windows}
    ways = list(dict.fromkeys(cut.values()))
    if len(ways) == 1:
        yield f"windows: {ways[0]}"
    else:
        yield from (
            f"windows {way}: {', '.join(title for title in cut if cut[title] == way)}"
            for way in ways
        )


def save_figure(result: Evaluation, run: Path) -> Path:
    """Write the figure of an evaluation into a folder, as PNG, SVG and PDF; return the PNG file."""
    with explain_imports():
        from zoo.reporting import charts

    path = run / f"{FILES[find_unit(result)]}.png"
    charts.save_formats(draw_result(result), path)
    return path


def save_tables(result: Evaluation, folder: Path) -> None:
    """Write the tables of an evaluation for a paper into a folder."""
    for name, content in format_tables(build_result_table(result)).items():
        write_file(io.BytesIO(content.encode()), folder / name)


def draw_result(result: Evaluation) -> Any:
    """Draw metrics by size, by position and by data variant."""
    with explain_imports():
        from zoo.reporting import charts
        from zoo.reporting.style import Style

    panels = build_panels(result, find_unit(result))
    return charts.draw_panels(panels, Style(width=WIDTH, height=HEIGHT))


def find_unit(result: Evaluation) -> str:
    """Return the unit of the sizes of an evaluation, pixels or tokens; empty if none varies."""
    sized = (
        measured.condition for measured in result.conditions if measured.condition.kind == "size"
    )
    return next((condition.unit for condition in sized), "")


def build_panels(result: Evaluation, unit: str) -> list[Panel]:
    """Return loss and accuracy by size, by position for language models, and by data variant."""
    panels: list[Panel] = []
    of_images = MIOU if MIOU in result.metrics else ACCURACY
    metrics = {"pixels": (of_images,), "tokens": (LOSS, ACCURACY), "": ()}[unit]
    for metric in filter(result.metrics.__contains__, metrics):
        panels.append(plot_by_size(result, unit, metric))
        # only texts have a loss at each position
        if unit == "tokens" and get_positions(result.conditions[0], metric):
            panels.append(plot_by_position(result, metric))
    if unit and ENTROPY in result.metrics:
        panels.append(plot_entropy(result, unit))
    if (
        len([measured for measured in result.list_lines()[""].values() if measured.depth_exacts])
        > 1
    ):
        panels.append(plot_by_depth(result))
    if any(measured.condition.kind == "data_variant" for measured in result.conditions):
        panels.append(plot_variants(result))
    return panels


def plot_by_size(result: Evaluation, unit: str, metric: str) -> LineChart:
    """Plot a metric by size: the unchanged model, and each extrapolation method.

    Sizes whose sides differ have no order: then all stand side by side.
    """
    lines = {
        method or UNCHANGED: {
            size: measured.metrics[metric]
            for size, measured in line.items()
            if metric in measured.metrics
        }
        for method, line in result.list_lines().items()
    }
    sizes = list(dict.fromkeys(size for line in lines.values() for size in line))
    apart = not all(map(has_equal_sides, sizes))
    # sizes without an order stay as the recipe lists them
    if not apart:
        sizes.sort()
    at = {size: float(number if apart else size[0]) for number, size in enumerate(sizes)}
    ends = (min(at.values(), default=0.0), max(at.values(), default=1.0))
    scale = Scale(
        *ends,
        log=unit == "tokens",
        ticks=tuple(at.values()),
        labels={number: format_size(size) for size, number in at.items()},
    )
    trained = result.trained_size
    ordered = not apart and has_equal_sides(trained)
    position = float(trained[0]) if ordered else at.get(trained)
    return LineChart(
        title=result.recipe,
        x=X_NAMES[unit],
        y=metric.replace("/", " "),
        lines=tuple(
            _build_line(name, [(at[size], value) for size, value in points.items()])
            for name, points in lines.items()
        ),
        # a single size needs an axis of some width too
        x_scale=scale.widen(0.06) if ends[0] < ends[1] else Scale(ends[0] / 2, ends[0] * 2 + 1),
        rule=None if position is None else (position, f"trained at {format_size(trained)}"),
        connected=not apart,
        shows_values=len(lines) == 1,
    )


def has_equal_sides(size: Sequence[int]) -> bool:
    """Return whether one number tells a size: a length, or the side of a square."""
    return len({*size}) == 1


def get_positions(one: ConditionResult, metric: str) -> Sequence[float | None]:
    """Return a metric at each position of the windows; empty if it was not measured."""
    return one.position_losses if metric == LOSS else one.position_accuracies


def plot_by_position(result: Evaluation, metric: str) -> LineChart:
    """Plot a metric by position in the longest windows, without and with extrapolation."""
    # the first line is the unchanged model
    plain, *by_method = (
        {
            length: measured
            for (length,), measured in line.items()
            if get_positions(measured, metric)
        }
        for line in result.list_lines().values()
    )
    methods = [method for method in result.list_lines() if method]
    longest = max(plain, default=0)
    # a method may work at lengths that the model as it was trained refuses
    shown = max(longest, *(max(line, default=0) for line in by_method), 0)
    name = UNCHANGED if shown == longest else f"{UNCHANGED}, windows of {longest}"
    lines = {name: plain.get(longest)}
    lines |= {method: line.get(shown) for method, line in zip(methods, by_method, strict=True)}

    (trained,) = result.trained_size
    points = {
        name: [*_average(get_positions(measured, metric), measured.position_counts, trained)]
        for name, measured in lines.items()
        if measured is not None
    }
    windows = f", {plain[longest].windows}" if longest and plain[longest].windows else ""
    return LineChart(
        title=f"by position, windows of {shown}{windows}",
        x="position in the window",
        y=metric.replace("/", " "),
        lines=tuple(_build_line(name, curve) for name, curve in points.items() if curve),
        rule=(trained, f"trained at {trained}"),
    )


def plot_entropy(result: Evaluation, unit: str) -> LineChart:
    """Plot the entropy of attention by size, beside that of even attention."""
    chart = plot_by_size(result, unit, ENTROPY)
    even = plot_by_size(result, unit, EVEN).lines[0]
    return replace(
        chart,
        title="entropy of attention, mean over layers",
        y="entropy in nats",
        lines=(*chart.lines, replace(even, label="even attention")),
        shows_values=False,
    )


def plot_by_depth(result: Evaluation) -> NamedHeatmap:
    """Map the share of right answers by length of the text and depth of what states the answer."""
    sizes = {
        size: measured
        for size, measured in result.list_lines()[""].items()
        if measured.depth_exacts
    }
    values = [
        [float("nan") if share is None else share for share in row.depth_exacts]
        for row in sizes.values()
    ]
    return NamedHeatmap(
        title=f"right answers by depth, trained at {format_size(result.trained_size)}",
        x=X_NAMES["tokens"],
        y="depth of the answer (0 is the start)",
        values=torch.tensor(values, dtype=torch.float64).mT,
        rows=tuple(f"{number / DEPTHS:g}" for number in range(DEPTHS)),
        columns=tuple(map(format_size, sizes)),
    )


def plot_variants(result: Evaluation) -> Bars:
    """Plot a bar for the data of training and for each data variant."""
    candidates = [name for name in (MIOU, ACCURACY, *result.metrics) if name in result.metrics]
    metric = candidates[0]
    values = {
        measured.condition.data_variant or "as in training": measured.metrics[metric]
        for measured in result.conditions
        if measured.condition.kind in ("trained", "data_variant") and metric in measured.metrics
    }
    name = metric.replace("/", " ")
    return Bars(title=f"{result.recipe}: variants of the data", x="variant", y=name, values=values)


def _build_line(name: str, points: Sequence[Point]) -> Line:
    x, y = zip(*points, strict=True) if points else ((), ())
    return Line(name, torch.tensor(x), torch.tensor(y, dtype=torch.float64))


def _average(
    values: Sequence[float | None], counts: Sequence[int], trained: int
) -> Iterator[Point]:
    """Yield means over bins of positions; no bin joins trained positions with longer ones."""
    numbered = enumerate(zip(values, counts, strict=True))
    present = [
        (position, value, count) for position, (value, count) in numbered if value is not None
    ]
    run = max(1, len(present) // BINS)
    within = [point for point in present if point[0] < trained]
    beyond = [point for point in present if point[0] >= trained]
    for side in (within, beyond):
        for start in range(0, len(side), run):
            part = side[start : start + run]
            # positions have different numbers of targets, so that means are weighted
            tokens = sum(count for *_, count in part)
            position = sum(position for position, *_ in part) / len(part)
            yield position, sum(value * count for _, value, count in part) / tokens
