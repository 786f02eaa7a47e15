"""Numbers in prose that are looked up in recorded files; `python docs/build/pages.py` writes them.

docs/quoted_numbers.toml lists, by page, pieces of text and where their numbers are looked up:

    ["docs/questions/costs.md"]
    "t5 took {} in another run" = "speed/lm_small_peers: ratio t5"
    "from {} to {} tokens" = ["speed/vit_s: shape.length", "speed/vit_s: shape.dim"]

`{}` stands for a number, or for a number with its interval or a verdict where these are looked up.
A piece of text is in its page exactly once, however its lines are broken, and a number keeps the
decimals that it is written with. Before the colon is a file below docs/; after it, what to look up:

    mean VARIANT [at CONDITION]     of a comparison, over seeds; spaces in names are written as _
    interval VARIANT [at CONDITION] likewise, the mean with its interval, or of split seeds with
                                    how many solved the task
    ratio NAME                      of a benchmark: its first ratio to the reference
    least NAME..., most NAME...     the lowest and the highest of these ratios
    share NAME over OTHER           how many more parameters it has, in percent
    key.path, key.path / key.path   any number of the file, or a quotient
    highest key.*.path, lowest ...  of all that a path with * finds, in percent
    baseline NAME [at CONDITION]    of a comparison, over seeds, on the samples of the condition
    claim HYPOTHESIS                of a comparison: the verdict of docs/claims.md, and the
                                    difference with its interval; it stands in place of a number
    count encodings                 with `zoo` in place of a file: registered members of a kind
    packages                        likewise: those that zoo is installed with

A test checks that the hand-written prose of the README and the question pages has no other number,
in figures or in words, than these and the facts that the test lists. `python
docs/build/quoted_numbers.py` counts the quoted numbers.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from claims_page import judge_hypothesis
from evidence_data import Evidence, read_evidence, read_record

from zoo import packages, registry
from zoo.benchmark.result import BenchResult
from zoo.comparison.number_text import count_decimals, format_mean
from zoo.comparison.plan import PLAN
from zoo.comparison.ranking import average_baselines, collect_values, rank_variants
from zoo.comparison.results import Comparison

DOCS = Path(__file__).parents[1]
QUOTES = DOCS / "quoted_numbers.toml"
MARK = "## Recorded\n"
PLACE = "{}"
"""Stands for a number in a piece of text."""
WORDS = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty-\w+|twenty|thirty"
    r"|forty|fifty|sixty|seventy|eighty|ninety|hundreds?|thousands?|millions?|dozens?|twice|thrice"
    r"|half|halves|thirds?|quarters?|double[ds]?|triple[ds]?)\b",
    re.IGNORECASE,
)
"""Numbers written as words; `one` is none, as it is a pronoun too."""
NAMES = re.compile(r"[A-Za-z][\w+-]*\d[\w+-]*")
FIGURES = re.compile(r"\d[\d,]*(?:\.\d+)?")
NUMBER = r"[+\u2212-]?\d[\d,]*(?:\.\d+)?"
INTERVAL = rf"{NUMBER}\s+\((?:{NUMBER}\s+to\s+{NUMBER}|solved\s+\d+\s+of\s+\d+)\)"
VERDICT = rf"[a-z][a-z'\s]*(?:,\s+{INTERVAL})?"
PATTERNS = {"interval": INTERVAL, "claim": VERDICT}
"""{first word of what is looked up: what stands in the text}; a number for all others."""


@dataclass(frozen=True)
class Quote:
    """A piece of text with numbers, and where they are looked up.

    Attributes:
        page: The page, relative to the root of the repository.
        text: The text; each `{}` stands for a number.
        sources: Where each number is looked up: "speed/lm_small: ratio t5".
    """

    page: str
    text: str
    sources: tuple[str, ...]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds the text with any numbers, however its lines are broken."""
        pieces = [
            r"\s+".join(map(re.escape, re.split(r"\s+", piece))) for piece in self.text.split(PLACE)
        ]
        kinds = [PATTERNS.get(_split_source(one)[1].split()[0], NUMBER) for one in self.sources]
        places = [f"({kind})" for kind in kinds]
        joined = "".join(part for pair in zip(pieces, [*places, ""], strict=True) for part in pair)
        # a number at an end is a whole one
        return re.compile(rf"(?<![\w.,]){joined}(?![\w]|[.,]\d)")

    def find(self, text: str) -> re.Match[str]:
        """Return where a page has the text. Raises ValueError if that is not in one place."""
        found = [*self.pattern.finditer(text)]
        if len(found) != 1:
            problem = f"stands there {len(found)} times, and must stand there once"
            raise ValueError(f"{self.page}: {self.text!r} of {QUOTES.name} {problem}")
        return found[0]


def read_quotes(path: Path = QUOTES) -> dict[str, tuple[Quote, ...]]:
    """Return the quotes of each page.

    Raises:
        ValueError: A text has another number of places than of sources.
    """
    quotes: dict[str, tuple[Quote, ...]] = {}
    for page, entries in tomllib.loads(path.read_text(encoding="utf-8")).items():
        found = [
            Quote(page, text, (sources,) if isinstance(sources, str) else tuple(sources))
            for text, sources in entries.items()
        ]
        for quote in found:
            if quote.text.count(PLACE) != len(quote.sources):
                problem = f"{len(quote.sources)} sources for {quote.text.count(PLACE)} numbers"
                raise ValueError(f"{page}: {quote.text!r}: {problem}")
        quotes[page] = tuple(found)
    return quotes


def update_numbers(text: str, quotes: Iterable[Quote]) -> str:
    """Return the text of a page with every quoted number as its file has it.

    Raises:
        ValueError: A quote is not in the text once, or what it names is not found.
    """
    replaced = {}
    for quote in quotes:
        found = quote.find(text)
        for number, source in enumerate(quote.sources, start=1):
            new = look_up(source, found[number])
            # where lines are broken within an interval, they stay
            if new.split() != found[number].split():
                replaced[found.span(number)] = new
    for (start, end), value in sorted(replaced.items(), reverse=True):
        text = text[:start] + value + text[end:]
    return text


def look_up(source: str, written: str = "0.0000") -> str:
    """Return a quoted number or verdict as its file has it.

    Args:
        source: Where it is looked up: "speed/lm_small: ratio t5".
        written: The number as it is written, whose decimals are kept.

    Raises:
        ValueError: Nothing is found there.
    """
    decimals = len(written.partition(".")[2])
    file, query = _split_source(source)
    word, _, rest = query.partition(" ")
    try:
        if word == "claim":
            return _find_claim(locate(file), rest)
        if word == "interval":
            return _find_interval(locate(file), *rest.split(maxsplit=2))
        value = _evaluate(file, query)
    except (KeyError, IndexError, TypeError, StopIteration) as error:
        raise ValueError(f"{source}: nothing is found: {error!r}") from None
    return f"{value:,.{decimals}f}"


def _split_source(source: str) -> tuple[str, str]:
    """Return the file and the query of a source."""
    file, _, query = source.partition(": ")
    return file, query


def _evaluate(source: str, query: str) -> float:
    word, *rest = query.split()
    if source == "zoo":
        return len(packages.REQUIRED if word == "packages" else registry.names(rest[0]))
    path = locate(source)
    if word in ("ratio", "least", "most"):
        picks: dict[str, Callable[[list[float]], float]] = {"least": min, "most": max}
        ratios = [_find_ratio(_read_bench(path), name) for name in rest]
        return picks.get(word, min)(ratios)
    if word == "share":
        own, other = (_find_parameters(_read_json(path), name) for name in (rest[0], rest[2]))
        return 100 * (own / other - 1)
    if word == "baseline":
        name, _, condition = query.removeprefix("baseline ").partition(" at ")
        comparison = read_record(path)
        found = comparison.find_condition(condition or "trained")
        return average_baselines(comparison, found)[name.replace("_", " ")]
    if word == "mean":
        return _find_mean(read_record(path), rest[0], " ".join(rest[2:]))
    plain = _read_json(path) if path.is_file() else read_record(path).to_dict()
    if word in ("highest", "lowest"):
        extreme = max if word == "highest" else min
        return 100 * extreme(_walk_all(plain, rest[0].split(".")))
    value, *divisors = (_walk(plain, part) for part in query.split(" / "))
    return value / divisors[0] if divisors else value


def locate(source: str) -> Path:
    """Return the path of a recorded file or comparison by its name in a source."""
    folder = DOCS if source.startswith(("speed/", "equip/", "records/")) else DOCS / "questions"
    if (folder / source / PLAN).exists():
        return folder / source
    return folder / f"{source}.json"


@cache
def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def _read_bench(path: Path) -> BenchResult:
    return BenchResult.read(path)


def _find_ratio(result: BenchResult, name: str) -> float:
    if name == result.reference:
        return 1.0
    found = next(row.ratio for row in result.rows if row.name.replace(" ", "_") == name)
    if found is None:
        raise KeyError(name)
    return found


def _find_parameters(plain: Any, name: str) -> float:
    if "rows" in plain:
        return next(row["parameters"] for row in plain["rows"] if row["name"] == name)
    cells = next(one["cells"] for one in plain["variants"] if one["name"] == name)
    return cells[0]["parameters"]


def _find_mean(comparison: Comparison, name: str, condition: str) -> float:
    variant = next(one for one in comparison.variants if one.name.replace(" ", "_") == name)
    found = comparison.find_condition(condition or "trained")
    return fmean(collect_values(variant, found, comparison.measure).values())


def _find_interval(path: Path, name: str, at: str = "", condition: str = "trained") -> str:
    comparison = read_record(path)
    standings = rank_variants(comparison, comparison.find_condition(condition))
    found = next(one for one in standings if one.variant.name.replace(" ", "_") == name)
    if found.mean is None:
        raise KeyError(condition)
    return format_mean(found.mean, found.solved, count_decimals(comparison))


@cache
def _read_evidence() -> Evidence:
    return read_evidence()


def _find_claim(path: Path, hypothesis: str) -> str:
    judged = judge_hypothesis(hypothesis, path.name, _read_evidence())
    return f"{judged.verdict}, {judged.difference}" if judged.difference else judged.verdict


def _walk(plain: Any, path: str) -> float:
    for part in path.strip().split("."):
        plain = plain[int(part)] if isinstance(plain, list) else plain[part]
    return plain


def _walk_all(plain: Any, keys: Sequence[str]) -> Iterator[float]:
    """Yield all numbers that a path finds; * stands for every entry of a list."""
    if not keys:
        yield plain
        return
    first, *rest = keys
    entries = plain if first == "*" else [plain[int(first) if first.isdecimal() else first]]
    for one in entries:
        yield from _walk_all(one, rest)


def list_unquoted(text: str, quotes: Iterable[Quote] = (), facts: Iterable[str] = ()) -> list[str]:
    """Return the lines of prose that have a number without a source, in figures or in words.

    Args:
        text: Markdown. Code, link targets and pictures are no prose.
        quotes: Pieces of the text whose numbers are looked up.
        facts: Texts with numbers that need no source, as they are held by other tests.
    """
    spans = []
    for quote in quotes:
        found = quote.find(text)
        spans += [found.span(number) for number in range(1, len(quote.sources) + 1)]
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + text[end:]
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "", text)
    for fact in facts:
        text = re.sub(re.escape(fact).replace(r"\ ", r"\s+"), "", text)
    lines = NAMES.sub("", text).splitlines()
    return [line for line in lines if re.search(r"\d", line) or WORDS.search(line)]


def count_made(text: str) -> int:
    """Return how many numbers stand in the made parts of a page: tables, and what is recorded."""
    own, _, recorded = text.partition(MARK)
    rows = [line for line in own.splitlines() if line.startswith("| ")]
    return len(FIGURES.findall(NAMES.sub("", "\n".join([*rows, recorded]))))


if __name__ == "__main__":
    pages = [DOCS.parent / "README.md", *DOCS.glob("questions/*.md")]
    made = sum(count_made(page.read_text(encoding="utf-8")) for page in pages)
    quoted = sum(len(quote.sources) for own in read_quotes().values() for quote in own)
    print(f"{quoted} numbers in prose looked up, {made} in tables and in what is made")
