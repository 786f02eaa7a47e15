"""Requirements of a training: samples per second, data workers, and memory of each process.

A time is predicted only where the assumption that it rests on can hold.

The formulas, their sources and what they leave out are in docs/scale.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from zoo.registry import names
from zoo.run.build import Experiment
from zoo.run.machine import PEAKS
from zoo.run.preflight import count_tokens, plan_backends
from zoo.run.processes import PASSES, StepSize

PEAK_FLOPS = 1e12 * (PEAKS["NVIDIA H100 80GB HBM3"].bfloat16 or 0)
"""Operations per second of an H100 in bfloat16, dense, from NVIDIA's data sheet."""
UTILIZATION = 0.4
"""Fraction of the peak that a training is assumed to reach."""
MEMORY_BANDWIDTH = 3.35e12
"""Bytes per second of an H100's memory, from the same data sheet."""
MULTIPROCESSORS, TILE = 132, 128
"""Multiprocessors of an H100, and the side of the part of a product that each computes at once."""
ENCODED_PER_SECOND = 0.8e6
"""Tokens that a core encodes per second, from docs/records/tokenizing.json."""
DECODED_PER_SECOND = 430
"""JPEGs of 500 x 400 pixels that a worker decodes, from docs/records/image_loading.json."""
FUSED = ("sdpa", "flex")
"""Attention backends that do not store the attention matrices."""


@dataclass(frozen=True)
class Requirements:
    """Requirements of each process of a training; a time assumes UTILIZATION of PEAK_FLOPS."""

    processes: int
    is_global: bool
    """Whether the recipe says the samples of a step, whatever the processes."""
    batch: int
    """Samples of one process in one backward pass."""
    accumulated: int
    """Backward passes of one step."""
    steps: int
    """Steps of the training; 0 if the number of epochs determines it."""
    workers: int
    """Data workers of each process."""
    is_decoded: bool
    """Whether workers decode images of files."""
    tokenizer_workers: int | None
    """Workers of each process that encode all rows before training; None for data that is not
    streamed text with a tokenizer."""
    tokens: int
    """Tokens of a sample."""
    unit: str
    """What is counted per second: images, tokens or samples."""
    step_flops: float
    """Operations of a process in one step."""
    step_seconds: float | None
    """None where the assumption does not hold."""
    unpredicted: str
    """Why the assumption does not hold; empty if it does."""
    weight_bytes: float
    """Weights, gradients and optimizer state of one process."""
    activation_bytes: float
    """Activations of one backward pass."""

    @property
    def global_batch(self) -> int:
        """Number of samples of a step."""
        return StepSize(self.batch, self.accumulated, self.processes).total

    @property
    def units_per_second(self) -> float | None:
        """Images, tokens or samples that one process reads per second; None without a time."""
        if self.step_seconds is None:
            return None
        size = self.tokens if self.unit == "tokens" else 1
        return self.batch * self.accumulated * size / self.step_seconds


def estimate_requirements(experiment: Experiment, processes: int | None = None) -> Requirements:
    """Compute what a training needs from its recipe.

    Args:
        experiment: The checked experiment.
        processes: Number of processes. None: devices times nodes of the recipe.

    Raises:
        OptionError: The samples of a step cannot be divided among the processes.
    """
    recipe, spec = experiment.recipe, experiment.spec
    trainer, options = recipe.trainer, recipe.data.options
    if processes is None:
        devices = trainer.devices if isinstance(trainer.devices, int) else 1
        processes = max(devices, 1) * trainer.num_nodes
    step = StepSize.plan(recipe, processes)
    batch, accumulated = step.batch or 1, step.accumulated

    step_flops = PASSES * experiment.flops * batch * accumulated
    with torch.device("meta"):
        tokens = count_tokens(experiment.meta_model, spec)
    unpredicted = explain_unpredicted(
        trainer.precision, int(recipe.model.options.get("dim") or 0), batch * tokens
    )
    return Requirements(
        processes=processes,
        is_global="global_batch_size" in options,
        batch=batch,
        accumulated=accumulated,
        steps=trainer.max_steps or 0,
        workers=options.get("workers", 0),
        is_decoded=spec.is_image and "path" in options,
        tokenizer_workers=options.get("tokenizer_workers") if options.get("tokenizer") else None,
        tokens=tokens,
        unit=spec.unit,
        step_flops=step_flops,
        step_seconds=None if unpredicted else step_flops / (PEAK_FLOPS * UTILIZATION),
        unpredicted=unpredicted,
        weight_bytes=_compute_weight_bytes(experiment, processes),
        activation_bytes=_compute_activation_bytes(experiment, batch, tokens),
    )


def count_training_flops(experiment: Experiment, model: nn.Module) -> int | None:
    """Count the operations of the forward and backward pass of a training sample.

    Args:
        experiment: The experiment.
        model: The model that is trained.

    Returns:
        The operations; None where a sample does not have those of the largest one, or where
        frozen weights save some of the backward pass.
    """
    is_frozen = any(not parameter.requires_grad for parameter in model.parameters())
    if is_frozen or not experiment.spec.has_equal_shapes:
        return None
    return PASSES * experiment.flops


def explain_unpredicted(precision: str, width: int, tokens: int) -> str:
    """Return why a step does not reach UTILIZATION of PEAK_FLOPS; empty if it may.

    The peak is that of products in bfloat16 that are large enough: their sides decide whether they
    wait for memory (Williams et al. 2009, doi:10.1145/1498765.1498785), and their number of
    elements whether all multiprocessors have work. A step of a small model takes as long as its
    kernels take to start, hundreds of times longer than its operations.

    Args:
        precision: `trainer.precision`.
        width: Width of the model.
        tokens: Tokens of one backward pass.
    """
    if not precision.startswith("bf16"):
        return f"the peak is that of bfloat16, and trainer.precision is {precision}"
    # a product [T, D] x [D, D] does 2 T D^2 operations on 4 T D bytes, if T is large
    least_width = 2 * UTILIZATION * PEAK_FLOPS / MEMORY_BANDWIDTH
    if width < least_width:
        return f"products of width {width} wait for memory, as all below {least_width:.0f} do"
    if tokens * width < MULTIPROCESSORS * TILE**2:
        return f"{tokens:,} tokens of width {width} do not fill a GPU"
    return ""


def _compute_weight_bytes(experiment: Experiment, processes: int) -> float:
    trainer = experiment.recipe.trainer
    count = sum(parameter.numel() for parameter in experiment.meta_model.parameters())
    # weights, gradients and two moments of AdamW
    size = (2 if trainer.precision == "bf16-true" else 4) * 4
    if trainer.ema_decay is not None:
        size += 4
    return count * size / (processes / trainer.replicas if trainer.strategy == "fsdp" else 1)


def _compute_activation_bytes(experiment: Experiment, batch: int, tokens: int) -> float:
    """Return the bytes of equations 1 and 2 of Korthikanti et al. 2022, and those of logits."""
    recipe, model, spec = experiment.recipe, experiment.meta_model, experiment.spec
    options, trainer = recipe.model.options, recipe.trainer
    # the model may have another form than a transformer of the registry
    width, depth, heads = (int(options.get(key) or 0) for key in ("dim", "depth", "heads"))
    with torch.device("meta"):
        backends = [name for name, _ in plan_backends(model, spec, "cuda")]
    # mixers store no scores of pairs
    without = (*FUSED, *names("mixers"))
    stored = sum(not name.startswith(without) for name in backends) / max(len(backends), 1)
    layer = 34 * tokens * width + stored * 5 * heads * tokens**2
    if trainer.activation_checkpointing == "selective":
        # inputs of all layers, outputs of their products, and all of the one that is recomputed
        products = 22 * tokens * width + stored * 2 * heads * tokens**2
        total = float(products * depth + layer)
    elif trainer.activation_checkpointing:
        # inputs of all layers, and all of the one that is recomputed
        total = 2.0 * tokens * width * depth + layer
    else:
        total = float(layer * depth)
    # the formula counts 16 bits
    total *= 2 if trainer.precision == "32-true" else 1
    vocabulary = spec.token_vocabulary
    outputs = tokens * len(vocabulary) if vocabulary and spec.target_unit == "token" else 0
    # logits in 32 bits, and their gradient
    return batch * (total + 8 * outputs)


def describe_requirements(needs: Requirements) -> Iterator[str]:
    """Yield lines of text about what a training needs."""
    size = f" of {needs.tokens:,} tokens" if needs.unit == "tokens" else ""
    noun = "windows" if needs.unit == "tokens" else needs.unit
    factors = f"{needs.batch} x {needs.accumulated} accumulated x {needs.processes} processes"
    fixed = ", data.global_batch_size for any number of processes" if needs.is_global else ""
    yield f"step: {needs.global_batch:,} {noun}{size} ({factors}{fixed})"
    yield from _describe_pace(needs)
    both = needs.weight_bytes + needs.activation_bytes
    yield (
        f"memory: {both / 1e9:.3g} GB of each GPU by calculation: "
        f"{needs.weight_bytes / 1e9:.3g} weights, gradients and AdamW, "
        f"{needs.activation_bytes / 1e9:.3g} activations"
    )


def _describe_pace(needs: Requirements) -> Iterator[str]:
    """Yield lines about the time of a step, and about what must keep up with it."""
    rate, seconds = needs.units_per_second, needs.step_seconds
    total = None if rate is None else rate * needs.processes
    assumed = f"{UTILIZATION:.0%} of the peak of an H100, {PEAK_FLOPS / 1e12:.0f} TFLOP/s"
    if rate is None or total is None or seconds is None:
        yield f"time: no prediction from {needs.step_flops:.2g} FLOPs a step: {needs.unpredicted}"
    else:
        hours = f", {needs.steps:,} steps {needs.steps * seconds / 3600:,.1f} hours"
        yield f"time: {seconds:.3g} s a step{hours if needs.steps else ''}, at {assumed}"
        per_worker = (
            f", {_round(rate / max(needs.workers, 1))} from each of {needs.workers} workers"
        )
        yield (
            f"data: {_round(total)} {needs.unit} per second then, {_round(rate)} for each process"
            f"{per_worker if needs.workers else ''}"
        )
        if needs.is_decoded:
            count = math.ceil(rate / DECODED_PER_SECOND)
            size = f"{DECODED_PER_SECOND} JPEGs of 500 x 400 pixels per second and core"
            workers = f"{count:,} for each process, {count * needs.processes:,} in all"
            yield f"workers: {workers}, at {size}"
    if needs.tokenizer_workers is not None:
        yield _describe_tokenizer(needs.tokenizer_workers, needs.processes, total)


def _describe_tokenizer(workers: int, processes: int, rate: float | None) -> str:
    """Describe the work of encoding text, of which a training reads `rate` tokens per second."""
    speed = f"{_round(ENCODED_PER_SECOND)} per second and core"
    if workers:
        seconds = _round(1e9 / (ENCODED_PER_SECOND * workers * processes))
        how = f"{workers} x {processes} workers encode all rows once, before training"
        return f"tokenizer: {how}, {seconds} s for 1,000,000,000 tokens at {speed}"
    how = "each process encodes all text"
    if rate is None:
        return f"tokenizer: {how}, at {speed}"
    cores = rate / ENCODED_PER_SECOND
    hint = "; data.tokenizer_workers=8 encodes it once, before training" if cores > 1 else ""
    return f"tokenizer: {how}, as fast as {cores:.1f} cores at {speed}{hint}"


def _round(rate: float) -> str:
    """Write a rate with three digits."""
    digits = max(3 - math.ceil(math.log10(max(rate, 1e-9))), 0)
    step = 10 ** max(math.ceil(math.log10(max(rate, 1e-9))) - 3, 0)
    return f"{round(rate / step) * step:,}" if not digits else f"{rate:.{digits}f}"
