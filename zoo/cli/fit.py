"""`zoo fit`: train a recipe, then test its best checkpoint."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.commands import Command
from zoo.cli.hints import log_next, write_command, write_tensorboard
from zoo.cli.main import is_secondary_process, suggest_command
from zoo.errors import ConfigIssue, RecipeError
from zoo.reporting.numbers import as_json

if TYPE_CHECKING:
    from zoo.config import Recipe

log = logging.getLogger("zoo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file or a registered name")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help=f"keys of the recipe; {write_command('show', 'RECIPE')} prints all of them",
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="run directory; by default runs/RECIPE/TIME-HASH",
    )
    parser.add_argument(
        "--resume",
        default="never",
        metavar="auto|never|PATH",
        help="resume the latest run (auto), or a run or checkpoint",
    )
    parser.add_argument(
        "--accept-changes",
        action="append",
        default=[],
        metavar="KEY",
        help="resume although this key differs from the checkpoint's: data.batch_size or "
        "data.global_batch_size",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait while another process trains in the run directory, instead of failing",
    )


def read(args: argparse.Namespace) -> Recipe:
    """Return the recipe. Raises RecipeError where it or an argument is wrong."""
    from zoo.config import load
    from zoo.config.command_line import parse_overrides
    from zoo.config.tree import collect_issues
    from zoo.run.accepted_changes import check_accepted

    issues: list[ConfigIssue] = []
    recipe = None
    if args.accept_changes:
        with collect_issues(issues):
            check_accepted(args.accept_changes, args.resume)
    with collect_issues(issues):
        recipe = load(args.recipe, parse_overrides(args.overrides))
    if recipe is None or issues:
        raise RecipeError(*issues)
    return recipe


def run(args: argparse.Namespace) -> None:
    """Train, and print the result as JSON if asked."""
    from zoo.api.training import fit

    run = fit(
        read(args),
        run_dir=args.run_dir,
        resume=args.resume,
        accept_changes=args.accept_changes,
        wait=args.wait,
        verbose=None,
    )
    if run.interrupt is not None:
        raise run.interrupt
    result = run.outcome
    # one of several processes reports the result
    if result is None or is_secondary_process():
        return
    steps = [suggest_command(name, str(result.run)) for name in ("eval", "diagnose")]
    has_events = Path(result.run, "tensorboard").is_dir()
    if has_events:
        steps.append(write_tensorboard(result.run))
    log_next(*steps)
    names = {name for row in run.history() for name in row}
    if has_events and any(name.startswith("attention/") for name in names):
        log.info(
            "TensorBoard has attention diagnostics: tab Custom Scalars shows each measure over the "
            "steps, with a line for each layer, tab Images where heads look"
        )
    if args.json:
        print(as_json(result.to_dict()))


COMMAND = Command(
    summary="train a recipe, then test its best checkpoint",
    example="zoo fit vit_comrope model.encoding=liere model.dim=192 seed=1",
    add_arguments=add_arguments,
    run=run,
    read=read,
    options=(
        ("trainer.", "zoo.config.schema:TrainerOptions"),
        ("diagnostics.", "zoo.config.schema:DiagnosticsOptions"),
    ),
    prints_json=True,
    computes=True,
)
