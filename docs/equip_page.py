"""The tables of the page about equipped models, from the families and by trying each encoding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import zoo
from zoo.api import make_factory, parse_entry
from zoo.attention.encoding import Dims
from zoo.bench.models import build_shortest_chain
from zoo.errors import OptionError
from zoo.integrations.equip import FAMILIES, REASONS
from zoo.integrations.equipment import Equipment

MARK = "## Which encodings fit\n"
KINDS: Mapping[str, tuple[Dims, bool]] = {
    "decoder": (Dims(64, 4, 1, 16, 0, 2), True),
    "text encoder": (Dims(64, 4, 1, 16, 0, 2), False),
    "image model": (Dims(64, 4, 2, (4, 4), 0, 2), False),
}
"""Small models of each kind: sizes, and whether they have a causal mask."""
ANSWERS = {
    "causal mask": "needs a causal mask",
    "axes": "one axis only",
    "axis": "one axis only",
    "layer to layer": "only in zoo's own models",
}
INTRODUCTION = """
Made by `python docs/pages.py`, which tries each encoding on small models of each kind.
*with index coordinates* means `{name: liere, coordinates: index}`: by default these divide
positions by the length of the text, which a causal model does not know.

"""


def write_equip_page(page: Path) -> str:
    """Return the page: its own text up to the mark, then what fits which kind of model."""
    text = page.read_text(encoding="utf-8").partition(MARK)[0]
    head = ["encoding", *KINDS]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name in zoo.encoding_names():
        cells = [find_answer(name, *kind) for kind in KINDS.values()]
        rows.append(f"| [{name}](encodings/{name}.md) | {' | '.join(cells)} |")

    known = ", ".join(f"`{kind}`" for kind in FAMILIES)
    refused = [f"- `{kind}`: {reason}" for kind, reason in REASONS.items()]
    lines = [*rows, "", "## Which models of transformers", "", "Equipped, by `config.model_type`:"]
    lines += [f"{known}.", "", "Refused, with the reason:", "", *refused]
    return text + MARK + INTRODUCTION + "\n".join(lines) + "\n"


def find_answer(name: str, dims: Dims, causal: bool) -> str:
    """Return whether an encoding fits a model: "yes", with which option, or why not."""
    problem = _find_problem(name, dims, causal, {})
    if not problem:
        return "yes"
    if not _find_problem(name, dims, causal, {"coordinates": "index"}):
        return "with index coordinates"
    if name == "rope_axial" and dims.axes == 1:
        return "rope is its form"
    return next(answer for words, answer in ANSWERS.items() if words in problem)


def _find_problem(name: str, dims: Dims, causal: bool, options: Mapping[str, object]) -> str | None:
    factories = {}
    for entry in map(parse_entry, build_shortest_chain(zoo.encoding_class(name))):
        given = options if entry.name == name else {}
        choice = {"name": entry.name, **entry.options, **given}
        factories[entry.name] = make_factory(choice)
    try:
        Equipment(dims, factories, causal=causal)
    except OptionError as error:
        return str(error)
    return None
