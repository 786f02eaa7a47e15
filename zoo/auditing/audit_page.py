"""The report of an audit as a page, one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zoo.reporting.sections import ReportSection, SectionedReport, SectionTable, render_report

if TYPE_CHECKING:
    from zoo.auditing.audit_figures import AuditFigures
    from zoo.auditing.audit_report import AuditReport, LawResult

STYLES = ("auditing/audit.css",)
FIGURES = {
    "shift": (
        "Shifted positions",
        "A text at position 0 and at later positions, where positions are relative.",
    ),
    "influence": (
        "Which tokens change which logits",
        "Each token is exchanged for another one, and the logits of all are compared.",
    ),
    "turns": (
        "How pairs of channels turn",
        "The rotations of the model, measured, and those of its configuration.",
    ),
}
"""{key of a section: its title and lead}"""
COLUMNS = ("law", "status", "error", "bound", "since", "module", "cause or reason")


def render_audit(report: AuditReport) -> str:
    """Return the page of a report."""
    return render_report(describe_report(report), None, styles=STYLES)


def describe_report(report: AuditReport) -> SectionedReport:
    """Return the sections of a report: the laws, figures and notes."""
    notes = ReportSection(
        key="notes",
        title="Notes",
        lead="What is worth knowing, and breaks no law.",
        items=report.notes,
    )
    return SectionedReport(
        kind="audit",
        title=write_title(report),
        facts=_list_facts(report),
        sections=[
            _describe_laws(report),
            *_describe_figures(report.figures),
            *([notes] if report.notes else []),
        ],
    )


def _describe_figures(figures: AuditFigures) -> Iterator[ReportSection]:
    """Yield a section for each kind of figure that was measured."""
    charts = {
        "shift": (figures.shift,) if figures.shift is not None else (),
        "influence": figures.influence,
        "turns": figures.turns,
    }
    for key, (title, lead) in FIGURES.items():
        if charts[key]:
            panels = tuple(one.draw() for one in charts[key])
            yield ReportSection(key=key, title=title, lead=lead, panels=panels)


def write_title(report: AuditReport) -> str:
    """Return a title with the verdict."""
    counts = _count(report)
    if counts["broken"]:
        names = ", ".join(result.law.replace("_", " ") for result in report.broken)
        return f"{report.model} breaks {_name_laws(counts['broken'])}: {names}"
    if not counts["kept"]:
        return f"{report.model} could be asked no law"
    return f"{report.model} keeps {_name_laws(counts['kept'])}"


def _count(report: AuditReport) -> dict[str, int]:
    statuses = [result.status for result in report.results]
    return {
        "kept": statuses.count("kept"),
        "broken": statuses.count("broken"),
        "not asked": statuses.count("not asked"),
    }


def _name_laws(count: int) -> str:
    return "1 law" if count == 1 else f"{count} laws"


def _list_facts(report: AuditReport) -> dict[str, str]:
    counts = {status: str(count) for status, count in _count(report).items()}
    return {**counts, **report.versions, "seconds": f"{report.seconds:.1f}"}


def _describe_laws(report: AuditReport) -> ReportSection:
    rows = [_describe_law(result) for result in report.results]
    return ReportSection(
        key="laws",
        title="Laws",
        lead="error is the largest difference of logits over the largest absolute logit, and bound "
        "what rounding explains, measured for this model.",
        table=SectionTable(heads=COLUMNS, rows=rows),
        items=[f"{result.law}: {result.statement}" for result in report.results],
    )


def _describe_law(result: LawResult) -> list[str]:
    numbers = ["" if one is None else f"{one:.1e}" for one in (result.error, result.bound)]
    since = "" if result.since is None else f"{result.since:,}"
    is_broken = result.status == "broken"
    status = "**broken**" if is_broken else result.status
    remark = (result.cause or "") if is_broken else (result.reason or "")
    module = "" if result.module is None else f"`{result.module}`"
    return [result.law, status, *numbers, since, module, remark]
