"""`zoo generate`: continue a prompt with a trained model, and print tokens as they come."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import Context
from zoo.config import GenerateOptions, Overrides, Recipe, join_overrides
from zoo.data.spec import DataSpec, Vocabulary
from zoo.errors import OptionError, RecipeError
from zoo.evaluation.evaluate import DEFAULT_OVERRIDES
from zoo.models.generation import TextStreamer, sample_tokens
from zoo.run import checkpoint as checkpoints
from zoo.run.load import restore
from zoo.run.machine import check_denormals
from zoo.tasks.base import Task

log = logging.getLogger("zoo")


def move_to_device(task: Task, recipe: Recipe) -> None:
    """Move a task to the GPU if there is one, unless the recipe asks for the CPU."""
    is_on_gpu = recipe.trainer.accelerator != "cpu" and torch.cuda.is_available()
    device = "cuda" if is_on_gpu else "cpu"
    task.to(device)
    check_denormals(device)


@dataclass(frozen=True, kw_only=True)
class GeneratedSample:
    """One continuation of a prompt.

    Attributes:
        text: The continuation.
        tokens: Its tokens.
        ended: Why it ended: "tokens", "stop", or why the model refused to go on.
    """

    text: str
    tokens: int
    ended: str


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The continuations of a prompt.

    Attributes:
        recipe: The name of the recipe.
        checkpoint: The checkpoint.
        prompt: The text that was continued.
        samples: The continuations.
    """

    recipe: str
    checkpoint: Path
    prompt: str
    samples: tuple[GeneratedSample, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, as `zoo generate --json` prints it."""
        samples = [asdict(sample) for sample in self.samples]
        return {
            "recipe": self.recipe,
            "checkpoint": str(self.checkpoint),
            "prompt": self.prompt,
            "samples": samples,
        }


def generate(
    checkpoint: str | Path, overrides: Overrides = (), show: Callable[[str], None] | None = None
) -> Generation:
    """Continue the prompt of a recipe, `generate.prompt`, with a trained model.

    Args:
        checkpoint: A run directory or a checkpoint.
        overrides: Changes of the stored recipe.
        show: Called with each piece of text once it is generated.

    Raises:
        RecipeError: There is nothing to continue, or the model cannot.
        CheckpointError: As `zoo.load` raises it.
    """
    path = checkpoints.locate(checkpoint)
    experiment, task = restore(path, join_overrides(DEFAULT_OVERRIDES, overrides))
    recipe = experiment.recipe
    move_to_device(task, recipe)
    return Generation(
        recipe=recipe.name,
        checkpoint=path,
        prompt=recipe.generate.prompt,
        samples=tuple(generate_samples(recipe, task, show)),
    )


def generate_samples(
    recipe: Recipe, task: Task, show: Callable[[str], None] | None = None
) -> list[GeneratedSample]:
    """Continue the prompt of a recipe.

    Raises:
        RecipeError: There is nothing to continue, or the model cannot.
    """
    spec = task.spec
    try:
        vocabulary, prompt = _encode_prompt(recipe, task.model, spec)
    except OptionError as error:
        raise RecipeError(recipe.make_issue(error.key, str(error))) from None

    start, samples = time.monotonic(), []
    for number in range(recipe.generate.samples):
        samples.append(_generate_sample(recipe, task.model, vocabulary, prompt, number, show))
    _log_summary(samples, len(prompt), spec.size[0], time.monotonic() - start)
    return samples


def _encode_prompt(
    recipe: Recipe, model: nn.Module, spec: DataSpec
) -> tuple[Vocabulary, list[int]]:
    """Return the vocabulary, and the prompt as tokens.

    Raises:
        OptionError: With the full key of what is wrong.
    """
    vocabulary = spec.token_vocabulary
    if vocabulary is None or spec.target_unit != "token" or not _can_generate(model):
        message = f"{recipe.model.name} does not write text from left to right; a decoder does"
        raise OptionError("model.name", message)
    if not recipe.generate.cache and getattr(model, "memory_length", None):
        message = "a model with memory cannot read the whole text again for each token"
        raise OptionError("generate.cache", f"{message}; leave it true")
    try:
        prompt = vocabulary.encode(recipe.generate.prompt)
    except OptionError as error:
        raise OptionError("generate.prompt", str(error)) from None
    if not prompt:
        raise OptionError("generate.prompt", "there is no text to continue; write some")
    return vocabulary, prompt


def _can_generate(model: nn.Module) -> bool:
    """Return whether a model takes a context and returns the logits of only the last token."""
    return {"context", "last"} <= inspect.signature(model.forward).parameters.keys()


def _generate_sample(
    recipe: Recipe,
    model: nn.Module,
    vocabulary: Vocabulary,
    prompt: list[int],
    number: int,
    show: Callable[[str], None] | None,
) -> GeneratedSample:
    options, count, ended = recipe.generate, 0, "tokens"
    writer = TextStreamer(vocabulary, options.stop, prompt)
    shown = options.prompt
    if options.samples > 1:
        shown = f"--- {number + 1} of {options.samples}\n{options.prompt}"
    try:
        for token in islice(_generate_tokens(options, model, prompt, number), options.tokens):
            piece = writer.put(token)
            if show is not None:
                # the prompt is shown once the model has accepted it
                show(piece if count else shown + piece)
            count += 1
            if writer.stopped:
                ended = "stop"
                break
    except OptionError as error:
        if not count:
            key = "generate.cache" if error.key == "context" else "generate.prompt"
            raise RecipeError(recipe.make_issue(key, str(error))) from None
        # the model refused to go on, as at the end of a position table; what it wrote stays
        ended = str(error)
    # a token may hold half a character, which waits for the other half
    remainder = writer.end()
    if show is not None:
        show(remainder + "\n")
    return GeneratedSample(text=writer.text, tokens=count, ended=ended)


def _generate_tokens(
    options: GenerateOptions, model: nn.Module, prompt: list[int], number: int
) -> Iterator[int]:
    memory = getattr(model, "memory_length", None)
    context: Context | None = KeyValueCache() if options.cache else None
    if isinstance(memory, int) and memory:
        # a model with memory was trained without a cache of all tokens
        context = SegmentMemory(memory)
    # one seed for each sample, so that the third is the same whether two or ten are drawn
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


def _log_summary(
    samples: Sequence[GeneratedSample], prompt: int, length: int, seconds: float
) -> None:
    count = sum(sample.tokens for sample in samples)
    log.info("%d tokens, %.0f per second", count, count / max(seconds, 1e-9))
    for sample in samples:
        if sample.ended not in ("tokens", "stop"):
            log.info("Ended after %d tokens: %s", sample.tokens, sample.ended)
        elif prompt + sample.tokens > length:
            log.info("Tokens after the first %d are beyond the training length", length)
            break
