"""Compare from Python: variants of a recipe, all parts of a suite, a ranking over several tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from zoo.api.calls import describe_call
from zoo.api.guard import guard, log_problem
from zoo.comparison.interface import (
    CheckOptions,
    ClaimsOptions,
    ClaimsResult,
    CompareOptions,
    ComparisonEstimate,
    ComparisonFigure,
    ComparisonResult,
    Measure,
    PackOptions,
    PackResult,
    RankingResult,
    RankOptions,
    RebuildOptions,
    SpotCheckResult,
    SuiteEstimate,
    SuiteOptions,
    SuiteResult,
    check_request,
    check_suite,
    count_comparison,
    count_suite,
    judge_folder,
    merge,
    pack,
    rebuild,
    run_comparison,
    run_ranking,
    run_suite,
    train_again,
)
from zoo.config import Overrides
from zoo.config.arguments import validate_options
from zoo.errors import DataError
from zoo.options import ChainSpec

__all__ = [
    "CheckOptions",
    "ClaimsOptions",
    "ClaimsResult",
    "CompareKeywords",
    "CompareOptions",
    "ComparisonFigure",
    "ComparisonResult",
    "PackOptions",
    "PackResult",
    "RankOptions",
    "RankingResult",
    "RebuildOptions",
    "SpotCheckResult",
    "SuiteKeywords",
    "SuiteOptions",
    "SuiteResult",
    "check_comparison",
    "compare",
    "compare_suite",
    "estimate_comparison",
    "estimate_suite",
    "judge_comparison",
    "merge_comparisons",
    "pack_comparison",
    "rank_comparisons",
    "rebuild_comparison",
]

log = logging.getLogger("zoo")


class SuiteKeywords(TypedDict, total=False):
    """Options of `zoo.compare_suite`, as `zoo compare --help` describes them."""

    to: str | Path | None
    intervals: bool
    question: str | None
    target: float | None
    jobs: int | Literal["auto"]
    minutes: float | None
    keep: Literal["weights"] | None
    records: Sequence[str | Path]
    engine: str
    # of engine="slurm"
    time: str
    partition: str | None
    account: str | None
    cpus: int
    gpus: int | None


class CompareKeywords(SuiteKeywords, total=False):
    """Options of `zoo.compare`, as `zoo compare --help` describes them."""

    seeds: int | Sequence[int]
    studies: int | None
    budget: int | None
    racing: bool
    measure: Measure | None
    hypotheses: Sequence[str]
    pilot: str | None
    part: str | None


@guard
def compare(
    recipe: str | Path,
    overrides: Overrides = (),
    *,
    encodings: Sequence[ChainSpec] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    verbose: bool | None = True,
    **options: Unpack[CompareKeywords],
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
        verbose: Print progress to standard error. None leaves logging to the caller.
        **options: Options as of `zoo compare`: seeds, studies, budget, racing, measure, to,
            intervals, target, question, hypotheses, pilot, jobs, minutes, part, keep, records,
            engine; and those of the engine, such as partition.

    Returns:
        The comparison as far as it has come. Its `problem` says which cells failed, or what has
        interrupted it; the same call tries them again.

    Raises:
        RecipeError: Something is wrong with an argument or with any cell; nothing was started.
        DataError: Data is missing.
    """
    call_options = {"encodings": encodings, "vary": vary, "tune": tune, **options}
    checked = check_request(
        str(recipe),
        overrides,
        encodings=encodings,
        vary=vary or {},
        tune=tune or {},
        given={**options},
        command=describe_call("zoo.compare", str(recipe), overrides, call_options),
    )
    outcome = run_comparison(checked)
    log_problem(outcome.problem, verbose)
    return ComparisonResult(outcome.folder.resolve(), outcome.comparison, outcome.problem)


@guard
def estimate_comparison(
    recipe: str | Path,
    overrides: Overrides = (),
    *,
    encodings: Sequence[ChainSpec] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    verbose: bool | None = True,
    **options: Unpack[CompareKeywords],
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
        verbose: Print messages to standard error. None leaves logging to the caller.
        **options: Options as of `zoo.compare`.

    Returns:
        The cells, and their steps, FLOPs, disk space and minutes, where these are known.

    Raises:
        RecipeError: Something is wrong with an argument, with any cell or with the output folder.
        DataError: Data is missing.
    """
    return count_comparison(
        check_request(
            str(recipe),
            overrides,
            encodings=encodings,
            vary=vary or {},
            tune=tune or {},
            given={**options},
        )
    )


@guard
def compare_suite(
    suite: str | Path,
    overrides: Overrides = (),
    *,
    encodings: Sequence[ChainSpec] | None = None,
    parts: Sequence[str] = (),
    verbose: bool | None = True,
    **options: Unpack[SuiteKeywords],
) -> SuiteResult:
    """Compare encodings in all parts of a suite, each of which is a comparison on one task.

    Cells that a record of the suite has are taken from there. An interrupt returns what is there;
    the same call continues.

    Args:
        suite: The name of a suite, such as small, or a YAML file that declares one.
        overrides: Changes of all recipes, or of those of one part: {"language.data.path": ...}.
        encodings: Names of encodings, mappings with options, or lists of these.
        parts: The parts to run; all of them by default.
        verbose: Print progress to standard error. None leaves logging to the caller.
        **options: Options as of `zoo.compare`, without those that the suite decides: to, intervals,
            target, jobs, minutes, keep, records, engine; and those of the engine.

    Returns:
        The suite as far as it has come. Its `problem` says which cells failed, or what has
        interrupted it; the same call tries them again.

    Raises:
        RecipeError: The suite, an argument or an encoding is wrong; nothing was started.
        DataError: Data is missing.
    """
    call_options = {"encodings": encodings, "parts": parts or None, **options}
    checked = check_suite(
        str(suite),
        overrides,
        encodings=encodings,
        parts=parts,
        given={**options},
        command=describe_call("zoo.compare_suite", str(suite), overrides, call_options),
    )
    result = run_suite(checked)
    log_problem(result.problem, verbose)
    return result


@guard
def estimate_suite(
    suite: str | Path,
    overrides: Overrides = (),
    *,
    encodings: Sequence[ChainSpec] | None = None,
    parts: Sequence[str] = (),
    verbose: bool | None = True,
    **options: Unpack[SuiteKeywords],
) -> SuiteEstimate:
    """Return what `zoo.compare_suite` would take: cells, steps, FLOPs and time of each part.

    Nothing is written or started.

    Args:
        suite: The name of a suite, or a YAML file that declares one.
        overrides: Changes of recipes, as of `zoo.compare_suite`, like all other arguments.
        encodings: The encodings.
        parts: The parts to count; all of them by default.
        verbose: Print messages to standard error. None leaves logging to the caller.
        **options: Options as of `zoo.compare_suite`.

    Returns:
        The estimate of each part.

    Raises:
        RecipeError: The suite, an argument or an encoding is wrong.
        DataError: Data is missing, and the suite declares no sizes to count by.
    """
    return count_suite(
        check_suite(
            str(suite),
            overrides,
            encodings=encodings,
            parts=parts,
            given={**options},
            needs_data=False,
        )
    )


@guard
def rebuild_comparison(
    folder: str | Path,
    *,
    measure: Measure | None = None,
    intervals: bool = False,
    target: float | None = None,
    verbose: bool | None = True,
) -> ComparisonResult:
    """Write table, page and figures of a comparison again, from what its cells reached.

    Args:
        folder: The output folder of the comparison.
        measure: The metric to compare instead; by default that of the comparison.
        intervals: Whether table.tex has the 95 % intervals.
        target: A validation value; variants are ranked by the time until they reach it.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The comparison. Its `problem` names the cells that are damaged or were changed by hand; they
        count nowhere.

    Raises:
        RecipeError: An option is wrong, or no cell has the measure.
        DataError: The folder holds no comparison.
    """
    values = {"measure": measure, "intervals": intervals, "target": target}
    command = describe_call("zoo.rebuild_comparison", str(folder), options={"measure": measure})
    comparison = rebuild(Path(folder), validate_options(RebuildOptions, values), command)
    refused = [finding.text for finding in comparison.findings if finding.kind == "edited"]
    error = None
    if refused:
        count = f"{len(refused)} of {len(comparison.cells)} cells"
        summary = f"{folder}: {count} cannot be used, and count nowhere"
        error = DataError("\n".join([summary, *refused]))
    log_problem(error, verbose)
    return ComparisonResult(Path(folder).resolve(), comparison, error)


@guard
def rank_comparisons(
    folders: Sequence[str | Path],
    *,
    to: str | Path | None = None,
    intervals: bool = False,
    verbose: bool | None = True,
) -> RankingResult:
    """Rank the variants that several comparisons have, each of which is a task.

    Args:
        folders: Output folders of comparisons, or their files results.json.
        to: The output folder; by default comparisons/overall-HASH.
        intervals: Whether table.tex has the 95 % intervals.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The ranking.

    Raises:
        RecipeError: An option is wrong.
        DataError: A folder holds no comparison, or fewer than two tasks or variants remain.
    """
    chosen = validate_options(RankOptions, {"to": to, "intervals": intervals})
    paths = [str(folder) for folder in folders]
    call_options = {"to": chosen.to, "intervals": intervals or None}
    command = describe_call("zoo.rank_comparisons", paths, options=call_options)
    ranking, path = run_ranking(paths, chosen, command)
    log.info("written: %s", path.resolve())
    return RankingResult(path.resolve(), ranking)


@guard
def judge_comparison(
    folder: str | Path, *, to: str | Path | None = None, verbose: bool | None = True
) -> ClaimsResult:
    """Judge the hypotheses of a comparison: verdicts, and what the task could have shown.

    Args:
        folder: The output folder of the comparison.
        to: A folder for a page to publish, claims.html, with claims.md and claims.json.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        Of each hypothesis the verdict, the difference with its interval, the level of both variants
        when trained, the trivial baseline of the same samples, the headroom, and the difference
        that could have been found.

    Raises:
        RecipeError: An option is wrong.
        DataError: The folder holds no comparison, or one without hypotheses.
    """
    options = validate_options(ClaimsOptions, {"to": to})
    comparison, claims = judge_folder(Path(folder), options)
    if options.to is not None:
        log.info("written: %s", Path(options.to, "claims.html").resolve())
    return ClaimsResult(Path(folder).resolve(), comparison, claims)


@guard
def merge_comparisons(
    folders: Sequence[str | Path], *, to: str | Path = "", verbose: bool | None = True
) -> ComparisonResult:
    """Join the finished cells of comparisons of one recipe, trained on several machines.

    A cell that does not fit is refused by name, and the others are joined.

    Args:
        folders: Output folders of comparisons.
        to: The output folder, which may hold a comparison.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The comparison of all cells. Its `problem` names the cells and folders that were refused: of
        another recipe, begun otherwise than their twins, or changed by hand.

    Raises:
        RecipeError: An option is wrong, or the output folder cannot be used.
        DataError: No other folder has a cell that fits; nothing is written.
    """
    options = validate_options(PackOptions, {"to": to})
    comparison, count, refused = merge([Path(folder) for folder in folders], options)
    error = None
    if refused:
        summary = f"{options.to} has {count} cells; {len(refused)} are refused"
        error = DataError("\n".join([summary, *refused]))
    log_problem(error, verbose)
    return ComparisonResult(Path(options.to).resolve(), comparison, error)


@guard
def pack_comparison(
    folder: str | Path, *, to: str | Path = "", verbose: bool | None = True
) -> PackResult:
    """Write plan, finished cells and results of a comparison into a folder to be committed.

    Args:
        folder: The output folder of the comparison.
        to: The folder to be committed.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The folder, and how many cells it has.

    Raises:
        RecipeError: An option is wrong, or the output folder cannot be used.
        DataError: The folder holds no comparison, or a cell that was changed by hand.
    """
    options = validate_options(PackOptions, {"to": to})
    comparison, count = pack(Path(folder), options)
    return PackResult(Path(options.to).resolve(), comparison, count)


@guard
def check_comparison(
    folder: str | Path,
    *,
    cell: str | None = None,
    draw: str | None = None,
    verbose: bool | None = True,
) -> SpotCheckResult:
    """Train one finished cell of a comparison again, and tell whether it is the recorded one.

    Args:
        folder: The output folder of the comparison.
        cell: The name of a cell to train instead of a drawn one.
        draw: A text that draws the cell, unknown when the cells were recorded; by default today's
            date.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The verdict (equal, equal up to rounding, different), its reasons, and the fields that
        differ. Its `problem` is None where another processor explains a difference.

    Raises:
        RecipeError: An option is wrong, or there is no such cell.
        DataError: The folder holds no finished cell, the named cell is not done, or a cell, the
            plan or the hypotheses were changed by hand.
    """
    result = train_again(Path(folder), validate_options(CheckOptions, {"cell": cell, "draw": draw}))
    return SpotCheckResult(result.path.resolve(), result)
