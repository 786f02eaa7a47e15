"""Reports whose sections are written once, for Markdown and for pages."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.reporting.tables import disarm_tags, format_markdown
from zoo.utils import escape_strings, write_file

if TYPE_CHECKING:
    from zoo.reporting.panel import Panel
    from zoo.reporting.style import Chart

TEMPLATE = "reporting/templates/report.html"


@dataclass(frozen=True, kw_only=True)
class SectionTable:
    """A table of texts.

    Attributes:
        heads: Names of the columns.
        rows: Texts of the cells.
        left: Names of columns that are aligned to the left; others are aligned to the right.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """A section of a report.

    Attributes:
        key: Its anchor in a page.
        title: Its heading.
        lead: A sentence under the heading of a page.
        table: The table that it opens with.
        sentences: Sentences below the table, a line each.
        items: Items of a list at its end.
        links: {text of a first cell: address of the page that it links to}.
        panels: Charts below its table, which pages have and Markdown has not.
    """

    key: str
    title: str
    lead: str = ""
    table: SectionTable | None = None
    sentences: Sequence[str] = ()
    items: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    panels: Sequence[Panel] = ()


@dataclass(frozen=True, kw_only=True)
class SectionedReport:
    """A report: the first of its sections stands right under its title.

    Attributes:
        kind: What it is, such as "suite".
        title: Its title.
        about: Its question.
        facts: {name: value} of what it is about, which pages have and Markdown has not.
        warnings: What a reader has to know first.
        sections: Its sections, in their order.
        figure: The sentence under the picture of a page; empty without one.
        command: What repeats it.
    """

    kind: str
    title: str
    about: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    sections: Sequence[ReportSection]
    figure: str = ""
    command: str = ""


def format_report(report: SectionedReport) -> str:
    """Format a report as Markdown."""
    report = escape_strings(report)
    opening, *further = report.sections
    blocks = [f"# {report.title}", *(f"**{warning}**" for warning in report.warnings)]
    blocks += [report.about, *_list_blocks(opening)]
    blocks += map(format_section, further)
    blocks.append(f"Repeat it with: {report.command}" if report.command else "")
    return "\n\n".join(filter(None, blocks))


def format_section(section: ReportSection) -> str:
    """Format a section as Markdown, with its title as heading."""
    return "\n\n".join(filter(None, [f"## {section.title}", *_list_blocks(section)]))


def _list_blocks(section: ReportSection) -> Iterator[str]:
    if section.table is not None:
        yield format_markdown(section.table.heads, section.table.rows, section.table.left)
    yield "\n".join(section.sentences)
    yield "\n".join(f"- {item}" for item in section.items)


def render_report(
    report: SectionedReport, picture: bytes | None, styles: tuple[str, ...] = ()
) -> str:
    """Return a report as HTML: it opens from a file, and no request goes out from it.

    Args:
        report: The report.
        picture: Its figure as PNG; None if it has none.
        styles: Style sheets of the page, in addition to the shared one.
    """
    # jinja takes its time to import
    from zoo.reporting.html import render_page

    figures = {}
    if any(section.panels for section in report.sections):
        # the renderer of charts is not needed without any
        from zoo.reporting.render import draw_figures

        figures = {section.key: draw_figures(section.panels) for section in report.sections}
    return render_page(
        TEMPLATE,
        styles=styles,
        scripts=(),
        data={},
        report=report,
        kind=report.kind,
        title=report.title,
        picture="" if picture is None else base64.b64encode(picture).decode(),
        sections=report.sections,
        drawn=figures,
    )


def write_report(
    report: SectionedReport,
    folder: Path,
    *,
    name: str,
    page: str,
    texts: Mapping[str, str],
    draw: Callable[[], Chart] | None,
    styles: tuple[str, ...] = (),
) -> None:
    """Write a report as Markdown, as a page and as a figure in each format.

    Args:
        report: The report.
        folder: The output folder.
        name: Name of the Markdown file and of the figures, without a suffix.
        page: Name of the page.
        texts: {name of another file: its text}.
        draw: Draws the figure; None if there is none.
        styles: Style sheets of the page, in addition to the shared one.
    """
    texts = {f"{name}.md": f"{disarm_tags(format_report(report))}\n", **texts}
    _write_files({file: content.encode() for file, content in texts.items()}, folder)
    # after the numbers: the renderer may end the process where memory is short
    pictures = {} if draw is None else _render_figure(name, draw)
    html = render_report(report, pictures.get(f"{name}.png"), styles)
    _write_files({page: html.encode(), **pictures}, folder)


def _render_figure(name: str, draw: Callable[[], Chart]) -> dict[str, bytes]:
    """Return {name of a file: its content} of a figure in each format."""
    # altair takes its time to import
    from zoo.reporting import charts

    return {f"{name}{suffix}": content for suffix, content in charts.render_formats(draw()).items()}


def _write_files(contents: Mapping[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_file(io.BytesIO(content), folder / name)
