"""`zoo list`: what there is, one line each, read from the files without importing them."""

from __future__ import annotations

from collections.abc import Sequence

from zoo import registry


def listing(kinds: Sequence[str]) -> str:
    """Names and summaries of kinds, under headings if there are several."""
    blocks = []
    for kind in kinds:
        entries = _recipes() if kind == "recipes" else registry.summaries(kind)
        width = max(map(len, entries), default=0)
        lines = [f"{name.ljust(width)}  {summary}" for name, summary in sorted(entries.items())]
        blocks.append(
            "\n".join(lines if len(kinds) == 1 else [kind, *(f"  {line}" for line in lines)])
        )
    return "\n\n".join(blocks)


def _recipes() -> dict[str, str]:
    """{name: first line of its opening comment}."""
    from zoo.config import recipe_files

    found = {}
    for name, path in recipe_files().items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found[name] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found
