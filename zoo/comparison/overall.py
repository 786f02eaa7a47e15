"""Rank variants over several comparisons, each of them a task, with a stratified bootstrap.

The interquartile mean of normalised scores, its intervals by resampling seeds within each task, and
ranks follow Agarwal et al. 2021 (arXiv:2108.13264, section 4). Three things differ. Seeds are
resampled for all variants at once, since cells of a seed are paired. Intervals are widened for few
seeds, whose resamples vary less than seeds do: by sqrt(n / (n - 1)) and by Student's t in place of
the normal distribution. Differences to the first are simultaneous for all pairs, by the largest
standardised deviation in each resample, as the first is chosen by the data.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from zoo import files
from zoo.comparison.ranking import average_baselines, collect_values, find_winning_baseline
from zoo.comparison.results import TRAINED, Comparison
from zoo.comparison.statistics import LEVEL
from zoo.errors import DataError
from zoo.reporting.html import Section, render_page
from zoo.reporting.numbers import as_json, finite, format_fixed
from zoo.reporting.tables import disarm_tags, format_markdown
from zoo.utils import escape_strings

RESAMPLES = 4000
TRIMMED = 0.25
"""Share of scores that the interquartile mean leaves out at either end."""
DECIMALS = 3
FILES = ("overall.json", "overall.md", "overall.html", "overall.png")

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


@dataclass(frozen=True, kw_only=True)
class OverallStanding:
    """A variant over all tasks: numbers with (low, high) of a 95 % interval."""

    variant: str
    iqm: float
    interval: tuple[float, float]
    difference: float
    """Of the interquartile means, to the first variant."""
    difference_interval: tuple[float, float]
    """Simultaneous for all pairs of variants."""
    may_be_best: bool
    mean_rank: float
    rank_interval: tuple[float, float]


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
        command: What repeats it.

    Raises:
        DataError: A path holds no comparison, or fewer than two tasks or variants remain.
    """
    comparisons = {path: _read(Path(path)) for path in paths}
    left_out = []
    kept = {}
    for path, comparison in comparisons.items():
        if baseline := find_winning_baseline(comparison):
            left_out.append(f"{path}: no model beats the baseline {baseline}")
        else:
            kept[path] = comparison
    if len(kept) < 2:
        reasons = f" ({'; '.join(left_out)})" if left_out else ""
        raise DataError(f"a ranking over tasks needs two comparisons or more{reasons}")

    for path, comparison in kept.items():
        if len(comparison.seeds) < 2:
            raise DataError(
                f"{path}: one seed tells nothing of chance; a ranking needs two or more"
            )
    measured = [_list_measured(one) for one in kept.values()]
    common = [name for name in measured[0] if all(name in one for one in measured)]
    for name in dict.fromkeys(one.name for found in kept.values() for one in found.variants):
        if name not in common:
            absent = [path for path, one in zip(kept, measured, strict=True) if name not in one]
            left_out.append(f"{name}: lacks values in {', '.join(absent)}")
    if len(common) < 2:
        raise DataError(
            f"{', '.join(kept)}: fewer than two variants have values for all seeds of all of them"
        )
    tasks = tuple(_build_task(path, one, common) for path, one in kept.items())
    return OverallRanking(
        tasks=tasks,
        standings=tuple(rank_scores([_stack(one, common) for one in tasks], common)),
        left_out=tuple(left_out),
        command=command,
    )


def _read(path: Path) -> Comparison:
    file = path / "results.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"{path}: holds no results.json of a comparison")
    return Comparison.read(file)


def _list_measured(comparison: Comparison) -> list[str]:
    """Return the variants with a value for every seed that some variant has."""
    values = {
        one.name: collect_values(one, TRAINED, comparison.measure) for one in comparison.variants
    }
    seeds = {seed for own in values.values() for seed in own}
    return [name for name, own in values.items() if own and {*own} == seeds]


def _build_task(path: str, comparison: Comparison, names: Sequence[str]) -> RankedTask:
    sign = 1 if comparison.better == "high" else -1
    values = {
        one.name: collect_values(one, TRAINED, comparison.measure)
        for one in comparison.variants
        if one.name in names
    }
    means = {name: fmean(own.values()) for name, own in values.items()}
    best = max(means, key=lambda name: sign * means[name])
    found = average_baselines(comparison)
    label = "baseline" if found else "the last variant,"
    found = found or means
    name = (max if label == "baseline" else min)(found, key=lambda one: sign * found[one])
    zero, one = found[name], means[best]
    span = (one - zero) or 1.0
    seeds = sorted(next(iter(values.values())))
    return RankedTask(
        name=Path(path).stem,
        path=path,
        measure=comparison.measure,
        zero=f"{label} {name}",
        zero_value=zero,
        one=best,
        one_value=one,
        seeds=tuple(seeds),
        is_tuned=comparison.tuning is not None,
        scores={
            name: tuple((own[seed] - zero) / span for seed in seeds) for name, own in values.items()
        },
    )


def _stack(task: RankedTask, names: Sequence[str]) -> Scores:
    return np.array([task.scores[name] for name in names])


def average_middle(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile mean over the last axis."""
    count = scores.shape[-1]
    cut = int(TRIMMED * count)
    middle: NDArray[np.float64] = np.sort(scores, axis=-1)[..., cut : count - cut].mean(-1)
    return middle


def rank_scores(
    tasks: Sequence[Scores], names: Sequence[str], resamples: int = RESAMPLES
) -> list[OverallStanding]:
    """Rank variants by the interquartile mean of their scores over all tasks and seeds.

    Args:
        tasks: Scores [V, S] of each task.
        names: The V variants.
        resamples: How many bootstrap resamples.
    """
    generator = np.random.default_rng(0)
    drawn, ranks = [], []
    for scores in tasks:
        count = scores.shape[1]
        chosen = generator.integers(count, size=(resamples, count))
        resampled = scores[:, chosen].swapaxes(0, 1)  # [B, V, S]
        drawn.append(resampled)
        ranks.append(stats.rankdata(-resampled.mean(-1), axis=-1))
    estimate = average_middle(np.concatenate(tasks, axis=1))
    again = average_middle(np.concatenate(drawn, axis=2))  # [B, V]
    mean_ranks = np.mean([stats.rankdata(-one.mean(1)) for one in tasks], axis=0)
    order = np.argsort(-estimate, kind="stable")
    first = int(order[0])

    widening = _widen(tasks)
    errors = (again - again[:, [first]]).std(0) * widening
    critical = _find_critical(again, estimate)
    found = []
    for number in order:
        difference = float(estimate[number] - estimate[first])
        half = critical * float(errors[number])
        spread = (difference - half, difference + half)
        found.append(
            OverallStanding(
                variant=names[number],
                iqm=float(estimate[number]),
                interval=_interval(again[:, number], float(estimate[number]), widening),
                difference=difference,
                difference_interval=spread,
                may_be_best=spread[1] >= 0,
                mean_rank=float(mean_ranks[number]),
                rank_interval=_interval(
                    np.mean(ranks, axis=0)[:, number], float(mean_ranks[number]), 1.0
                ),
            )
        )
    return found


def _widen(tasks: Sequence[Scores]) -> float:
    """Return the factor by which intervals are wider for few seeds."""
    fewest = min(one.shape[1] for one in tasks)
    freedom = sum(one.shape[1] - 1 for one in tasks)
    student = stats.t.ppf((1 + LEVEL) / 2, freedom) / stats.norm.ppf((1 + LEVEL) / 2)
    return float(sqrt(fewest / (fewest - 1)) * student)


def _interval(
    resampled: NDArray[np.float64], estimate: float, widening: float
) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return (
        float(estimate - widening * (estimate - low)),
        float(estimate + widening * (high - estimate)),
    )


def _find_critical(again: NDArray[np.float64], estimate: NDArray[np.float64]) -> float:
    """Return the 95 % quantile of the largest standardised deviation of all pairs."""
    largest = np.zeros(len(again))
    for number in range(len(estimate)):
        gaps = again[:, number:] - again[:, [number]]
        deviations = np.abs(gaps - (estimate[number:] - estimate[number]))
        spread = gaps.std(0)
        shares = np.divide(deviations, spread, out=np.zeros_like(deviations), where=spread > 1e-12)
        largest = np.maximum(largest, shares.max(1))
    return float(np.quantile(largest, LEVEL))


def write_ranking(ranking: OverallRanking, to: str | None) -> Path:
    """Write numbers, table, page and figure; return the folder."""
    digest = hashlib.sha256(json.dumps([one.path for one in ranking.tasks]).encode()).hexdigest()
    folder = Path(to or f"comparisons/overall-{digest[:8]}")
    folder.mkdir(parents=True, exist_ok=True)
    picture = _draw(ranking)
    contents = (
        f"{as_json(asdict(ranking))}\n".encode(),
        f"{disarm_tags(format_ranking(ranking))}\n".encode(),
        render_ranking(ranking, picture).encode(),
        picture,
    )
    for name, content in zip(FILES, contents, strict=True):
        files.write(io.BytesIO(content), folder / name)
    return folder


def _draw(ranking: OverallRanking) -> bytes:
    # altair takes its time to import
    import altair as alt

    from zoo.reporting import render
    from zoo.reporting.axes import start_chart

    rows = [
        {"variant": one.variant, "iqm": one.iqm, "low": one.interval[0], "high": one.interval[1]}
        for one in ranking.standings
    ]
    base = start_chart(finite(rows)).encode(y=alt.Y("variant:N", sort=None, title=None))
    bar = base.mark_rule(strokeWidth=4, opacity=0.4).encode(
        x=alt.X("low:Q", title="interquartile mean of scores"), x2="high:Q"
    )
    dot = base.mark_circle(size=60, opacity=1).encode(x="iqm:Q")
    chart = alt.layer(bar, dot).properties(width=420, height=22 * len(rows))
    return render.to_png(chart)


HEADS = ("variant", "IQM", "to the first", "verdict", "mean rank")


def _list_rows(ranking: OverallRanking) -> list[list[str]]:
    return [
        [
            one.variant,
            _format(one.iqm, one.interval),
            _format(one.difference, one.difference_interval, sign=True) if number else "",
            "may be best" if number and one.may_be_best else "worse" if number else "highest IQM",
            _format(one.mean_rank, one.rank_interval, decimals=1),
        ]
        for number, one in enumerate(ranking.standings)
    ]


def _format(
    value: float, interval: tuple[float, float], *, decimals: int = DECIMALS, sign: bool = False
) -> str:
    mean, low, high = (format_fixed(one, decimals, sign=sign) for one in (value, *interval))
    return f"{mean} ({low} to {high})"


def _list_task_rows(ranking: OverallRanking) -> list[list[str]]:
    rows = []
    for one in ranking.tasks:
        ends = (one.zero_value, one.one_value)
        zero, best = (format_fixed(end, DECIMALS) for end in ends)
        rows.append(
            [
                one.name,
                one.measure,
                f"{one.zero}: {zero}",
                f"{one.one}: {best}",
                "yes" if one.is_tuned else "no",
                str(len(one.seeds)),
            ]
        )
    return rows


TASK_HEADS = ("task", "metric", "score 0", "score 1", "tuned", "seeds")


def _explain(ranking: OverallRanking) -> str:
    untuned = [one.name for one in ranking.tasks if not one.is_tuned]
    warning = (
        f"Untuned: {', '.join(untuned)}. A verdict may follow from settings that suit some "
        "variants better than others. "
    )
    return (warning if untuned else "") + (
        "IQM: the mean of the middle half of all scores, over tasks and seeds. In each task the "
        "best baseline has the score 0 (without baselines, the variant that is last there) and the "
        "best variant 1. 95 % intervals by a bootstrap stratified by task, widened for few seeds; "
        "differences simultaneous for all pairs of variants. They say what other seeds would show, "
        "not what other tasks would. Verdicts depend on the tasks chosen and on their weights, "
        "which are the numbers of seeds."
    )


def format_ranking(ranking: OverallRanking) -> str:
    """Format the ranking and the tasks as Markdown."""
    ranking = escape_strings(ranking)
    parts = [
        f"# Over {len(ranking.tasks)} tasks",
        format_markdown(HEADS, _list_rows(ranking), ("variant", "verdict")),
        _explain(ranking),
        "## Tasks",
        format_markdown(TASK_HEADS, _list_task_rows(ranking), TASK_HEADS[:5]),
        "\n".join(f"- left out: {one}" for one in ranking.left_out),
        f"Repeat it with: {ranking.command}",
    ]
    return "\n\n".join(part for part in parts if part)


def render_ranking(ranking: OverallRanking, picture: bytes) -> str:
    """Return the page as HTML: it opens from a file, and no request goes out from it."""
    return render_page(
        "comparison/page/overall.html",
        styles=("comparison/page/comparison.css",),
        scripts=(),
        data={},
        kind="ranking",
        title=f"Which variant, over {len(ranking.tasks)} tasks?",
        picture=base64.b64encode(picture).decode(),
        explanation=_explain(ranking),
        command=ranking.command,
        left_out=ranking.left_out,
        sections=[
            Section("ranking", "Ranking", "The best first.", (HEADS, _list_rows(ranking))),
            Section("tasks", "Tasks", "What scores mean.", (TASK_HEADS, _list_task_rows(ranking))),
        ],
    )


def run_ranking(paths: Sequence[str], to: str | None) -> tuple[OverallRanking, Path]:
    """Rank over tasks and write the files.

    Raises:
        DataError: As `rank_over_tasks`.
    """
    word = f"rank=[{','.join(paths)}]"
    words = ["zoo", "compare", word, *([f"to={to}"] if to else [])]
    ranking = rank_over_tasks(paths, shlex.join(words))
    return ranking, write_ranking(ranking, to)
