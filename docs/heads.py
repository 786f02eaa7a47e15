"""The heads of recipes, recorded anew.

`python docs/heads.py lm_rope flipflop_cope` trains these, one thread each and as many at once as there are cores, and writes
what came out in place of the numbers that their heads have; without words it trains all that have numbers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from zoo.config import recipe_files

METRIC = re.compile(r"\b((?:test/)?(?:loss|accuracy|exact)|bits_per_\w+) \d+\.\d+")
SIZED = re.compile(r"\d+\.\d+( %)? at (\d+)")
MEASURE = re.compile(r"\((test/\w+|error)\b")
COST = re.compile(r"\d+\.\d+ minutes on one core( of a busy machine)?")


def anew(name: str) -> None:
    """Train a recipe, evaluate it where its head says so, and write its head."""
    path = recipe_files()[name]
    text = path.read_text(encoding="utf-8")
    sizes = [
        size
        for line in text.splitlines()
        if line.startswith("# lengths")
        for _, size in SIZED.findall(line)
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / name)
        _zoo("fit", name, "trainer.num_threads=1", "--run-dir", run)
        end = json.loads((Path(run) / "end.json").read_text(encoding="utf-8"))
        found = _zoo("eval", run, f"evaluate.lengths=[{','.join(sizes)}]") if sizes else {}
    path.write_text(rewritten(text, end, found.get("lengths", {})), encoding="utf-8")
    print(
        f"{name}: {', '.join(f'{key} {value:.4f}' for key, value in end['metrics'].items())}",
        flush=True,
    )


def rewritten(text: str, end: Mapping[str, Any], lengths: Mapping[str, Mapping[str, float]]) -> str:
    """A recipe with the numbers of its head replaced: metrics by their names, those of sizes by these, and the cost."""
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        if line.startswith("# number"):
            recorded, mark, papers = line.partition("; the paper's")
            recorded = METRIC.sub(
                lambda found: f"{found[1]} {_metric(end['metrics'], found[1]):.4f}", recorded
            )
            lines[at] = (
                re.sub(r"torch [\d.]+", f"torch {torch.__version__.partition('+')[0]}", recorded)
                + mark
                + papers
            )
        elif line.startswith("# lengths"):
            named = MEASURE.search(line)
            if named is None:
                raise SystemExit(
                    f"{line.strip()!r} does not say what it is in, as (test/loss) or (error)"
                )
            metric = named[1] if named[1] != "error" else "test/accuracy"
            lines[at] = SIZED.sub(
                lambda found, metric=metric: _sized(lengths[found[2]][metric], found), line
            )
        elif line.startswith("# cost"):
            lines[at] = COST.sub(f"{end['minutes']:.1f} minutes on one core", line)
    return "".join(lines)


def _metric(metrics: Mapping[str, float], name: str) -> float:
    return metrics[name if name.startswith("test/") else f"test/{name}"]


def _sized(value: float, found: re.Match[str]) -> str:
    """Where a percentage stands, it is an error."""
    return f"{100 * (1 - value):.3f} % at {found[2]}" if found[1] else f"{value:.4f} at {found[2]}"


def _zoo(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "zoo", *words, "--json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def _recorded(path: Path) -> bool:
    return any(
        COST.search(line) and line.startswith("# cost")
        for line in path.read_text(encoding="utf-8").splitlines()
    )


if __name__ == "__main__":
    asked = sys.argv[1:] or [name for name, path in recipe_files().items() if _recorded(path)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(anew, asked))
