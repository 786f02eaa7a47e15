"""Run a benchmark: all models take turns, and the result is written to a folder."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from signal import Signals
from typing import Annotated, Literal

import torch

from zoo.benchmark.measures import (
    CacheMeasure,
    ContextMeasure,
    DecodeMeasure,
    LayerMeasure,
    MemoryMeasure,
    TrainMeasure,
)
from zoo.benchmark.models import (
    ScoreOption,
    build_peers,
    choose_contenders,
    load_layers,
    read_versions,
)
from zoo.benchmark.protocol import (
    SHAPES,
    BenchMeasure,
    Contender,
    RunFacts,
    Trial,
    Workload,
    run_rounds,
)
from zoo.benchmark.report import prepare_folder, write_result
from zoo.benchmark.result import BenchResult, BenchRow
from zoo.encodings.common.chains import format_chain
from zoo.errors import (
    ARGUMENT,
    ConfigIssue,
    Message,
    OptionError,
    RecipeError,
    Setting,
    Stopped,
    ZooError,
)
from zoo.options import Between, Choice
from zoo.run.machine import are_denormals_flushed, check_denormals, describe_machine
from zoo.utils import Ticker, format_now, is_out_of_memory, stop_on_signal
from zoo.version import __version__

log = logging.getLogger("zoo")

Tell = Callable[[str], None]
# 2**24 is more than any machine has, and few enough to multiply
BenchCount = Annotated[int, Between(1, 16_777_216)]
MeasureName = Literal["train", "memory", "decode", "layer"]
# compiled graphs of one function at most, where each model of a group has its own
MAX_GRAPHS = 256
CONTEXT_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of a benchmark: its measures, their sizes, and the number of rounds."""

    shape: Literal["vit_toy", "vit_s", "vit_b", "lm_toy", "lm_small", "lm_base", "lm_wide"] = (
        "lm_small"
    )
    """Sizes of the models and of their batch."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the models; auto: a GPU if there is one."""
    lengths: tuple[BenchCount, ...] | BenchCount | None = None
    """Tokens of text, or pixels along a side of images; null: the length of the shape."""
    measures: tuple[MeasureName, ...] | MeasureName = ("train", "memory")
    """Measures: training steps, peak memory, decoding, one attention layer."""
    scores: tuple[ScoreOption, ...] | ScoreOption = ()
    """Options of attention with which the reference is measured too: softcap, sinks, temperature.
    """
    layers: tuple[str, ...] = ()
    """Recipes whose layers differ; their types and pattern are measured in the sizes of the shape.
    """
    rounds: BenchCount = 5
    """Minimum number of rounds; in each, all models take turns."""
    seconds: Annotated[float, Between(0)] = 0.0
    """Minimum time for the rounds of one group of models."""
    warmup: Annotated[int, Between(0, 16_777_216)] = 1
    """Warmup rounds, which are not counted."""
    together: Annotated[int, Between(2)] = 8
    """Models, including the reference, that are in memory at once and take turns."""
    batch: BenchCount | None = None
    """Batch size; null: that of the shape."""
    precision: Literal["32-true", "bf16-mixed"] | None = None
    """Precision of matrix products; null: that of the shape."""
    compile: bool | None = None
    """Whether to compile the models; null: as the shape does."""
    jitter: Annotated[float, Between(0)] = 0.0
    """Jitter of positions in training, in patches or tokens."""
    peers: bool = True
    """Whether to compare with other libraries that are installed, x-transformers and timm."""
    prompt: BenchCount = 512
    """Tokens of the prompt of measure decode."""
    tokens: BenchCount = 256
    """Tokens that measure decode generates."""
    contexts: tuple[BenchCount, ...] = (256, 4096)
    """Lengths of context after which measure decode also times single tokens."""
    to: str = "bench"
    """Output folder, for bench.json, the tables and the figure."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Minimum rounds, minimum seconds, and warmup rounds."""

    rounds: int
    seconds: float
    warmup: int


class GroupRun:
    """Contenders that take turns under one measure at one length.

    An error stops its own contender only.
    """

    def __init__(
        self, measure: BenchMeasure, workload: Workload, contenders: Sequence[Contender], tell: Tell
    ) -> None:
        self.measure, self.workload, self.contenders, self.tell = (
            measure,
            workload,
            contenders,
            tell,
        )
        self.runs: dict[str, Trial] = {}
        self.facts: dict[str, RunFacts] = {}
        self.errors: dict[str, str] = {}
        self.values: list[list[float]] = []  # [rounds, contenders], NaN where one failed

    def run(self, pace: Pace) -> None:
        """Run all rounds, and free the models at the end, also after a signal."""
        try:
            with _compile_freely() if self.workload.shape.compile else nullcontext():
                for contender in self.contenders:
                    with self._catch_errors(contender.name):
                        prepared = self.measure.prepare(contender, self.workload)
                        self.runs[contender.name], self.facts[contender.name] = prepared
                self._run_rounds(pace)
        finally:
            # the next group must not be measured with the memory of this one taken
            self.runs.clear()
            _free_memory(self.workload.device)

    def build_rows(self, group: int, reference: str) -> list[BenchRow]:
        """Return a row for each contender, with the rounds that are done."""
        return [self._build_row(contender, group, reference) for contender in self.contenders]

    def _run_rounds(self, pace: Pace) -> None:
        if not self.measure.is_repeated:
            pace = Pace(rounds=1, seconds=0, warmup=0)
        trials = [self._build_trial(contender.name) for contender in self.contenders]
        for values in run_rounds(trials, pace.rounds, pace.seconds, pace.warmup):
            self.values.append(values)

    def _build_trial(self, name: str) -> Trial:
        def run() -> float:
            with self._catch_errors(name, f", round {len(self.values) + 1}"):
                if name in self.runs:
                    return self.runs[name]()
            return math.nan

        return run

    @contextmanager
    def _catch_errors(self, name: str, step: str = "") -> Iterator[None]:
        length = self.workload.shape.length
        self.tell(f"{self.measure.name} {length} {name}{step}")
        try:
            yield
        except Exception as error:
            # catch anything: an error must not lose hours of rounds of the others
            self.errors[name] = _describe_error(error)
            log.warning("%s, %s at %d: %s", name, self.measure.name, length, self.errors[name])
            self.runs.pop(name, None)
        else:
            return
        _free_memory(self.workload.device)

    def _build_row(self, contender: Contender, group: int, reference: str) -> BenchRow:
        facts = self.facts.get(contender.name, RunFacts())
        return BenchRow(
            measure=self.measure.name,
            unit=self.measure.unit,
            rate=self.measure.rate,
            length=self.workload.shape.length,
            name=contender.name,
            library=contender.library,
            counterpart=contender.counterpart,
            group=group,
            amount=facts.amount,
            parameters=facts.parameters,
            backend=facts.backend,
            error=self.errors.get(contender.name),
            values=tuple(
                value for value in self._values_of(contender.name) if not math.isnan(value)
            ),
            ratios=self._ratios_of(contender.name, reference),
            counterpart_ratios=self._ratios_of(contender.name, contender.counterpart),
        )

    def _values_of(self, name: str) -> list[float]:
        column = [contender.name for contender in self.contenders].index(name)
        return [values[column] for values in self.values]

    def _ratios_of(self, name: str, base_name: str | None) -> tuple[float, ...]:
        """Return the ratios within the rounds that both completed."""
        if base_name not in [contender.name for contender in self.contenders]:
            return ()
        # within rounds, so that a machine that changes its pace changes both equally
        pairs = zip(self._values_of(name), self._values_of(str(base_name)), strict=True)
        return tuple(ours / theirs for ours, theirs in pairs if not math.isnan(ours + theirs))


@dataclass
class Benchmark:
    """All measures at all lengths; `rows` grows during the run, so that a signal loses none."""

    groups: Sequence[Sequence[Contender]]
    measures: Sequence[BenchMeasure]
    lengths: Sequence[int]
    workload: Workload
    pace: Pace
    tell: Tell
    rows: list[BenchRow] = field(default_factory=list)

    def run(self) -> None:
        """Run each group under each measure at each length."""
        for measure in self.measures:
            for length in measure.choose_lengths(self.workload, self.lengths):
                workload = self.workload.with_length(length)
                for number, group in enumerate(self.groups):
                    self._run_group(measure, workload, number, group)

    def _run_group(
        self, measure: BenchMeasure, workload: Workload, number: int, group: Sequence[Contender]
    ) -> None:
        contenders = [contender for contender in group if measure.supports(contender)]
        group_run = GroupRun(measure, workload, contenders, self.tell)
        try:
            group_run.run(self.pace)
        finally:
            self.rows += group_run.build_rows(number, reference=group[0].name)


def run_bench(
    encodings: Sequence[Sequence[Choice]],
    options: BenchOptions,
    *,
    against: Sequence[Choice] | None = None,
    command: str = "",
) -> BenchResult:
    """Measure, and write the files of the output folder.

    Args:
        encodings: Chains of encodings; empty for every registered encoding, or for none if options
            of scores or layers of recipes are measured.
        options: The options.
        against: The chain that is the reference; by default that of the shape.
        command: What the result records as the command that repeats it.

    Returns:
        The result. Its `problem` names the signal that ended it early, or why it was not written.

    Raises:
        RecipeError: An option does not fit the machine, or an encoding does not fit the shape;
            nothing was measured.
    """
    workload = _build_workload(options)
    check_denormals(workload.device)
    lengths = _list_lengths(options) or (workload.shape.length,)
    measures = _build_measures(options, workload)

    scores = (options.scores,) if isinstance(options.scores, str) else options.scores
    layers = load_layers(options.layers)
    contenders, excluded = choose_contenders(encodings, against, workload, lengths, scores, layers)
    # before hours of measuring: a folder that cannot be written is reported now
    folder = prepare_folder(options.to)
    if options.peers:
        contenders += build_peers(workload.shape, [contender.name for contender in contenders])

    benchmark = Benchmark(
        form_groups(contenders, contenders[0].name, options.together),
        measures,
        lengths,
        workload,
        Pace(rounds=options.rounds, seconds=options.seconds, warmup=options.warmup),
        Ticker(),
    )
    with stop_on_signal() as received:
        benchmark.run()
    benchmark.tell("")

    result = BenchResult(
        zoo_version=__version__,
        command=command,
        created=format_now(),
        machine={
            **describe_machine(workload.device),
            "flushes_denormals": are_denormals_flushed(),
            "peers": read_versions(contenders),
        },
        shape={"name": options.shape, **asdict(workload.shape)},
        options={**asdict(options), "against": format_chain(against) if against else None},
        reference=contenders[0].name,
        excluded=excluded,
        rows=tuple(benchmark.rows),
        partial=bool(received),
        problem=_describe_stop(received[0]) if received else None,
    )
    try:
        write_result(result, folder)
    except OSError as error:
        # the numbers are nowhere else
        failure = ZooError(f"{error.filename or folder}: {error.strerror or error}")
        return replace(result, problem=failure)
    return result


def _describe_stop(signal: Signals) -> Stopped:
    return Stopped(signal, f"stopped by {signal.name}; what was measured before is written")


def form_groups(
    contenders: Sequence[Contender], reference: str, together: int
) -> list[list[Contender]]:
    """Divide contenders into groups, each of which begins with the reference.

    Models of other libraries are in the group of the model that they are compared with. A group
    exceeds `together` only if one model and its counterparts do.
    """
    base = next(contender for contender in contenders if contender.name == reference)
    models = [
        contender
        for contender in contenders
        if contender.counterpart is None and contender is not base
    ]
    # each group has the reference, since ratios of different groups cannot be compared
    groups = [[base, *_list_peers(contenders, reference)]]
    for contender in models:
        party = [contender, *_list_peers(contenders, contender.name)]
        if len(groups[-1]) > 1 and len(groups[-1]) + len(party) > together:
            groups.append([base])
        groups[-1] += party
    return groups


def _list_peers(contenders: Sequence[Contender], name: str) -> list[Contender]:
    return [contender for contender in contenders if contender.counterpart == name]


def _build_workload(options: BenchOptions) -> Workload:
    shape = SHAPES[options.shape]
    shape = replace(
        shape,
        batch=shape.batch if options.batch is None else options.batch,
        precision=shape.precision if options.precision is None else options.precision,
        compile=shape.compile if options.compile is None else options.compile,
    )
    has_gpu, device = torch.cuda.is_available(), options.device
    if device == "cuda" and not has_gpu:
        hint = Message("write ", Setting("device", "cpu"))
        raise RecipeError(ConfigIssue(ARGUMENT, "device", "torch finds no GPU here", hint))
    if device == "auto":
        device = "cuda" if has_gpu else "cpu"
    return Workload(shape=shape, device=device, jitter=options.jitter)


def _list_lengths(options: BenchOptions) -> tuple[int, ...]:
    lengths = options.lengths
    return tuple(sorted({lengths} if isinstance(lengths, int) else {*(lengths or ())}))


def _build_measures(options: BenchOptions, workload: Workload) -> list[BenchMeasure]:
    names = options.measures
    names = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    if not names:
        raise RecipeError(
            ConfigIssue(
                ARGUMENT,
                "measures",
                "the list is empty",
                "choose from train, memory, decode, layer",
            )
        )
    if options.layers and "layer" in names:
        raise RecipeError(
            ConfigIssue(
                ARGUMENT,
                "measures",
                "layer measures one layer, and the layers of a recipe differ",
                Message("remove layer, or leave out ", Setting("layers")),
            )
        )
    if "decode" in names and workload.shape.kind != "text":
        raise RecipeError(
            ConfigIssue(
                ARGUMENT,
                "measures",
                "images are not decoded",
                Message("remove decode, or write ", Setting("shape", "lm_small")),
            )
        )

    measures: dict[str, list[BenchMeasure]] = {
        "train": [TrainMeasure(workload.shape.unit)],
        "memory": [MemoryMeasure()],
        "decode": [DecodeMeasure(prompt=options.prompt, tokens=options.tokens)],
        "layer": [LayerMeasure()],
    }
    if options.contexts:
        runs = options.rounds + options.warmup + 1
        measures["decode"] += [
            ContextMeasure(contexts=options.contexts, steps=CONTEXT_STEPS, runs=runs),
            CacheMeasure(contexts=options.contexts),
        ]
    return [measure for name in names for measure in measures[name]]


def _describe_error(error: Exception) -> str:
    """Describe an error in one line."""
    if is_out_of_memory(error):
        return "out of memory"
    message = str(error).strip().partition("\n")[0]
    return message if isinstance(error, OptionError) else f"{type(error).__name__}: {message}"


@contextmanager
def _compile_freely() -> Iterator[None]:
    """Reset the compiler's limits, so that it compiles every model of a group."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=MAX_GRAPHS, fail_on_recompile_limit_hit=True):
        yield


def _free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
