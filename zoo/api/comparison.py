"""Compare from Python: train variants of a recipe, rebuild a report, rank over several tasks."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.api.guard import guard
from zoo.config import Overrides, Removal
from zoo.config.arguments import validate_options
from zoo.config.overrides import list_edits
from zoo.errors import DataError, Stopped
from zoo.options import ChainSpec
from zoo.packages import explain_imports
from zoo.reporting.tables import build_frame

if TYPE_CHECKING:
    from zoo.comparison.estimate import ComparisonEstimate
    from zoo.comparison.overall import OverallRanking
    from zoo.comparison.request import CompareOptions
    from zoo.comparison.results import Comparison
    from zoo.comparison.spot_check import CheckResult


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """A comparison and its output folder.

    Attributes:
        path: The folder with results.json, comparison.md, table.tex, table.csv, index.html and the
            figures.
        comparison: The results as data: variants, their cells, their flags.
        stopped: The interrupt that ended it before all cells were done; None if none did.
    """

    path: Path
    comparison: Comparison
    stopped: Stopped | None = None

    def table(self) -> str:
        """Return the verdicts and the tables that `zoo compare` prints."""
        from zoo.comparison.text import format_comparison

        return format_comparison(self.comparison)

    def latex(self, *, intervals: bool = False) -> str:
        """Return the table of all variants and conditions for LaTeX, as table.tex has it.

        Args:
            intervals: Whether it has the 95 % intervals.
        """
        from zoo.comparison.result_table import build_result_table
        from zoo.reporting.tables import format_latex

        return format_latex(build_result_table(self.comparison), intervals=intervals)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of results.json."""
        from zoo.comparison.outputs import describe_comparison

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
                own = {"variant": variant.name, **values, "seed": cell.seed, "state": cell.state}
                # conditions that a model refused have no metrics, and no row
                for one in cell.measurements:
                    if one.metrics:
                        yield {**own, "condition": one.condition.describe(), **one.metrics}

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
            known = ", ".join(sorted(one.stem for one in self.path.glob("*.png")))
            raise DataError(f"{self.path}: there is no figure {name!r}, but {known or 'none'}")
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

        found = draw_figures(self.comparison)
        if name not in found:
            raise DataError(f"there is no figure {name!r}, but {', '.join(sorted(found))}")
        return charts.finish(found[name])

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
        from zoo.comparison.overall import format_ranking

        return format_ranking(self.ranking)

    def latex(self, *, intervals: bool = False) -> str:
        """Return the table for LaTeX, as table.tex has it.

        Args:
            intervals: Whether it has the 95 % intervals.
        """
        from zoo.comparison.overall import build_result_table
        from zoo.reporting.tables import format_latex

        return format_latex(build_result_table(self.ranking), intervals=intervals)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of overall.json."""
        from zoo.options.plain import to_plain

        plain: dict[str, Any] = to_plain(self.ranking)
        return plain

    def chart(self) -> Any:
        """Return the chart of overall.png, which a notebook shows and altair can change."""
        with explain_imports():
            from zoo.comparison.overall import draw_ranking
            from zoo.reporting import charts

        return charts.finish(draw_ranking(self.ranking))

    def __repr__(self) -> str:
        return f"RankingResult({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
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
    """A committed cell and the outcome of training it again.

    Attributes:
        path: The file of the cell.
        check: The cell, the differences and the machines as data.
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

    def table(self) -> str:
        """Return the text that `zoo compare check` prints."""
        return self.check.table()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        from zoo.options.plain import to_plain

        return {**to_plain(self.check), "path": str(self.path), "is_equal": self.is_equal}

    def __repr__(self) -> str:
        return f"SpotCheckResult({str(self.path)!r}, is_equal={self.is_equal})"


@guard
def compare(
    recipe: str | Path,
    overrides: Overrides = (),
    *,
    encodings: Sequence[ChainSpec] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    options: CompareOptions | None = None,
    show: Callable[[ComparisonResult], None] = lambda result: None,
    command: str = "",
    verbose: bool | None = True,
    **changes: Any,
) -> ComparisonResult:
    """Train a recipe with several encodings, or values of other keys, and rank them.

    Cells run in processes of their own, several at the same time. An interrupt has them save their
    state and returns what is there; the same call continues.

    Args:
        recipe: A YAML file or the name of a registered recipe.
        overrides: Changes of the recipe: {key: value}, or a list of `zoo.config.Change` and
            `zoo.config.Removal`.
        encodings: The encodings that vary: names, mappings with options, or lists of these.
        vary: Other keys that vary: {key: [value, ...]}.
        tune: Keys that are tuned for each variant: {"optim.lr": [3e-4, 1e-2, "log"]} for a range,
            or a list of choices.
        options: Options as a dataclass; by default those of `CompareOptions`.
        show: Called with the result before an error is raised for cells that failed.
        command: What the report names as the command that repeats it; by default this call.
        verbose: Print progress to standard error. None leaves logging to the caller.
        **changes: Fields of `CompareOptions` that replace those of `options`: seeds, budget,
            studies, racing, measure, to, intervals, hypotheses, jobs, minutes, part, keep, engine;
            and options of the engine.

    Returns:
        The comparison as far as it has come.

    Raises:
        RecipeError: Something is wrong with an argument or with any cell; nothing was started.
        DataError: Data is missing.
        ZooError: Some cells failed; the others, and the table, are in the output folder.
    """
    from zoo.comparison.compare import run_comparison
    from zoo.comparison.request import check_request

    given = {"encodings": encodings, "vary": vary, "tune": tune, **changes}
    checked = check_request(
        str(recipe),
        overrides,
        encodings=encodings,
        vary=vary or {},
        tune=tune or {},
        given=changes,
        base=options,
        command=command or _format_call(recipe, overrides, given),
    )
    outcome = run_comparison(checked)
    problem = outcome.problem
    stopped = problem if isinstance(problem, Stopped) else None
    result = ComparisonResult(outcome.folder.resolve(), outcome.comparison, stopped)
    # before the error, which may end the program that shows it
    show(result)
    if problem is not None and stopped is None:
        raise problem
    return result


@guard
def estimate_comparison(
    recipe: str | Path,
    overrides: Overrides = (),
    *,
    encodings: Sequence[ChainSpec] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    options: CompareOptions | None = None,
    verbose: bool | None = True,
    **changes: Any,
) -> ComparisonEstimate:
    """Return what `zoo.compare` would take: cells, steps, FLOPs, disk and minutes.

    Nothing is written or started. Minutes, and steps where a recipe counts epochs, are those of
    finished cells with the same settings, in the folder that the output folder lies in.

    Args:
        recipe: A YAML file or the name of a registered recipe.
        overrides: Changes of the recipe, as of `zoo.compare`, like all other arguments.
        encodings: The encodings that vary.
        vary: Other keys that vary.
        tune: Keys that are tuned for each variant.
        options: Options as a dataclass.
        verbose: Print messages to standard error. None leaves logging to the caller.
        **changes: Fields of `CompareOptions`.

    Returns:
        The cells, and their steps, FLOPs, disk space and minutes, where these are known.

    Raises:
        RecipeError: Something is wrong with an argument, with any cell or with the output folder.
        DataError: Data is missing.
    """
    from zoo.comparison.estimate import estimate_comparison as estimate
    from zoo.comparison.request import check_request

    checked = check_request(
        str(recipe),
        overrides,
        encodings=encodings,
        vary=vary or {},
        tune=tune or {},
        given=changes,
        base=options,
    )
    return estimate(checked)


def _format_call(recipe: str | Path, overrides: Overrides, given: Mapping[str, Any]) -> str:
    """Return the Python call that repeats a comparison, for its report."""
    edits = list_edits(overrides)
    arguments = [repr(str(recipe))]
    if any(isinstance(edit, Removal) for edit in edits):
        arguments.append(repr(edits))
    elif edits:
        arguments.append(repr({edit.key: edit.value for edit in edits if hasattr(edit, "value")}))
    arguments += [f"{key}={value!r}" for key, value in given.items() if value is not None]
    return f"zoo.compare({', '.join(arguments)})"


@guard
def rebuild_comparison(
    folder: str | Path,
    *,
    show: Callable[[ComparisonResult], object] = lambda result: None,
    command: str = "",
    verbose: bool | None = True,
    **changes: Any,
) -> ComparisonResult:
    """Write table, page and figures of a comparison again, from what its cells reached.

    Args:
        folder: The output folder of the comparison.
        show: Called with the result before an error is raised for damaged cells.
        command: What the report names as the command that repeats it; by default this call.
        verbose: Print progress to standard error. None leaves logging to the caller.
        **changes: Fields of `RebuildOptions`: measure, the metric to compare instead;
            intervals, for table.tex; target, a validation value: variants are ranked by the time
            until they reach it.

    Returns:
        The comparison.

    Raises:
        RecipeError: An option is wrong, or no cell has the measure.
        DataError: The folder holds no comparison; or cells are damaged or were changed by hand.
            Each of these is named; the others, and the table, are in the folder.
    """
    from zoo.comparison.compare import RebuildOptions, rebuild

    options = validate_options(RebuildOptions, changes)
    call = f"zoo.rebuild_comparison({str(folder)!r}, measure={options.measure!r})"
    comparison = rebuild(Path(folder), options, command or call)
    result = ComparisonResult(Path(folder).resolve(), comparison)
    # before the error, which may end the program that shows it
    show(result)
    refused = [one.text for one in comparison.findings if one.kind == "edited"]
    if refused:
        count = f"{len(refused)} of {len(comparison.cells)} cells"
        text = f"{folder}: {count} cannot be used, and count nowhere"
        raise DataError("\n".join([text, *refused]))
    return result


@guard
def rank_comparisons(
    folders: Sequence[str | Path], *, command: str = "", verbose: bool | None = True, **changes: Any
) -> RankingResult:
    """Rank the variants that several comparisons have, each of which is a task.

    Args:
        folders: Output folders of comparisons, or their files results.json.
        command: What the report names as the command that repeats it; by default this call.
        verbose: Print progress to standard error. None leaves logging to the caller.
        **changes: Fields of `RankOptions`: to, the output folder; intervals, for table.tex.

    Returns:
        The ranking.

    Raises:
        RecipeError: An option is wrong.
        DataError: A folder holds no comparison, or fewer than two tasks or variants remain.
    """
    from zoo.comparison.overall import RankOptions, run_ranking

    options = validate_options(RankOptions, changes)
    paths = [str(one) for one in folders]
    call = ", ".join([repr(paths), *(f"{key}={value!r}" for key, value in changes.items())])
    ranking, path = run_ranking(paths, options, command or f"zoo.rank_comparisons({call})")
    return RankingResult(path.resolve(), ranking)


@guard
def merge_comparisons(
    folders: Sequence[str | Path],
    *,
    show: Callable[[ComparisonResult], object] = lambda result: None,
    verbose: bool | None = True,
    **changes: Any,
) -> ComparisonResult:
    """Join the finished cells of comparisons of one recipe, trained on several machines.

    A cell that does not fit is refused by name, and the others are joined.

    Args:
        folders: Output folders of comparisons.
        show: Called with the result before an error is raised for refused cells.
        verbose: Print progress to standard error. None leaves logging to the caller.
        **changes: Fields of `PackOptions`: to, the output folder, which may hold a comparison.

    Returns:
        The comparison of all cells.

    Raises:
        RecipeError: An option is wrong, or the output folder cannot be used.
        DataError: Cells or folders were refused: of another recipe, begun otherwise than their
            twins, or changed by hand. Each is named with the difference; the others, and the table,
            are in the output folder. Nothing is written if no other folder has a cell that fits.
    """
    from zoo.comparison.merge import PackOptions, merge

    options = validate_options(PackOptions, changes)
    comparison, count, refused = merge([Path(one) for one in folders], options)
    result = ComparisonResult(Path(options.to).resolve(), comparison)
    # before the error, which may end the program that shows it
    show(result)
    if refused:
        text = f"{options.to} has {count} cells; {len(refused)} are refused"
        raise DataError("\n".join([text, *refused]))
    return result


@guard
def pack_comparison(
    folder: str | Path, *, verbose: bool | None = True, **changes: Any
) -> PackResult:
    """Write plan, finished cells and results of a comparison into a folder to be committed.

    Args:
        folder: The output folder of the comparison.
        verbose: Print progress to standard error. None leaves logging to the caller.
        **changes: Fields of `PackOptions`: to, the output folder.

    Returns:
        The folder, and how many cells it has.

    Raises:
        RecipeError: An option is wrong, or the output folder cannot be used.
        DataError: The folder holds no comparison, or a cell that was changed by hand.
    """
    from zoo.comparison.merge import PackOptions, pack

    options = validate_options(PackOptions, changes)
    comparison, count = pack(Path(folder), options)
    return PackResult(Path(options.to).resolve(), comparison, count)


@guard
def check_comparison(
    folder: str | Path, *, verbose: bool | None = True, **changes: Any
) -> SpotCheckResult:
    """Train one finished cell of a committed comparison again, and compare it to the last digit.

    The hash of the commit chooses the cell, so that whoever commits cannot.

    Args:
        folder: The output folder of the comparison, in a repository of git.
        verbose: Print progress to standard error. None leaves logging to the caller.
        **changes: Fields of `CheckOptions`: cell, the name of a cell to train instead.

    Returns:
        The differences; none if all digits are equal.

    Raises:
        RecipeError: An option is wrong, or there is no such cell.
        DataError: The folder holds no finished cell or is in no repository, or a cell was changed
            by hand.
    """
    from zoo.comparison.spot_check import CheckOptions, check

    result = check(Path(folder), validate_options(CheckOptions, changes))
    return SpotCheckResult(result.path.resolve(), result)
