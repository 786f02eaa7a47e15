"""The table of small models, from docs/records/release.json.

`python docs/build/release_page.py FOLDER ...` takes the numbers of folders that examples/release.py
made; `python docs/build/pages.py` writes the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from extension_page import load_example

MARK = "## Recorded\n"
RECORD = Path(__file__).parents[1] / "records" / "release.json"


def write_weights_page(page: Path) -> str:
    """Return the page: its own text up to the mark, then the table."""
    text = page.read_text(encoding="utf-8").partition(MARK)[0]
    return text + MARK + "\n".join(_describe(json.loads(RECORD.read_text(encoding="utf-8"))))


def _describe(models: Mapping[str, Any]) -> Iterator[str]:
    versions = {(entry["zoo"], entry["torch"]) for entry in models.values()}
    ((version, torch_version),) = versions
    total = sum(entry["processor_seconds"] for entry in models.values())
    yield ""
    yield "Written by `python docs/build/pages.py` from docs/records/release.json."
    yield ""
    yield from ("### Small models of many encodings", "", "```sh")
    yield from list_commands(models)
    yield from ("```", "")
    yield (
        f"made {len(models)} models with zoo {version} and torch {torch_version}, one thread each, "
        f"in {total / 60:.0f} minutes of one processor; seconds are of a machine with other work. "
        "They are short trainings of one seed: they show how to load and look at a model, not "
        "which encoding is better. Without names, the same commands make what the set has further."
    )
    yield from ("", load_example("release").tabulate(models, is_linked=False), "")


def list_commands(models: Mapping[str, Any]) -> Iterator[str]:
    """Yield the commands that make the models: one for each set of overrides."""
    groups: dict[str, list[str]] = {}
    for name, entry in models.items():
        # the encoding of a model is no override of the command
        changes = {key: value for key, value in entry["changes"].items() if key[:6] != "model."}
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in changes.items())
        groups.setdefault(words, []).append(name)
    for words, names in groups.items():
        yield f"python examples/release.py release {' '.join(names)} \\"
        yield f"  {words}"


if __name__ == "__main__":
    taken: dict[str, Any] = {}
    for folder in sys.argv[1:]:
        taken |= json.loads(Path(folder, "release.json").read_text(encoding="utf-8"))
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(taken[name])}" for name in sorted(taken))
    RECORD.write_text("{\n" + text + "\n}\n", encoding="utf-8")
