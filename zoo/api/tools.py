"""Measure, verify, export and convert from Python, as the commands of these names do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from zoo.api.calls import COMMAND
from zoo.api.guard import guard, log_problem
from zoo.benchmark.result import BenchResult
from zoo.config.arguments import read_chain, read_encodings, validate_options
from zoo.config.overrides import Overrides
from zoo.config.tree import collect_issues
from zoo.errors import ConfigIssue, RecipeError
from zoo.options import ChainSpec
from zoo.packages import explain_imports

if TYPE_CHECKING:
    import os

    from zoo.formats.convert import ConvertResult
    from zoo.formats.export import ExportResult
    from zoo.laws.run import VerifyResult


class BenchKeywords(TypedDict, total=False):
    """Options of `zoo.bench`, as `zoo bench --help` describes them."""

    shape: str
    device: Literal["auto", "cpu", "cuda"]
    lengths: int | Sequence[int] | None
    measures: str | Sequence[str]
    scores: str | Sequence[str]
    layers: Sequence[str]
    rounds: int
    seconds: float
    warmup: int
    together: int
    batch: int | None
    precision: Literal["32-true", "bf16-mixed"] | None
    compile: bool | None
    jitter: float
    peers: bool
    prompt: int
    tokens: int
    contexts: Sequence[int]
    to: str | Path


class BenchmarkResult(BenchResult):
    """The result of a benchmark, with what papers and notebooks need of it."""

    def table(self) -> str:
        """Return the text that `zoo bench` prints."""
        from zoo.benchmark.report import format_result

        return format_result(self)

    def latex(self, *, intervals: bool = False) -> str:
        """Return the table for LaTeX, as table.tex has it.

        Args:
            intervals: Whether it has the quartiles of the ratios.
        """
        from zoo.benchmark.report import build_result_table
        from zoo.reporting.tables import format_latex

        return format_latex(build_result_table(self), intervals=intervals)

    def chart(self) -> Any:
        """Return the chart of bench.png, which a notebook shows and altair can change."""
        with explain_imports():
            from zoo.benchmark.plots import draw_result
            from zoo.reporting import charts

        return charts.finish(draw_result(self))


@guard
def bench(
    encodings: ChainSpec | Sequence[ChainSpec] = (),
    *,
    against: ChainSpec | None = None,
    verbose: bool | None = True,
    **options: Unpack[BenchKeywords],
) -> BenchmarkResult:
    """Measure time and memory of encodings on this machine, side by side.

    All models take turns, and ratios are taken within rounds, so that a machine that changes its
    pace changes it for all of them. An interrupt (Ctrl+C) ends the benchmark early and returns what
    was measured.

    Args:
        encodings: Names, mappings with options, or lists of these, each of which is a chain; by
            default every registered encoding, or none if `scores` or `layers` are given.
        against: The reference; by default none for images and rope for text.
        verbose: Print progress to standard error. None leaves logging to the caller.
        **options: Options as of `zoo bench`: shape, device, lengths, measures, scores, layers,
            rounds, seconds, warmup, together, batch, precision, compile, jitter, peers, prompt,
            tokens, contexts, to.

    Returns:
        The result, which is also written to the folder `to`: numbers, tables and figure. Its
        `problem` says what has interrupted it, or why it could not be written.

    Raises:
        RecipeError: An option or an encoding is wrong; nothing was measured.
    """
    from zoo.benchmark.models import load_layers
    from zoo.benchmark.runner import BenchOptions, run_bench

    issues: list[ConfigIssue] = []
    # all arguments are read before anything is raised, so that one error names all faults
    chosen, reference = BenchOptions(), None
    with collect_issues(issues):
        chosen = validate_options(BenchOptions, options, ("encodings", "against"))
        load_layers(chosen.layers)
    with collect_issues(issues):
        chains = read_encodings(encodings)
    with collect_issues(issues):
        reference = None if against is None else read_chain(against, "against")
    if issues:
        raise RecipeError(*issues)
    result = run_bench(chains, chosen, against=reference, command=COMMAND.get())
    log_problem(result.problem, verbose)
    return BenchmarkResult(**{field.name: getattr(result, field.name) for field in fields(result)})


@guard
def verify(
    encodings: ChainSpec | Sequence[ChainSpec] | None = None,
    *,
    axes: int | Sequence[int] | None = None,
    laws: Sequence[str] | None = None,
    to: str | Path | None = None,
    verbose: bool | None = True,
) -> VerifyResult:
    """Check encodings against the laws that every encoding keeps.

    Args:
        encodings: Names, mappings with options, or lists of these, each of which is a chain. None
            for every registered encoding.
        axes: Numbers of axes to verify; by default all that the encoding accepts.
        laws: Names of laws to check; by default all laws, and the rounding errors of scores.
        to: Folder for certificates, one NAME.json per encoding.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        A certificate for each encoding. Its `raise_if_broken` fails if a law is broken.

    Raises:
        RecipeError: An option or an encoding is wrong; nothing was checked.
    """
    from zoo.laws.run import VerifyOptions, run_laws, select_laws

    issues: list[ConfigIssue] = []
    chosen, chains = VerifyOptions(), None
    with collect_issues(issues):
        chosen = validate_options(VerifyOptions, {"axes": axes, "laws": laws, "to": to})
        select_laws(chosen.laws)
    with collect_issues(issues):
        chains = None if encodings is None else read_encodings(encodings)
    if issues:
        raise RecipeError(*issues)
    return run_laws(chains, chosen, command=COMMAND.get())


@guard
def export(
    run: str | os.PathLike[str],
    folder: str | Path,
    to: str,
    overrides: Overrides = (),
    *,
    features: Sequence[int] = (),
    push: str | None = None,
    dtype: str | None = None,
    licence: str | None = None,
    verbose: bool | None = True,
) -> ExportResult:
    """Write a trained model in a format that other programs read.

    Args:
        run: A run, a run directory or a checkpoint.
        folder: The folder to write; it must not exist, or be empty.
        to: The format: "hf", "hub_folder", "llama", "vit", "onnx", "safetensors" or
            "torch_export".
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        features: For "onnx" and "torch_export", numbers of blocks of a vision transformer from 0;
            the graph then computes the maps of patches after them in place of logits.
        push: A new repository of the Hugging Face Hub, "owner/name", that the folder is uploaded
            to.
        dtype: Of "hub_folder", how weights are stored: "float32", the default, or "float16".
        licence: Of "hub_folder", the licence of the weights as the Hub names it.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The folder and its files.

    Raises:
        RecipeError: The folder exists, or the recipe does not fit the format.
        CheckpointError: As of `zoo.load`.
        PackageError: A package that the format needs is missing.
    """
    from zoo.formats.export import export_model
    from zoo.formats.targets import ExportOptions

    values = {"to": to, "features": features, "push": push, "dtype": dtype, "licence": licence}
    options = validate_options(ExportOptions, values)
    return export_model(run, Path(folder), options, overrides)


@guard
def convert(
    source: str | Path,
    overrides: Overrides = (),
    *,
    to: str | Path | None = None,
    verbose: bool | None = True,
) -> ConvertResult:
    """Convert published weights to a run directory: recipe, environment and checkpoint.

    Where transformers is installed, its outputs are compared with those of the model.

    Args:
        source: A folder with config.json and safetensors: Llama, Mistral, Qwen2, Qwen3, Phi-3,
            SmolLM3, OLMo 2 and 3, Gemma 2 and 3, Cohere 2, GPT-2, BERT, ViT, DINOv3, or what
            `zoo.export` wrote for "hf"; or a file: GGUF of such a decoder, or RoPE-ViT; or a
            checkpoint that is a folder of shards, which becomes one file.
        overrides: Changes of the recipe, as of `zoo.fit`.
        to: The run directory to write; by default a new one, runs/NAME/TIME-HASH.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The run directory, its checkpoint, the names of weights that were left out, and the
        difference from transformers.

    Raises:
        RecipeError: An override is wrong, or the run directory exists.
        CheckpointError: The weights are unreadable, not those of a model that zoo has, or
            transformers computes something else from them.
    """
    from zoo.formats.convert import ConvertOptions, convert_weights

    options = validate_options(ConvertOptions, {"to": to})
    return convert_weights(Path(source), options, overrides)
