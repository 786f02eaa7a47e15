"""Little tables of made-up texts."""

import json
from pathlib import Path

WORDS = ("row", "boat", "gently", "stream", "merrily", "life", "dream")


def text(number, words=12):
    """A few words, drawn from a number."""
    return " ".join(WORDS[(number * 5 + at * at) % len(WORDS)] for at in range(words))


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def corpus(folder: Path, counts=(40, 8, 10), column="text") -> Path:
    """A folder of JSON lines with the splits train (of two files), validation and test, and a column of labels."""
    first = 0
    for split, count in zip(("train-0", "validation", "test"), counts, strict=True):
        rows = [
            {column: text(n), "label": ("calm", "wild")[n % 2]} for n in range(first, first + count)
        ]
        jsonl(folder / f"{split}.jsonl", rows)
        first += count
    jsonl(
        folder / "train-1.jsonl",
        [{column: text(n), "label": ("calm", "wild")[n % 2]} for n in range(first, first + 20)],
    )
    return folder
