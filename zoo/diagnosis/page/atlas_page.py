"""The page of `zoo atlas`, its table, and its numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.diagnosis.atlas_report import LOSSES, AblatedHead, AtlasReport, AtlasRun
from zoo.diagnosis.head_jobs import NOTABLE, JobScores, pad_heads
from zoo.diagnosis.page.viewer_data import to_plain
from zoo.diagnosis.report import PairedChange
from zoo.diagnostics.capture import choose_evenly
from zoo.reporting import numbers
from zoo.reporting.panel import Curves, HeatmapGrid, Panel, name_head
from zoo.reporting.sections import (
    ReportSection,
    SectionedReport,
    SectionTable,
    format_section,
    write_report,
)
from zoo.suggestions import join_words

BEST = 3  # heads of each job that are listed
STRONGEST = 10  # ablated heads that are listed
FULL_TURN = 1.0
MOST_LINES = 6
FREQUENCY_COLUMNS = (
    "layer",
    "pairs a head lives on",
    "pairs without a full turn",
    "their share in the scores",
    "share of channels that do not turn",
    "explained by position",
)


def write(report: AtlasReport, folder: Path) -> None:
    """Write atlas.html, atlas.md and atlas.json into a folder."""
    content = json.dumps(to_dict(report), allow_nan=False, separators=(",", ":"))
    write_report(
        describe_atlas(report),
        folder,
        name="atlas",
        page="atlas.html",
        texts={"atlas.json": content},
        draw=None,
    )


def to_dict(report: AtlasReport) -> dict[str, Any]:
    """Return the report as plain data, with tensors as lists and None for NaN."""
    found: dict[str, Any] = numbers.finite(to_plain(report))
    return found


def format_table(report: AtlasReport) -> str:
    """Return the table that compares the models, for terminals."""
    return format_section(_compare_runs(report))


def describe_atlas(report: AtlasReport) -> SectionedReport:
    """Return the sections of an atlas: a table of all models, then the parts of each."""
    sections = [_compare_runs(report)]
    for number, run in enumerate(report.runs, start=1):
        sections += _describe_run(run, run.name if len(report.runs) > 1 else "", number)
    return SectionedReport(
        kind=f"atlas · zoo {report.version} · {report.made}",
        title=f"Positions inside {join_words(run.name for run in report.runs)}",
        sections=sections,
    )


def _compare_runs(report: AtlasReport) -> ReportSection:
    """Return the table with a row for each quantity and a column for each model."""
    # models of texts and of images have different rows, and a dash in those of the others
    columns = [dict(_list_quantities(run)) for run in report.runs]
    rows = [
        [key, *(column.get(key, numbers.NOTHING) for column in columns)]
        for key in dict.fromkeys(key for column in columns for key in column)
    ]
    return ReportSection(
        key="table",
        title="Table",
        lead="Heads are counted from 1, layers from 0.",
        table=SectionTable(
            heads=("quantity", *(run.name for run in report.runs)),
            rows=rows,
            left=("quantity", *(run.name for run in report.runs)),
        ),
        sentences=[
            f"Of each job: how many heads have a score of {NOTABLE} or more, and the best score."
        ],
        items=[
            f"{run.name}, not measured: {reason}"
            for run in report.runs
            for reason in run.absent.values()
        ],
    )


def _list_quantities(run: AtlasRun) -> Iterator[tuple[str, str]]:
    """Yield the cells of a model in the table of all models, by the name of their row."""
    for name, text in run.facts.items():
        if name in ("model", "encoding", "measured on", *LOSSES.values()):
            yield name, text
    for job in run.jobs:
        yield f"heads: {job.title}", _summarize_job(run, job)
    for key, title in (("given", "given samples"), ("repeated", "repeated text")):
        if (largest := _find_largest(run, key)) is not None:
            head, change = largest
            text = f"{_format_change(change)} ({_name_head(head.layer, head.head)})"
            yield f"largest change of {change.metric} by a head, {title}", text
    yield from _summarize_frequencies(run)
    if run.fields:
        reaches = [f"{one.reach:g}" for one in (run.fields[0], run.fields[-1])]
        yield f"99 % of the gradient within, first to last layer, {run.unit}", " to ".join(reaches)
        allowed = [numbers.format_number(one.allowed) for one in (run.fields[0], run.fields[-1])]
        yield f"masks let through, first to last layer, {run.unit}", " to ".join(allowed)
    if run.probes:
        best = max(run.probes, key=lambda one: one.r2)
        input_score, best_score = (numbers.format_fixed(one.r2, 2) for one in (run.probes[0], best))
        text = f"{input_score}, best {best_score} after {_name_depth(best.layers)}"
        yield "positions that a linear probe reads from the input", text
    for measure in run.measures:
        values = measure.values[~measure.values.isnan()]
        if len(values):
            ends = f"{numbers.format_number(float(values[0]), 3)} to "
            ends += numbers.format_number(float(values[-1]), 3)
            yield f"{measure.title.lower()}, first to last layer, {measure.unit}", ends


def _summarize_job(run: AtlasRun, job: JobScores) -> str:
    values = job.values
    count, total = int((values >= NOTABLE).sum()), int((~values.isnan()).sum())
    row, head = divmod(int(values.nan_to_num(-1).argmax()), values.shape[1])
    best = f"{float(values[row, head]):.2f} ({_name_head(run.layers[row], head)})"
    return f"{count} of {total}, best {best}"


def _summarize_frequencies(run: AtlasRun) -> Iterator[tuple[str, str]]:
    if not run.frequencies:
        return
    effective = pad_heads([one.effective for one in run.frequencies])
    known = effective[~effective.isnan()]
    pairs = run.frequencies[0].share.shape[-1]
    if len(known):
        low, middle, high = (f"{float(one):.1f}" for one in _find_spread(known))
        yield f"pairs a head lives on, of {pairs}", f"{middle} (median; {low} to {high})"
    # several heads may share the waves of one key head
    slow = [(one.turns < FULL_TURN).expand_as(one.share) for one in run.frequencies]
    if not all(one.turns.isnan().all() for one in run.frequencies):
        count = float(torch.cat([one.double().sum(-1).flatten() for one in slow]).mean())
        text = f"{count:g} of {pairs}" if count == round(count) else f"{count:.1f} of {pairs}"
        yield "pairs without a full turn in the trained context", text
        carried = torch.cat(
            [(one.share * part).sum(-1) for one, part in zip(run.frequencies, slow, strict=True)]
        )
        yield "their share in the scores, mean of heads", f"{100 * float(carried.nanmean()):.0f} %"


def _find_spread(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return values.min(), values.median(), values.max()


def _name_head(layer: int, head: int) -> str:
    return f"layer {layer}, {name_head(head)}"


def _find_largest(run: AtlasRun, key: str) -> tuple[AblatedHead, PairedChange] | None:
    """Return the ablated head with the largest change of a stimulus."""
    found = [(one, getattr(one, key)) for one in run.ablated]
    changes = [(one, change) for one, change in found if change is not None]
    return max(changes, key=lambda pair: abs(pair[1].mean), default=None)


def _format_change(change: PairedChange | None) -> str:
    if change is None:
        return numbers.NOTHING
    text = numbers.format_fixed(change.mean, 4, sign=True)
    if change.low != change.low:
        return text
    low, high = (numbers.format_fixed(end, 4, sign=True) for end in (change.low, change.high))
    return f"{text} ({low} to {high})"


def _describe_run(run: AtlasRun, name: str, number: int) -> Iterator[ReportSection]:
    """Yield the sections of one model, whose titles begin with its name if there are several."""

    def entitle(title: str) -> str:
        return f"{name}: {title[0].lower()}{title[1:]}" if name else title

    yield ReportSection(
        key=f"jobs-{number}",
        title=entitle("Heads with a known job"),
        lead="A score is the mean attention on the keys of a job. Ablated is a head whose output "
        "is set to 0; changes of the loss have 95 % intervals over samples.",
        table=SectionTable(
            heads=("job", "head", "score", "even attention", *_name_changes(run)),
            rows=[*_list_best(run)],
            left=("job", "head"),
        ),
        sentences=[run.absent["repeated"]] if "repeated" in run.absent else (),
        panels=(_draw_jobs(run),),
    )
    if run.ablated:
        yield ReportSection(
            key=f"ablations-{number}",
            title=entitle("Heads that matter most"),
            lead="The heads whose ablation changes the loss most, whether they have a job or not.",
            table=SectionTable(
                heads=("head", "job", *_name_changes(run)),
                rows=[*_list_strongest(run)],
                left=("head", "job"),
            ),
        )
    if run.fields:
        yield ReportSection(
            key=f"fields-{number}",
            title=entitle("Receptive field"),
            lead="Of one token: the last one under a causal mask, else the one in the middle.",
            table=SectionTable(
                heads=(
                    "after",
                    f"99 % of the gradient within, {run.unit}",
                    f"masks let through, {run.unit}",
                ),
                rows=[
                    [_name_depth(one.layers), f"{one.reach:g}", numbers.format_number(one.allowed)]
                    for one in run.fields
                ],
                left=("after",),
            ),
            panels=(_draw_fields(run),),
        )
    if run.probes:
        yield ReportSection(
            key=f"probes-{number}",
            title=entitle("Where position can be read"),
            lead="Fraction of the variance of positions that a linear map of states explains in "
            "samples that it was not fitted to, and of positions that were permuted.",
            table=SectionTable(
                heads=("after", "positions", "permuted positions"),
                rows=[
                    [
                        _name_depth(one.layers),
                        *(numbers.format_fixed(part, 3) for part in (one.r2, one.control)),
                    ]
                    for one in run.probes
                ],
                left=("after",),
            ),
            panels=(_draw_probes(run),),
        )
    if run.frequencies:
        yield ReportSection(
            key=f"frequencies-{number}",
            title=entitle("Use of frequencies"),
            lead="Each pair of channels turns at one frequency; shares of all pairs and of the "
            "channels that do not turn sum to 1 in each head.",
            table=SectionTable(heads=FREQUENCY_COLUMNS, rows=[*_list_frequencies(run)]),
            panels=tuple(_draw_frequencies(run)),
        )


def _draw_fields(run: AtlasRun) -> Panel:
    # lines of many layers cannot be told apart
    shown = [run.fields[n] for n in choose_evenly(len(run.fields), MOST_LINES)]
    return Curves(
        title="Cumulative normalized gradient",
        x=f"distance, in {run.unit}",
        y="share of the gradient",
        caption="How much of the derivative of a state comes from tokens at most so far away: a "
        "line that rises at once is that of a local layer.",
        x_values=shown[0].distances.float(),
        lines={_name_depth(one.layers): one.cumulative.float() for one in shown},
    )


def _draw_probes(run: AtlasRun) -> Panel:
    return Curves(
        title="Linear probes of positions",
        x="layers that states have passed",
        y="explained variance",
        caption="Far above its control, which remembers permuted positions, a probe reads order "
        "from states; below 0 it does worse than a constant.",
        x_values=torch.tensor([float(one.layers) for one in run.probes]),
        lines={
            "positions": torch.tensor([one.r2 for one in run.probes]),
            "permuted positions": torch.tensor([one.control for one in run.probes]),
        },
    )


def _name_depth(layers: int) -> str:
    return numbers.pluralize(layers, "layer")


def _name_changes(run: AtlasRun) -> list[str]:
    """Return the columns of the changes of losses."""
    metrics = [one.given.metric for one in run.ablated if one.given is not None]
    name = metrics[0] if metrics else "loss"
    return [f"{name}, given samples", *([] if "repeated" in run.absent else [f"{name}, repeated"])]


def _list_changes(run: AtlasRun, layer: int, head: int) -> list[str]:
    # only some heads of a large model are ablated
    found = {(one.layer, one.head): one for one in run.ablated}.get((layer, head))
    keys = ["given", *([] if "repeated" in run.absent else ["repeated"])]
    return [numbers.NOTHING if found is None else _format_change(getattr(found, k)) for k in keys]


def _list_best(run: AtlasRun) -> Iterator[list[str]]:
    for job in run.jobs:
        order = job.values.flatten().nan_to_num(-1).argsort(descending=True, stable=True)
        for rank, place in enumerate(order[:BEST].tolist()):
            row, head = divmod(place, job.values.shape[1])
            score = float(job.values[row, head])
            # the best of each job, and others that have it too
            if rank and not score >= NOTABLE:
                break
            layer = run.layers[row]
            texts = (job.title, _name_head(layer, head), f"{score:.3f}", f"{job.even:.3f}")
            yield [*texts, *_list_changes(run, layer, head)]


def _list_strongest(run: AtlasRun) -> Iterator[list[str]]:
    # copying needs heads together, so that the repeated text tells more about a single one
    key = "given" if "repeated" in run.absent else "repeated"
    sized = [(one, getattr(one, key) or one.given) for one in run.ablated]
    known = [(one, change) for one, change in sized if change is not None]
    for one, _ in sorted(known, key=lambda pair: -abs(pair[1].mean))[:STRONGEST]:
        row = run.layers.index(one.layer)
        jobs = [job.title for job in run.jobs if job.values[row, one.head] >= NOTABLE]
        changes = _list_changes(run, one.layer, one.head)
        yield [_name_head(one.layer, one.head), ", ".join(jobs) or numbers.NOTHING, *changes]


def _list_frequencies(run: AtlasRun) -> Iterator[list[str]]:
    """Yield a row for each layer: medians over heads, and means of shares."""
    for one in run.frequencies:
        slow = (one.turns < FULL_TURN).expand_as(one.share)
        # what position explains of a pair counts by the size of the pair
        sizes = one.share.abs()
        explained = (sizes * one.position).sum(-1) / sizes.sum(-1)
        has_size = not one.turns.isnan().all()
        count = float(slow.double().sum(-1).mean())
        yield [
            str(one.layer),
            f"{float(one.effective.nanmedian()):.1f} of {one.share.shape[-1]}",
            f"{count:.3g}" if has_size else numbers.NOTHING,
            f"{float((one.share * slow).sum(-1).nanmean()):.2f}" if has_size else numbers.NOTHING,
            numbers.format_fixed(float(one.rest.nanmean()), 2),
            numbers.format_fixed(float(explained.nanmean()), 2),
        ]


def _draw_jobs(run: AtlasRun) -> Panel:
    return HeatmapGrid(
        title="Scores of all heads",
        x="head",
        y="layer",
        caption=" ".join(f"{one.title.capitalize()}: {one.caption}" for one in run.jobs),
        values=torch.stack([one.values for one in run.jobs]).float(),
        labels=tuple(one.title for one in run.jobs),
        unit="mean weight",
        corner=(0, 1),
    )


def _draw_frequencies(run: AtlasRun) -> Iterator[Panel]:
    """Yield a map for each quantity, with a part for each layer."""
    quantities: Sequence[tuple[str, str, str, str]] = (
        (
            "share",
            "Share in the scores",
            "of scores",
            "Which frequencies a head lives on: cov(c, s) / var(s) of a pair's term c and all s.",
        ),
        (
            "position",
            "Explained by position",
            "of variance",
            "At 1 only the two positions decide what a pair adds to a score, at 0 only content.",
        ),
        ("q_norm", "Norm of queries", "norm", "Mean norm of queries in each pair."),
        ("k_norm", "Norm of keys", "norm", "Mean norm of keys in each pair."),
    )
    for name, title, unit, caption in quantities:
        values = pad_heads([getattr(one, name) for one in run.frequencies]).float()
        if values.isnan().all():
            continue
        yield HeatmapGrid(
            title=title,
            x="pair of channels",
            y="head",
            caption=caption,
            values=values,
            labels=tuple(f"layer {one.layer}" for one in run.frequencies),
            unit=unit,
            corner=(1, 0),
        )
