"""`zoo bench`: what each encoding costs on this machine, against plain attention and against other libraries."""

from __future__ import annotations

import reprlib
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from signal import Signals
from typing import Annotated, Literal

import torch

from zoo import __version__
from zoo.bench import outputs
from zoo.bench.contenders import choose_contenders, list_contenders
from zoo.bench.measures import (
    ContextMeasure,
    DecodeMeasure,
    LayerMeasure,
    MemoryMeasure,
    TrainMeasure,
)
from zoo.bench.outputs import make_folder
from zoo.bench.peers.installed import build_peers as peers
from zoo.bench.peers.installed import read_versions
from zoo.bench.protocol import SHAPES, BenchMeasure, Contender, Precision, Setting
from zoo.bench.result import Result, describe_machine
from zoo.bench.runner import Benchmark, Pace, form_groups
from zoo.config.command_line import parse_options
from zoo.config.tree import COMMAND_LINE, collect_issues
from zoo.errors import ConfigIssue, RecipeError
from zoo.registry import Between, nearest
from zoo.utils.dates import format_now
from zoo.utils.signals import stop_on_signal
from zoo.utils.ticker import Ticker

MOST = (
    2**24
)  # tokens, pixels, samples or rounds: more than any machine has, and few enough to multiply
Count = Annotated[int, Between(1, MOST)]
Name = Literal["train", "memory", "decode", "layer"]


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What `zoo bench` measures and how; None for what the shape says."""

    measures: tuple[Name, ...] | Name = ("train", "memory")
    against: str | None = (
        None  # an encoding, or a list of them written with +; None: none for images, rope for texts
    )
    rounds: Count = 5  # at least
    seconds: Annotated[float, Between(0)] = 0.0  # more rounds while those of a group took less
    warm: Annotated[int, Between(0, MOST)] = 1  # rounds before, which do not count
    together: Annotated[int, Between(2)] = (
        8  # models that are held at once and take turns, the reference among them
    )
    batch: Count | None = None
    precision: Precision | None = None
    compile: bool | None = None
    jitter: Annotated[float, Between(0)] = 0.0  # of places in training
    peers: bool = True  # whether other libraries are compared with, where they are installed
    prompt: Count = 512  # tokens, of `decode`
    tokens: Count = 256
    contexts: tuple[Count, ...] = (256, 4096)  # where `decode` measures single tokens too
    to: str = "bench"  # the folder of bench.json, bench.md and bench.png


def bench(
    words: Sequence[str], shape: str, device: str, lengths: str | None, plugins: Sequence[str]
) -> tuple[Result, Signals | None]:
    """Measure, and write the files; a result is `partial` where a signal stopped it. What can be wrong is told before."""
    told = [word for word in words if "=" in word and word.partition("=")[0].isidentifier()]
    names = [word for word in words if word not in told]
    options = _checked(told, names, shape, device, lengths)
    setting = _setting(options, shape, device)
    sizes = _lengths(lengths) or (setting.shape.length,)
    measures = _measures(options, setting)
    chosen, left_out = choose_contenders(names, options.against, setting, sizes)
    folder = make_folder(options.to)
    if options.peers:
        chosen += peers(setting.shape, [one.name for one in chosen])
    comparison = Benchmark(
        form_groups(chosen, chosen[0].name, options.together),
        measures,
        sizes,
        setting,
        Pace(rounds=options.rounds, seconds=options.seconds, warmup=options.warm),
        Ticker(),
    )
    with stop_on_signal() as received:
        comparison.run()
    comparison.tell("")
    result = _result(
        _command(words, shape, device, lengths, plugins),
        options,
        shape,
        setting,
        chosen,
        left_out,
        comparison,
        bool(received),
    )
    outputs.write(result, folder)
    return result, next(iter(received), None)


def _checked(
    told: Sequence[str], names: Sequence[str], shape: str, device: str, lengths: str | None
) -> BenchOptions:
    """The options. Raises RecipeError with all that is wrong by itself, before what does not go together."""
    faults: list[ConfigIssue] = []
    options = BenchOptions()
    with collect_issues(faults):
        options = BenchOptions(**parse_options(told, [BenchOptions])[0])
    with collect_issues(faults):
        _check_shape(shape)
    with collect_issues(faults):
        _check_device(device)
    with collect_issues(faults):
        _lengths(lengths)
    with collect_issues(faults):
        list_contenders(names)
    if faults:
        raise RecipeError(*faults)
    return options


def _check_shape(name: str) -> None:
    if name not in SHAPES:
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE, "--shape", f"there is no shape {name!r}", nearest(name, SHAPES)
            )
        )


def _check_device(device: str) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE,
                "--device",
                f"there is no device {device!r}",
                "known are auto, cpu, cuda",
            )
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "--device", "torch finds no GPU here", "write --device cpu")
        )


def _setting(options: BenchOptions, name: str, device: str) -> Setting:
    told = {"batch": options.batch, "precision": options.precision, "compile": options.compile}
    shape = replace(
        SHAPES[name],
        **{key: value for key, value in told.items() if value is not None},  # type: ignore[arg-type]
    )
    found = "cuda" if torch.cuda.is_available() else "cpu"
    return Setting(shape=shape, device=found if device == "auto" else device, jitter=options.jitter)


def _command(
    words: Sequence[str], shape: str, device: str, lengths: str | None, plugins: Sequence[str]
) -> str:
    """What repeats it."""
    flags = ["--shape", shape, "--device", device, *(["--lengths", lengths] if lengths else [])]
    flags += [word for plugin in plugins for word in ("--plugin", plugin)]
    return shlex.join(["zoo", "bench", *words, *flags])


def _lengths(text: str | None) -> tuple[int, ...]:
    words = [] if text is None else text.split(",")
    if not all(
        word.strip().isdecimal() and len(word) < 10 and 1 <= int(word) <= MOST for word in words
    ):
        remedy = "write whole numbers with commas between: --lengths 512,1024,4096"
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE,
                "--lengths",
                f"{reprlib.repr(text)} is no list of lengths from 1 to {MOST}",
                remedy,
            )
        )
    return tuple(sorted({int(word) for word in words}))


def _measures(options: BenchOptions, setting: Setting) -> list[BenchMeasure]:
    names = (
        (options.measures,)
        if isinstance(options.measures, str)
        else tuple(dict.fromkeys(options.measures))
    )
    if not names:
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE, "measures", "a list of none", "known are train, memory, decode, layer"
            )
        )
    if "decode" in names and setting.shape.kind != "text":
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE,
                "measures",
                "images are not decoded",
                "leave decode out, or choose lm_small",
            )
        )
    runs = options.rounds + options.warm + 1
    known: dict[str, list[BenchMeasure]] = {
        "train": [TrainMeasure(setting.shape.unit)],
        "memory": [MemoryMeasure()],
        "decode": [DecodeMeasure(prompt=options.prompt, tokens=options.tokens)],
        "layer": [LayerMeasure()],
    }
    if options.contexts:
        known["decode"].append(ContextMeasure(contexts=options.contexts, steps=16, runs=runs))
    return [measure for name in names for measure in known[name]]


def _result(
    command: str,
    options: BenchOptions,
    name: str,
    setting: Setting,
    chosen: Sequence[Contender],
    left_out: dict[str, str],
    comparison: Benchmark,
    partial: bool,
) -> Result:
    return Result(
        zoo=__version__,
        command=command,
        made=format_now(),
        machine={**describe_machine(setting.device), "peers": read_versions(chosen)},
        shape={"name": name, **asdict(setting.shape)},
        options=asdict(options),
        against=chosen[0].name,
        left_out=left_out,
        rows=tuple(comparison.rows),
        partial=partial,
    )
