"""Rank variants over several comparisons, each of them a task.

Scores are normalised within each task, and a variant's score is its mean over seeds and then over
tasks, so that every task has the same weight. A difference of two variants is the mean over tasks
of their paired differences; its squared error is the sum over tasks of those of `statistics`,
stratified by task, and its degrees of freedom are Satterthwaite's, shrunk halfway to those of one
task, since Satterthwaite's rule is too generous where one task has most of the noise. Intervals are
simultaneous for all pairs (Tukey), as the first is chosen by the data.

Agarwal et al. 2021 (arXiv:2108.13264, section 4) use the interquartile mean and a bootstrap over
seeds. With three seeds, whose resamples vary less than seeds do, that raises 11 to 13 % false
alarms among ten variants where 5 % are promised; the intervals here raise at most 5 %
(docs/records/error_rates.json, by tests/benchmarks/error_rates.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from zoo.comparison.outputs import read_comparison
from zoo.comparison.plan import PLAN
from zoo.comparison.ranking import average_baselines, collect_values, find_winning_baseline
from zoo.comparison.results import Comparison
from zoo.comparison.statistics import FEWEST, LEVEL, find_range, measure_pairs
from zoo.comparison.training_end import explain_steep
from zoo.errors import DataError
from zoo.packages import require_extra
from zoo.reporting.numbers import as_json, finite, format_fixed
from zoo.reporting.sections import ReportSection, SectionedReport, SectionTable, write_report
from zoo.reporting.tables import ResultColumn, ResultRow, ResultTable, ResultValue, format_tables
from zoo.suggestions import join_words
from zoo.utils import describe_absence

if TYPE_CHECKING:
    from zoo.reporting.style import Chart

DECIMALS = 3
NAME = "overall"
"""The name of its files, without suffixes."""
STYLES = ("comparison/page/comparison.css",)

Scores = NDArray[np.float64]
"""Scores [V, S] of a task by variant and seed."""


@dataclass(frozen=True, kw_only=True)
class RankedTask:
    """A task: a comparison under the condition of training."""

    name: str
    path: str
    measure: str
    zero: str
    """What has the score 0: a baseline, or the variant that is last."""
    zero_value: float
    one: str
    """The variant that has the score 1, by its mean."""
    one_value: float
    seeds: tuple[int, ...]
    scores: Mapping[str, tuple[float, ...]]
    """{variant: score of each seed}"""
    is_tuned: bool
    """True if every variant was tuned before the comparison."""
    unfinished: str = ""
    """Which variants were not trained to the end, as a clause; empty if all were."""


@dataclass(frozen=True, kw_only=True)
class OverallStanding:
    """A variant over all tasks: numbers with (low, high) of a 95 % interval."""

    variant: str
    mean: float
    """Of the scores of all tasks, each with the same weight."""
    interval: tuple[float, float]
    difference: float
    """Of the mean scores, to the first variant."""
    difference_interval: tuple[float, float]
    """Simultaneous for all pairs of variants."""
    may_be_best: bool
    mean_rank: float
    """Over tasks, of the means over seeds; 1 is the best."""


@dataclass(frozen=True, kw_only=True)
class OverallRanking:
    """Variants over all tasks, the best first, and what had to be left out."""

    tasks: tuple[RankedTask, ...]
    standings: tuple[OverallStanding, ...]
    left_out: tuple[str, ...]
    command: str


def rank_over_tasks(paths: Sequence[str], command: str) -> OverallRanking:
    """Rank the variants that all comparisons have.

    Args:
        paths: Output folders of comparisons, or their files results.json.
        command: The command that repeats it.

    Raises:
        DataError: A path holds no comparison, or fewer than two tasks or variants remain.
        PackageError: A package is missing that computes the intervals or draws the figure.
    """
    comparisons = {path: _read(Path(path)) for path in paths}
    require_extra("compare")
    return rank_tasks(comparisons, command)


def rank_tasks(comparisons: Mapping[str, Comparison], command: str) -> OverallRanking:
    """Rank the variants that all comparisons have.

    Args:
        comparisons: {folder or name of a task: its comparison}.
        command: The command that repeats it.

    Raises:
        DataError: Fewer than two tasks or variants remain.
    """
    left_out = []
    ranked = {}
    for path, comparison in comparisons.items():
        # the best model, whose score is 1, would be worse than the baseline, whose score is 0
        if baseline := find_winning_baseline(comparison):
            left_out.append(f"{path}: no model beats the baseline {baseline}")
        else:
            ranked[path] = comparison
    if len(ranked) < 2:
        reasons = f" ({'; '.join(left_out)})" if left_out else ""
        raise DataError(f"a ranking over tasks needs two comparisons or more{reasons}")

    for path, comparison in ranked.items():
        empty = _list_empty_seeds(comparison)
        count = len(comparison.seeds) - len(empty)
        if count < FEWEST:
            raise DataError(f"{path}: {count} of the {FEWEST} seeds that a ranking needs")
        if empty:
            seeds = ", ".join(map(str, empty))
            left_out.append(f"{path}, seeds {seeds}: no variant has a value")
    measured = [_list_measured(task) for task in ranked.values()]
    common = [name for name in measured[0] if all(name in names for names in measured)]
    for name in dict.fromkeys(
        variant.name for task in ranked.values() for variant in task.variants
    ):
        if name not in common:
            absent = [
                path for path, names in zip(ranked, measured, strict=True) if name not in names
            ]
            raced = [
                path for path in absent if (race := ranked[path].race) and race.find_stopped(name)
            ]
            why = [f"was stopped by the race in {', '.join(raced)}"] if raced else []
            if lacking := [path for path in absent if path not in raced]:
                why.append(f"lacks values in {', '.join(lacking)}")
            left_out.append(f"{name}: {join_words(why)}")
    if len(common) < 2:
        raise DataError(
            f"{', '.join(ranked)}: fewer than two variants have values for all seeds of all of them"
        )
    tasks = tuple(_build_task(path, task, common) for path, task in ranked.items())
    return OverallRanking(
        tasks=tasks,
        standings=tuple(rank_scores([_stack(task, common) for task in tasks], common)),
        left_out=tuple(left_out),
        command=command,
    )


def _read(path: Path) -> Comparison:
    file = path / "results.json" if path.is_dir() else path
    if not file.exists() and (path / PLAN).exists():
        # a record has what results follow from, and no results
        return read_comparison(path)
    if not file.is_file():
        message = "holds no results.json" if path.exists() else describe_absence(path)
        raise DataError(f"{path}: {message}; name the output folder of a comparison")
    return Comparison.read(file)


def _list_empty_seeds(comparison: Comparison) -> list[int]:
    """Return the seeds that were trained, but for which no variant has a value."""
    trained = {cell.seed for cell in comparison.cells}
    measured = {
        seed
        for variant in comparison.variants
        for seed in collect_values(variant, comparison.trained, comparison.measure)
    }
    return [seed for seed in comparison.seeds if seed in trained - measured]


def _list_measured(comparison: Comparison) -> list[str]:
    """Return the variants with a value for every seed that some variant has."""
    values = {
        variant.name: collect_values(variant, comparison.trained, comparison.measure)
        for variant in comparison.variants
    }
    seeds = {seed for by_seed in values.values() for seed in by_seed}
    return [name for name, by_seed in values.items() if by_seed and {*by_seed} == seeds]


def _build_task(path: str, comparison: Comparison, names: Sequence[str]) -> RankedTask:
    sign = 1 if comparison.better == "high" else -1
    values = {
        variant.name: collect_values(variant, comparison.trained, comparison.measure)
        for variant in comparison.variants
        if variant.name in names
    }
    means = {name: fmean(by_seed.values()) for name, by_seed in values.items()}
    best = max(means, key=lambda name: sign * means[name])
    references = average_baselines(comparison)
    label = "baseline" if references else "the last variant,"
    references = references or means
    name = (max if label == "baseline" else min)(
        references, key=lambda candidate: sign * references[candidate]
    )
    zero, best_value = references[name], means[best]
    # all variants are equal to the zero: their scores are 0
    span = (best_value - zero) or 1.0
    seeds = sorted(next(iter(values.values())))
    return RankedTask(
        name=Path(path).stem,
        path=path,
        measure=comparison.measure,
        zero=f"{label} {name}",
        zero_value=zero,
        one=best,
        one_value=best_value,
        seeds=tuple(seeds),
        is_tuned=comparison.studies is not None,
        unfinished=explain_steep(comparison),
        scores={
            name: tuple((by_seed[seed] - zero) / span for seed in seeds)
            for name, by_seed in values.items()
        },
    )


def _stack(task: RankedTask, names: Sequence[str]) -> Scores:
    return np.array([task.scores[name] for name in names])


def rank_scores(tasks: Sequence[Scores], names: Sequence[str]) -> list[OverallStanding]:
    """Rank variants by the mean of their scores over seeds and then over tasks.

    Args:
        tasks: Scores [V, S] of each task, of three seeds at least.
        names: The V variants.

    Returns:
        Standings, the best first.
    """
    from scipy import stats

    means = np.mean([scores.mean(1) for scores in tasks], axis=0)
    ranks = np.mean([stats.rankdata(-scores.mean(1)) for scores in tasks], axis=0)
    order = np.argsort(-means, kind="stable")
    best = int(order[0])
    errors, freedom = _combine_tasks(tasks)

    standings = []
    for number in order:
        mean, half = float(means[number]), _find_half(tasks, int(number))
        difference = mean - float(means[best])
        # the studentized range counts in errors of a mean; a difference has sqrt(2) times that
        critical = find_range(len(names), float(freedom[number, best])) / sqrt(2)
        reach = critical * float(errors[number, best])
        standings.append(
            OverallStanding(
                variant=names[number],
                mean=mean,
                interval=(mean - half, mean + half),
                difference=difference,
                difference_interval=(difference - reach, difference + reach),
                may_be_best=difference + reach >= 0,
                mean_rank=float(ranks[number]),
            )
        )
    return standings


def _combine_tasks(tasks: Sequence[Scores]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the standard errors [V, V] of differences over all tasks, and degrees of freedom."""
    squared, degrees, common = (
        np.array(column)
        for column in zip(*(measure_pairs(scores) for scores in tasks), strict=True)
    )
    total = squared.sum(0)
    weighted = (squared * degrees).sum(0)
    pooled = np.divide(weighted, total, out=degrees.min(0), where=total > 0)
    freedom = pooled * _count_effective(common)
    # in halves, so that quantiles are found once
    return np.sqrt(total) / len(tasks), np.floor(2 * freedom) / 2


def _count_effective(squared: NDArray[np.float64]) -> float:
    """Return how many tasks share the noise by Satterthwaite's rule, shrunk halfway to one."""
    if not squared.any():
        return 1.0
    return float(1 + (squared.sum() ** 2 / (squared**2).sum() - 1) / 2)


def _find_half(tasks: Sequence[Scores], number: int) -> float:
    """Return half the width of the interval of one variant's mean score."""
    from scipy import special

    squared = np.array([scores[number].var(ddof=1) / scores.shape[1] for scores in tasks])
    # the fewest seeds of any task: too few degrees of freedom err on the wide side
    freedom = (min(scores.shape[1] for scores in tasks) - 1) * _count_effective(squared)
    critical = float(special.stdtrit(freedom, (1 + LEVEL) / 2))
    return critical * sqrt(float(squared.sum())) / len(tasks)


def write_ranking(ranking: OverallRanking, to: str | None, *, intervals: bool = False) -> Path:
    """Write numbers, tables, page and figure; return the folder."""
    # the same comparisons give the same folder, so that the command can be repeated
    digest = hashlib.sha256(json.dumps([task.path for task in ranking.tasks]).encode()).hexdigest()
    folder = Path(to or f"comparisons/overall-{digest[:8]}")
    write_report(
        build_report(ranking),
        folder,
        name=NAME,
        page=f"{NAME}.html",
        texts={
            f"{NAME}.json": f"{as_json(asdict(ranking))}\n",
            **format_tables(build_result_table(ranking), intervals=intervals),
        },
        draw=partial(draw_ranking, ranking),
        styles=STYLES,
    )
    return folder


def build_result_table(ranking: OverallRanking) -> ResultTable:
    """Return the mean score and the mean rank of each variant, for a paper."""
    rows, unfinished = [], list_unfinished(ranking)
    for number, ranked in enumerate(ranking.standings):
        mark = "" if ranked.may_be_best or unfinished else "worse"
        standing: Literal["best", "worse", ""] = "worse" if mark else "" if number else "best"
        score = ResultValue(ranked.mean, *ranked.interval, mark, standing)
        rows.append(ResultRow(name=ranked.variant, values=(score, ResultValue(ranked.mean_rank))))
    names = ", ".join(task.name for task in ranking.tasks)
    return ResultTable(
        head="variant",
        columns=(
            ResultColumn(title="mean score", decimals=DECIMALS, better="high"),
            ResultColumn(title="mean rank", decimals=1, better="low"),
        ),
        rows=tuple(rows),
        caption=" ".join(
            [f"Over {len(ranking.tasks)} tasks: {names}.", *unfinished, _explain(ranking)]
        ),
        label="overall",
        marks={
            "worse": "worse than the best; simultaneous 95 % intervals of the differences of mean "
            "scores, corrected for all pairs"
        },
        interval="95 % intervals of the mean score",
        command=ranking.command,
    )


def draw_ranking(ranking: OverallRanking) -> Chart:
    """Draw the mean score of each variant with its interval, the best on top."""
    import altair as alt

    from zoo.reporting.style import start_chart

    rows = [
        {
            "variant": standing.variant,
            "mean": standing.mean,
            "low": standing.interval[0],
            "high": standing.interval[1],
        }
        for standing in ranking.standings
    ]
    # every interval is drawn whole
    ends = [end for standing in ranking.standings for end in (*standing.interval, standing.mean)]
    margin = 0.04 * (max(ends) - min(ends)) or 0.5
    domain = alt.Scale(domain=[min(ends) - margin, max(ends) + margin], nice=False, zero=False)
    base = start_chart(finite(rows)).encode(y=alt.Y("variant:N", sort=None, title=None))
    bar = base.mark_rule(strokeWidth=4, opacity=0.4).encode(
        x=alt.X("low:Q", title=f"mean score; bars: {LEVEL * 100:g} % intervals", scale=domain),
        x2="high:Q",
    )
    dot = base.mark_circle(size=60, opacity=1).encode(x=alt.X("mean:Q", scale=domain))
    return alt.layer(bar, dot).properties(width=420, height=22 * len(rows))


HEADS = ("variant", "mean score", "to the first", "verdict", "mean rank")


def build_standing_table(ranking: OverallRanking) -> SectionTable:
    """Return a row for each variant, the best first."""
    rows = [
        [
            standing.variant,
            _format(standing.mean, standing.interval),
            _format(standing.difference, standing.difference_interval, sign=True) if number else "",
            _name_verdict(ranking, standing, number),
            f"{standing.mean_rank:.1f}",
        ]
        for number, standing in enumerate(ranking.standings)
    ]
    return SectionTable(heads=HEADS, rows=rows, left=("variant", "verdict"))


def _name_verdict(ranking: OverallRanking, standing: OverallStanding, number: int) -> str:
    """Return the verdict on the standing of a number; there is none over unfinished tasks."""
    if number == 0:
        return "highest mean"
    if list_unfinished(ranking):
        return "?"
    return "may be best" if standing.may_be_best else "worse"


def list_unfinished(ranking: OverallRanking) -> list[str]:
    """List the tasks whose variants were not trained to the end: they give no verdict."""
    return [
        f"No verdict: {task.name}: {task.unfinished}." for task in ranking.tasks if task.unfinished
    ]


def list_left_out(ranking: OverallRanking) -> list[str]:
    """Return what the ranking leaves out, each with its reason."""
    return [f"left out: {reason}" for reason in ranking.left_out]


def _format(value: float, interval: tuple[float, float], *, sign: bool = False) -> str:
    mean, low, high = (format_fixed(number, DECIMALS, sign=sign) for number in (value, *interval))
    return f"{mean} ({low} to {high})"


def _list_task_rows(ranking: OverallRanking) -> list[list[str]]:
    rows = []
    for task in ranking.tasks:
        ends = (task.zero_value, task.one_value)
        zero, best = (format_fixed(end, DECIMALS) for end in ends)
        rows.append(
            [
                task.name,
                task.measure,
                f"{task.zero}: {zero}",
                f"{task.one}: {best}",
                "yes" if task.is_tuned else "no",
                str(len(task.seeds)),
            ]
        )
    return rows


TASK_HEADS = ("task", "metric", "score 0", "score 1", "tuned", "seeds")


def _explain(ranking: OverallRanking) -> str:
    untuned = [task.name for task in ranking.tasks if not task.is_tuned]
    warning = (
        f"Untuned: {', '.join(untuned)}. A verdict may follow from settings that suit some "
        "variants better than others. "
    )
    return (warning if untuned else "") + (
        "The mean score weighs all tasks equally. In each task the best baseline has the score 0 "
        "(without baselines, the variant that is last there) and the best variant 1. 95 % "
        "intervals by the differences of seeds within each task, simultaneous for all pairs of "
        "variants. They say what other seeds would show, not what other tasks would: verdicts "
        "depend on the tasks chosen."
    )


def build_report(ranking: OverallRanking) -> SectionedReport:
    """Return the report of a ranking."""
    return SectionedReport(
        kind="ranking",
        title=f"Which variant, over {len(ranking.tasks)} tasks?",
        warnings=list_unfinished(ranking),
        figure="Mean scores with 95 % intervals.",
        command=ranking.command,
        sections=[
            ReportSection(
                key="ranking",
                title="Ranking",
                lead="The best first.",
                table=build_standing_table(ranking),
                sentences=[_explain(ranking)],
            ),
            ReportSection(
                key="tasks",
                title="Tasks",
                lead="What scores mean.",
                table=SectionTable(
                    heads=TASK_HEADS, rows=_list_task_rows(ranking), left=TASK_HEADS[:5]
                ),
                items=list_left_out(ranking),
            ),
        ],
    )


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Options of a ranking over several comparisons."""

    to: str | None = None
    """Output folder; null takes comparisons/overall-<hash>."""
    intervals: bool = False
    """Whether table.tex has the 95 % intervals; table.csv always has them."""


def run_ranking(
    paths: Sequence[str], chosen: RankOptions, command: str = ""
) -> tuple[OverallRanking, Path]:
    """Rank over tasks and write the files.

    Args:
        paths: Output folders of comparisons, or their files results.json.
        chosen: The options.
        command: What repeats it.

    Raises:
        DataError: As `rank_over_tasks`.
    """
    ranking = rank_over_tasks(paths, command)
    return ranking, write_ranking(ranking, chosen.to, intervals=chosen.intervals)
