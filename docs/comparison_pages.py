"""Write the question pages from recorded comparisons (docs/questions/*/*.json).

Pages show comparisons that tuned each encoding. Those that did not are kept, unpublished, in
docs/records/withdrawn.

`python docs/comparison_pages.py FOLDER memory/flipflop` records the comparison in FOLDER under a
new name. `python docs/comparison_pages.py rerun docs/questions/memory/flipflop_tuned.json [VARIANT
SEED]` trains one of its cells again, by default the quickest, and prints whether its numbers are
equal. Without arguments it redraws the figures of every recorded comparison. `python docs/pages.py`
writes the pages.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image
from quoted_numbers import update_numbers

from zoo import config
from zoo.comparison.figures import save_figures
from zoo.comparison.grid import list_combinations
from zoo.comparison.hypotheses import format_hypotheses
from zoo.comparison.outputs import RESULTS
from zoo.comparison.ranking import Standing, rank_variants
from zoo.comparison.results import Comparison
from zoo.comparison.text import (
    capitalize,
    count_decimals,
    describe_baselines,
    describe_conditions,
    describe_result,
    describe_winning_baseline,
    format_part,
    format_question,
    format_standing,
)
from zoo.config import Change
from zoo.options.plain import to_plain
from zoo.reporting.tables import format_markdown
from zoo.run.callbacks.manifest import END
from zoo.run.fit import fit

QUESTIONS = Path(__file__).parent / "questions"
PRETRAINED = "pretrained"
"""The page whose records are no comparisons: docs/measured_pages.py writes it."""
MARK = "## Recorded\n"
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


@cache
def read_comparison(path: Path) -> Comparison:
    return Comparison.read(path)


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

    source = f"Written by `python docs/pages.py` from the files in docs/questions/{page.stem}."
    lines = ["", f"{source} {READING}", ""]
    for path in list_records(page.stem):
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
    yield from (describe_training(comparison), "")
    if first in pictures:
        yield from (f"![{FIGURES[first]}: {path.stem}]({folder}/{pictures[first].name})", "")
    yield from (_condition_table(comparison), "")
    if baselines := describe_baselines(comparison):
        yield from (f"{baselines}.", "")
    if comparison.hypotheses:
        yield from (re.sub("^## ", "#### ", format_hypotheses(comparison)), "")

    yield from ('<details markdown="1">', "<summary>Other figures, costs, method</summary>", "")
    for name, picture in pictures.items():
        if name != first:
            yield from (f"![{FIGURES[name]}: {path.stem}]({folder}/{picture.name})", "")
    yield from (f"[Every seed and difference]({folder}/{path.stem}.html)", "")
    for text in (format_part(comparison, "tuning"), format_part(comparison, "costs")):
        if text:
            yield from (re.sub("^## ", "#### ", text), "")
    yield from (*format_part(comparison, "setup").splitlines(), "")
    yield from ("</details>", "")


def _write_verdict(comparison: Comparison) -> str:
    """Return the result in one sentence, with its interval, and how variants were tuned."""
    if warning := describe_winning_baseline(comparison):
        return f"**{warning}**"
    result = describe_result(comparison, comparison.trained)
    return f"**{result}** {format_part(comparison, 'tuning_sentence')}"


def describe_training(comparison: Comparison) -> str:
    """Say what was trained, for how long, and what it was evaluated under."""
    model, trainer = comparison.base["model"], comparison.base["trainer"]
    layers = "1 layer" if model["depth"] == 1 else f"{model['depth']} layers"
    sizes = f"{layers} of width {model['dim']} with {model['heads']} heads"
    cells = [cell for cell in comparison.cells if cell.minutes is not None]
    steps = sorted({cell.steps for cell in cells if cell.steps})
    lengths = " to ".join(f"{one:,}" for one in dict.fromkeys((steps[0], steps[-1])))
    batch = comparison.base["data"]["batch_size"] * trainer["accumulate_grad_batches"]
    minutes = sum(cell.minutes or 0 for cell in cells) / len(cells)
    others = comparison.conditions[1:]
    evaluated = f"; evaluated also {describe_conditions(others)}" if others else ""
    return (
        f"Recipe `{comparison.recipe}`: {sizes}, {lengths} steps of {batch} samples, trained "
        f"{describe_conditions([comparison.trained])}{evaluated}. {len(comparison.variants)} "
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
    titles = [capitalize(condition.describe()) for condition in conditions_found]
    head = [comparison.axes[0].title, *titles, "differs in"]

    rows = []
    for name, first in standings[0].items():
        cells = [_condition_cell(comparison, found[name]) for found in standings]
        rows.append([name, *cells, ", ".join(first.variant.flag_kinds)])
    return format_markdown(head, rows, (head[0], head[-1]))


def _condition_cell(comparison: Comparison, standing: Standing) -> str:
    if standing.mean is None:
        # the first word of the reason: refused, failed
        return standing.missing_reasons[0].partition(":")[0]
    return format_standing(standing, count_decimals(comparison))


def record_comparison(folder: Path, to: Path) -> None:
    """Save the numbers and figures of a comparison folder under `to`, a path without suffix.

    Raises:
        SystemExit: The comparison has no studies, so that its ranks follow from its settings, or
            from the chance of tuning once.
    """
    if Comparison.read(folder / RESULTS).studies is None:
        problem = "nothing was tuned in studies; compare with tune.KEY=... studies=5"
        raise SystemExit(f"{folder}: {problem} and record that")
    to.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    text = json.dumps(_round_floats(results), separators=(",", ":"))
    to.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    redraw_figures(to.with_suffix(".json"))


def redraw_figures(path: Path) -> None:
    """Draw the figures of one recorded comparison beside its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        for drawn in save_figures(Comparison.read(path), Path(folder)):
            if drawn.stem in FIGURES and drawn.suffix == ".png":
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
    found = next(one for one in list_combinations(comparison.axes) if one.name == name)
    edits = [*found.edits, Change("seed", seed)]
    edits += [Change(*pair) for pair in comparison.find_settings(name).items()]
    if comparison.base["trainer"]["num_threads"] in (None, "auto"):
        edits.append(Change("trainer.num_threads", comparison.machine["threads"]))
    base: Any = to_plain(comparison.base)
    recipe = config.from_plain(base, edits, origin="the record", name=comparison.recipe)
    fit(recipe, folder / "run")

    end = json.loads((folder / "run" / END).read_text(encoding="utf-8"))
    variant = next(one for one in comparison.variants if one.name == name)
    cell = next(cell for cell in variant.cells if cell.seed == seed)
    recorded = cell.find(comparison.trained).metrics
    now = _round_floats(end["metrics"])
    pairs = {key: (value, now.get(key)) for key, value in _round_floats(dict(recorded)).items()}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _report_rerun(words: list[str]) -> int:
    """Rerun the cell that the words name; return the exit code: 1 if a number differs."""
    comparison = read_comparison(Path(words[0]))
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
