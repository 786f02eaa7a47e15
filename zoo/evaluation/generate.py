"""`zoo generate`: continue a text with a trained model, as it is written."""

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

from zoo.attention.kv_cache import Context, KeyValueCache, SegmentMemory
from zoo.config import GenerateOptions, Recipe
from zoo.data.spec import TextSpec, Vocabulary
from zoo.errors import OptionError, RecipeError
from zoo.evaluation.evaluate import UNLESS_SAID
from zoo.models.generation import TextStreamer, sample_tokens
from zoo.run import checkpoint
from zoo.run.load import restore


def device(recipe: Recipe) -> str:
    """The GPU, where there is one and the recipe does not ask for the CPU."""
    return "cuda" if recipe.trainer.accelerator != "cpu" and torch.cuda.is_available() else "cpu"


log = logging.getLogger("zoo")

RAW = ("prompt", "stop")  # texts, taken as they are


def generate(place: str, words: Sequence[str], quiet: bool = False) -> dict[str, Any]:
    """Continue `prompt` in each sample; unless `quiet` the text goes to standard output as it is written."""
    path = checkpoint.locate(place)
    recipe, task = restore(path, [*UNLESS_SAID, *map(_override, words)])
    facts: Any = task.samples
    try:
        prompt = _prompt(recipe, task.model, facts)
    except OptionError as error:
        raise RecipeError(recipe.make_issue(error.key, str(error))) from None
    task.to(device(recipe))
    began, samples = time.monotonic(), []
    for number in range(recipe.generate.samples):
        samples.append(_sample(recipe, task.model, facts.vocabulary, prompt, number, quiet))
    _conclude(samples, len(prompt), facts.length, time.monotonic() - began)
    return {
        "recipe": recipe.name,
        "checkpoint": str(path),
        "prompt": recipe.generate.prompt,
        "samples": samples,
    }


def _override(word: str) -> str:
    """`temperature=1` as `generate.temperature=1`; texts are quoted, with \\n for a new line."""
    key, equals, text = word.partition("=")
    if key in RAW and equals:
        text = json.dumps(text.replace("\\n", "\n"), ensure_ascii=False)
    return word if "." in key or not equals else f"generate.{key}{equals}{text}"


def _prompt(recipe: Recipe, model: nn.Module, facts: Any) -> list[int]:
    """The prompt as tokens. Raises OptionError, with a whole key, where there is nothing to continue, or no way to."""
    if not isinstance(facts, TextSpec) or not _writes(model):
        raise OptionError(
            "model.name",
            f"{recipe.model.name} does not write text from left to right; a decoder does",
        )
    if not recipe.generate.cache and getattr(model, "memory_length", None):
        told = "the model remembers segments, so it cannot read the whole text again for each token; leave it true"
        raise OptionError("generate.cache", told)
    try:
        prompt = facts.vocabulary.encode(recipe.generate.prompt)
    except OptionError as error:
        raise OptionError("generate.prompt", str(error)) from None
    if not prompt:
        raise OptionError("generate.prompt", "there is no text to continue; write prompt=...")
    return prompt


def _writes(model: nn.Module) -> bool:
    """Whether it goes on from what it remembers, and tells the last token's logits alone."""
    return {"context", "last"} <= inspect.signature(model.forward).parameters.keys()


def _sample(
    recipe: Recipe,
    model: nn.Module,
    vocabulary: Vocabulary,
    prompt: list[int],
    number: int,
    quiet: bool,
) -> dict[str, Any]:
    """One continuation; `ended` says why it ends."""
    told, count, ended = recipe.generate, 0, "tokens"
    writer = TextStreamer(vocabulary, told.stop, prompt)
    emit = (lambda text: None) if quiet else _print
    head = f"--- {number + 1} of {told.samples}\n{told.prompt}" if told.samples > 1 else told.prompt
    try:
        for token in islice(_tokens(told, model, prompt, number), told.tokens):
            emit(
                writer.put(token) if count else head + writer.put(token)
            )  # a refused prompt writes nothing
            count += 1
            if writer.stopped:
                ended = "stop"
                break
    except OptionError as error:
        if not count:
            raise RecipeError(recipe.make_issue("generate.prompt", str(error))) from None
        ended = str(error)
    emit(writer.end() + "\n")
    return {"text": writer.text, "tokens": count, "ended": ended}


def _tokens(
    told: GenerateOptions, model: nn.Module, prompt: list[int], number: int
) -> Iterator[int]:
    memory = getattr(model, "memory_length", None)
    context: Context | None = KeyValueCache() if told.cache else None
    if isinstance(memory, int) and memory:
        context = SegmentMemory(memory)
    generator = torch.Generator().manual_seed(told.seed + number)
    sampling = {"temperature": told.temperature, "top_k": told.top_k, "top_p": told.top_p}
    return sample_tokens(model, prompt, context, generator, **sampling)  # type: ignore[arg-type]


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _conclude(samples: list[dict[str, Any]], prompt: int, length: int, seconds: float) -> None:
    count = sum(sample["tokens"] for sample in samples)
    log.info("%d tokens, %.0f a second", count, count / max(seconds, 1e-9))
    for sample in samples:
        if sample["ended"] not in ("tokens", "stop"):
            log.info("ended after %d tokens: %s", sample["tokens"], sample["ended"])
        elif prompt + sample["tokens"] > length:
            log.info("what follows token %d is past the length of training", length)
            break
