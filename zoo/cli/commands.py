"""The table of commands: their help, and what reads their words and does their work.

A command that calls a function of `zoo.api` and prints its result is an entry here. One that does
more has a file with `COMMAND`, which the table names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.cli.terminal import print_text
from zoo.cli.words import (
    Call,
    list_audit_packages,
    list_export_packages,
    list_weight_packages,
    read_export,
    read_folder,
    read_folders,
    read_run,
    read_runs,
    read_weights,
)
from zoo.packages import EXTRAS
from zoo.reporting.numbers import as_json
from zoo.utils import escape_text

if TYPE_CHECKING:
    from zoo.api.evaluation import Diagnosis
    from zoo.formats.convert import ConvertResult
    from zoo.formats.export import ExportResult


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its help, and what reads its words and does its work.

    Attributes:
        summary: What it does, for `zoo --help`.
        example: A line of it that can be copied.
        add_arguments: Adds its arguments to a parser.
        run: Does the work and prints the result.
        read: Reads the words without importing torch or optional packages. Raises RecipeError where
            one is wrong.
        list_packages: Returns the optional packages that it needs for its words, for hints. The
            command itself requires them after it has found the files of the user.
        options: The dataclasses of its `key=value` options for `--help`, each with the section that
            precedes the keys: ("trainer.", "module:Class").
        is_recorded: Whether its results name the command line that repeats it.
        passing: Options of a single call, which that command line leaves out.
        prints_json: Whether it can print JSON.
        computes: Whether it trains, evaluates or measures models.
    """

    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    read: Callable[[argparse.Namespace], object] | None = None
    list_packages: Callable[[argparse.Namespace], Sequence[str]] | None = None
    options: tuple[tuple[str, str], ...] = ()
    is_recorded: bool = False
    passing: tuple[str, ...] = ()
    prints_json: bool = False
    computes: bool = False


class Argument(NamedTuple):
    """An argument that is no flag: its name in the parsed words, and its help."""

    name: str
    metavar: str
    help: str
    nargs: str | None = None
    type: Callable[[str], Any] = str


def build_command(
    summary: str,
    *,
    example: str,
    arguments: Sequence[Argument],
    options: str,
    read: Callable[[argparse.Namespace, str], Call],
    function: str,
    format_text: Callable[[Any], str] | None = None,
    list_packages: Callable[[argparse.Namespace], Sequence[str]] | None = None,
    computes: bool = False,
    is_recorded: bool = False,
) -> Command:
    """Build a command that calls a function of `zoo.api` and prints what it returns.

    Args:
        summary: What it does, for `zoo --help`.
        example: A line of it that can be copied.
        arguments: The arguments that are no flags.
        options: The dataclass of its options, `module:Class`.
        read: Returns the call for the parsed words and that dataclass.
        function: What is called, `module:function`.
        format_text: Returns the text of a result; by default its `table`.
        list_packages: Returns the optional packages that it needs.
        computes: Whether it trains, evaluates or measures models.
        is_recorded: Whether its results name the command line that repeats it.
    """

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        for argument in arguments:
            parser.add_argument(
                argument.name,
                metavar=argument.metavar,
                help=argument.help,
                nargs=argument.nargs,
                type=argument.type,
            )

    def read_words(args: argparse.Namespace) -> Call:
        return read(args, options)

    def run(args: argparse.Namespace) -> None:
        call = read_words(args)
        module, _, name = function.partition(":")
        result = getattr(import_module(module), name)(*call.arguments, verbose=None, **call.options)
        print_result(result, args, format_text)

    return Command(
        summary=summary,
        example=example,
        add_arguments=add_arguments,
        run=run,
        read=read_words,
        list_packages=list_packages,
        options=(("", options),),
        prints_json=True,
        computes=computes,
        is_recorded=is_recorded,
    )


def print_result(
    result: Any, args: argparse.Namespace, format_text: Callable[[Any], str] | None = None
) -> None:
    """Print a result as text, or as JSON if asked, then raise its problem.

    Args:
        result: A result of `zoo.api`.
        args: The parsed arguments.
        format_text: Returns its text; by default its `table`.

    Raises:
        ZooError: The `problem` of the result, if it has one.
    """
    if args.json:
        print(as_json(result.to_dict()), flush=True)
    elif format_text is not None:
        print(format_text(result), flush=True)
    else:
        print_text(result.table())
    # last, since the results without a problem are printed nowhere else
    error = getattr(result, "problem", None)
    if error is not None:
        raise error


def _format_export(result: ExportResult) -> str:
    return escape_text(f"{result.folder}: {', '.join(result.files)}")


def _format_conversion(result: ConvertResult) -> str:
    return escape_text(f"{result.run}: {result.weights} weights")


def _format_diagnosis(result: Diagnosis) -> str:
    return escape_text(str(result.path))


RUNS = (
    Argument("overrides", "RUN|key=value", "runs or checkpoints, and the options below", nargs="*"),
)
COMPARISON = (
    Argument("folder", "DIR", "the output folder of a comparison"),
    Argument("overrides", "key=value", "options", nargs="*"),
)

COMMANDS: Mapping[str, Command | str] = MappingProxyType(
    {
        "fit": "zoo.cli.fit",
        "eval": "zoo.cli.eval",
        "generate": "zoo.cli.generate",
        "predict": "zoo.cli.predict",
        "diagnose": build_command(
            "write a page about the attention of trained models",
            example="zoo diagnose runs/vit_comrope/latest samples=8",
            arguments=RUNS,
            options="zoo.diagnosis.diagnose:DiagnoseOptions",
            read=read_runs,
            function="zoo.api.evaluation:diagnose",
            format_text=_format_diagnosis,
            # draw the page
            list_packages=lambda _: EXTRAS["compare"],
            computes=True,
        ),
        "atlas": build_command(
            "map what heads, frequencies and layers of trained models do with positions",
            example="zoo atlas zoo:lm_rope zoo:lm_fox to=atlas",
            arguments=RUNS,
            options="zoo.diagnosis.atlas:AtlasOptions",
            read=read_runs,
            function="zoo.api.evaluation:atlas",
            # draw the page
            list_packages=lambda _: EXTRAS["compare"],
            computes=True,
        ),
        "bench": "zoo.cli.bench",
        "compare": "zoo.cli.compare",
        "compare rebuild": build_command(
            "write table, page and figures of a comparison again, without training",
            example="zoo compare rebuild comparisons/vit_comrope-1a2b3c4d measure=loss",
            arguments=COMPARISON,
            options="zoo.api.comparison:RebuildOptions",
            read=read_folder,
            function="zoo.api.comparison:rebuild_comparison",
            is_recorded=True,
            # draw the figures
            list_packages=lambda _: EXTRAS["compare"],
        ),
        "compare rank": build_command(
            "rank the variants that several comparisons have, each of which is a task",
            example="zoo compare rank comparisons/flipflop comparisons/recall to=overall",
            arguments=[
                Argument(
                    "overrides",
                    "DIR|key=value",
                    "output folders of comparisons, or their files results.json; and options",
                    nargs="+",
                )
            ],
            options="zoo.api.comparison:RankOptions",
            read=read_folders,
            function="zoo.api.comparison:rank_comparisons",
            is_recorded=True,
            list_packages=lambda _: EXTRAS["compare"],
        ),
        "compare merge": build_command(
            "join the finished cells of comparisons of one recipe, trained on several machines",
            example="zoo compare merge here/flipflop there/flipflop to=docs/records/flipflop",
            arguments=[
                Argument(
                    "overrides",
                    "DIR|key=value",
                    "output folders of comparisons; and options",
                    nargs="+",
                )
            ],
            options="zoo.api.comparison:PackOptions",
            read=read_folders,
            function="zoo.api.comparison:merge_comparisons",
            list_packages=lambda _: EXTRAS["compare"],
        ),
        "compare pack": build_command(
            "write plan, finished cells and results of a comparison into a folder to be committed",
            example="zoo compare pack comparisons/flipflop_rope-1a2b3c4d to=docs/records/flipflop",
            arguments=COMPARISON,
            options="zoo.api.comparison:PackOptions",
            read=read_folder,
            function="zoo.api.comparison:pack_comparison",
            # computes the intervals; figures are not packed
            list_packages=lambda _: ("scipy",),
        ),
        "compare check": build_command(
            "train one finished cell again, drawn by chance, and compare it with the recorded one",
            example="zoo compare check docs/records/flipflop",
            arguments=COMPARISON,
            options="zoo.api.comparison:CheckOptions",
            read=read_folder,
            function="zoo.api.comparison:check_comparison",
            computes=True,
        ),
        "compare claims": build_command(
            "judge the hypotheses of a comparison, and state what its task could have shown",
            example="zoo compare claims comparisons/flipflop to=published",
            arguments=COMPARISON,
            options="zoo.api.comparison:ClaimsOptions",
            read=read_folder,
            function="zoo.api.comparison:judge_comparison",
            # computes the intervals; a page needs more
            list_packages=lambda _: ("scipy",),
        ),
        "launch": "zoo.cli.launch",
        "convert": build_command(
            "convert published weights to a run with a recipe of its own",
            example="zoo convert SmolLM2-135M to=smollm",
            arguments=[
                Argument(
                    "source",
                    "FOLDER|FILE",
                    "a folder with config.json and safetensors: Llama, Mistral, Qwen2, Qwen3, "
                    "Phi-3, SmolLM3, OLMo 2 and 3, Gemma 2 and 3, Cohere 2, GPT-2, BERT, ViT, "
                    "DINOv3, or of zoo export to=hf; or a file: GGUF, or RoPE-ViT; or a "
                    "checkpoint that is a folder of shards, which becomes one file",
                    type=Path,
                ),
                Argument(
                    "overrides", "key=value", "the options below, and keys of the recipe", nargs="*"
                ),
            ],
            options="zoo.formats.convert:ConvertOptions",
            read=read_weights,
            function="zoo.api.tools:convert",
            format_text=_format_conversion,
            list_packages=list_weight_packages,
        ),
        "export": build_command(
            "export a trained model to a format that other programs read",
            example="zoo export runs/lm_rope/latest to=hf FOLDER",
            arguments=[
                Argument(
                    "checkpoint",
                    "RUN|CHECKPOINT",
                    "a run directory, RUN/last, RUN/best or a checkpoint file",
                ),
                Argument(
                    "overrides",
                    "FOLDER|key=value",
                    "the folder to write, the options below, and keys of the recipe",
                    nargs="*",
                ),
            ],
            options="zoo.formats.targets:ExportOptions",
            read=read_export,
            function="zoo.api.tools:export",
            format_text=_format_export,
            list_packages=list_export_packages,
        ),
        "verify": "zoo.cli.verify",
        "audit": build_command(
            "ask a model of transformers whether padding, caches, packing and shifts change it",
            example="zoo audit SmolLM2-135M 'laws=[cache,packing]'",
            arguments=[
                Argument(
                    "folder",
                    "FOLDER|RUN|URL",
                    "a folder with config.json, with or without weights, a run or a checkpoint of "
                    "zoo, or the address of a server with log-probabilities, as http://HOST/v1",
                ),
                Argument("overrides", "key=value", "options", nargs="*"),
            ],
            options="zoo.auditing.model_folder:AuditOptions",
            read=read_folder,
            function="zoo.api.audit:audit",
            list_packages=list_audit_packages,
            computes=True,
        ),
        "extend": build_command(
            "test ways to a longer context side by side, from one trained model",
            example="zoo extend zoo:lm_rope to=4x steps=50",
            arguments=[
                Argument(
                    "checkpoint",
                    "RUN|CHECKPOINT",
                    "a run directory, RUN/last, RUN/best or a checkpoint file",
                ),
                Argument(
                    "overrides",
                    "key=value",
                    "the options below, and keys of the stored recipe",
                    nargs="*",
                ),
            ],
            options="zoo.evaluation.extend:ExtendOptions",
            read=read_run,
            function="zoo.api.evaluation:extend",
            # draw the figure
            list_packages=lambda _: EXTRAS["compare"],
            computes=True,
        ),
        "list": "zoo.cli.list",
        "show": "zoo.cli.show",
        "diff": "zoo.cli.diff",
        "new": "zoo.cli.new",
        "doctor": "zoo.cli.doctor",
    }
)
"""{name: the command, or the file that has it}, in the order of `zoo --help`."""
