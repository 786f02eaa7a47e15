"""Train, evaluate and diagnose with overrides written as on the command line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo import config
from zoo.cli.words import split_paths
from zoo.config.command_line import parse_options, parse_overrides, split_words
from zoo.diagnosis.diagnose import DiagnoseOptions, diagnose_runs
from zoo.diagnosis.report import Report
from zoo.evaluation import evaluate as evaluation
from zoo.evaluation.results import Evaluation
from zoo.run import fit as training


def fit(
    recipe: str, words: Sequence[str] = (), run: Path | None = None, resume: str = "never"
) -> dict[str, Any]:
    """Train a recipe; return what `zoo fit --json` prints."""
    return training.fit(config.load(recipe, parse_overrides(words)), run, resume).to_dict()


def evaluate(checkpoint: str | Path, words: Sequence[str] = ()) -> Evaluation:
    """Evaluate a checkpoint."""
    return evaluation.evaluate(checkpoint, parse_overrides(words))


def diagnose(*words: str) -> tuple[Report, Path]:
    """Diagnose runs; return the report and the path of its page."""
    names, changes = split_paths(words)
    own, overrides = split_words(changes, [DiagnoseOptions])
    options = DiagnoseOptions(**parse_options(own, [DiagnoseOptions])[0])
    return diagnose_runs(names, options, parse_overrides(overrides))
