"""The card of a model on the Hugging Face Hub: README.md."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.citations import find_citations
from zoo.errors import CheckpointError, DataError, RecipeError
from zoo.formats.export import ExportSource
from zoo.packages import explain_imports
from zoo.reporting.tables import disarm_markdown, format_markdown
from zoo.run.checkpoint import find_run_dir
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
NO_RESULTS = "None are recorded for this checkpoint."
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

## Environment

{environment}

## Citation

```bibtex
{citation}
```
"""


def write_card(source: ExportSource, task: str, needs_zoo: bool = True) -> str:
    """Return README.md: how to use the model, its results, recipe, environment and papers.

    Args:
        source: The model.
        task: What the Hub calls its task.
        needs_zoo: Whether zoo computes it, through `trust_remote_code`.
    """
    recipe, run = source.recipe, find_run_dir(source.checkpoint)
    is_best = source.checkpoint.name == "best.ckpt"
    metrics: dict[str, float] = _read_record(run / "end.json", _read_metrics, {}) if is_best else {}
    environment = run / "environment.json"
    encodings = recipe.encodings
    rows = [[disarm_markdown(key), f"{value:.4f}"] for key, value in metrics.items()]
    table = format_markdown(["metric", "value"], rows, text=("metric",))
    text = recipe.yaml().strip()
    # JSON's strings are Python's, too; names and prompts may hold quotes and newlines
    use = USES[task].format(
        path=json.dumps(recipe.name, ensure_ascii=False),
        prompt=json.dumps(recipe.generate.prompt or "...", ensure_ascii=False),
        tokens=recipe.generate.tokens,
    )
    requirement = "Install zoo, which computes the model: `pip install transformer-zoo`."
    if not needs_zoo:
        use = use.replace(", trust_remote_code=True", "")
        requirement = "transformers computes the model itself."
    card = CARD.format(
        front_matter=_format_front_matter(source, task, metrics),
        name=disarm_markdown(recipe.name),
        version=__version__,
        encoding=", ".join(encodings),
        parameters=sum(weight.numel() for weight in source.task.model.parameters()),
        use=use,
        requirement=requirement,
        results=f"On test data of `{recipe.data.name}`:\n\n{table}" if metrics else NO_RESULTS,
        text=text,
        # longer than any in the recipe
        fence=max(["``", *re.findall("`+", text)], key=len) + "`",
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


def _read_metrics(found: Mapping[str, Any]) -> dict[str, float]:
    metrics = found.get("metrics", {})
    return {key: float(value) for key, value in metrics.items() if value is not None}


def _format_front_matter(source: ExportSource, task: str, metrics: Mapping[str, float]) -> str:
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
        library_name="transformers",
        pipeline_tag=task,
        tags=["zoo"],
        model_name=escape_text(recipe.name) if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def _format_environment(found: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    devices = ", ".join(found["devices"]["cuda"]) or found["devices"]["processor"]
    lines = [f"zoo {found['zoo']}, {packages}", f"Python {found['python']}, {found['platform']}"]
    lines += [f"devices: {devices}", str(found["started"])]
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
