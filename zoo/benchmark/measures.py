"""The measures of a benchmark: training steps, peak memory, decoding, one attention layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.functional import Attention
from zoo.benchmark.protocol import (
    BenchMeasure,
    Contender,
    PreparedRun,
    RunFacts,
    Shape,
    Trial,
    Workload,
    measure_peak_memory,
    time_once,
)

LEARNING_RATE = 1e-4


def make_batch(shape: Shape) -> tuple[Tensor, Tensor]:
    """Draw random inputs and targets, the same for all models of a shape.

    Returns:
        Images [B, 3, L, L] and classes [B], or tokens [B, L] twice.
    """
    generator = torch.Generator().manual_seed(0)
    if shape.kind == "image":
        images = torch.randn(shape.batch, 3, shape.length, shape.length, generator=generator)
        return images, torch.randint(shape.outputs, (shape.batch,), generator=generator)
    size = (2, shape.batch, shape.length)
    inputs, targets = torch.randint(shape.outputs, size, generator=generator)
    return inputs, targets


class TrainingStep:
    """A model with a batch: forward, loss, backward and a step of AdamW."""

    def __init__(self, contender: Contender, workload: Workload) -> None:
        torch.manual_seed(0)
        self.workload = workload
        self.model = contender.make(workload).to(workload.device).train()
        self.inputs, self.targets = (
            tensor.to(workload.device) for tensor in make_batch(workload.shape)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.parameters = _count_parameters(self.model)

        self.backend = ""
        if contender.describe_backend:
            with torch.no_grad(), _autocast(workload):
                self.backend = contender.describe_backend(self.model, self.inputs, workload.device)
        if workload.shape.compile:
            self.model.compile()

    def step(self) -> None:
        """Train for one step; gradients are freed after it."""
        with _autocast(self.workload):
            logits = self.model(self.inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), self.targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def count_held_bytes(self) -> int:
        """Count the bytes held between steps: weights, buffers and optimizer state."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        for state in self.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class TrainMeasure(BenchMeasure):
    """Seconds of a training step."""

    name, unit = "train", "seconds"

    def __init__(self, rate: str) -> None:
        self.rate = rate

    def prepare(self, contender: Contender, workload: Workload) -> PreparedRun:
        """Build the model; the batch counts in images or tokens."""
        training, shape = TrainingStep(contender, workload), workload.shape
        amount = shape.batch * (shape.length if shape.kind == "text" else 1)
        facts = RunFacts(amount=amount, parameters=training.parameters, backend=training.backend)
        return PreparedRun(lambda: time_once(training.step, workload.device), facts)


class MemoryMeasure(BenchMeasure):
    """Peak bytes of a training step, with the weights and the optimizer state."""

    name, unit, is_repeated = "memory", "bytes", False

    def prepare(self, contender: Contender, workload: Workload) -> PreparedRun:
        """Build the model and train for one step, which creates the optimizer state."""
        training = TrainingStep(contender, workload)
        training.step()

        def run() -> float:
            peak = measure_peak_memory(training.step, workload.device)
            return training.count_held_bytes() + peak

        facts = RunFacts(parameters=training.parameters, backend=training.backend)
        return PreparedRun(run, facts)


@dataclass(frozen=True, kw_only=True)
class DecodeMeasure(BenchMeasure):
    """Seconds of greedy decoding with a KV cache, one sample at a time.

    The time includes reading the prompt.
    """

    prompt: int
    tokens: int

    name, unit, rate = "decode", "seconds", "tokens"

    def choose_lengths(self, workload: Workload, lengths: Sequence[int]) -> Sequence[int]:
        """Return the length of the prompt."""
        return (self.prompt,)

    def supports(self, contender: Contender) -> bool:
        """Return whether the contender can generate."""
        return contender.generate is not None

    def prepare(self, contender: Contender, workload: Workload) -> PreparedRun:
        """Build a model for the prompt and the tokens after it."""
        assert contender.generate is not None
        generate, workload = contender.generate, workload.with_length(self.prompt + self.tokens)
        model = contender.make(workload).to(workload.device).eval()
        prompt = _draw_prompt(workload, self.prompt)
        run = _time_inference(lambda: generate(model, prompt, self.tokens), workload)
        facts = RunFacts(amount=self.tokens, parameters=_count_parameters(model))
        return PreparedRun(run, facts)


@dataclass(frozen=True, kw_only=True)
class ContextMeasure(BenchMeasure):
    """Seconds of one token after a context: the mean of `steps` tokens in a row.

    Each run continues the text of the run before it; there are at most `runs`.
    """

    contexts: tuple[int, ...]
    steps: int
    runs: int

    name, unit, rate = "context", "seconds", "tokens"

    def choose_lengths(self, workload: Workload, lengths: Sequence[int]) -> Sequence[int]:
        """Return the lengths of the contexts."""
        return self.contexts

    def supports(self, contender: Contender) -> bool:
        """Return whether the contender can generate token by token."""
        return contender.stream is not None

    def prepare(self, contender: Contender, workload: Workload) -> PreparedRun:
        """Build a model that is long enough for all contexts, and read the context."""
        assert contender.stream is not None
        context = workload.shape.length
        workload = workload.with_length(max(self.contexts) + 1 + self.steps * self.runs)
        model = contender.make(workload).to(workload.device).eval()
        stream = contender.stream(model, _draw_prompt(workload, context))

        def generate_steps() -> None:
            for _ in range(self.steps):
                next(stream)

        run = _time_inference(generate_steps, workload)
        # the first run reads the context, which is not counted
        run()
        facts = RunFacts(amount=1, parameters=_count_parameters(model))
        return PreparedRun(lambda: run() / self.steps, facts)


@dataclass(frozen=True, kw_only=True)
class CacheMeasure(BenchMeasure):
    """Bytes that a KV cache keeps of a context, for one sample."""

    contexts: tuple[int, ...]

    name, unit, is_repeated = "cache", "bytes", False

    def choose_lengths(self, workload: Workload, lengths: Sequence[int]) -> Sequence[int]:
        """Return the lengths of the contexts."""
        return self.contexts

    # x-transformers keeps its cache to itself
    def supports(self, contender: Contender) -> bool:
        """Return whether the bytes of the contender's cache are known."""
        return contender.cache is not None

    def prepare(self, contender: Contender, workload: Workload) -> PreparedRun:
        """Build a model that is long enough for the context."""
        assert contender.cache is not None
        count, context = contender.cache, workload.shape.length
        model = contender.make(workload).to(workload.device).eval()
        prompt = _draw_prompt(workload, context)

        def run() -> float:
            with torch.no_grad(), _autocast(workload):
                return count(model, prompt)

        return PreparedRun(run, RunFacts(parameters=_count_parameters(model)))


class LayerMeasure(BenchMeasure):
    """Seconds of one attention layer, forward and backward."""

    name, unit = "layer", "seconds"

    def supports(self, contender: Contender) -> bool:
        """Return whether the contender has a single layer to build."""
        return contender.layer is not None

    def prepare(self, contender: Contender, workload: Workload) -> PreparedRun:
        """Build the layer without a model."""
        assert contender.layer is not None
        layer = contender.layer(workload).to(workload.device)
        run = build_layer_trial(layer, workload.shape.batch, workload.device)
        return PreparedRun(run, RunFacts(parameters=_count_parameters(layer)))


def build_layer_trial(attention: Attention, batch: int, device: str) -> Trial:
    """Return a trial: one pass of a layer on random states [B, N, D], and back."""
    dims = attention.layer.dims
    states = torch.randn(batch, dims.tokens, dims.dim, device=device)

    def run() -> float:
        x = states.clone().requires_grad_()
        seconds = time_once(lambda: attention(x).square().mean().backward(), device)
        attention.zero_grad()
        return seconds

    return run


def _draw_prompt(workload: Workload, length: int) -> Tensor:
    return make_batch(workload.shape)[0][:1, :length].to(workload.device)


def _time_inference(act: Callable[[], object], workload: Workload) -> Trial:
    def run() -> float:
        with torch.no_grad(), _autocast(workload):
            return time_once(act, workload.device)

    return run


def _autocast(workload: Workload) -> AbstractContextManager[object]:
    enabled = workload.shape.precision == "bf16-mixed"
    return torch.autocast(workload.device, torch.bfloat16, enabled=enabled)


def _count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
