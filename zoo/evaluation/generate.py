"""`zoo generate`: continue a text with a trained model, printed as it is generated."""

from __future__ import annotations

import inspect
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn

from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import Context
from zoo.config import GenerateOptions, Recipe
from zoo.config.command_line import parse_overrides
from zoo.data.spec import TextSpec, Vocabulary
from zoo.errors import OptionError, RecipeError
from zoo.evaluation.evaluate import DEFAULT_OVERRIDES
from zoo.models.generation import TextStreamer, sample_tokens
from zoo.run import checkpoint
from zoo.run.load import restore
from zoo.tasks.base import Task
from zoo.utils import escape_text

log = logging.getLogger("zoo")

TEXT_OPTIONS = ("prompt", "stop")  # taken as they are written, without quotes


def choose_device(recipe: Recipe) -> str:
    """Return "cuda" where there is a GPU and the recipe does not ask for the CPU, else "cpu"."""
    return "cuda" if recipe.trainer.accelerator != "cpu" and torch.cuda.is_available() else "cpu"


def generate(name: str, words: Sequence[str], quiet: bool = False) -> dict[str, Any]:
    """Continue the prompt with a trained model.

    Args:
        name: A run directory or a checkpoint.
        words: Options of `generate`, such as `prompt=...`, and overrides of the recipe.
        quiet: Do not print the text.

    Returns:
        What `--json` prints.

    Raises:
        RecipeError: There is nothing to continue, or the model cannot.
        CheckpointError: As `zoo.load` raises it.
    """
    path = checkpoint.locate(name)
    experiment, task = restore(
        path, parse_overrides([*DEFAULT_OVERRIDES, *map(_complete_key, words)])
    )
    recipe = experiment.recipe
    task.to(choose_device(recipe))
    samples = generate_samples(recipe, task, quiet)
    return {
        "recipe": recipe.name,
        "checkpoint": str(path),
        "prompt": recipe.generate.prompt,
        "samples": samples,
    }


def generate_samples(recipe: Recipe, task: Task, quiet: bool) -> list[dict[str, Any]]:
    """Continue the prompt of a recipe: {text, tokens, ended} of each sample.

    Raises:
        RecipeError: There is nothing to continue, or the model cannot.
    """
    spec = task.spec
    try:
        prompt = _encode_prompt(recipe, task.model, spec)
    except OptionError as error:
        raise RecipeError(recipe.make_issue(error.key, str(error))) from None
    assert isinstance(spec, TextSpec)

    start, samples = time.monotonic(), []
    for number in range(recipe.generate.samples):
        samples.append(_generate_sample(recipe, task.model, spec.vocabulary, prompt, number, quiet))
    _log_summary(samples, len(prompt), spec.length, time.monotonic() - start)
    return samples


def _complete_key(word: str) -> str:
    r"""Return `temperature=1` as `generate.temperature=1`; quote texts, with \n for a new line."""
    key, equals, text = word.partition("=")
    if key in TEXT_OPTIONS and equals:
        text = json.dumps(text.replace("\\n", "\n"), ensure_ascii=False)
    return word if "." in key or not equals else f"generate.{key}{equals}{text}"


def _encode_prompt(recipe: Recipe, model: nn.Module, spec: Any) -> list[int]:
    """Return the prompt as tokens. Raises OptionError with the full key of what is wrong."""
    if not isinstance(spec, TextSpec) or not _can_generate(model):
        problem = f"{recipe.model.name} does not write text from left to right; a decoder does"
        raise OptionError("model.name", problem)
    if not recipe.generate.cache and getattr(model, "memory_length", None):
        problem = "a model with memory cannot read the whole text again for each token"
        raise OptionError("generate.cache", f"{problem}; leave it true")
    try:
        prompt = spec.vocabulary.encode(recipe.generate.prompt)
    except OptionError as error:
        raise OptionError("generate.prompt", str(error)) from None
    if not prompt:
        raise OptionError("generate.prompt", "there is no text to continue; write prompt=...")
    return prompt


def _can_generate(model: nn.Module) -> bool:
    """Tell whether a model takes a context and returns the logits of the last token alone."""
    return {"context", "last"} <= inspect.signature(model.forward).parameters.keys()


def _generate_sample(
    recipe: Recipe,
    model: nn.Module,
    vocabulary: Vocabulary,
    prompt: list[int],
    number: int,
    quiet: bool,
) -> dict[str, Any]:
    """Return one continuation; `ended` says why it ended."""
    options, count, ended = recipe.generate, 0, "tokens"
    writer = TextStreamer(vocabulary, options.stop, prompt)
    shown = options.prompt
    if options.samples > 1:
        shown = f"--- {number + 1} of {options.samples}\n{options.prompt}"
    try:
        for token in islice(_generate_tokens(options, model, prompt, number), options.tokens):
            text = writer.put(token)
            if not quiet:
                # the prompt is printed once the model has accepted it
                _print(text if count else shown + text)
            count += 1
            if writer.stopped:
                ended = "stop"
                break
    except OptionError as error:
        if not count:
            key = "generate.cache" if error.key == "context" else "generate.prompt"
            raise RecipeError(recipe.make_issue(key, str(error))) from None
        ended = str(error)
    rest = writer.end()
    if not quiet:
        _print(rest + "\n")
    return {"text": writer.text, "tokens": count, "ended": ended}


def _generate_tokens(
    options: GenerateOptions, model: nn.Module, prompt: list[int], number: int
) -> Iterator[int]:
    memory = getattr(model, "memory_length", None)
    context: Context | None = KeyValueCache() if options.cache else None
    if isinstance(memory, int) and memory:
        context = SegmentMemory(memory)
    generator = torch.Generator().manual_seed(options.seed + number)
    return sample_tokens(
        model,
        prompt,
        context,
        generator,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
    )


def _print(text: str) -> None:
    sys.stdout.write(escape_text(text, keep="\n\t"))
    sys.stdout.flush()


def _log_summary(samples: list[dict[str, Any]], prompt: int, length: int, seconds: float) -> None:
    count = sum(sample["tokens"] for sample in samples)
    log.info("%d tokens, %.0f per second", count, count / max(seconds, 1e-9))
    for sample in samples:
        if sample["ended"] not in ("tokens", "stop"):
            log.info("Ended after %d tokens: %s", sample["tokens"], sample["ended"])
        elif prompt + sample["tokens"] > length:
            log.info("Tokens after the first %d are beyond the length of training", length)
            break
