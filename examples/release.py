"""Train a small model of each encoding, and make a folder of weights that anybody can load.

    python examples/release.py release
    python examples/release.py release lm_alibi vit_liere

trains registered recipes of the sizes `lm_tiny` and `vit_tiny`, and `lm_rope` or `vit_comrope` with
each encoding that has no such recipe; without names, all of them. Each is exported in float16 as
`release/NAME`: weights of at most 2 MB, recipe, card and checksums.
`release/README.md` is their table. What the folder has already is not trained again, so that the
program goes on where it was stopped. `zoo.load("release/lm_alibi")` loads a model; after an upload
to the Hub, `zoo.load("hf://OWNER/NAME/lm_alibi")` does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import zoo
from zoo.config import load, recipe_files
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
    """Return the registered recipes of the small sizes."""
    return [name for name, path in sorted(recipe_files().items()) if _is_small(path)]


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


def make_release(folder: Path, names: list[str], overrides: dict[str, Any]) -> None:
    """Train and export what the folder lacks, and write its table.

    Args:
        folder: The folder.
        names: Names that `list_models` has.
        overrides: Changes of all recipes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = list_models()
    known = json.loads((folder / NUMBERS).read_text()) if (folder / NUMBERS).exists() else {}
    for number, name in enumerate(names, start=1):
        if (folder / name).exists():
            continue
        print(f"{name}, {number} of {len(names)}", file=sys.stderr)
        # of a training that was stopped: its checkpoint may be of any step
        shutil.rmtree(folder / ".runs" / name, ignore_errors=True)
        recipe, changes = models[name]
        run = zoo.fit(recipe, changes | overrides, run_dir=folder / ".runs" / name, verbose=None)
        result = zoo.export(
            run, folder / name, "hub_folder", dtype="float16", licence=LICENCE, verbose=None
        )
        size = (result.folder / "model.safetensors").stat().st_size
        if size > MOST_BYTES:
            raise SystemExit(f"{name}: {size:,} bytes, more than {MOST_BYTES:,}")
        key, value = next(iter(run.metrics.items()))
        known[name] = {
            "encodings": ", ".join(run.recipe.encodings),
            "bytes": size,
            "measure": key,
            "value": value,
            "minutes": run.result["minutes"],
        }
        # after each model, so that nothing is lost when the program is stopped
        write_json(known, folder / NUMBERS)
    rows = [
        [
            f"[{name}]({name})",
            one["encodings"],
            f"{one['bytes']:,}",
            one["measure"],
            f"{one['value']:.4f}",
        ]
        for name, one in sorted(known.items())
    ]
    heads = ["model", "encodings", "bytes", "measure", "value"]
    table = format_markdown(heads, rows, text=heads[:2] + heads[3:4])
    (folder / "README.md").write_text(CARD.format(folder=folder, table=table), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[])
    known = parser.parse_args()
    everything = [*list_models()]
    if unknown := [name for name in known.names if name not in everything]:
        parser.error(f"{unknown[0]} is none of {', '.join(everything)}")
    make_release(known.folder, known.names or everything, {"trainer.num_threads": 1})
