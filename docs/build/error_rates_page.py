"""The page of error rates, from docs/records/error_rates.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from zoo.comparison.statistics import LEVEL
from zoo.reporting.tables import format_markdown

RECORD = Path(__file__).parents[1] / "records" / "error_rates.json"
TITLE = "# How often equal variants are called worse"
ABOUT = """
`python tests/benchmarks/error_rates.py` simulates comparisons of variants that are equal, and
counts those in which any variant is called worse than the best: {promised} are promised. *Before*
is the rule of version 0.3.0, which had no guards: intervals could have a width of zero, many
variants were judged by three seeds, and steps of the metric and permutations did not count. A rate
of {draws:,} draws has a standard error of {error} at {promised}. `python docs/build/pages.py`
writes this page from `docs/records/error_rates.json`. [How intervals are
made](comparing.md#how-to-read-intervals).

What is simulated is noise over seeds for one test set. A verdict says nothing about other test
sets, data or sizes of models.
"""
KINDS = """
*Found* is the share of the other variants that are called worse than one that is better by 0.04,
four standard deviations of the normal noise: the power. Where seeds split or tails are heavy, 0.04
is far less than the noise. Six or more variants with three seeds have no verdict at all.
"""
RACES = """
Races of {variants} equal variants that plan {studies} studies, with looks after 3 and 5: how often
a race drops one.
"""
GROWTH = """
Four variants with three seeds that get ten in the same folder, judged both times. The first look
has 5 % of false alarms, the second one 2.5 %.
"""
CONDITIONS = """
Pages of four variants, five seeds and five conditions: how often any verdict is wrong.
"""
DROPS = """
A claim about a larger size, with four variants of which the claimed one is better by 0.04 at both
sizes: it loses no less than the others, and the claim is wrong. *Before* is the difference at the
larger size alone; *now* asks that the drops from the trained size differ as well. *Found* is how
often the claim is held where only the others lose 0.04.
"""
EQUALITY = """
Two one-sided tests among four variants. *Wrong now* is how often two variants that differ by
exactly the margin, 0.04, are called equal within it; *found* is how often equal ones are. Version
0.3.0 had no such verdict.
"""


def write_error_rates_page() -> str:
    """Return docs/error_rates.md."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    setting = record["setting"]
    draws, alpha = setting["draws_of_kinds"], 1 - LEVEL
    about = ABOUT.format(
        promised=_percent(alpha), draws=draws, error=_percent(sqrt(alpha * LEVEL / draws))
    )
    races = RACES.format(variants=setting["variants"], studies=setting["studies"])
    parts = [
        TITLE,
        about,
        "## Kinds of noise",
        KINDS,
        _write_table(record["kinds"], {"variants": "variants", "seeds": "seeds"}, "others_worse"),
        "",
        "## Races",
        races,
        _write_table(record["raced_kinds"], {}),
        "",
        "## A comparison that is made longer",
        GROWTH,
        _write_table(record["growth"], {}, "promised"),
        "",
        "## Several conditions",
        CONDITIONS,
        _write_table(record["conditions"], {}),
        "",
        "## Claims about larger sizes",
        DROPS,
        _write_table(record["drops"], {"seeds": "seeds"}, "found"),
        "",
        "## Equality within a margin",
        EQUALITY,
        _write_table(record["equality"], {"seeds": "seeds"}, "found"),
    ]
    return "\n".join(parts) + "\n"


HEADS = {"others_worse": "found", "promised": "promised", "found": "found"}


def _write_table(
    rows: list[dict[str, Any]], keys: Mapping[str, str], last: str | None = None
) -> str:
    has_before = "wrong_before" in rows[0]
    heads = ["noise", *keys.values(), *["wrong before"][:has_before], "wrong now"]
    heads += [HEADS[last]] if last else []
    cells = [[*_list_cells(row, keys, last)] for row in rows]
    return format_markdown(heads, cells, ["noise"])


def _list_cells(row: Mapping[str, Any], keys: Mapping[str, str], last: str | None) -> Iterator[str]:
    yield row["noise"]
    yield from (str(row[key]) for key in keys)
    if "wrong_before" in row:
        yield _percent(row["wrong_before"])
    yield _percent(row["wrong"])
    if last:
        yield _percent(row[last])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
