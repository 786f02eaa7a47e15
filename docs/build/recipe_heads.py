"""Read the comments that open recipes, write the page of recorded results, record heads again.

`python docs/build/recipe_heads.py lm_rope flipflop_cope` trains these recipes, one thread each and
one per core at a time, and replaces the numbers in their heads, or writes the first ones. Without
arguments it trains every recipe whose head has numbers. With `--baselines` it trains none and
writes only the baselines, which follow from the data.

A head has the best baseline of its first metric, in the same unit, and says where it is not beaten.
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

from zoo import registry
from zoo.config import Recipe, load, recipe_files
from zoo.data.spec import TextSpec
from zoo.run.build import Experiment
from zoo.run.load import load_experiment
from zoo.tasks.metrics import find_best_baseline, is_beaten

RESULTS = """# Recorded results

Made by `python docs/build/pages.py` from the heads of the recipes: one run each. The recipes differ
in more than their encodings, so these numbers show that they train and what to expect, not which
encoding is better. A baseline has the metric and the unit of the first number, on the same test
samples; where it is not beaten, the number shows nothing about an encoding.
"""
METRIC = re.compile(r"\b((?:test/)?(?:loss|accuracy|exact|miou)) (\d+\.\d+)")
SIZED = re.compile(r"\d+\.\d+( %)? at (\d+)")
MEASURE = re.compile(r"\((test/\w+|error)\b")
UNKNOWN = "not recorded yet"
NOT_BEATEN = "inconclusive: the model does not beat it"
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
    heading = ("recipe", "encoding", "recorded", "best baseline", "other sizes", "cost")
    yield from (f"| {' | '.join(heading)} |", "|---" * len(heading) + "|")
    for name, head in heads.items():
        entries = recipes[name].model.options["encoding"]
        links = " + ".join(f"[{entry.name}](encodings/{entry.name}.md)" for entry in entries)
        number = re.sub(r" \([^()]*\)", "", head["number"], count=1)
        others = (head.get(key, "") for key in ("baseline", "lengths", "cost"))
        yield f"| `{name}` | {links} | {number} | {' | '.join(others)} |"
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
        end |= {"seed": load(path).seed, "unit": find_loss_unit(load_experiment(name))}
        found = _run_zoo("eval", run, f"evaluate.lengths=[{','.join(sizes)}]") if sizes else {}
    lengths = {one["name"]: one["metrics"] for one in found.get("conditions", ())}

    path.write_text(replace_numbers(text, end, lengths), encoding="utf-8")
    metrics = ", ".join(f"{key} {value:.4f}" for key, value in end["metrics"].items())
    print(f"{name}: {metrics}", flush=True)


def record_baseline(name: str) -> None:
    """Write the best baseline of the first metric of a head; nothing is trained."""
    path = recipe_files()[name]
    if UNKNOWN in read_head(path)["number"]:
        return
    experiment = load_experiment(name)
    unit, found = find_loss_unit(experiment), score_baselines(experiment)
    path.write_text(replace_baseline(path.read_text(encoding="utf-8"), found, unit), "utf-8")
    print(f"{name}: {read_head(path).get('baseline', 'no baseline')}", flush=True)


def score_baselines(experiment: Experiment) -> Mapping[str, Mapping[str, float]]:
    """Return {metric: {baseline: value}} of a recipe; empty if its task predicts other targets."""
    if not registry.find("tasks", experiment.recipe.task.name).has_data_baselines:
        return {}
    for stage in ("fit", "test"):
        experiment.data.setup(stage)
    return experiment.data.compute_baselines()


def find_loss_unit(experiment: Experiment) -> str:
    """Return the unit of a loss of text, such as nats per character; empty for other data."""
    spec = experiment.spec
    return f"nats per {spec.vocabulary.unit}" if isinstance(spec, TextSpec) else ""


def replace_numbers(
    text: str, end: Mapping[str, Any], lengths: Mapping[str, Mapping[str, float]]
) -> str:
    """Return a recipe with the numbers of its head replaced.

    Args:
        text: The recipe.
        end: The run's end.json: `metrics`, `minutes` and `baselines`, its `seed`, and the `unit` of
            losses.
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
    return replace_baseline("".join(lines), end.get("baselines", {}), end.get("unit", ""))


def replace_baseline(text: str, baselines: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Return a recipe whose head has the best baseline of its first metric that has one.

    Args:
        text: The recipe.
        baselines: {metric: {baseline: value}}.
        unit: The unit of losses; empty for none.
    """
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("# baseline")]
    (at,) = (number for number, line in enumerate(lines) if line.startswith("# number"))
    recorded, _, _ = lines[at].partition("; the paper's")
    values = {} if UNKNOWN in recorded else read_metrics(recorded)
    metric = next((metric for metric in values if baselines.get(metric)), None)
    if metric is None:
        return "".join(lines)
    name = find_best_baseline(metric, baselines[metric])
    # as it is shown: digits that nobody sees decide nothing
    value = round(baselines[metric][name], 4)
    verdict = "" if is_beaten(metric, values[metric], value) else f"; {NOT_BEATEN}"
    shown = _format_metric(metric, value, unit)
    lines.insert(at + 1, f"# baseline {shown}, {name}{verdict}\n")
    return "".join(lines)


def read_metrics(text: str) -> dict[str, float]:
    """Return {metric: value} of what a head records, in its order."""
    found = {}
    for name, value in METRIC.findall(text):
        found.setdefault(name if name.startswith("test/") else f"test/{name}", float(value))
    return found


def _format_metric(metric: str, value: float, unit: str) -> str:
    return f"{metric} {value:.4f}{f' {unit}' if unit and metric == 'test/loss' else ''}"


def _describe_metrics(end: Mapping[str, Any]) -> str:
    """Return the metrics of a run that ended."""
    names = [name for name in FIRST if name in end["metrics"]]
    unit = end.get("unit", "")
    shown = ", ".join(_format_metric(name, end["metrics"][name], unit) for name in names)
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
    parser.add_argument("--baselines", action="store_true", help="train nothing, write baselines")
    chosen = parser.parse_args()
    names = chosen.names
    if unknown := [name for name in names if name not in files]:
        parser.error(f"no registered recipe: {', '.join(unknown)}")
    names = names or [name for name, path in files.items() if _has_numbers(path)]
    if chosen.baselines:
        for name in names:
            record_baseline(name)
        return
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(record_head, names))


if __name__ == "__main__":
    main()
