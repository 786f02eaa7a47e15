"""The functions, options and results of comparisons that the edges of zoo use."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.comparison.claim_report import ClaimsOptions, describe_claims, judge_folder
from zoo.comparison.claim_report import build_report as build_claims_report
from zoo.comparison.claims import JudgedClaim
from zoo.comparison.compare import RebuildOptions, rebuild, run_comparison
from zoo.comparison.estimate import ComparisonEstimate
from zoo.comparison.estimate import estimate_comparison as count_comparison
from zoo.comparison.merge import PackOptions, merge, pack
from zoo.comparison.outputs import describe_comparison
from zoo.comparison.overall import OverallRanking, RankOptions, draw_ranking, run_ranking
from zoo.comparison.overall import build_report as build_ranking_report
from zoo.comparison.overall import build_result_table as build_ranking_table
from zoo.comparison.request import CompareOptions, check_request
from zoo.comparison.result_table import build_result_table
from zoo.comparison.results import Comparison, Measure
from zoo.comparison.spot_check import CheckOptions, CheckResult
from zoo.comparison.spot_check import check as train_again
from zoo.comparison.suite_estimate import SuiteEstimate
from zoo.comparison.suite_estimate import estimate_suite as count_suite
from zoo.comparison.suite_report import build_report as build_suite_report
from zoo.comparison.suite_report import write_suite
from zoo.comparison.suite_results import build_suite_table, describe_suite, draw_scores
from zoo.comparison.suite_run import SuiteComparison, SuiteOptions, check_suite
from zoo.comparison.suite_run import run_suite as run_parts
from zoo.comparison.text import format_comparison
from zoo.errors import DataError, ZooError
from zoo.options.plain import to_plain
from zoo.packages import explain_imports
from zoo.reporting.sections import format_report
from zoo.reporting.tables import build_frame, format_latex

__all__ = [
    "CheckOptions",
    "ClaimsOptions",
    "ClaimsResult",
    "CompareOptions",
    "ComparisonEstimate",
    "ComparisonFigure",
    "ComparisonResult",
    "Measure",
    "PackOptions",
    "PackResult",
    "RankOptions",
    "RankingResult",
    "RebuildOptions",
    "SpotCheckResult",
    "SuiteEstimate",
    "SuiteOptions",
    "SuiteResult",
    "check_request",
    "check_suite",
    "count_comparison",
    "count_suite",
    "judge_folder",
    "merge",
    "pack",
    "rebuild",
    "run_comparison",
    "run_ranking",
    "run_suite",
    "train_again",
]


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """A comparison and its output folder.

    Attributes:
        path: The folder with results.json, comparison.md, tables, values.csv, index.html and the
            figures.
        comparison: The results as data: variants, their cells, their flags.
        problem: Why it is not complete, such as failed cells or an interrupt; None if it is.
    """

    path: Path
    comparison: Comparison
    problem: ZooError | None = None

    def table(self) -> str:
        """Return the verdicts and the tables that `zoo compare` prints."""
        return format_comparison(self.comparison)

    def latex(self, *, intervals: bool = False) -> str:
        """Return the table of all variants and conditions for LaTeX, as table.tex has it.

        Args:
            intervals: Whether it has the 95 % intervals.
        """
        return format_latex(build_result_table(self.comparison), intervals=intervals)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of results.json."""
        return describe_comparison(self.comparison)

    def rows(self) -> list[dict[str, Any]]:
        """Return what each cell reached under each condition.

        Returns:
            Rows with variant, the values that vary, seed, state, condition (such as "24 pixels")
            and all metrics measured under it.
        """
        return [*self._list_rows()]

    def _list_rows(self) -> Iterator[dict[str, Any]]:
        titles = {axis.key: axis.title for axis in self.comparison.axes}
        for variant in self.comparison.variants:
            values = {titles[key]: value for key, value in variant.values.items()}
            for cell in variant.cells:
                cell_columns = {
                    "variant": variant.name,
                    **values,
                    "seed": cell.seed,
                    "state": cell.state,
                }
                # conditions that a model refused have no metrics, and no row
                for measurement in cell.measurements:
                    if measurement.metrics:
                        yield {
                            **cell_columns,
                            "condition": measurement.condition.describe(),
                            **measurement.metrics,
                        }

    def frame(self) -> Any:
        """Return `rows` as a DataFrame of pandas. Raises ZooError if it is not installed."""
        return build_frame(self.rows())

    def figure(self, name: str = "ranking") -> ComparisonFigure:
        """Return a figure, which a notebook shows.

        Args:
            name: ranking, sizes, positions, training or costs.

        Raises:
            DataError: The comparison has no such figure; the message names those it has.
        """
        path = self.path / f"{name}.png"
        if not path.is_file():
            figures = ", ".join(sorted(path.stem for path in self.path.glob("*.png")))
            raise DataError(f"{self.path}: there is no figure {name!r}, but {figures or 'none'}")
        return ComparisonFigure(path)

    def chart(self, name: str = "ranking") -> Any:
        """Return the chart of a figure, which a notebook shows and altair can change.

        Args:
            name: ranking, sizes, positions, training or costs.

        Raises:
            DataError: The comparison has no such figure; the message names those it has.
        """
        with explain_imports():
            from zoo.comparison.figures import draw_figures
            from zoo.reporting import charts

        drawn = draw_figures(self.comparison)
        if name not in drawn:
            raise DataError(f"there is no figure {name!r}, but {', '.join(sorted(drawn))}")
        return charts.finish(drawn[name])

    def __repr__(self) -> str:
        return f"ComparisonResult({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return f"<pre>{html.escape(self.table())}</pre>"


@dataclass(frozen=True, repr=False)
class ComparisonFigure:
    """A figure of a comparison, a PNG file at `path`."""

    path: Path

    def __repr__(self) -> str:
        return f"ComparisonFigure({str(self.path)!r})"

    def _repr_png_(self) -> bytes:
        """Return the picture for notebooks."""
        return self.path.read_bytes()


@dataclass(frozen=True, repr=False)
class RankingResult:
    """A ranking over several comparisons and its output folder.

    Attributes:
        path: The folder with overall.json, overall.md, overall.html, overall.png, table.tex and
            table.csv.
        ranking: The ranking as data.
    """

    path: Path
    ranking: OverallRanking

    def table(self) -> str:
        """Return the table that `zoo compare rank` prints."""
        return format_report(build_ranking_report(self.ranking))

    def latex(self, *, intervals: bool = False) -> str:
        """Return the table for LaTeX, as table.tex has it.

        Args:
            intervals: Whether it has the 95 % intervals.
        """
        return format_latex(build_ranking_table(self.ranking), intervals=intervals)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of overall.json."""
        plain: dict[str, Any] = to_plain(self.ranking)
        return plain

    def chart(self) -> Any:
        """Return the chart of overall.png, which a notebook shows and altair can change."""
        with explain_imports():
            from zoo.reporting import charts

        return charts.finish(draw_ranking(self.ranking))

    def __repr__(self) -> str:
        return f"RankingResult({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return f"<pre>{html.escape(self.table())}</pre>"


@dataclass(frozen=True, repr=False)
class ClaimsResult:
    """The verdicts on the hypotheses of a comparison.

    Attributes:
        path: The folder of the comparison.
        comparison: The comparison as data.
        claims: The verdicts, in the order in which the hypotheses were written.
    """

    path: Path
    comparison: Comparison
    claims: tuple[JudgedClaim, ...]

    def table(self) -> str:
        """Return the verdicts, and what could have been found, as `zoo compare claims` prints."""
        return format_report(build_claims_report(self.comparison, self.claims))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of claims.json, with the path."""
        return {"path": str(self.path), **describe_claims(self.claims)}

    def __repr__(self) -> str:
        return f"ClaimsResult({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the tables for notebooks."""
        return f"<pre>{html.escape(self.table())}</pre>"


@dataclass(frozen=True, repr=False)
class PackResult:
    """A packed comparison and its folder.

    Attributes:
        path: The folder.
        comparison: The results as data.
        count: Number of packed cells and trials.
    """

    path: Path
    comparison: Comparison
    count: int

    def table(self) -> str:
        """Return what was packed, as `zoo compare pack` prints it."""
        return f"{self.path}: {self.count} finished cells and trials"

    def to_dict(self) -> dict[str, Any]:
        """Return the folder and the number of cells as plain data."""
        return {"path": str(self.path), "count": self.count}

    def __repr__(self) -> str:
        return f"PackResult({str(self.path)!r})"


@dataclass(frozen=True, repr=False)
class SpotCheckResult:
    """A recorded cell and the outcome of training it again.

    Attributes:
        path: The file of the cell.
        check: The cell, the verdict, the differences and the machines as data.
    """

    path: Path
    check: CheckResult

    @property
    def differences(self) -> tuple[str, ...]:
        """The fields that differ, with both values."""
        return self.check.differences

    @property
    def is_equal(self) -> bool:
        """True if all digits are equal."""
        return self.check.is_equal

    @property
    def problem(self) -> ZooError | None:
        """An error where the runs differ and another processor does not explain it."""
        if self.check.is_explained:
            return None
        return ZooError(f"{self.path}: {self.check.cell} is another run than the recorded one")

    def table(self) -> str:
        """Return the text that `zoo compare check` prints."""
        return self.check.table()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {**to_plain(self.check), "path": str(self.path), "is_equal": self.is_equal}

    def __repr__(self) -> str:
        return f"SpotCheckResult({str(self.path)!r}, is_equal={self.is_equal})"


@dataclass(frozen=True, repr=False)
class SuiteResult:
    """The results of a suite and its output folder.

    Attributes:
        path: The folder with index.html, suite.md, table.tex, table.csv, results.json, the figure,
            and a folder for each part.
        suite: The results as data.
        problem: Why it is not complete, such as failed cells or an interrupt; None if it is.
    """

    path: Path
    suite: SuiteComparison
    problem: ZooError | None = None

    @property
    def parts(self) -> dict[str, ComparisonResult]:
        """The comparisons of the parts that were begun, by name."""
        return {
            part.name: ComparisonResult(self.path / part.name, part.comparison)
            for part in self.suite.parts
            if part.comparison is not None
        }

    def table(self) -> str:
        """Return the text that `zoo compare suite=NAME` prints."""
        return format_report(build_suite_report(self.suite))

    def latex(self, *, intervals: bool = False) -> str:
        """Return the table of all parts for LaTeX, as table.tex has it.

        Args:
            intervals: Whether it has the 95 % intervals.
        """
        return format_latex(build_suite_table(self.suite), intervals=intervals)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of results.json."""
        return describe_suite(self.suite)

    def chart(self) -> Any:
        """Return the chart of suite.png, which a notebook shows and altair can change."""
        with explain_imports():
            from zoo.reporting import charts

        return charts.finish(draw_scores(self.suite))

    def __repr__(self) -> str:
        return f"SuiteResult({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return f"<pre>{html.escape(self.table())}</pre>"


def run_suite(checked: SuiteComparison) -> SuiteResult:
    """Run all parts of a suite, and write the files of its output folder.

    Raises:
        RecipeError: An output folder cannot be used.
    """
    suite, error = run_parts(checked)
    write_suite(suite)
    return SuiteResult(suite.folder.resolve(), suite, error)
