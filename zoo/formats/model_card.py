"""The card of a model on the Hugging Face Hub: README.md."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

from zoo.citations import find_citations
from zoo.data.spec import ImageSpec, TextClassificationSpec, TextSpec
from zoo.errors import CheckpointError, DataError, RecipeError
from zoo.formats.export import ExportSource
from zoo.packages import explain_imports
from zoo.reporting.tables import disarm_markdown, format_markdown
from zoo.run.checkpoint import find_run_dir
from zoo.tasks.metrics import find_best_baseline
from zoo.utils import escape_text, read_object
from zoo.version import __version__

USES = {
    "text-generation": """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({path}, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained({path}, trust_remote_code=True)
inputs = tokenizer({prompt}, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens={tokens})[0]))""",
    "image-classification": """\
from transformers import pipeline

classify = pipeline("image-classification", model={path}, trust_remote_code=True)
print(classify("picture.png"))""",
    "fill-mask": """\
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({path}, trust_remote_code=True)
model = AutoModelForMaskedLM.from_pretrained({path}, trust_remote_code=True)""",
    "text-classification": """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({path}, trust_remote_code=True)
model = AutoModelForSequenceClassification.from_pretrained({path}, trust_remote_code=True)""",
}
"""How a model is used, by what the Hub calls its task."""
ZOO_USE = """\
import zoo

task = zoo.load({path})  # a folder, or hf://owner/name
{call}"""
NO_RESULTS = "None are recorded for this checkpoint."
NO_LICENCE = "None is given: ask who published the model."
Z = NormalDist().inv_cdf(0.975)
"""Data whose accuracy is a share of independent samples, unlike that of pixels and tokens."""
CARD = """\
---
{front_matter}
---

# {name}

A model of the recipe {name}, trained with [zoo](https://github.com/transformer-zoo/zoo)
{version}. Positional encoding: {encoding}. Parameters: {parameters:,}.

## Use

{requirement}

```python
{use}
```

## Results

{results}

## Recipe

`zoo fit recipe.yaml` repeats the run.

{fence}yaml
{text}
{fence}

It was trained by `{command}`.

## Licence

{licence}

## Environment

{environment}

## Citation

```bibtex
{citation}
```
"""


@dataclass(frozen=True)
class Results:
    """The recorded results of a run on its test data."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """{metric: {baseline: value}}"""
    count: int = 0
    """Number of test samples."""


def write_card(
    source: ExportSource,
    task: str,
    computed_by: Literal["remote code", "transformers", "zoo"] = "remote code",
    licence: str | None = None,
) -> str:
    """Return README.md: how to use the model, its results, recipe, licence, papers.

    Args:
        source: The model.
        task: What the Hub calls its task.
        computed_by: What runs the model: transformers, zoo through its `trust_remote_code`, or zoo
            without transformers.
        licence: The licence of the weights, as the Hub names it.
    """
    recipe, run = source.recipe, find_run_dir(source.checkpoint)
    # the record is of the best checkpoint
    results = Results()
    if source.checkpoint.name == "best.ckpt":
        results = _read_record(run / "end.json", _read_results, results)
    environment = run / "environment.json"
    encodings = recipe.encodings
    recipe_yaml = recipe.yaml().strip()
    # JSON's strings are Python's, too; names and prompts may hold quotes and newlines
    values = {
        "path": json.dumps(recipe.name, ensure_ascii=False),
        "prompt": json.dumps(recipe.generate.prompt or "...", ensure_ascii=False),
        "tokens": recipe.generate.tokens,
    }
    requirement = "Install zoo, which computes the model: `pip install transformer-zoo`."
    if computed_by == "zoo":
        use = ZOO_USE.format(**values, call=_choose_call(source).format(**values))
    else:
        use = USES[task].format(**values)
    if computed_by == "transformers":
        use = use.replace(", trust_remote_code=True", "")
        requirement = "transformers computes the model itself."
    library = "transformer-zoo" if computed_by == "zoo" else "transformers"
    card = CARD.format(
        front_matter=_format_front_matter(source, task, library, licence, results.metrics),
        name=disarm_markdown(recipe.name),
        version=__version__,
        encoding=", ".join(encodings),
        parameters=sum(weight.numel() for weight in source.task.model.parameters()),
        use=use,
        requirement=requirement,
        results=_format_results(source, results),
        text=recipe_yaml,
        command=_read_record(environment, _format_command, "zoo fit recipe.yaml"),
        licence=NO_LICENCE if licence is None else disarm_markdown(licence),
        # longer than any in the recipe
        fence=max(["``", *re.findall("`+", recipe_yaml)], key=len) + "`",
        environment=_read_record(environment, _format_environment, "It is not recorded."),
        citation="\n\n".join(_list_citations(encodings)) or "% none",
    )
    return escape_text(card, keep="\n")


def _read_record(path: Path, read: Callable[[dict[str, Any]], Any], default: Any) -> Any:
    """Return what is read of a recorded file of a run; the default where there is none.

    Raises:
        CheckpointError: It is damaged.
    """
    if not os.path.lexists(path):
        return default
    try:
        return read(read_object(path, "unreadable, not as zoo writes it"))
    except DataError as error:
        raise CheckpointError(str(error)) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: unreadable, not as zoo writes it: {error}") from None


def _choose_call(source: ExportSource) -> str:
    """Return the line that uses the loaded task."""
    match source.task.spec:
        case TextSpec() if source.recipe.task.name != "masked_lm":
            return "print(task.generate({prompt}, tokens={tokens}))"
        case ImageSpec():
            return 'print(task.predict(["picture.png"]))'
        case TextClassificationSpec():
            return 'print(task.predict(["a text"]))'
    return "model = task.model"


def _read_results(evaluation: Mapping[str, Any]) -> Results:
    metrics = {
        key: float(value) for key, value in evaluation["metrics"].items() if value is not None
    }
    baselines = {
        key: {str(name): float(value) for name, value in values.items()}
        for key, values in evaluation.get("baselines", {}).items()
    }
    return Results(metrics, baselines, int(evaluation.get("count", 0)))


def _format_results(source: ExportSource, results: Results) -> str:
    """Return a table of the metrics with their intervals and the best baseline of each."""
    if not results.metrics:
        return NO_RESULTS
    is_independent = source.task.spec.target_unit == "sample"
    rows, has_interval = [], False
    for key, value in results.metrics.items():
        interval = ""
        if is_independent and results.count and key.rpartition("/")[2] in ("accuracy", "top5"):
            low, high = compute_wilson_interval(value, results.count)
            interval, has_interval = f"{low:.4f} to {high:.4f}", True
        baselines = results.baselines.get(key, {})
        name = find_best_baseline(key, baselines)
        baseline = f"{baselines[name]:.4f} ({disarm_markdown(name)})" if name else ""
        rows.append([disarm_markdown(key), f"{value:.4f}", interval, baseline])
    heads = ["metric", "value", "95 % interval", "best baseline"]
    columns = [n for n in range(4) if n < 2 or any(row[n] for row in rows)]
    table = format_markdown(
        [heads[n] for n in columns], [[row[n] for n in columns] for row in rows], text=("metric",)
    )
    lines = [f"On test data of `{source.recipe.data.name}`, of one run:", "", table]
    if has_interval:
        lines += [
            "",
            f"Intervals are Wilson's, for {results.count:,} test samples; other seeds vary more.",
        ]
    return "\n".join(lines)


def compute_wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of independent samples.

    Source: Wilson 1927, doi:10.1080/01621459.1927.10502953.
    """
    scale = 1 + Z**2 / count
    centre = share + Z**2 / (2 * count)
    half = Z * sqrt(share * (1 - share) / count + (Z / (2 * count)) ** 2)
    return (centre - half) / scale, (centre + half) / scale


def _format_command(environment: Mapping[str, Any]) -> str:
    arguments = [str(word) for word in environment["command"]]
    # the program itself lies elsewhere on other machines; Python programs have no such command
    if Path(arguments[0]).name not in ("zoo", "__main__.py"):
        return "zoo fit recipe.yaml"
    return disarm_markdown(shlex.join(["zoo", *arguments[1:]]))


def _format_front_matter(
    source: ExportSource, task: str, library: str, licence: str | None, metrics: Mapping[str, float]
) -> str:
    with explain_imports():
        from huggingface_hub import EvalResult, ModelCardData

    recipe = source.recipe
    results = [
        EvalResult(
            task_type=task,
            dataset_type=recipe.data.name,
            dataset_name=recipe.data.name,
            dataset_split="test",
            metric_type=key.rpartition("/")[2],
            metric_value=value,
        )
        for key, value in metrics.items()
    ]
    data = ModelCardData(
        library_name=library,
        license=licence,
        pipeline_tag=task,
        tags=["zoo"],
        model_name=escape_text(recipe.name) if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def _format_environment(environment: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    devices = ", ".join(environment["devices"]["cuda"]) or environment["devices"]["processor"]
    lines = [
        f"zoo {environment['zoo']}, {packages}",
        f"Python {environment['python']}, {environment['platform']}",
    ]
    lines += [f"devices: {devices}", str(environment["started"])]
    return "\n".join(f"- {disarm_markdown(line)}" for line in lines)


def _list_citations(encodings: Sequence[str]) -> list[str]:
    """Return the papers of encodings, each once; one of a plug-in need not name any."""
    entries: list[str] = []
    for name in encodings:
        try:
            entries += find_citations(name)
        except (RecipeError, DataError):
            continue
    return list(dict.fromkeys(entries))
