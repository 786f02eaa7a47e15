"""Measurements for the page of an audit: errors over shifts, influence, turns of pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.auditing.comparisons import LENGTH, list_shifts, make_positions, shift_text
from zoo.auditing.rotations import measure_frequencies, read_configured, record_calls
from zoo.auditing.subject import REFUSALS, AuditSubject, NotAskedError, measure_error
from zoo.errors import OptionError
from zoo.reporting.panel import Heatmap, Line, LineChart, Panel, Scale

FIRST = 9  # tokens of the first of two packed texts
SHOWN = 4  # rotary modules whose turns are shown


@dataclass(frozen=True)
class ShiftCurve:
    """The error over the shift of positions.

    Attributes:
        shifts: Shifts, in tokens.
        errors: Largest difference of logits, relative to the largest absolute logit.
        bounds: What rounding of logits and of angles in float32 explains.
    """

    shifts: tuple[int, ...]
    errors: tuple[float, ...]
    bounds: tuple[float, ...]

    def draw(self) -> Panel:
        """Return the chart."""
        shifts = torch.tensor(self.shifts, dtype=torch.float64)
        # Zero has no place on a logarithmic axis.
        lowest = min(self.bounds) / 1000
        lines = tuple(
            Line(label, shifts, torch.tensor(values, dtype=torch.float64).clamp(min=lowest))
            for label, values in (("measured", self.errors), ("bound", self.bounds))
        )
        ends = [float(end) for line in lines for end in (line.y.min(), line.y.max())]
        return LineChart(
            title="Error over the shift",
            x="shift of all positions, in tokens",
            y="error",
            caption="The largest difference of logits over the largest absolute logit. Above the "
            "bound it is no rounding: a shift changes what the model computes.",
            lines=lines,
            x_scale=Scale(min(self.shifts), max(max(self.shifts), min(self.shifts) + 1), log=True),
            y_scale=Scale(min(ends) / 2, max(ends) * 2, log=True),
        )


@dataclass(frozen=True)
class InfluenceMap:
    """Which tokens change which logits.

    Attributes:
        name: The way in which the tokens were passed.
        errors: The change of each token's logits (rows) by another token in each place (columns),
            relative to the largest absolute logit.
        bound: What rounding explains.
        starts: Where texts begin in the row.
    """

    name: str
    errors: tuple[tuple[float, ...], ...]
    bound: float
    starts: tuple[int, ...] = (0,)

    def draw(self) -> Panel:
        """Return the heat map."""
        errors = torch.tensor(self.errors, dtype=torch.float64)
        caption = (
            "Rows are tokens whose logits change, columns tokens that were exchanged for others. "
            "Colours are powers of ten above the bound of rounding; white is no influence."
        )
        if len(self.starts) > 1:
            caption += f" The second text begins at token {self.starts[1]}."
        return Heatmap(
            title=self.name,
            x="exchanged token",
            y="token whose logits change",
            caption=caption,
            values=(errors / self.bound).clamp(min=1.0).log10(),
            unit="powers of ten above rounding",
            signed=False,
        )


@dataclass(frozen=True)
class PairTurns:
    """The turns of a rotary module's pairs of channels.

    Attributes:
        module: Its dotted name.
        layer_type: The type of layers that it was called for, or None.
        measured: What each pair turns by, in radians per token.
        expected: What it should turn by; None if neither configuration nor class names it.
    """

    module: str
    layer_type: str | None
    measured: tuple[float, ...]
    expected: tuple[float, ...] | None

    def draw(self) -> Panel:
        """Return the chart."""
        named = {"measured": self.measured, "configured": self.expected or ()}
        sizes = {
            label: torch.tensor(values, dtype=torch.float64).abs()
            for label, values in named.items()
            if values
        }
        positive = [value for values in sizes.values() for value in values.tolist() if value > 0]
        low, high = min(positive, default=0.1), max(positive, default=1.0)
        lines = tuple(
            Line(label, torch.arange(len(values)), values.clamp(min=low / 2))
            for label, values in sizes.items()
        )
        return LineChart(
            title=self.module if self.layer_type is None else f"{self.module}, {self.layer_type}",
            x="pair of channels",
            y="radians per token",
            caption="What each pair of channels turns by. Where the lines part, the model does not "
            "turn as its configuration says.",
            lines=lines,
            y_scale=Scale(low / 2, high * 2, log=True),
        )


@dataclass(frozen=True)
class AuditFigures:
    """The measurements that a report shows in addition to the laws.

    Attributes:
        shift: The error over shifts; None without relative positions.
        influence: Maps of influence between tokens.
        turns: Turns of pairs, one for each rotary module and type of layers.
    """

    shift: ShiftCurve | None = None
    influence: tuple[InfluenceMap, ...] = ()
    turns: tuple[PairTurns, ...] = ()


def measure_figures(
    subject: AuditSubject, twin: AuditSubject | None, bound: float, angles: float, laws: set[str]
) -> AuditFigures:
    """Measure what a report shows.

    Args:
        subject: What was asked.
        twin: The installed class with the same weights, if there is one.
        bound: The largest error that rounding explains.
        angles: The error by rounded angles, for each position.
        laws: Names of the laws that were asked; others are not drawn.
    """
    shift: tuple[ShiftCurve, ...] = ()
    influence: tuple[InfluenceMap, ...] = ()
    turns: tuple[PairTurns, ...] = ()
    with torch.no_grad():
        if "shift" in laws:
            shift = _collect(lambda: iter([measure_shifts(subject, bound, angles)]))
        if laws & {"future", "packing"}:
            influence = _collect(partial(measure_influence_maps, subject, bound, laws))
        if "rotary" in laws:
            turns = _collect(partial(measure_turns, subject, twin))
    return AuditFigures(shift[0] if shift else None, influence, turns[:SHOWN])


def _collect(measure: Callable[[], Iterator[Any]]) -> tuple[Any, ...]:
    """Return what can be measured until a model refuses, which its laws say."""
    values = []
    try:
        for value in measure():
            values.append(value)
    except (NotAskedError, *REFUSALS):
        pass
    return tuple(values)


def measure_shifts(subject: AuditSubject, bound: float, angles: float) -> ShiftCurve:
    """Measure the error over the shift of positions.

    Raises:
        NotAskedError: The subject takes no positions, or has too few.
    """
    subject.require("positions")
    ids = subject.draw_ids(1, LENGTH)
    shifts = list_shifts(subject.length)
    if len(shifts) < 2:
        raise NotAskedError("the model has too few positions")
    errors, bounds = [], []
    for shift in shifts:
        comparison = shift_text(ids, shift)
        errors.append(measure_error(comparison.tested(subject), comparison.reference(subject)))
        bounds.append(bound + angles * (shift + LENGTH))
    return ShiftCurve(tuple(shifts), tuple(errors), tuple(bounds))


def measure_influence_maps(
    subject: AuditSubject, bound: float, laws: set[str]
) -> Iterator[InfluenceMap]:
    """Yield a map of one text, and one of two texts that are packed into a row."""
    ids = subject.draw_ids(1, LENGTH)
    yield InfluenceMap("One text", _measure_influence(subject, ids, {}), bound)
    if "packing" not in laws:
        return
    positions = torch.cat([make_positions(ids[:, :FIRST]), make_positions(ids[:, FIRST:])], 1)
    options = {"positions": positions} if "positions" in subject.options else {}
    way = "restarting positions"
    if "documents" in subject.options:
        options["documents"] = (make_positions(ids) >= FIRST).long()
        way = "numbers of documents"
    if not options or not subject.is_causal:
        return
    errors = _measure_influence(subject, ids, options)
    yield InfluenceMap(f"Two texts in a row, with {way}", errors, bound, (0, FIRST))


def _measure_influence(
    subject: AuditSubject, ids: Tensor, options: dict[str, Tensor]
) -> tuple[tuple[float, ...], ...]:
    """Return the change of each token's logits (rows) by each token (columns)."""
    base = subject.logits(ids, **options)[0].double()
    scale = base.abs().max().clamp(min=1e-30)
    columns = []
    for place in range(ids.shape[1]):
        changed = ids.clone()
        # Another token, of the ones that subjects draw.
        low = min(3, subject.vocab_size - 2)
        changed[:, place] = low + (ids[:, place] - low + 1) % (subject.vocab_size - low)
        logits = subject.logits(changed, **options)[0].double()
        columns.append((logits - base).abs().amax(-1) / scale)
    return tuple(map(tuple, torch.stack(columns, 1).cpu().tolist()))


def measure_turns(subject: AuditSubject, twin: AuditSubject | None) -> Iterator[PairTurns]:
    """Yield what the pairs of each rotary module turn by."""
    config = subject.model.config.get_text_config()
    for call in record_calls(subject):
        measured, _ = measure_frequencies(call, subject.model)
        expected = None
        if twin is not None:
            expected, _ = measure_frequencies(call, twin.model)
        else:
            configured = read_configured(config, call.layer_type, measured)
            try:
                expected = None if configured is None else configured.compute()[0]
            except OptionError:
                expected = None
        yield PairTurns(
            call.rotary.path,
            call.layer_type,
            tuple(measured.tolist()),
            None if expected is None else tuple(expected.tolist()),
        )
