"""The vocabulary of a benchmark: shapes, workloads, contenders and measures."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from zoo.attention.functional import Attention
from zoo.errors import OptionError

Trial = Callable[[], float]
"""Runs once what is measured, and returns the value."""

Precision = Literal["32-true", "bf16-mixed"]


def synchronize(device: str) -> None:
    """Wait until a device has finished all queued work."""
    if device == "cuda":
        torch.cuda.synchronize()


def time_once(act: Callable[[], object], device: str) -> float:
    """Return the seconds that one call takes."""
    synchronize(device)
    start = time.perf_counter()
    act()
    synchronize(device)
    return time.perf_counter() - start


def run_rounds(
    trials: Sequence[Trial], min_rounds: int, min_seconds: float = 0.0, warmup: int = 1
) -> Iterator[list[float]]:
    """Run all trials in turn, so that changes of the machine's pace affect all of them.

    Each round starts with another trial, because the trial after the largest one finds cold caches.

    Args:
        trials: The trials.
        min_rounds: Minimum number of rounds.
        min_seconds: Minimum time; further rounds run until it has passed.
        warmup: Warmup rounds, which are not counted.

    Yields:
        The values of all trials, round by round.
    """
    for _ in range(warmup):
        for trial in trials:
            trial()
    end, count = time.perf_counter() + min_seconds, 0
    while count < min_rounds or time.perf_counter() < end:
        order = [(count + step) % len(trials) for step in range(len(trials))]
        values = {index: trials[index]() for index in order}
        yield [values[index] for index in range(len(trials))]
        count += 1


def measure_peak_memory(act: Callable[[], object], device: str) -> int:
    """Return the peak bytes that torch allocates during a call, beyond those held before.

    On a CPU each allocation is traced, which gives the same bytes every time. Resident memory would
    vary with what the C library keeps.
    """
    return _peak_on_cuda(act) if device == "cuda" else _peak_on_cpu(act)


def _peak_on_cuda(act: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    act()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_on_cpu(act: Callable[[], object]) -> int:
    # otherwise the tracer writes to standard error when it starts and stops
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        act()
    assert traced.profiler is not None
    assert traced.profiler.kineto_results is not None

    events: list[Any] = list(traced.profiler.kineto_results.events())
    events = [event for event in events if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a ViT or a decoder, and of its batch."""

    kind: Literal["image", "text"]
    dim: int
    depth: int
    heads: int
    batch: int
    length: int
    """Pixels along each side of an image, or tokens of a sample."""
    outputs: int
    """Classes, or size of the vocabulary."""
    patch_size: int = 16
    precision: Precision = "32-true"
    compile: bool = False

    @property
    def default_reference(self) -> str:
        """The encoding that others are compared with by default."""
        return "none" if self.kind == "image" else "rope"

    @property
    def unit(self) -> str:
        """The unit of rates."""
        return "images" if self.kind == "image" else "tokens"

    def make_inputs(self) -> Tensor:
        """Make zeros as inputs: images [B, 3, L, L] or tokens [B, L]."""
        if self.kind == "image":
            return torch.zeros(self.batch, 3, self.length, self.length)
        return torch.zeros(self.batch, self.length, dtype=torch.int64)


_image = partial(Shape, kind="image", batch=8, length=224, outputs=1000)
_text = partial(Shape, kind="text", batch=2, length=1024, outputs=256)

SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "vit_toy": _image(dim=32, depth=2, heads=2, batch=2, length=32, patch_size=8, outputs=10),
        "vit_s": _image(dim=384, depth=12, heads=6),
        "vit_b": _image(dim=768, depth=12, heads=12),
        "lm_toy": _text(dim=32, depth=2, heads=2, length=32),
        "lm_small": _text(dim=512, depth=6, heads=8),
        "lm_base": _text(dim=768, depth=12, heads=12),
        "lm_wide": _text(
            dim=1024, depth=12, heads=16, batch=1, length=8192, precision="bf16-mixed", compile=True
        ),
    }
)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A shape, the device and the augmentation of positions."""

    shape: Shape
    device: str = "cpu"
    jitter: float = 0.0
    """Jitter of positions in training, in patches or tokens."""

    def with_length(self, length: int) -> Workload:
        """Return the same workload with images or texts of another length."""
        return replace(self, shape=replace(self.shape, length=length))


Make = Callable[[Workload], nn.Module]
"""Build a model from images [B, 3, L, L] or tokens [B, L] to logits. Raises OptionError."""

Generate = Callable[[nn.Module, Tensor, int], object]
"""Continue a prompt [1, N] greedily by a number of tokens, with a KV cache."""

Stream = Callable[[nn.Module, Tensor], Iterator[int]]
"""Yield the tokens that follow a prompt [1, N] one by one, with a KV cache."""

Cache = Callable[[nn.Module, Tensor], int]
"""Return the bytes that a KV cache keeps of a prompt [1, N]."""

DescribeBackend = Callable[[nn.Module, Tensor, str], str]
"""Name the attention backends of a model for inputs on a type of device."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model of zoo or another library; fields are None for what it cannot do."""

    name: str
    make: Make
    library: str | None = None
    """The other library; None for models of zoo."""
    counterpart: str | None = None
    """For a model of another library: the name of zoo's model that it is compared with."""
    generate: Generate | None = None
    stream: Stream | None = None
    cache: Cache | None = None
    describe_backend: DescribeBackend | None = None
    layer: Callable[[Workload], Attention] | None = None


def find_refusal(contender: Contender, workloads: Sequence[Workload]) -> str | None:
    """Return why a model cannot be built or run, or None. Allocates no memory."""
    try:
        with torch.device("meta"), torch.no_grad():
            for workload in workloads:
                contender.make(workload)(workload.shape.make_inputs())
    except OptionError as error:
        return str(error)
    except Exception as error:
        # a plug-in may raise anything, and torch does for sizes that it cannot count
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of a prepared run; `amount` is its work in units of `rate`."""

    amount: float = 0.0
    parameters: int = 0
    backend: str = ""


class PreparedRun(NamedTuple):
    """A trial that can be repeated, and its facts."""

    run: Trial
    facts: RunFacts


class BenchMeasure(ABC):
    """A quantity that is measured for each contender at each length."""

    name: str
    unit: str
    """Unit of what a run returns."""
    rate: str = ""
    """The unit of rates; empty if a run returns no time or has no rate."""
    is_repeated: bool = True
    """Whether the value differs from run to run."""

    def choose_lengths(self, workload: Workload, lengths: Sequence[int]) -> Sequence[int]:
        """Return the lengths to measure at: the given lengths, or the measure's own."""
        return lengths

    def supports(self, contender: Contender) -> bool:
        """Return whether this can be measured for a contender."""
        return True

    @abstractmethod
    def prepare(self, contender: Contender, workload: Workload) -> PreparedRun:
        """Build the model and its inputs. Raises OptionError if the contender does not allow it."""
