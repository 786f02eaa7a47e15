"""Question pages and the overview, made from recorded comparisons (docs/questions/*/*.json).

`python docs/comparison_pages.py FOLDER resolution/digits` records the comparison in FOLDER under a
new name. `python docs/comparison_pages.py rerun memory/flipflop [VARIANT SEED]` trains one of its
cells again, by default the quickest, and says whether its numbers are equal. Without arguments it
redraws the figures of every recorded comparison. `python docs/pages.py` writes the pages.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image
from quoted_numbers import update_numbers

from zoo import config, registry
from zoo.compare.figures import save_figures
from zoo.compare.grid import list_combinations, parse_varied_keys, split_grid_words
from zoo.compare.hypotheses import format_hypotheses
from zoo.compare.outputs import RESULTS
from zoo.compare.ranking import Standing, rank_variants
from zoo.compare.results import TRAINED, Comparison
from zoo.compare.text import (
    capitalize,
    count_decimals,
    describe_baselines,
    describe_conditions,
    describe_result,
    describe_setup,
    describe_winning_baseline,
    format_costs,
    format_estimate,
    format_question,
    join_names,
    name_condition,
)
from zoo.compare.tuning import describe_tuning, format_tuning
from zoo.config.tree import walk
from zoo.reporting.numbers import format_fixed
from zoo.reporting.tables import format_markdown
from zoo.run.callbacks.manifest import END
from zoo.run.fit import fit

QUESTIONS = Path(__file__).parent / "questions"
PRETRAINED = "pretrained"
"""The page whose records are no comparisons: docs/measured_pages.py writes it."""
MARK = "## Recorded\n"
WARNING = (
    "Recorded at one default setting, untuned; rankings change with coordinates, "
    "embedding scale and learning rate."
)
OLDER = (
    "Recorded with older forms or initial values of grape_m, grape_m_contextual, selective_rope, "
    "and of string and rope_mixed on texts; the changelog names the differences."
)
CHANGED = {"grape_m", "grape_m_contextual", "selective_rope"}
"""Variants by which a page is known to show such results."""

READING = (
    "Rows are sorted by the first column. Values are means over seeds with 95 % intervals. "
    "The last column names what a variant has that most others do not."
)
FIGURES = {
    "ranking": "Mean and 95 % interval over seeds",
    "sizes": "By size",
    "positions": "By position in the window",
}
# Recorded figures are reduced to a palette, which makes the files four times smaller.
PALETTE_COLOURS = 64
# Digits kept of each number: more than any seed repeats on another machine.
KEPT_DIGITS = 6

HELD_EQUAL = "Nothing was tuned: all variants trained with equal settings."
UNTUNED = "**No verdict: recorded at one default setting, untuned.**"

OVERVIEW = """# All encodings at a glance

{opening}

`python docs/pages.py` makes these tables from recorded comparisons of small models. Each number is
a mean over {seeds} seeds; within a column, only the encoding{tuned} differs. Use the
tables to see what has been recorded, not to choose an encoding: run `zoo compare` on your own task
instead. Intervals, seeds and commands are on the pages about [image
resolution](questions/resolution.md), [sequence length](questions/length.md) and [small
tasks](questions/memory.md).

"""


@dataclass(frozen=True)
class Column:
    """One evaluation condition of a recorded comparison, as a column of the overview."""

    path: str
    condition: str
    head: str

    @property
    def comparison(self) -> Comparison:
        return read_comparison(QUESTIONS / f"{self.path}.json")


OVERVIEW_TABLES = {
    "Images": (
        "Test accuracy.",
        Column("resolution/digits", TRAINED, "digits, 16 pixels"),
        Column("resolution/digits", "32", "32"),
        Column("resolution/digits", "64", "64"),
        Column("resolution/cifar10", TRAINED, "CIFAR-10, 32 pixels"),
        Column("resolution/cifar10", "48", "48"),
        Column("resolution/cifar10", "64", "64"),
        Column("resolution/cifar10", "48 by linear", "interpolated, 48"),
        Column("resolution/cifar10", "64 by linear", "interpolated, 64"),
    ),
    "Text": (
        "Test loss in nats.",
        Column("length/shakespeare", TRAINED, "Shakespeare, 128 characters"),
        Column("length/shakespeare", "256", "256"),
        Column("length/shakespeare", "1024", "1024"),
        Column("length/shakespeare_tuned", TRAINED, "Shakespeare, 512 characters"),
        Column("length/shakespeare_tuned", "8192", "8192"),
        Column("length/wikitext2", TRAINED, "WikiText-2, 128 subwords"),
        Column("length/wikitext2", "256", "256"),
        Column("length/wikitext2", "1024", "1024"),
    ),
    "Small tasks": (
        "Test accuracy.",
        Column("memory/flipflop", TRAINED, "flip-flop, 64 tokens"),
        Column("memory/flipflop", "256", "256"),
        Column("memory/flipflop_tuned", TRAINED, "flip-flop, 64 tokens"),
        Column("memory/flipflop_tuned", "256", "256"),
        Column("memory/recall", TRAINED, "recall, 64 tokens"),
        Column("memory/recall", "256", "256"),
        Column("memory/counting", TRAINED, "counting, to 32"),
        Column("memory/counting", "longer", "to 64"),
        Column("memory/selective_copy", TRAINED, "selective copy, 32 blanks"),
        Column("memory/selective_copy", "sparse", "64"),
        Column("memory/passkey", TRAINED, "passkey, 64 words"),
        Column("memory/passkey", "256", "256"),
        Column("memory/copying", TRAINED, "copying, 20 letters"),
        Column("memory/copying", "longer", "40"),
        Column("memory/addition", TRAINED, "addition, 3 digits"),
        Column("memory/addition", "longer", "6"),
    ),
}


@cache
def read_comparison(path: Path) -> Comparison:
    return Comparison.read(path)


def write_overview() -> str:
    """Return the text of docs/overview.md."""
    columns = [one for _, *own in OVERVIEW_TABLES.values() for one in own]
    comparisons = [one.comparison for one in columns]
    counts = sorted({len(one.seeds) for one in comparisons})
    is_tuned = [one.tuning is not None for one in comparisons]
    opening = [
        "" if all(is_tuned) else WARNING,
        OLDER if any(one.zoo_version == "0.1.0" for one in comparisons) else "",
        "Columns marked * are tuned for each encoding." if any(is_tuned) else "",
    ]
    text = OVERVIEW.format(
        opening=" ".join(filter(None, opening)),
        seeds=" or ".join(map(str, counts)),
        tuned=", with the settings that suit it," if any(is_tuned) else "",
    )
    return text + "\n".join(line for title in OVERVIEW_TABLES for line in _overview_table(title))


def _overview_table(title: str) -> Iterator[str]:
    caption, *columns = OVERVIEW_TABLES[title]
    standings = [_standings(column) for column in columns]
    names = sorted({name for column in standings for name in column})

    yield from (f"## {title}", "", caption, "")
    heads = [f"{one.head} *" if one.comparison.tuning else one.head for one in columns]
    yield f"| encoding | {' | '.join(heads)} |"
    yield "|---|" + "---:|" * len(columns)

    for name in names:
        pairs = zip(columns, standings, strict=True)
        cells = (_overview_cell(column, found.get(name)) for column, found in pairs)
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _standings(column: Column) -> dict[str, Standing]:
    standings = rank_variants(column.comparison, column.condition)
    return {_drop_defaults(one.variant.name): one for one in standings}


def _drop_defaults(name: str) -> str:
    """Return a variant's name without the options that have their default value."""
    head, _, options = name.removesuffix(")").partition("(")
    if not options:
        return name
    parameters = inspect.signature(registry.find("encodings", head)).parameters
    pairs = (one.partition("=") for one in options.split(","))
    kept = [
        f"{key}={value}"
        for key, _, value in pairs
        if key not in parameters or value != str(parameters[key].default)
    ]
    return f"{head}({','.join(kept)})" if kept else head


def _overview_cell(column: Column, standing: Standing | None) -> str:
    if standing is None:
        return ""
    if standing.mean is None:
        return _missing_reason(standing)
    return format_fixed(standing.mean.mean, count_decimals(column.comparison))


def _missing_reason(standing: Standing) -> str:
    """Return the first word of the reason why a variant has no value: refused, failed."""
    return standing.missing_reasons[0].partition(":")[0]


def write_question_pages() -> dict[Path, str]:
    """Return {path: text}: each page's own text, then one section per recorded comparison."""
    pages = [page for page in sorted(QUESTIONS.glob("*.md")) if page.stem != PRETRAINED]
    return {page: _question_page(page) for page in pages}


def list_records(folder: str = "*") -> list[Path]:
    """Return the recorded comparisons of a page, or of all, in the order of their names."""
    paths = sorted(QUESTIONS.glob(f"{folder}/*.json"))
    return [path for path in paths if path.parent.name != PRETRAINED]


def _question_page(page: Path) -> str:
    text, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    text = update_numbers(text)
    if not mark:
        return text

    # what is tuned has a verdict, so it comes first
    paths = sorted(list_records(page.stem), key=lambda path: read_comparison(path).tuning is None)
    names = {one.name for path in paths for one in read_comparison(path).variants}
    made = f"Made by `python docs/pages.py` from the files in docs/questions/{page.stem}. {READING}"
    if names & CHANGED:
        made = f"{made} {OLDER}"
    lines = ["", made, ""]
    for path in paths:
        lines += _recorded_section(path)
    return text + MARK + "\n".join(lines)


def _recorded_section(path: Path) -> Iterator[str]:
    """Yield verdict, figure and table of one recorded comparison, and the rest, folded."""
    comparison = read_comparison(path)
    folder = path.parent.name
    pictures = {name: path.with_name(f"{path.stem}_{name}.png") for name in FIGURES}
    pictures = {name: picture for name, picture in pictures.items() if picture.exists()}
    first = "sizes" if "sizes" in pictures else "ranking"

    yield from (f"### {path.stem.replace('_', ' ')}: {format_question(comparison)}", "")
    yield from (_write_verdict(comparison), "")
    yield from (_describe_training(comparison), "")
    if first in pictures:
        yield from (f"![{FIGURES[first]}: {path.stem}]({folder}/{pictures[first].name})", "")
    yield from (_condition_table(comparison), "")
    if baselines := describe_baselines(comparison):
        yield from (f"{baselines}.", "")
    yield from _compare_with_earlier(comparison, path)
    if comparison.hypotheses:
        yield from (re.sub("^## ", "#### ", format_hypotheses(comparison)), "")

    yield from ('<details markdown="1">', "<summary>Other figures, costs, method</summary>", "")
    for name, picture in pictures.items():
        if name != first:
            yield from (f"![{FIGURES[name]}: {path.stem}]({folder}/{picture.name})", "")
    yield from (f"[Every seed and difference]({folder}/{path.stem}.html)", "")
    for text in (format_tuning(comparison), format_costs(comparison)):
        if text:
            yield from (re.sub("^## ", "#### ", text), "")
    yield from (*describe_setup(comparison).splitlines(), "")
    yield from ("</details>", "")


def _compare_with_earlier(comparison: Comparison, path: Path) -> Iterator[str]:
    """Yield how a tuned record differs from the closest untuned one of its recipe, and why."""
    others = [read_comparison(one) for one in list_records(path.parent.name)]
    found = [one for one in others if one.recipe == comparison.recipe and one.tuning is None]
    if comparison.tuning is None or not found:
        return
    before = min(found, key=lambda one: len(_list_changed_settings(one, comparison)))
    earlier = {one.variant.name: one for one in rank_variants(before, TRAINED)}
    rows, kept, changed = [], [], []
    standings = [one for one in rank_variants(comparison, TRAINED) if one.variant.name in earlier]
    for standing in standings:
        name = standing.variant.name
        settings = _list_changes(before, comparison, name)
        (changed if settings else kept).append(name)
        means = _condition_cell(before, earlier[name]), _condition_cell(comparison, standing)
        rows.append([name, *means, ", ".join(settings) or "as before"])
    head = ["encoding", "before, untuned", "now, tuned", "settings found"]

    yield from ("#### Against the earlier record", "")
    yield from (format_markdown(head, rows, (head[0], head[-1])), "")
    why = f"Why: among equal trials, {join_names(changed)} found other settings than before"
    why += f"; {join_names(kept)} kept those. " if kept else ". "
    settings = [*_list_changed_settings(before, comparison).values()]
    steps = [max(cell.steps or 0 for cell in one.cells) for one in (before, comparison)]
    if steps[0] != steps[1]:
        settings.append(f"{steps[1]:,} steps (before {steps[0]:,})")
    why += f"All trained otherwise with {', '.join(settings)}. " if settings else ""
    yield from (
        f"{why}The earlier order followed from the settings, so what was concluded from it about "
        f"{join_names(changed)} is withdrawn.",
        "",
    )


def _list_changed_settings(before: Comparison, now: Comparison) -> dict[str, str]:
    """Return {key: text} of the model's, data's and training's settings that all have changed."""
    searched = {one["key"] for one in now.tuning["keys"]} if now.tuning else set()
    old, new = (dict(walk(one.base)) for one in (before, now))
    return {
        key: _describe_change(key, value, old[key])
        for key, value in new.items()
        # settings that the earlier version had no key for cannot be told to have changed
        if key.startswith(("model.", "data.", "optim.", "trainer.precision"))
        and key in old
        and key not in searched
        if not isinstance(value, dict | list) and not key.startswith("model.encoding.")
        if value != old[key]
    }


def _list_changes(before: Comparison, now: Comparison, name: str) -> list[str]:
    """Return the settings that a variant's tuning found and that differ from those before."""
    # older records have no key for it: all parameters had one learning rate
    old = {"optim.encoding_lr": 1.0, **dict(walk(before.base))}
    found = now.find_settings(name).items()
    return [_describe_change(key, value, old[key]) for key, value in found if value != old[key]]


def _describe_change(key: str, value: object, before: object) -> str:
    texts = [f"{one:g}" if type(one) is float else json.dumps(one) for one in (value, before)]
    return f"`{key}={texts[0]}` (before {texts[1]})"


def _write_verdict(comparison: Comparison) -> str:
    """Return the verdict in a sentence, with its interval and what was tuned.

    Untuned records have none unless they show that their models beat a trivial baseline.
    """
    if warning := describe_winning_baseline(comparison):
        return f"**{warning}**"
    if comparison.tuning is None and not describe_baselines(comparison):
        return UNTUNED
    settings = HELD_EQUAL if comparison.tuning is None else describe_tuning(comparison)
    return f"**{describe_result(comparison, TRAINED)}** {settings}"


def _describe_training(comparison: Comparison) -> str:
    """Say what was trained, for how long, and what it was evaluated under."""
    model, trainer = comparison.base["model"], comparison.base["trainer"]
    sizes = f"{model['depth']} layers of width {model['dim']} with {model['heads']} heads"
    cells = [cell for cell in comparison.cells if cell.minutes is not None]
    steps = sorted({cell.steps for cell in cells if cell.steps})
    lengths = " to ".join(f"{one:,}" for one in dict.fromkeys((steps[0], steps[-1])))
    batch = comparison.base["data"]["batch_size"] * trainer["accumulate_grad_batches"]
    minutes = sum(cell.minutes or 0 for cell in cells) / len(cells)
    others = comparison.conditions[1:]
    evaluated = f"; evaluated also {describe_conditions(comparison, others)}" if others else ""
    return (
        f"Recipe `{comparison.recipe}`: {sizes}, {lengths} steps of {batch} samples, trained "
        f"{describe_conditions(comparison, [TRAINED])}{evaluated}. {len(comparison.variants)} "
        f"variants, {len(comparison.seeds)} seeds: {len(cells)} runs of {minutes:.1f} minutes on "
        f"average, {comparison.machine['jobs']} at a time on {comparison.machine['cores']} cores."
    )


def _condition_table(comparison: Comparison) -> str:
    """Return a table of all variants by all evaluation conditions."""
    conditions_found = comparison.conditions
    standings = [
        {one.variant.name: one for one in rank_variants(comparison, condition)}
        for condition in conditions_found
    ]
    titles = [capitalize(name_condition(comparison, condition)) for condition in conditions_found]
    head = [comparison.axes[0].title, *titles, "differs in"]

    rows = []
    for name, first in standings[0].items():
        cells = [_condition_cell(comparison, found[name]) for found in standings]
        rows.append([name, *cells, ", ".join(first.variant.flag_kinds)])
    return format_markdown(head, rows, (head[0], head[-1]))


def _condition_cell(comparison: Comparison, standing: Standing) -> str:
    if standing.mean is None:
        return _missing_reason(standing)
    return format_estimate(standing.mean, count_decimals(comparison))


def record_comparison(folder: Path, to: Path) -> None:
    """Save the numbers and figures of a comparison folder under `to`, a path without suffix."""
    to.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    text = json.dumps(_round_floats(results), separators=(",", ":"))
    to.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    redraw_figures(to.with_suffix(".json"))


def redraw_figures(path: Path) -> None:
    """Draw the figures of one recorded comparison beside its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        for drawn in save_figures(Comparison.read(path), Path(folder)):
            if drawn.stem in FIGURES:
                _save_with_palette(drawn, path.with_name(f"{path.stem}_{drawn.name}"))


def find_quickest(comparison: Comparison) -> tuple[str, int]:
    """Return variant and seed of the cell that took least time."""
    cells = [
        (cell.minutes, one.name, cell.seed) for one in comparison.variants for cell in one.cells
    ]
    _, name, seed = min((minutes, *rest) for minutes, *rest in cells if minutes is not None)
    return name, seed


def rerun_cell(
    comparison: Comparison, name: str, seed: int, folder: Path
) -> dict[str, tuple[float | None, float | None]]:
    """Train one cell again in a folder; return {metric: (recorded, now)} of those that differ."""
    words, _ = split_grid_words(shlex.split(comparison.command)[3:])
    found = next(one for one in list_combinations(parse_varied_keys(words, [])) if one.name == name)
    overrides = [*found.overrides, f"seed={seed}"]
    settings = comparison.find_settings(name).items()
    overrides += [f"{key}={json.dumps(value)}" for key, value in settings]
    if comparison.base["trainer"]["num_threads"] in (None, "auto"):
        overrides.append(f"trainer.num_threads={comparison.machine['threads']}")
    base = folder / f"{comparison.recipe}.yaml"
    base.write_text(config.dump(comparison.base), encoding="utf-8")
    fit(str(base), overrides, folder / "run", "never")

    end = json.loads((folder / "run" / END).read_text(encoding="utf-8"))
    variant = next(one for one in comparison.variants if one.name == name)
    recorded = next(cell for cell in variant.cells if cell.seed == seed).metrics[TRAINED]
    now = _round_floats(end["metrics"])
    pairs = {key: (value, now.get(key)) for key, value in _round_floats(dict(recorded)).items()}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _report_rerun(words: list[str]) -> int:
    """Rerun the cell that the words name; return the exit code: 1 if a number differs."""
    comparison = read_comparison(QUESTIONS / f"{words[0]}.json")
    name, seed = (words[1], int(words[2])) if words[1:] else find_quickest(comparison)
    with tempfile.TemporaryDirectory() as folder:
        different = rerun_cell(comparison, name, seed, Path(folder))
    for metric, (recorded, now) in different.items():
        print(f"{metric}: recorded {recorded}, now {now}")
    print(
        f"{words[0]}, {name}, seed {seed}: {'differs' if different else 'equal to the last digit'}"
    )
    return int(bool(different))


def _save_with_palette(drawn: Path, to: Path) -> None:
    with Image.open(drawn) as image:
        reduced = image.convert("RGB").quantize(
            PALETTE_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        )
    reduced.save(to, optimize=True)


def _round_floats(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{KEPT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _round_floats(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_round_floats(each) for each in value]
    return value


if __name__ == "__main__":
    if sys.argv[1:2] == ["rerun"]:
        sys.exit(_report_rerun(sys.argv[2:]))
    elif sys.argv[1:]:
        record_comparison(Path(sys.argv[1]), QUESTIONS / sys.argv[2])
    else:
        for recorded in list_records():
            redraw_figures(recorded)
