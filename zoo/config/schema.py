"""Sections of a recipe, in their order, and the options that belong to no registered member."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

from zoo.errors import OptionError
from zoo.options import Between, Choice, Choices, Count, Matches
from zoo.options.plain import format_value, join, to_plain

MULTIPLE = re.compile(r"\d{1,6}(\.\d{1,6})?x")
SHAPE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})")
LENGTH = Matches(
    (MULTIPLE,), "no length", "write a number of tokens, or 2x for twice the training length"
)
RESOLUTION = Matches(
    (MULTIPLE, SHAPE),
    "no resolution",
    "write pixels as 24, height and width as 16x32, or 2x for twice the training size",
)
Sides = tuple[int, int]

SEEDS = Between(0, 2**32 - 1)
Seed = Annotated[int, SEEDS]
Precision = Literal[
    "32-true",
    "16-mixed",
    "bf16-mixed",
    "16-true",
    "bf16-true",
    "64-true",
    "transformer-engine",
    "transformer-engine-float16",
]
Scalar = int | float | bool | str | None
Plain = Scalar | tuple[Scalar, ...] | Mapping[str, Scalar]
# the weights themselves are rounded
COARSE = ("16-true", "bf16-true", "transformer-engine", "transformer-engine-float16")
# options that Lightning does not have, or has in another form
OURS = (
    "logger",
    "callbacks",
    "fast_dev_run",
    "compile",
    "compile_mode",
    "float32_matmul",
    "activation_checkpointing",
    "ema_decay",
    "reshard_after_forward",
    "replicas",
    "sharded_checkpoints",
    "async_checkpoint",
    "num_threads",
    "val_every_n_steps",
    "save_every_n_steps",
    "save_top_k",
    "early_stopping",
    "profile",
    "collective_timeout",
)
MAX_DEVICES = 4096
MAX_PROFILED = 100
LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches")
# what fast_dev_run sets
ONCE = dict.fromkeys((*LIMITS, "max_epochs", "max_steps", "log_every_n_steps"), 1)


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingOptions:
    """When to stop training before its last step."""

    patience: Count
    """Validations in a row without an improvement of the task's monitored metric."""
    min_delta: Annotated[float, Between(0)] = 0.0
    """A smaller change is no improvement."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Steps of training to profile."""

    steps: tuple[Count, ...]
    """The first and the last optimizer step to profile, from 1."""


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """How long, on what and how precisely to train. The names are Lightning's, except `OURS`."""

    max_epochs: Count | None = None
    """Epochs to train; give this, max_steps, or both."""
    max_steps: Count | None = None
    """Optimizer steps to train."""
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"] = "auto"
    """Accelerator to train on."""
    devices: Count | str = "auto"
    """Devices of each node: how many, auto for all, or indices such as '0,1'."""
    num_nodes: Count = 1
    """Number of nodes."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """Distributed strategy; auto is ddp if there are several processes."""
    reshard_after_forward: bool = True
    """With fsdp, drop the gathered weights of a block after its forward pass and gather them again;
    false keeps them until its backward pass."""
    replicas: Count = 1
    """With fsdp, copies of the sharded weights (HSDP): each is sharded among an equal part of the
    processes, such as those of a node, and gradients are averaged over the copies."""
    precision: Precision = "32-true"
    """Precision of weights and computation."""
    float32_matmul: Literal["highest", "high"] = "highest"
    """Precision inside matrix products of float32: high rounds their inputs to TF32 on GPUs."""
    gradient_clip_val: Annotated[float, Between(1e-30)] | None = 1.0
    """Clip the global gradient norm to this value; null does not clip."""
    accumulate_grad_batches: Count = 1
    """Batches to accumulate gradients over before each optimizer step."""
    log_every_n_steps: Count = 10
    """Steps between two logged values of the training loss."""
    deterministic: bool = False
    """Use deterministic kernels only."""
    overfit_batches: Count | None = None
    """Train on this many fixed batches, to see whether the model can overfit them."""
    fast_dev_run: bool = False
    """Run one batch each of training, validation and test."""
    logger: Annotated[tuple[Choice, ...], Choices("loggers", may_be_empty=True)] = (
        Choice("tensorboard"),
    )
    """Loggers in addition to metrics.csv, which is always written; [] for none."""
    callbacks: Annotated[tuple[Choice, ...], Choices("callbacks", may_be_empty=True)] = ()
    """Callbacks to add to those of zoo."""
    compile: bool | Literal["blocks"] = False
    """Compile the model with torch.compile: true as a whole, blocks each block by itself, between
    which DDP sends gradients."""
    compile_mode: Literal[
        "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
    ] = "default"
    """The mode of torch.compile."""
    activation_checkpointing: bool | Literal["selective"] = False
    """Recompute blocks in the backward pass instead of storing their activations; selective stores
    the outputs of matrix products and of fused attention, and recomputes the rest."""
    ema_decay: Annotated[float, Between(1e-9, 1 - 1e-9)] | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated."""
    val_every_n_steps: Count | None = None
    """Optimizer steps between two validations within an epoch; null validates only after epochs."""
    save_every_n_steps: Count | None = None
    """Optimizer steps between two checkpoints within an epoch; null saves only after epochs."""
    save_top_k: Count | None = None
    """Keep the checkpoints of this many best validations; null keeps only `best`."""
    early_stopping: EarlyStoppingOptions | None = None
    """Stop when the monitored metric no longer improves: {patience: 5}; null never does."""
    profile: ProfileOptions | None = None
    """Write a trace of some steps with torch.profiler: {steps: [10, 13]}; null writes none."""
    collective_timeout: Annotated[float, Between(1)] | None = None
    """Seconds that a process waits for the others before it ends; null leaves torch's
    default."""
    async_checkpoint: bool = False
    """Write checkpoints in the background."""
    sharded_checkpoints: bool = False
    """With fsdp, write a checkpoint as a folder, to which each process writes its shards. Any
    number of processes, with any strategy, can resume from it."""
    num_threads: Count | Literal["auto"] | None = "auto"
    """CPU threads per process, which affect rounding; auto takes the cores that the process may
    use, and keeps the number of a resumed run; null leaves torch's default."""

    def find_problems(self, key: str) -> Iterator[tuple[str, str, str]]:
        """Yield key, problem and remedy of options that do not fit together."""
        if self.max_epochs is None and self.max_steps is None:
            yield key, "neither max_epochs nor max_steps is given", "set one of them"
        for name in ("val_every_n_steps", "save_every_n_steps"):
            steps = getattr(self, name)
            if steps and self.max_steps and steps > self.max_steps:
                message = f"{steps} steps are longer than training, max_steps {self.max_steps}"
                yield join(key, name), message, "choose fewer steps, or leave it out"
        if self.profile is not None:
            for message, hint in self._find_profile_issues(self.profile.steps):
                yield join(key, "profile.steps"), message, hint
        for name in ("logger", "callbacks"):
            chosen = [choice.name for choice in getattr(self, name)]
            for number, member in enumerate(chosen):
                if member in chosen[:number]:
                    yield join(key, f"{name}.{number}"), f"{member} appears twice", "list it once"
        if self.compile is True and self.strategy == "fsdp":
            hint = "write blocks, or choose strategy ddp"
            message = "one graph for all layers cannot gather the shards of its blocks"
            yield join(key, "compile"), message, hint
        if self.compile and self.strategy == "fsdp" and not self.reshard_after_forward:
            message = "compiled blocks whose weights stay gathered do not end in the tests"
            yield join(key, "reshard_after_forward"), message, "leave one of them out"
        if self.compile_mode != "default" and not self.compile:
            hint = "set trainer.compile, or leave it out"
            yield join(key, "compile_mode"), "nothing is compiled", hint
        if not self.reshard_after_forward and self.strategy != "fsdp":
            hint = "leave it out, or choose strategy fsdp"
            message = f"strategy {self.strategy} shards no weights"
            yield join(key, "reshard_after_forward"), message, hint
        if self.replicas > 1 and self.strategy != "fsdp":
            message = f"strategy {self.strategy} has a whole copy in each process"
            yield join(key, "replicas"), message, "leave it out, or choose strategy fsdp"
        if self.sharded_checkpoints and self.strategy != "fsdp":
            message = f"strategy {self.strategy} has no shards"
            hint = "leave it out, or choose strategy fsdp"
            yield join(key, "sharded_checkpoints"), message, hint
        elif self.sharded_checkpoints and self.async_checkpoint:
            message = "folders of shards are not written in the background"
            yield join(key, "async_checkpoint"), message, "leave one of them out"
        if isinstance(self.devices, str) and not re.fullmatch(r"auto|\d+(,\d+)*", self.devices):
            expected = "expected how many devices, auto, or which ones as '0,1'"
            yield join(key, "devices"), f"{expected}, got {format_value(self.devices)}", ""
        if isinstance(self.devices, int) and self.devices > MAX_DEVICES:
            message = f"{self.devices:,} devices of one node"
            yield join(key, "devices"), message, f"expected at most {MAX_DEVICES:,}"
        if self.ema_decay is not None and self.precision in COARSE:
            message = f"an average moves in steps that precision {self.precision} rounds away"
            hint = "choose bf16-mixed or 16-mixed, or leave ema_decay out"
            yield join(key, "ema_decay"), message, hint

    def _find_profile_issues(self, steps: Sequence[int]) -> Iterator[tuple[str, str]]:
        """Yield message and hint about steps that cannot be profiled."""
        if len(steps) != 2 or steps[0] > steps[-1]:
            message = f"{format_value([*steps])} is no first and last step"
            yield message, "write two numbers, the smaller one first, such as [10, 13]"
        elif steps[1] - steps[0] >= MAX_PROFILED:
            message = f"{steps[1] - steps[0] + 1:,} steps are too many for one trace"
            yield message, f"choose at most {MAX_PROFILED}"
        elif self.max_steps and steps[1] > self.max_steps:
            message = f"step {steps[1]:,} comes after training, max_steps {self.max_steps:,}"
            yield message, "choose earlier steps, or leave profile out"


@dataclass(frozen=True, kw_only=True)
class DiagnosticsOptions:
    """Measurements of attention during training."""

    every_n_steps: Count | None = 100
    """Steps between two measurements; null measures nothing."""
    max_overhead: Annotated[float, Between(1e-4, 1)] = 0.02
    """Largest share of training time to spend; a measurement that would exceed it is postponed."""
    samples: Count = 32
    """Samples of the first validation batch to measure."""
    queries: Count = 16
    """Queries of each sample to measure."""
    layers: tuple[Annotated[int, Between(0)], ...] | None = None
    """Numbers of the layers to measure, from 0; null for all."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Conditions to evaluate a model under, besides those of training."""

    resolutions: tuple[Count | Annotated[str, RESOLUTION], ...] | None = None
    """Image sizes in pixels: 24, 16x32 for height and width, or 2x the training size."""
    lengths: tuple[Count | Annotated[str, LENGTH], ...] | None = None
    """Lengths in tokens: 512, or 2x the training length."""
    stride: Count | None = None
    """Tokens between the starts of windows, of which only new ones are scored, or pixels between
    those of sliding_window. null: the length, and half a window."""
    data_variants: Mapping[str, Mapping[str, Plain]] | None = None
    """Data options to change, by name of the variant: {name: {option: value}}."""
    extrapolation: tuple[str, ...] | None = None
    """Extrapolation methods to try beyond the training size; none leaves the encoding unchanged,
    drop drops it, truncate reads no more tokens at once than in training, sliding_window no more
    pixels, and resize resizes images to the training size."""
    factors: tuple[Annotated[float, Between(1)], ...] | None = None
    """Factors to try of each method; null: the one that a size requires."""
    entropy: bool = False
    """Whether to measure the entropy of attention at each size, over a few test samples."""


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The prompt of `zoo generate`, and how it samples tokens."""

    prompt: str = ""
    """Text to continue."""
    tokens: Count = 200
    """Tokens to generate."""
    temperature: Annotated[float, Between(0)] = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_k: Count | None = None
    """Sample from this many of the likeliest tokens; null for all."""
    top_p: Annotated[float, Between(1e-6, 1)] = 1.0
    """Nucleus sampling: sample from the likeliest tokens with this total probability."""
    stop: str | None = None
    """Stop after this text."""
    samples: Count = 1
    """Texts to generate."""
    seed: Seed = 0
    """Seed of the sampling."""
    cache: bool = True
    """Keep keys and values of earlier tokens."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """The report of `zoo predict` for each file."""

    top: Count = 5
    """Classes to report at most, the likeliest first."""


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """Keys that change within a training. Weights, optimizer and learning rate go on."""

    from_step: Count
    """Optimizer steps after which the changes apply."""
    model: Mapping[str, Any] | None = None
    """Options of the model that change, as a recipe has them; shapes of weights stay equal."""
    data: Mapping[str, Any] | None = None
    """The new length of windows: {length: 1024}. A step keeps its number of tokens."""

    @property
    def changes(self) -> dict[str, dict[str, Any]]:
        """What changes, as plain data by section."""
        sections = {"model": to_plain(self.model), "data": to_plain(self.data)}
        return {section: options for section, options in sections.items() if options}


@dataclass(frozen=True, kw_only=True)
class Sections:
    """The sections of a recipe; `extends` is read before them."""

    seed: Seed = 0
    """Seed of weights, order and augmentation."""
    init_from: str | None = None
    """A checkpoint, of this recipe or another, that the weights start from."""
    model: Annotated[Choice, Choices("models")]
    data: Annotated[Choice, Choices("data")]
    task: Annotated[Choice, Choices("tasks")]
    optim: Annotated[Choice, Choices("optim")]
    trainer: TrainerOptions = TrainerOptions()
    diagnostics: DiagnosticsOptions = DiagnosticsOptions()
    evaluate: EvaluateOptions = EvaluateOptions()
    generate: GenerateOptions = GenerateOptions()
    predict: PredictOptions = PredictOptions()
    stages: tuple[StageOptions, ...] = ()
    """Keys that change after some steps: [{from_step: 1000, data: {length: 1024}}]."""


def parse_length(word: int | str, trained: int, key: str) -> int:
    """Return a length in tokens. Raises OptionError for `key` if it is not an integer."""
    return word if isinstance(word, int) else _multiply(word, trained, key)


def parse_sides(word: int | str, trained: Sides, key: str) -> Sides:
    """Return height and width in pixels. Raises OptionError for `key` if one is not an integer."""
    if isinstance(word, int):
        return word, word
    if match := SHAPE.fullmatch(word):
        return int(match[1]), int(match[2])
    return _multiply(word, trained[0], key), _multiply(word, trained[1], key)


def format_size(size: Sequence[int]) -> str:
    """Write a size as in the names of results: 256, 24, or 16x32 where the sides differ."""
    return str(size[0]) if len(set(size)) == 1 else "x".join(map(str, size))


def _multiply(word: str, trained: int, key: str) -> int:
    # exact: 1.1 times 10 is 11, and not 11.000000000000002
    size = Fraction(word.removesuffix("x")) * trained
    if size.denominator != 1 or not size:
        raise OptionError(
            key, f"{word} of {trained} is {float(size):g}, not an integer of at least 1"
        )
    return int(size)
