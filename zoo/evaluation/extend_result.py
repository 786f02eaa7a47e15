"""What `zoo extend` has measured: as data, text and figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.packages import explain_imports
from zoo.reporting.panel import Line, LineChart
from zoo.reporting.tables import format_table

NONE, TRUNCATE = "none", "truncate"
RESAMPLES, SEED = 2000, 0
"""Of the bootstrap over windows."""
WIDTH, HEIGHT = 520, 320


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """The measurements of one method.

    Attributes:
        name: The method.
        short_loss: Loss at the trained length, in nats per target.
        stopped: Whether the gate stopped it, because of that loss. It is not tested further.
        loss: Loss at the new length; None if it was not tested there.
        factor: The factor that was chosen on validation data, if it has one.
        temperature: The factor of scores at the new length, if it has one.
        exponents: The powers of the factor that divide its frequencies, if they were searched for.
        tokens: Tokens that it read to be made: of training, and of what was chosen.
        seconds: Seconds that this took.
        test_seconds: Seconds of both tests.
        window_losses: Sum of the losses of each window at the new length.
        window_targets: Targets of each window.
        positions: Mean loss of equal groups of positions in these windows.
        depths: Share of right answers by tenth of the text that states them; empty if none asks.
        long_perplexity: Perplexity of key tokens at the new length (LongPPL); None without them.
    """

    name: str
    short_loss: float
    stopped: bool = False
    loss: float | None = None
    factor: float | None = None
    temperature: float | None = None
    exponents: tuple[float, ...] = ()
    tokens: int = 0
    seconds: float = 0.0
    test_seconds: float = 0.0
    window_losses: tuple[float, ...] = ()
    window_targets: tuple[int, ...] = ()
    positions: tuple[float, ...] = ()
    depths: tuple[float | None, ...] = ()
    long_perplexity: float | None = None

    def describe(self) -> str:
        """Return the losses in a line."""
        if self.stopped:
            return f"stopped by the gate, loss {self.short_loss:.4f} at the trained length"
        return f"loss {self.short_loss:.4f} at the trained length, {self.loss:.4f} at the new one"

    def describe_choice(self) -> str:
        """Return what was chosen on validation data, for a cell of a table."""
        if self.exponents:
            return f"powers {self.exponents[0]:.2f} to {self.exponents[-1]:.2f}"
        if self.temperature is not None:
            return f"temperature {self.temperature:.3g}"
        return "" if self.factor is None else f"factor {self.factor:g}"


@dataclass(frozen=True, kw_only=True)
class ExtendResult:
    """Ways to a longer context, side by side.

    Attributes:
        recipe: The name of the recipe.
        checkpoint: The checkpoint file.
        folder: Where results and trained runs are.
        trained: The trained length in tokens.
        length: The length to reach.
        gate: Largest share by which the loss at the trained length may rise.
        steps: Optimizer steps of methods that train.
        methods: The results, in the order of the request.
        figure: The loss by position; None if it was not drawn.
    """

    recipe: str
    checkpoint: Path
    folder: Path
    trained: int
    length: int
    gate: float
    steps: int
    methods: tuple[MethodResult, ...]
    figure: Path | None = None

    @property
    def ranking(self) -> list[MethodResult]:
        """The methods that passed the gate, the lowest loss at the new length first."""
        # a loss that is not a number equals nothing, not even itself
        passed = [one for one in self.methods if not one.stopped and one.loss == one.loss]
        return sorted(passed, key=lambda one: float("inf") if one.loss is None else one.loss)

    @property
    def recommended(self) -> str | None:
        """The method with the lowest loss among those that passed the gate; None without any.

        It is `truncate` where no method gains from the longer text.
        """
        return self.ranking[0].name if self.ranking else None

    def compare(self, name: str, other: str = NONE) -> tuple[float, float, float] | None:
        """Return the difference of two losses at the new length, and its 95 % interval.

        The interval is of a paired bootstrap over windows of text. There is one model, so it says
        nothing about other trainings.

        Args:
            name: A method.
            other: The method that it is compared with.

        Returns:
            Difference, low and high in nats per target; None if one was not tested, or there are
            fewer than two windows.
        """
        found = {one.name: one for one in self.methods}
        if name not in found or other not in found:
            return None
        sums = [
            torch.tensor(found[one].window_losses, dtype=torch.float64) for one in (name, other)
        ]
        counts = torch.tensor(found[name].window_targets, dtype=torch.float64)
        if len(counts) < 2 or len(sums[0]) != len(sums[1]):
            return None
        return bootstrap_difference(sums[0] - sums[1], counts)

    def conclude(self) -> str:
        """Return what to take, and how sure that is, as sentences."""
        # the first sentence names a method, the second says how sure that is
        ranking = self.ranking
        if not ranking:
            return "No method passed the gate."
        best, text = ranking[0], ""
        if best.name == TRUNCATE:
            text = "No method gains from the longer text: truncate has the lowest loss"
        elif best.name == NONE:
            text = "The unchanged model has the lowest loss"
        else:
            text = f"Take {best.name}: it has the lowest loss"
        text += f" at {self.length:,} tokens, {best.loss:.4f}, of those that passed the gate."
        if len(ranking) > 1 and (found := self.compare(best.name, ranking[1].name)):
            sure = "is" if found[2] < 0 else "is not"
            text += (
                f" The next, {ranking[1].name}, {sure} told apart: difference {found[0]:.4f}, "
                f"95 % from {found[1]:.4f} to {found[2]:.4f} over windows of text, for one model."
            )
        return text

    def table(self) -> str:
        """Return the table that `zoo extend` prints, and the conclusion."""
        has_key_tokens = any(one.long_perplexity is not None for one in self.methods)
        header = (
            "method",
            f"{self.trained:,} tokens",
            f"{self.length:,} tokens",
            "against none (95 %)",
            *(["LongPPL"] if has_key_tokens else []),
            "chosen",
            "tokens read",
            "seconds",
        )
        rows = [header]
        for one in self.methods:
            found = self.compare(one.name) if one.name != NONE else None
            difference = (
                "" if found is None else f"{found[0]:+.4f} ({found[1]:+.4f}, {found[2]:+.4f})"
            )
            reached = "" if one.loss is None else f"{one.loss:.4f}"
            perplexity = "" if one.long_perplexity is None else f"{one.long_perplexity:.3f}"
            rows.append(
                (
                    one.name,
                    f"{one.short_loss:.4f}",
                    "stopped by gate" if one.stopped else reached,
                    difference,
                    *([perplexity] if has_key_tokens else []),
                    one.describe_choice(),
                    f"{one.tokens:,}",
                    f"{one.seconds:.1f}",
                )
            )
        limit = (
            f"The gate: at most {100 * self.gate:g} % above the loss of none at {self.trained:,}."
        )
        parts = [format_table(rows, left=[0]), limit, self.conclude()]
        if any(one.depths for one in self.methods):
            parts.insert(1, self._tabulate_depths())
        return "\n\n".join([*parts, f"{self.folder}"])

    def _tabulate_depths(self) -> str:
        """Return the share of right answers by depth, the start of the text first."""
        rows = [("right by depth", *(f"{tenth / 10:.1f}" for tenth in range(10)))]
        for one in self.methods:
            if one.depths:
                shares = ("" if share is None else f"{share:.2f}" for share in one.depths)
                rows.append((one.name, *shares))
        return format_table(rows, left=[0])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plain = {key.name: getattr(self, key.name) for key in fields(self)}
        plain |= {"checkpoint": str(self.checkpoint), "folder": str(self.folder)}
        plain["figure"] = None if self.figure is None else str(self.figure)
        plain["methods"] = [
            {**asdict(one), "difference": self.compare(one.name)} for one in self.methods
        ]
        return {**plain, "recommended": self.recommended, "conclusion": self.conclude()}


def bootstrap_difference(differences: Tensor, counts: Tensor) -> tuple[float, float, float]:
    """Return the mean difference per target, and the 95 % interval of a bootstrap over windows.

    Args:
        differences: Difference of the summed losses of each window, float64 [W].
        counts: Targets of each window [W].
    """
    generator = torch.Generator().manual_seed(SEED)
    # the same windows for both methods: what a hard window adds to both cancels
    drawn = torch.randint(len(counts), (RESAMPLES, len(counts)), generator=generator)
    means = differences[drawn].sum(1) / counts[drawn].sum(1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(differences.sum() / counts.sum()), low, high


def read_methods(file: Path) -> tuple[Mapping[str, Any], dict[str, MethodResult]]:
    """Read settings and finished methods. Raises OSError, ValueError, KeyError or TypeError."""
    plain = json.loads(file.read_text(encoding="utf-8"))
    known = {one.name for one in fields(MethodResult)}
    done = {}
    for stored in plain["methods"]:
        # JSON has the differences too, which follow from the losses
        values = {key: value for key, value in stored.items() if key in known}
        values |= {key: tuple(one) for key, one in values.items() if isinstance(one, list)}
        done[stored["name"]] = MethodResult(**values)
    return plain["settings"], done


def draw(result: ExtendResult, path: Path) -> None:
    """Draw the loss by position in the longest windows, a line for each method, as PNG and SVG."""
    with explain_imports():
        from zoo.reporting import charts
        from zoo.reporting.style import Style

    lines = []
    for one in result.methods:
        if one.positions:
            size = result.length / len(one.positions)
            middles = size * (torch.arange(len(one.positions), dtype=torch.float64) + 0.5)
            lines.append(Line(one.name, middles, torch.tensor(one.positions, dtype=torch.float64)))
    panel = LineChart(
        title=f"{result.recipe}, windows of {result.length:,} tokens",
        x="position in tokens",
        y="loss in nats per token",
        lines=tuple(lines),
        rule=(result.trained, f"trained at {result.trained:,}"),
    )
    charts.save_formats(charts.draw_panels([panel], Style(width=WIDTH, height=HEIGHT)), path)
