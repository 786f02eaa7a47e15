"""Compare encodings in all parts of a suite from Python."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.api.comparison import ComparisonResult
from zoo.api.guard import guard
from zoo.config import Overrides
from zoo.config.overrides import list_edits
from zoo.errors import Stopped
from zoo.options import ChainSpec
from zoo.packages import explain_imports

if TYPE_CHECKING:
    from zoo.comparison.suite_estimate import SuiteEstimate
    from zoo.comparison.suite_results import SuiteComparison


@dataclass(frozen=True, repr=False)
class SuiteResult:
    """The results of a suite and its output folder.

    Attributes:
        path: The folder with index.html, suite.md, table.tex, table.csv, results.json, the figure,
            and a folder for each part.
        suite: The results as data.
        stopped: The interrupt that ended it before all cells were done; None if none did.
    """

    path: Path
    suite: SuiteComparison
    stopped: Stopped | None = None

    @property
    def parts(self) -> dict[str, ComparisonResult]:
        """The comparisons of the parts that were begun, by name."""
        return {
            one.request.name: ComparisonResult(self.path / one.request.name, one.comparison)
            for one in self.suite.parts
            if one.comparison is not None
        }

    def table(self) -> str:
        """Return the text that `zoo compare suite=NAME` prints."""
        from zoo.comparison.suite_report import format_suite

        return format_suite(self.suite)

    def latex(self, *, intervals: bool = False) -> str:
        """Return the table of all parts for LaTeX, as table.tex has it.

        Args:
            intervals: Whether it has the 95 % intervals.
        """
        from zoo.comparison.suite_results import build_suite_table
        from zoo.reporting.tables import format_latex

        return format_latex(build_suite_table(self.suite), intervals=intervals)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of results.json."""
        return self.suite.to_dict()

    def chart(self) -> Any:
        """Return the chart of suite.png, which a notebook shows and altair can change."""
        with explain_imports():
            from zoo.comparison.suite_results import draw_scores
            from zoo.reporting import charts

        return charts.finish(draw_scores(self.suite))

    def __repr__(self) -> str:
        return f"SuiteResult({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return f"<pre>{html.escape(self.table())}</pre>"


@guard
def compare_suite(
    suite: str | Path,
    overrides: Overrides = (),
    *,
    encodings: Sequence[ChainSpec] | None = None,
    parts: Sequence[str] = (),
    show: Callable[[SuiteResult], None] = lambda result: None,
    command: str = "",
    verbose: bool | None = True,
    **changes: Any,
) -> SuiteResult:
    """Compare encodings in all parts of a suite, each of which is a comparison on one task.

    Cells that a record of the suite has are taken from there. An interrupt returns what is there;
    the same call continues.

    Args:
        suite: The name of a suite, such as small, or a YAML file that declares one.
        overrides: Changes of all recipes, or of those of one part: {"language.data.path": ...}.
        encodings: Names of encodings, mappings with options, or lists of these.
        parts: The parts to run; all of them by default.
        show: Called with the result before an error is raised for cells that failed.
        command: What the report names as the command that repeats it; by default this call.
        verbose: Print progress to standard error. None leaves logging to the caller.
        **changes: Fields of `CompareOptions` that the suite leaves open: to, records, jobs,
            minutes, intervals, keep, engine; and options of the engine.

    Returns:
        The suite as far as it has come.

    Raises:
        RecipeError: The suite, an argument or an encoding is wrong; nothing was started.
        DataError: Data is missing.
        ZooError: Some cells failed; the others, and the tables, are in the output folder.
    """
    from zoo.comparison.suite_report import write_suite
    from zoo.comparison.suite_results import collect_suite
    from zoo.comparison.suite_run import SuiteRequest, plan_suite, run_suite

    given = {"encodings": encodings, "parts": parts or None, **changes}
    request = SuiteRequest(
        suite=str(suite),
        encodings=encodings,
        overrides=list_edits(overrides),
        parts=tuple(parts),
        given=changes,
        command=command or _format_call(suite, given),
    )
    outcome = run_suite(plan_suite(request))
    found = collect_suite(outcome)
    write_suite(found, intervals=bool(changes.get("intervals")))
    problem = outcome.problem
    stopped = problem if isinstance(problem, Stopped) else None
    result = SuiteResult(outcome.plan.folder.resolve(), found, stopped)
    # before the error, which may end the program that shows it
    show(result)
    if problem is not None and stopped is None:
        raise problem
    return result


@guard
def estimate_suite(
    suite: str | Path,
    overrides: Overrides = (),
    *,
    encodings: Sequence[ChainSpec] | None = None,
    parts: Sequence[str] = (),
    verbose: bool | None = True,
    **changes: Any,
) -> SuiteEstimate:
    """Return what `zoo.compare_suite` would take: cells, steps, FLOPs and time of each part.

    Nothing is written or started.

    Args:
        suite: The name of a suite, or a YAML file that declares one.
        overrides: Changes of recipes, as of `zoo.compare_suite`, like all other arguments.
        encodings: The encodings.
        parts: The parts to count; all of them by default.
        verbose: Print messages to standard error. None leaves logging to the caller.
        **changes: Fields of `CompareOptions`.

    Returns:
        The estimate of each part.

    Raises:
        RecipeError: The suite, an argument or an encoding is wrong.
        DataError: Data is missing, and the suite declares no sizes to count by.
    """
    from zoo.comparison.suite_estimate import estimate_suite as estimate
    from zoo.comparison.suite_run import SuiteRequest

    return estimate(
        SuiteRequest(
            suite=str(suite),
            encodings=encodings,
            overrides=list_edits(overrides),
            parts=tuple(parts),
            given=changes,
        )
    )


def _format_call(suite: str | Path, given: Mapping[str, Any]) -> str:
    """Return the Python call that repeats a suite, for its report."""
    words = [f"{key}={value!r}" for key, value in given.items() if value is not None]
    return f"zoo.compare_suite({', '.join([repr(str(suite)), *words])})"
