"""Read the comments that open recipes, write the page of recorded results, record heads again.

`python docs/recipe_heads.py lm_rope flipflop_cope` trains these recipes, one thread each and one
per core at a time, and replaces the numbers in their heads, or writes the first ones. Without
arguments it trains every recipe whose head has numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from zoo.config import Recipe, load, recipe_files

RESULTS = """# Recorded results

Made by `python docs/pages.py` from the heads of the recipes: one run each. The recipes differ in
more than their encodings, so these numbers show that they train and what to expect, not which
encoding is better.
"""
METRIC = re.compile(r"\b((?:test/)?(?:loss|accuracy|exact|miou)|bits_per_\w+) \d+\.\d+")
SIZED = re.compile(r"\d+\.\d+( %)? at (\d+)")
MEASURE = re.compile(r"\((test/\w+|error)\b")
UNKNOWN = "not recorded yet"
FIRST = ("test/miou", "test/accuracy", "test/exact", "test/loss")
"""Metrics that the first numbers of a head consist of, as far as the task has them."""
COST = re.compile(r"\d+\.\d+ minutes on one core( of a busy machine)?")


def read_head(path: Path) -> dict[str, str]:
    """Return the lines of a recipe's opening comment by their first word, the first as `claim`."""
    text = path.read_text(encoding="utf-8")
    lines = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    fields = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:] if line}
    return {"claim": lines[0], **fields}


def write_results_page(recipes: Mapping[str, Recipe]) -> str:
    """Return the page of what the heads of all recipes record, one table per data source."""
    by_source: dict[str, list[str]] = {}
    for name, recipe in sorted(recipes.items()):
        by_source.setdefault(recipe.data.name, []).append(name)

    lines = [RESULTS]
    for source, names in sorted(by_source.items()):
        lines += _source_section(source, {name: recipes[name] for name in names})
    return "\n".join(lines)


def _source_section(source: str, recipes: Mapping[str, Recipe]) -> Iterator[str]:
    heads = {name: read_head(recipe_files()[name]) for name in recipes}
    found = (re.search(r"\(([^()]*)\)", head["number"]) for head in heads.values())
    conditions = {match[1] for match in found if match}

    yield from (f"## {source}", "")
    if conditions:
        yield from ("; ".join(sorted(conditions)), "")
    yield from ("| recipe | encoding | recorded | other sizes | cost |", "|---|---|---|---|---|")
    for name, head in heads.items():
        entries = recipes[name].model.options["encoding"]
        links = " + ".join(f"[{entry.name}](encodings/{entry.name}.md)" for entry in entries)
        number = re.sub(r" \([^()]*\)", "", head["number"], count=1)
        sizes, cost = head.get("lengths", ""), head.get("cost", "")
        yield f"| `{name}` | {links} | {number} | {sizes} | {cost} |"
    yield ""


def record_head(name: str) -> None:
    """Train a recipe, evaluate it at the sizes in its head, and replace the numbers there."""
    path = recipe_files()[name]
    text = path.read_text(encoding="utf-8")
    lengths = [line for line in text.splitlines() if line.startswith("# lengths")]
    sizes = [size for line in lengths for _, size in SIZED.findall(line)]

    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / name)
        _run_zoo("fit", name, "trainer.num_threads=1", "--run-dir", run)
        end = json.loads((Path(run) / "end.json").read_text(encoding="utf-8"))
        end["seed"] = load(path).seed
        found = _run_zoo("eval", run, f"evaluate.lengths=[{','.join(sizes)}]") if sizes else {}
    lengths = {one["name"]: one["metrics"] for one in found.get("conditions", ())}

    path.write_text(replace_numbers(text, end, lengths), encoding="utf-8")
    metrics = ", ".join(f"{key} {value:.4f}" for key, value in end["metrics"].items())
    print(f"{name}: {metrics}", flush=True)


def replace_numbers(
    text: str, end: Mapping[str, Any], lengths: Mapping[str, Mapping[str, float]]
) -> str:
    """Return a recipe with the numbers of its head replaced.

    Args:
        text: The recipe.
        end: The run's end.json: `metrics`, `minutes` and `baselines`, and its `seed`.
        lengths: {length: metrics} of an evaluation at the sizes that the head names.
    """
    lines = text.splitlines(keepends=True)
    cost = f"{end['minutes']:.1f} minutes on one core"
    has_cost = any(line.startswith("# cost") for line in lines)
    for index, line in enumerate(lines):
        if line.startswith("# command") and not has_cost:
            lines[index] += f"# cost     {cost}\n"
        elif line.startswith("# number") and UNKNOWN in line:
            lines[index] = line.replace(UNKNOWN, _describe_metrics(end))
        elif line.startswith("# number"):
            lines[index] = _replace_metrics(line, end["metrics"])
        elif line.startswith("# lengths"):
            lines[index] = _replace_sizes(line, lengths)
        elif line.startswith("# cost"):
            lines[index] = COST.sub(cost, line).replace(UNKNOWN, cost)
    return "".join(lines)


def _describe_metrics(end: Mapping[str, Any]) -> str:
    """Return the metrics of a run that ended, and the best baseline of the first of them."""
    names = [name for name in FIRST if name in end["metrics"]]
    shown = ", ".join(f"{name} {end['metrics'][name]:.4f}" for name in names)
    baselines = end.get("baselines", {}).get(names[0], {})
    if baselines:
        choose = min if names[0].endswith("loss") else max
        best = choose(baselines, key=baselines.__getitem__)
        shown += f"; {best} {baselines[best]:.4f}"
    version = torch.__version__.partition("+")[0]
    return f"{shown} (seed {end['seed']}, torch {version} on a CPU)"


def _replace_metrics(line: str, metrics: Mapping[str, float]) -> str:
    def replace(match: re.Match[str]) -> str:
        key = match[1] if match[1].startswith("test/") else f"test/{match[1]}"
        return f"{match[1]} {metrics[key]:.4f}"

    recorded, mark, papers = line.partition("; the paper's")
    version = torch.__version__.partition("+")[0]
    recorded = re.sub(r"torch [\d.]+", f"torch {version}", METRIC.sub(replace, recorded))
    return recorded + mark + papers


def _replace_sizes(line: str, lengths: Mapping[str, Mapping[str, float]]) -> str:
    measure = MEASURE.search(line)
    if measure is None:
        raise SystemExit(f"{line.strip()!r} needs its metric: (test/loss) or (error)")
    metric = "test/accuracy" if measure[1] == "error" else measure[1]

    def replace(match: re.Match[str]) -> str:
        value = lengths[match[2]][metric]
        # A percentage is an error, the complement of an accuracy.
        shown = f"{100 * (1 - value):.3f} %" if match[1] else f"{value:.4f}"
        return f"{shown} at {match[2]}"

    return SIZED.sub(replace, line)


def _run_zoo(*words: str) -> Any:
    command = [sys.executable, "-m", "zoo", *words, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def _has_numbers(path: Path) -> bool:
    head = read_head(path)
    return COST.search(head["cost"]) is not None if "cost" in head else True


def main() -> None:
    """Record the heads of the recipes that the command line names."""
    files = recipe_files()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="RECIPE", help="name of a registered recipe")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in files]:
        parser.error(f"no registered recipe: {', '.join(unknown)}")
    names = names or [name for name, path in files.items() if _has_numbers(path)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(record_head, names))


if __name__ == "__main__":
    main()
