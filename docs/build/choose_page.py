"""The guide "Which encoding should I take?" (docs/choose.md), and the results of the README.

`python docs/build/pages.py` writes both from docs/claims.yaml, docs/records, docs/speed and the
table of equipped models. Only comparisons in studies answer a question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import equip_page
from claims_page import NO_EVIDENCE
from evidence_data import DOCS, Convention, Evidence
from evidence_rows import Row, build_rows, find_subject
from quoted_numbers import look_up
from recipe_heads import read_head

from zoo.benchmark.result import BenchResult
from zoo.comparison.text import join_names
from zoo.comparison.training_end import FLAT
from zoo.config import recipe_files
from zoo.reporting.numbers import NOTHING
from zoo.reporting.tables import format_markdown

PAGE = DOCS / "choose.md"
README = DOCS.parent / "README.md"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
MOST_ROWS = 8
HEAD = (
    "what you need",
    "best encoding",
    "not excluded: difference to the best",
    "trivial baseline",
    "studies",
)
TEXT = {"step": "lm_small", "memory": "lm_small_memory", "decoding": "lm_small_decode"}
IMAGES = {"step": "vit_s"}
"""{title: table of speed}."""
CONVENTION_KEYS = ("coordinates", "model.scale_embeddings", "optim.encoding_lr")
ABOUT = """# Which encoding should I take?

All numbers of a row were measured on the same samples, in the same metric, by comparisons that tune
every encoding in each study. There is no answer yet if fewer than three studies are recorded, or if
no encoding beats a trivial baseline, on the samples of the row or at the training size. Where an
image is larger than in training, the baselines include softmax regression on images *resized* to
the training size.

"""
READING = f"""*Best* is the encoding with the best mean, with its 95 % interval. *Not excluded* are
encodings that may be as good: the interval of their difference to the best holds 0. These
intervals hold for all pairs of encodings together (Tukey, Kramer), at the level that was planned
for the look at so many studies. [The claims of papers](claims.md) have the set-up
and all values; they judge a pair by the noise of its own two encodings, which is stricter.

There is no answer either where some encoding was *not trained to the end*: its validation metric
still changed by more than {100 * FLAT:.0f} % between the last two recorded validations, so that
longer training may rank otherwise. Where some studies solve a task and others are far from it, the
row has how many did in place of an interval of their mean.

"""
COSTS = """## What it costs, and where it works

*Existing models* counts the kinds of models in [the table](equip.md) that the encoding fits.

### Text

Relative to `rope`: a training step, the memory of training, and decoding one token after 4,096
others with a cache. \u2013: not measured.

"""
IMAGE_COSTS = """
### Images

A training step relative to `none`.

"""
ORIGIN = """Written by `python docs/build/pages.py` from the comparisons in `docs/records`, the
recorded [speed](speed.md) and the table of [equipped models](equip.md)."""
RESULTS = """From tuned studies: [which encoding should I take?](docs/choose.md), [claims of
papers](docs/claims.md). All numbers of a row were measured on the same samples. Means have 95 %
intervals; an encoding is *not excluded* if the interval of its difference to the best holds 0.
Where some encoding was not trained to the end, there is no answer.

"""
DEFAULTS = """
## What you measured was a default

Before you compare encodings, know what their conventions are worth. Each row changes one
convention of one encoding, and nothing else but what it says. A comparison at one default may rank
defaults, not encodings. Single runs have no interval.

"""


def write_guide(evidence: Evidence) -> str:
    """Return docs/choose.md."""
    rows = [
        [*_list_cells(row), row.measured, f"[set-up](claims.md#{row.source.comparison})"]
        for row in build_rows(evidence)
    ]
    head = [*HEAD, "measured by", "details"]
    lines = [ABOUT + format_markdown(head, rows, head), "", READING + COSTS + _cost_table(TEXT)]
    lines += [IMAGE_COSTS + _cost_table(IMAGES)]
    lines += [DEFAULTS + _convention_table(evidence.conventions), "", _judge_axes(evidence)]
    lines += ["", ORIGIN]
    return "\n".join(lines) + "\n"


def _list_cells(row: Row) -> list[str]:
    """Return the cells of a row that the guide and the README have."""
    return [row.need, row.format_best(), row.format_others(), row.format_baselines(), row.studies]


def _cost_table(columns: Mapping[str, str]) -> str:
    """Return what each encoding of some speed tables costs, and where it works.

    Args:
        columns: {title: name of a table in docs/speed}.
    """
    ratios = {title: _read_ratios(name) for title, name in columns.items()}
    page = equip_page.PAGE.read_text(encoding="utf-8")
    families = equip_page.read_answers(equip_page.read_table(page))
    rows = []
    for name in sorted(set().union(*ratios.values())):
        answers = [column.get(name) for column in families.values()]
        # a chain such as kerple+dape has no row of its own there
        fits = sum(answer in ("yes", "index") for answer in answers)
        known = any(answer is not None for answer in answers)
        row = [found.get(name, NOTHING) for found in ratios.values()]
        rows.append([f"`{name}`", *row, f"{fits} of {len(answers)}" if known else "see its parts"])
    head = ["encoding", *ratios, "existing models"]
    return format_markdown(head, rows, head[:1])


def _read_ratios(name: str) -> dict[str, str]:
    """Return {encoding: ratio to the reference} of a table of speed, without other libraries."""
    result = BenchResult.read(DOCS / "speed" / f"{name}.json")
    return {
        row.name: f"{row.ratio:.2f}"
        for row in result.rows
        if row.ratio is not None and not row.library
    }


def _convention_table(conventions: tuple[Convention, ...]) -> str:
    """Return a row for each convention.

    Raises:
        ValueError: The two numbers of a row were not measured on the same.
    """
    for one in conventions:
        before, after = find_subject(one.before), find_subject(one.after)
        if before != after:
            raise ValueError(f"{one.convention}: {before} before, and {after} after")
    rows = [
        [one.convention, one.what, one.one, _quote(one.before), one.other, _quote(one.after)]
        for one in conventions
    ]
    head = ["convention", "measured", "before", "value before", "after", "value after"]
    return format_markdown(head, rows, head)


def _quote(origin: str) -> str:
    """Return a recorded number by where it is looked up, or that of the head of a recipe."""
    source, _, query = origin.partition(": ")
    if source == "recipe":
        name, _, metric = query.partition(" ")
        number = read_head(recipe_files()[name])["number"]
        return number.partition(f"{metric} ")[2].partition(",")[0]
    return look_up(origin)


def _judge_axes(evidence: Evidence) -> str:
    """Name the recorded comparisons that vary a convention along with the encodings."""
    found = []
    for name in evidence.comparisons:
        comparison = evidence.read_comparison(name)
        keys = [] if comparison is None else [axis.key for axis in comparison.axes]
        if any(key.endswith(CONVENTION_KEYS) for key in keys):
            found.append(f"[{name}](claims.md#{name})")
    if not found:
        return f"Conventions as an axis of tuned studies, of several encodings: {NO_EVIDENCE}."
    return f"Conventions are an axis of these comparisons in studies: {', '.join(found)}."


def write_results(evidence: Evidence) -> str:
    """Return the results of the README: a row for each need with an answer, then the others."""
    assert len(evidence.needs) <= MOST_ROWS, "the README has eight rows at most"
    rows = build_rows(evidence)
    answered = [[*_list_cells(row), row.measured] for row in rows if not row.problem]
    head = [*HEAD, "measured by"]
    table = [format_markdown(head, answered, head), ""] if answered else []
    return RESULTS + "\n".join([*table, *_describe_open(rows, evidence)]) + "\n"


def _describe_open(rows: Sequence[Row], evidence: Evidence) -> Iterator[str]:
    """Yield a sentence about needs without an answer, and one about what is to be recorded."""
    unanswered = [row for row in rows if row.best and row.problem]
    for row in unanswered:
        yield f"For {row.need}, there is {row.problem} ([values](docs/choose.md))."
    waiting = [row for row in rows if row.problem and not row.best]
    sources = {source.comparison for need in evidence.needs for source in need.sources}
    tasks = [
        declared.task
        for name, declared in evidence.comparisons.items()
        if name in sources and evidence.read_comparison(name) is None
    ]
    if waiting:
        needs = join_names([row.need for row in waiting], len(waiting))
        yield f"No answer yet for {needs}."
    if tasks:
        shown = join_names([f"*{task}*" for task in tasks], len(tasks))
        yield f"Comparisons that are declared and not recorded yet: {shown}."


def replace_results(readme: str, evidence: Evidence) -> str:
    """Return the README with its results as the records have them."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md: no {BEGIN.strip()} ... {END.strip()}")
    return f"{before}{begin}\n{write_results(evidence)}\n{end}{after}"


def write_pages(evidence: Evidence) -> dict[Path, str]:
    """Return {path: text} of the guide."""
    return {PAGE: write_guide(evidence)}
