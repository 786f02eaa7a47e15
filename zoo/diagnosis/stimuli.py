"""What a model is run on for an atlas: given samples, and random text that repeats, with a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.tokens import upcast
from zoo.data.batches import TextBatch
from zoo.data.spec import IGNORE_INDEX
from zoo.diagnosis.equipped_model import (
    Batch,
    BoundModel,
    EquippedModel,
    compare_outputs,
    list_tensors,
    take_samples,
)
from zoo.diagnosis.head_jobs import LEAST, RepeatedText, draw_repeated_text
from zoo.diagnosis.inputs import Inputs
from zoo.diagnosis.intervals import LEVEL
from zoo.diagnosis.position_use import SampleValues, compare_samples
from zoo.diagnosis.report import MEASURED, PairedChange
from zoo.diagnosis.trained_run import TrainedRun
from zoo.diagnostics.capture import capture_model, evaluation_mode
from zoo.errors import OptionError
from zoo.tasks.base import Task

LONGEST = 64
"""Tokens of the text that is repeated, where the model was trained with texts twice as long."""
FEW = 2048
"""Tokens of the samples that `take_few` takes, unless a single one has more."""
IDS = "input_ids"
OF_TOKENS = ("attention_mask", "position_ids", "token_type_ids", "labels")
"""Arguments of models of transformers with a value for each token of the given text."""


@dataclass(frozen=True)
class Stimulus:
    """Inputs of a model, and how well it does on them.

    Attributes:
        name: "given" or "repeated".
        model: What is called.
        inputs: Its arguments.
        measure: Returns the loss of each sample, or the output [B, ..] of a model without a loss.
        text: The repeated text; None for given samples.
        more: Arguments with more samples, 32 where there are as many; empty: the same ones.
    """

    name: str
    model: nn.Module
    inputs: Inputs
    measure: Callable[[], SampleValues | Tensor]
    text: RepeatedText | None = None
    more: Inputs = ()


def take_few(given: Stimulus, length: int) -> tuple[nn.Module, Inputs]:
    """Return a model and inputs of few samples, for gradients, which take more memory.

    Args:
        given: All samples.
        length: Number of tokens of a sample.
    """
    rows = slice(max(1, FEW // length))
    if isinstance(given.model, BoundModel):
        return BoundModel(given.model.bound, take_samples(given.model.batch, rows)), ()
    return given.model, tuple(None if part is None else part[rows] for part in given.inputs)


def compare_readings(
    before: SampleValues | Tensor, after: SampleValues | Tensor
) -> PairedChange | None:
    """Return the change of a loss or of outputs, sample by sample, with a 95 % interval."""
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return compare_samples(*compare_outputs(before, after), LEVEL)
    assert isinstance(before, SampleValues)
    assert isinstance(after, SampleValues)
    return compare_samples(before, after, LEVEL)


def choose_length(length: int | None, longest: int) -> int:
    """Return the number of tokens of the text that is repeated.

    Args:
        length: The number that was asked for; None for half of `longest`, 64 at most.
        longest: Number of tokens that the model was trained with, or is given.

    Raises:
        OptionError: It is too short to tell heads apart.
    """
    if length is not None:
        return length
    chosen = min(LONGEST, longest // 2)
    if chosen < LEAST:
        problem = f"texts of {longest} tokens leave {chosen} to repeat, fewer than {LEAST}"
        raise OptionError("length", f"{problem}; set length, or give longer texts")
    return chosen


def list_run_stimuli(run: TrainedRun, samples: int, length: int | None) -> list[Stimulus]:
    """Return the test samples of a run and, for a language model, text that repeats.

    Args:
        run: The run.
        samples: Number of samples.
        length: Number of tokens that repeat; None: the default.

    Raises:
        OptionError: A length was given for a model that reads no text, or is too short.
    """
    inputs, more = run.load_inputs(samples, MEASURED)
    task = run.task

    def measure() -> SampleValues:
        return measure_losses(task, run.batch)

    stimuli = [Stimulus("given", task.model, inputs, measure, more=more)]
    spec = task.spec
    if spec.target_unit != "token" or spec.token_vocabulary is None:
        if length is not None:
            problem = f"{run.name} reads no text with a next token, so that none is repeated"
            raise OptionError("length", f"{problem}; leave length out")
        return stimuli
    count = choose_length(length, int(inputs[0].shape[1]) if inputs[0] is not None else 0)
    text = draw_repeated_text(range(len(spec.token_vocabulary)), count, samples)
    tokens, targets = (one.to(task.device) for one in (text.tokens, text.targets))
    batch = TextBatch(tokens, targets)
    stimuli.append(
        Stimulus("repeated", task.model, (tokens,), lambda: measure_losses(task, batch), text)
    )
    return stimuli


def measure_losses(task: Task, batch: Any) -> SampleValues:
    """Return the loss of each sample of a batch, as a test of the task computes it."""
    kept: list[Tensor] = []
    task.sample_losses = kept
    try:
        with evaluation_mode(task):
            # forgets the memory of a model that has one
            task.on_test_epoch_start()
            # not the first batch, whose metrics a task registers with the loop that tests it
            task.test_step(batch, 1)
    finally:
        task.sample_losses = None
    sums, counts = torch.cat(kept, dim=1)
    return SampleValues("loss", sums / counts, counts)


def list_model_stimuli(subject: EquippedModel, samples: int, length: int | None) -> list[Stimulus]:
    """Return the batch of a model and, if it has token ids, text that repeats.

    Args:
        subject: The model with its batch.
        samples: Number of repeated texts.
        length: Number of tokens that repeat; None: the default.

    Raises:
        OptionError: A length was given for a model that reads no token ids, or is too short.
    """
    ids, causal = _find_ids(subject.batch), False
    if ids is not None:
        (first, *_) = capture_model(subject.model, (), 1)
        causal = first.call.causal
    targets = _shift_ids(subject.batch, ids) if ids is not None and causal else None
    stimuli = [
        Stimulus("given", subject.model, (), lambda: _measure_output(subject.model, targets))
    ]
    if ids is None:
        if length is not None:
            problem = f"{subject.name} is given no token ids, so that no text is repeated"
            raise OptionError("length", f"{problem}; leave length out")
        return stimuli
    # the tokens of the batch may be padded, and have labels: the repeated text has neither
    text = draw_repeated_text(
        _list_vocabulary(subject.bound, ids), choose_length(length, ids.shape[1]), samples
    )
    tokens, after = (one.to(ids.device) for one in (text.tokens, text.targets))
    model = BoundModel(subject.bound, _replace_ids(subject.batch, tokens))
    stimuli.append(
        Stimulus(
            "repeated", model, (), lambda: _measure_output(model, after if causal else None), text
        )
    )
    return stimuli


def _find_ids(batch: Batch) -> Tensor | None:
    """Return the token ids int [B, N] of a batch; None if it has none."""
    if isinstance(batch, Mapping):
        found = batch.get(IDS)
    else:
        found = batch if isinstance(batch, Tensor) else next(iter(batch), None)
    is_text = isinstance(found, Tensor) and found.ndim == 2 and not found.is_floating_point()
    return found if is_text else None


def _replace_ids(batch: Batch, ids: Tensor) -> Batch:
    """Return a batch with other token ids, without what belongs to the tokens of before."""
    if isinstance(batch, Mapping):
        return {k: v for k, v in batch.items() if k not in OF_TOKENS} | {IDS: ids}
    return ids if isinstance(batch, Tensor) else [ids]


def _shift_ids(batch: Batch, ids: Tensor) -> Tensor:
    """Return the next token of each token int [B, N], `IGNORE_INDEX` for padding and the last."""
    targets = F.pad(ids[:, 1:], (0, 1), value=IGNORE_INDEX)
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        is_pair = mask.bool() & F.pad(mask[:, 1:], (0, 1)).bool()
        targets = targets.masked_fill(~is_pair, IGNORE_INDEX)
    return targets


def _list_vocabulary(model: nn.Module, ids: Tensor) -> list[int]:
    """Return the token ids that a model reads, without those of its special tokens."""
    config = getattr(model, "config", None)
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int):
        return sorted({*ids.flatten().tolist()})
    special = {getattr(config, f"{kind}_token_id", None) for kind in ("pad", "bos", "eos")}
    return [token for token in range(size) if token not in special]


def _measure_output(model: nn.Module, targets: Tensor | None) -> SampleValues | Tensor:
    """Return the loss of next tokens of each sample, or the output of a model without logits."""
    with evaluation_mode(model):
        out = model()
    # models of transformers name their outputs; of another tensor it is not known what it is
    logits = out.get("logits") if isinstance(out, Mapping) else None
    if targets is not None and isinstance(logits, Tensor) and logits.shape[:2] == targets.shape:
        losses = F.cross_entropy(
            upcast(logits).flatten(0, 1), targets.flatten(), reduction="none"
        ).view_as(targets)
        counts = (targets != IGNORE_INDEX).sum(1)
        return SampleValues("loss", (losses.double().sum(1) / counts).cpu(), counts.cpu())
    large = [one for one in list_tensors(out) if one.ndim]
    if not large:
        raise OptionError("model", "the model returned no tensor")
    return large[0].float()
