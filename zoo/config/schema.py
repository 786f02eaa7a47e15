"""The sections of a recipe, in their order, and the options of those that name no registered member."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from zoo.config.tree import format_value, join
from zoo.errors import OptionError
from zoo.registry import Between, Choice, Choices, Count, Matches

MULTIPLE = re.compile(r"\d{1,6}(\.\d{1,6})?x")
SHAPE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})")
LENGTH = Matches(
    (MULTIPLE,), "no length", "write a number of tokens, or 2x for twice the length of training"
)
RESOLUTION = Matches(
    (MULTIPLE, SHAPE),
    "no resolution",
    "write pixels as 24, height and width as 16x32, or 2x for twice the size of training",
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
Tracker = Literal["tensorboard", "wandb", "mlflow"]
COARSE = (
    "16-true",
    "bf16-true",
    "transformer-engine",
    "transformer-engine-float16",
)  # weights themselves are rounded
# not Lightning's, or not as it has them
OURS = (
    "logger",
    "fast_dev_run",
    "compile",
    "activation_checkpointing",
    "ema_decay",
    "async_checkpoint",
    "num_threads",
)
LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches")
ONCE = dict.fromkeys((*LIMITS, "max_epochs", "max_steps", "log_every_n_steps"), 1)  # fast_dev_run


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """How long, on what and how precisely to train. The names are Lightning's, but for those of `OURS`."""

    max_epochs: Count | None = None
    max_steps: Count | None = None
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"] = "auto"
    devices: Count | str = "auto"
    num_nodes: Count = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"  # auto: ddp where there are several processes
    precision: Precision = "32-true"
    gradient_clip_val: Annotated[float, Between(0)] | None = 1.0
    accumulate_grad_batches: Count = 1
    log_every_n_steps: Count = 10
    deterministic: bool = False
    overfit_batches: Count | None = None  # train on the same few first batches in every epoch
    fast_dev_run: bool = False  # one batch each of training, validation and test
    logger: Tracker | tuple[Tracker, ...] = ("tensorboard",)  # besides metrics.csv
    compile: bool = False
    activation_checkpointing: bool = (
        False  # blocks are computed again in the backward pass, in place of being stored
    )
    ema_decay: Annotated[float, Between(1e-9, 1 - 1e-9)] | None = (
        None  # decay of an average of weights, which is evaluated
    )
    async_checkpoint: bool = False  # write checkpoints in the background
    num_threads: Count | None = (
        None  # of each process, on the CPU: sums are rounded otherwise by more or fewer; None: torch's
    )

    def problems(self, key: str) -> Iterator[tuple[str, str, str]]:
        """Key, problem and remedy of what no single type tells."""
        if self.max_epochs is None and self.max_steps is None:
            yield key, "neither max_epochs nor max_steps is given", "say how long to train"
        if self.compile and self.strategy == "fsdp":
            yield (
                join(key, "compile"),
                "blocks in shards are not compiled",
                "leave it out, or choose strategy ddp",
            )
        if isinstance(self.devices, str) and not re.fullmatch(r"auto|\d+(,\d+)*", self.devices):
            problem = f"expected how many devices, auto, or which ones as '0,1', got {format_value(self.devices)}"
            yield join(key, "devices"), problem, ""
        if self.ema_decay is not None and self.strategy == "fsdp":
            told = f"an average needs all weights in each process, which strategy {self.strategy} does not keep"
            yield join(key, "ema_decay"), told, "choose strategy ddp, or leave ema_decay out"
        if self.ema_decay is not None and self.precision in COARSE:
            told = f"an average moves in steps that precision {self.precision} rounds away"
            yield (
                join(key, "ema_decay"),
                told,
                "choose bf16-mixed or 16-mixed, or leave ema_decay out",
            )

    @property
    def trackers(self) -> tuple[str, ...]:
        """`logger` as a list."""
        return (self.logger,) if isinstance(self.logger, str) else self.logger


@dataclass(frozen=True, kw_only=True)
class DiagnosticsOptions:
    """What is measured of the attention while training: `queries` of `samples` of the validation, each `every` steps.

    Looks that would take more than the share `budget` of the time are put off. `every` null: there are none.
    """

    every_n_steps: Count | None = 100
    max_overhead: Annotated[float, Between(1e-4, 1)] = 0.02
    samples: Count = 4
    queries: Count = 16
    layers: tuple[Annotated[int, Between(0)], ...] | None = None  # by number, from 0; None: all


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What a model is evaluated at besides what it was trained at.

    Sizes are numbers, resolutions also HxW, and either multiples Nx of the size of training. `variants` are named changes
    of the options of the data. At sizes past that of training each of `rules` is tried that an encoding of the model
    knows; none is the encoding as it is.
    """

    resolutions: tuple[Count | Annotated[str, RESOLUTION], ...] | None = None
    lengths: tuple[Count | Annotated[str, LENGTH], ...] | None = None
    stride: Count | None = (
        None  # tokens from window to window, of which the last so many are asked; None: the length
    )
    data_variants: Mapping[str, Mapping[str, Plain]] | None = None
    extrapolation: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """What `zoo generate` writes, and how it draws tokens. Temperature 0 takes the likeliest."""

    prompt: str = ""
    tokens: Count = 200
    temperature: Annotated[float, Between(0)] = 1.0
    top_k: Count | None = None
    top_p: Annotated[float, Between(1e-6, 1)] = 1.0
    stop: str | None = None
    samples: Count = 1
    seed: Seed = 0
    cache: bool = True


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What `zoo predict` tells of each file that has a class: at most so many classes, the likeliest first."""

    top: Count = 5


@dataclass(frozen=True, kw_only=True)
class Sections:
    """What a recipe holds beside `extends`."""

    seed: Seed = 0
    init_from: str | None = (
        None  # a checkpoint, of this recipe or another, whose weights are the first ones
    )
    model: Annotated[Choice, Choices("models")]
    data: Annotated[Choice, Choices("data")]
    task: Annotated[Choice, Choices("tasks")]
    optim: Annotated[Choice, Choices("optim")]
    trainer: TrainerOptions = TrainerOptions()
    diagnostics: DiagnosticsOptions = DiagnosticsOptions()
    evaluate: EvaluateOptions = EvaluateOptions()
    generate: GenerateOptions = GenerateOptions()
    predict: PredictOptions = PredictOptions()


def parse_length(word: int | str, trained: int, key: str) -> int:
    """Return a length in tokens. Raises OptionError for `key` where a multiple is no whole number."""
    return word if isinstance(word, int) else _multiply(word, trained, key)


def parse_sides(word: int | str, trained: Sides, key: str) -> Sides:
    """Return height and width in pixels. Raises OptionError for `key` where a multiple is no whole number."""
    if isinstance(word, int):
        return word, word
    if found := SHAPE.fullmatch(word):
        return int(found[1]), int(found[2])
    return _multiply(word, trained[0], key), _multiply(word, trained[1], key)


def format_size(size: int | Sides) -> str:
    """Write a size as the key of a result: 24, or 16x32 where the sides differ."""
    if isinstance(size, int) or size[0] == size[1]:
        return str(size if isinstance(size, int) else size[0])
    return "x".join(map(str, size))


def _multiply(word: str, trained: int, key: str) -> int:
    size = Fraction(word.removesuffix("x")) * trained
    if size.denominator != 1 or not size:
        raise OptionError(
            key, f"{word} of {trained} is {float(size):g}, no whole number of at least 1"
        )
    return int(size)
