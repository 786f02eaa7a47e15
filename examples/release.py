"""Train a small model of each encoding, and make a folder of weights that anybody can load.

    python examples/release.py release
    python examples/release.py release lm_alibi vit_liere trainer.max_steps=240

trains registered recipes of the sizes `lm_tiny` and `vit_tiny`, and `lm_rope` or `vit_comrope` with
each encoding that has no such recipe; without names, all of them. Recipes that begin with weights
of another run are left out. `key=value` changes all recipes.
Each is exported in float16 as `release/NAME`: weights of at most 2 MB, recipe, card and checksums.
`release/README.md` is their table, `release/release.json` has it as data. What the folder has
already is not trained again, so that the program goes on where it was stopped.
`zoo.load("release/lm_alibi")` loads a model; after an upload to the Hub,
`zoo.load("hf://OWNER/NAME/lm_alibi")` does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

import zoo
from zoo.config import load, recipe_files
from zoo.config.command_line import parse_overrides
from zoo.config.overrides import Change
from zoo.config.tree import read_file
from zoo.encodings.common.chains import build_shortest_chain
from zoo.registry import find
from zoo.reporting.tables import format_markdown
from zoo.utils import write_json

SIZES = ("model/lm_tiny", "model/vit_tiny")
BASES = {"lm": "lm_rope", "vit": "vit_comrope"}
"""Recipes whose encoding is replaced."""
MOST_BYTES = 2_000_000
LICENCE = "apache-2.0"
NUMBERS = "release.json"
"""What the table has, next to it."""
CARD = """# Small models of many positional encodings

Made by `python examples/release.py {folder}`, one run each: they show how to load and look at a
model, not which encoding is better. Load one with `zoo.load("FOLDER")`.

{table}
"""


def list_recipes() -> list[str]:
    """Return the registered recipes of the small sizes that train from the beginning."""
    names = [name for name, path in sorted(recipe_files().items()) if _is_small(path)]
    return [name for name in names if load(name).init_from is None]


@cache
def list_models() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return {name: (recipe, overrides)} of all that a release can have."""
    models: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in list_recipes()}
    known = {kind: _list_encodings(kind) for kind in BASES}
    for encoding, (kind, base) in itertools.product(zoo.encoding_names(), BASES.items()):
        chain = build_shortest_chain(find("encodings", encoding))
        changes = {"model.encoding": [one.name for one in chain]}
        if encoding not in known[kind] and _is_possible(base, changes):
            models[f"{kind}_{encoding}"] = (base, changes)
    return models


def _list_encodings(kind: str) -> set[str]:
    """Return the encodings of the small recipes of a kind, by the prefix of their names."""
    own = [name for name in list_recipes() if name.startswith(f"{kind}_")]
    return {encoding for name in own for encoding in load(name).encodings}


def _is_possible(recipe: str, changes: dict[str, Any]) -> bool:
    """Return whether an encoding fits the data and model of a recipe."""
    try:
        zoo.load_recipe(recipe, changes)
    except zoo.ZooError:
        return False
    return True


def _is_small(path: Path) -> bool:
    """Return whether a recipe takes its model from one of SIZES, itself or by what it extends."""
    extended = read_file(path, []).data.get("extends", [])
    names = [extended] if isinstance(extended, str) else extended
    files = recipe_files()
    return any(name in SIZES or (name in files and _is_small(files[name])) for name in names)


def make_release(folder: Path, names: list[str], overrides: dict[str, Any]) -> dict[str, str]:
    """Train and export what the folder lacks, and write its table.

    Args:
        folder: The folder.
        names: Names that `list_models` has.
        overrides: Changes of all recipes.

    Returns:
        {name: why it could not be made}
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = list_models()
    known = json.loads((folder / NUMBERS).read_text()) if (folder / NUMBERS).exists() else {}
    failed = {}
    for number, name in enumerate(names, start=1):
        if name in known and (folder / name).exists():
            continue
        print(f"{name}, {number} of {len(names)}", file=sys.stderr)
        # of a program that was stopped: its checkpoint or export may be of any step
        shutil.rmtree(folder / ".runs" / name, ignore_errors=True)
        shutil.rmtree(folder / name, ignore_errors=True)
        recipe, changes = models[name]
        try:
            known[name] = _make_model(folder, name, recipe, changes | overrides)
        except zoo.ZooError as error:
            failed[name] = str(error)
            print(f"{name}: {error}", file=sys.stderr)
            continue
        # after each model, so that nothing is lost when the program is stopped
        write_json(known, folder / NUMBERS)
        card = CARD.format(folder=folder, table=tabulate(known))
        (folder / "README.md").write_text(card, encoding="utf-8")
    return failed


def _make_model(folder: Path, name: str, recipe: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Train and export one model, and return what the table has of it."""
    start = time.monotonic()
    run = zoo.fit(recipe, changes, run_dir=folder / ".runs" / name, verbose=None)
    result = zoo.export(
        run, folder / name, "hub_folder", dtype="float16", licence=LICENCE, verbose=None
    )
    size = (result.folder / "model.safetensors").stat().st_size
    if size > MOST_BYTES:
        raise zoo.ZooError(f"{size:,} bytes, more than {MOST_BYTES:,}")
    key, value = next(iter(run.metrics.items()))
    baselines = run.result["baselines"].get(key) or {}
    worked = run.result["processor_minutes"]
    return {
        "encodings": ", ".join(run.recipe.encodings),
        "bytes": size,
        "measure": key,
        "value": value,
        "baselines": baselines,
        "minutes": run.result["minutes"],
        "processor_seconds": None if worked is None else 60 * worked,
        "seconds": time.monotonic() - start,
        "recipe": recipe,
        "changes": changes,
        "zoo": zoo.__version__,
        "torch": torch.__version__,
    }


def tabulate(known: dict[str, Any], is_linked: bool = True) -> str:
    """Return the table of a release as Markdown.

    Args:
        known: {name: entry} of release.json.
        is_linked: Whether names lead to folders next to the table.
    """
    rows = []
    for name, entry in sorted(known.items()):
        seconds = [entry.get(key) for key in ("processor_seconds", "seconds")]
        rows.append(
            [
                f"[{name}]({name})" if is_linked else f"`{name}`",
                entry["encodings"] or "none",
                f"{entry['bytes']:,}",
                entry["measure"],
                f"{entry['value']:.4f}",
                *("" if value is None else f"{value:.0f}" for value in seconds),
            ]
        )
    heads = ["model", "encodings", "bytes", "measure", "value", "processor seconds", "seconds"]
    return format_markdown(heads, rows, text=heads[:2] + heads[3:4])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", metavar="NAME|key=value", default=[])
    known = parser.parse_args()
    asked = [word for word in known.words if "=" not in word]
    edits = parse_overrides(word for word in known.words if "=" in word)
    everything = [*list_models()]
    if unknown := [name for name in asked if name not in everything]:
        parser.error(f"{unknown[0]} is none of {', '.join(everything)}")
    changes = {edit.key: edit.value for edit in edits if isinstance(edit, Change)}
    failed = make_release(known.folder, asked or everything, {"trainer.num_threads": 1} | changes)
    sys.exit(f"not made: {', '.join(failed)}" if failed else 0)
